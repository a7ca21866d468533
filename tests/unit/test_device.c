/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's kernels, compiled for the host, against the host's: the same bits for any input,
 * alignment, grid and order of threads. The cases are those that tests/gpu/kernels runs on a
 * device.
 */
#include <sys/mman.h>

#include "double/kernels.h"
#include "gpu/kernels.h"

/* ---- the device ------------------------------------------------------------------------------ */

void *device_alloc(size_t bytes)
{
	return aligned_alloc(256, (bytes + 256) / 256 * 256);
}

void device_free(void *data)
{
	free(data);
}

void upload(void *to, const void *from, size_t bytes)
{
	if (bytes)
		memcpy(to, from, bytes);
}

void download(void *to, const void *from, size_t bytes)
{
	upload(to, from, bytes);
}

void device_set(void *to, unsigned char value, size_t bytes)
{
	memset(to, value, bytes);
}

void synchronise(void)
{
}

/* Some grid, in some order. */
size_t kernels_blocks(size_t count)
{
	static const size_t blocks[] = {1, 2, 3, 5, 8, 37};

	(void)count;
	return blocks[draw() % 6];
}

void kernels_launch(const char *name, const void *arguments, size_t blocks, unsigned threads)
{
	expect(threads == ZERO_DEVICE_THREADS &&
		       zero_emulate_kernel(name, (unsigned int)blocks, arguments,
					   draw() % 2 ? draw() : 0),
	       "there is no kernel %s", name);
}

/* ---- beyond 2^32 ----------------------------------------------------------------------------- */

/* An array of which only what is touched takes memory. */
static void *far_array(size_t bytes)
{
	void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return data == MAP_FAILED ? NULL : data;
}

/* The last tile, of every length that a kernel may have, and the elements after it. */
static void launch_end(const char *kernel, const void *args, size_t count)
{
	for (size_t tile = 256; tile <= 16384; tile *= 2) {
		const size_t tiles = count / tile + (count % tile != 0);

		if (tiles > 0x7fffffff)
			continue;
		expect(zero_emulate_block(kernel, (unsigned int)tiles, args, 0) &&
			       zero_emulate_block(kernel, (unsigned int)tiles, args,
						  (unsigned int)tiles - 1),
		       "there is no kernel %s", kernel);
	}
}

static void check_beyond_32_bits(void)
{
	const size_t count = ((size_t)1 << 35) + 5003; /* so that groups of 4 are beyond too */
	float *x = far_array(count * sizeof(float)), *y = far_array(count * sizeof(float));
	const struct zero_device_fill fill = {x, count, 0x3f800000, 4};
	const struct zero_device_cast cast = {y, x, count, ZERO_F16, ZERO_F32};
	const struct zero_device_sum sum = {
		.out = y, .own = x, .others = x, .count = count, .n = 2, .from = ZERO_F32};
	const uint16_t *h = (const uint16_t *)y;

	if (!x || !y) {
		printf("no address space for %zu elements\n", count);
		return;
	}
	launch_end("zero_device_fill", &fill, count);
	for (size_t i = count - 500; i < count; i++)
		expect(x[i] == 1, "fill: %zu", i);
	launch_end("zero_device_cast", &cast, count);
	for (size_t i = count - 500; i < count; i++)
		expect(h[i] == 0x3c00, "cast: %zu", i);
	launch_end("zero_device_sum", &sum, count);
	for (size_t i = count - 500; i < count; i++)
		expect(y[i] == 2, "sum: %zu", i);
	munmap(x, count * sizeof(float));
	munmap(y, count * sizeof(float));
}

int main(void)
{
	host = zero_kernels_choose("auto");
	start_drawing();
	longest = 21003;
	check_all();
	check_beyond_32_bits();
	return 0;
}
