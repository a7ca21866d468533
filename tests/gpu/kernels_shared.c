/* SPDX-License-Identifier: Apache-2.0 */
/* Values, arrays and launches of the cases for kernels. */
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include "kernels.h"

uint64_t seed;
const struct zero_kernels *host;
static uint64_t state;

size_t longest = SIZE_MAX;
const size_t counts[COUNTS] = {0,  1,  2,   3,   4,    5,    7,     8,     9,      63,
			       64, 65, 255, 257, 1023, 4099, 21003, 65537, 1000003};
const size_t shifts[SHIFTS] = {0, 1, 3, 8};

enum { GUARD = 256 };

void unexpected(const char *file, int line, const char *what, const char *format, ...)
{
	char text[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "%s:%d: %s: %s; ZERO_TEST_SEED=%llu\n", file, line, what, text,
		(unsigned long long)seed);
	_exit(1);
}

/* ---- values ---------------------------------------------------------------------------------- */

void start_drawing(void)
{
	const char *text = getenv("ZERO_TEST_SEED");

	seed = state = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
	printf("ZERO_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
}

/* SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). */
uint64_t draw(void)
{
	uint64_t x = state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

float unit(void)
{
	return (float)(draw() >> 40) * 0x1p-24F;
}

size_t some_shift(size_t same)
{
	return draw() % 2 ? same : shifts[draw() % SHIFTS];
}

void *memory(size_t bytes)
{
	void *data = malloc(bytes ? bytes : 1);

	expect(data, "no memory for %zu bytes", bytes);
	return data;
}

/* In f32 every exponent is as likely as another; one in 16 is at an end of the range. */
void random_bits(zero_dtype dtype, void *out, size_t count)
{
	static const uint32_t ends[] = {0,          0x80000000, 1,          0x807fffff,
					0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001,
					0x7f800001, 0xff812345, 0x7f7fffff, 0x477fefff,
					0x477ff000, 0x33000000, 0x33000001, 0x387fc000};
	size_t size = zero_dtype_size(dtype);

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = draw();
		uint32_t word = bits >> 60 ? (uint32_t)bits : ends[bits >> 32 & 15];

		memcpy((char *)out + i * size, (char *)&word + (size == 2 && !(bits >> 60) ? 2 : 0),
		       size);
	}
}

void random_values(zero_dtype dtype, void *out, size_t count)
{
	size_t size = zero_dtype_size(dtype);

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = draw();
		double value = ((double)(bits >> 32) - 0x1p31) * 0x1p-31;

		if (bits % 1000 == 0)
			random_bits(dtype, (char *)out + i * size, 1);
		else
			ref_narrow(dtype, ldexp(value, (int)(bits & 15) - 8),
				   (char *)out + i * size);
	}
}

/* ---- arrays ---------------------------------------------------------------------------------- */

struct array array_new(const void *values, size_t bytes, size_t shift)
{
	struct array array = {.bytes = bytes};

	array.block = device_alloc(bytes + shift + 2 * GUARD);
	expect(array.block, "no memory for %zu bytes on the device", bytes);
	array.data = array.block + GUARD + shift;
	device_set(array.block, 0xa5, bytes + shift + 2 * GUARD);
	if (values)
		upload(array.data, values, bytes);
	synchronise();
	return array;
}

void *array_take(struct array *array, const char *what)
{
	size_t before = (size_t)(array->data - array->block), all = before + array->bytes + GUARD;
	unsigned char *block = memory(all);

	download(block, array->block, all);
	synchronise();
	for (size_t i = 0; i < before; i++)
		expect(block[i] == 0xa5, "%s wrote %zu bytes before the array", what, before - i);
	for (size_t i = before + array->bytes; i < all; i++)
		expect(block[i] == 0xa5, "%s wrote %zu bytes behind the array", what,
		       i - before - array->bytes);
	memmove(block, block + before, array->bytes);
	array_free(array);
	return block;
}

void array_free(struct array *array)
{
	device_free(array->block);
	array->block = NULL;
}

/* ---- launches -------------------------------------------------------------------------------- */

void launch(const char *name, const void *arguments, size_t count, size_t blocks)
{
	kernels_launch(name, arguments, blocks ? blocks : kernels_blocks(count),
		       ZERO_DEVICE_THREADS);
}

double device_norm2(const float *x, size_t count, double *parts, double *sum, size_t blocks)
{
	struct zero_device_norm2 first = {.x = x, .count = count, .parts = parts};
	struct zero_device_norm2_fold fold = {
		.parts = parts, .count = zero_norm2_parts(count), .sum = sum};
	double result = -1;

	/* An empty array has no parts, and so no first launch. */
	if (fold.count)
		launch("zero_device_norm2", &first, count, blocks ? blocks : fold.count);
	launch("zero_device_norm2_fold", &fold, 1, 1);
	download(&result, sum, sizeof(result));
	synchronise();
	return result;
}

struct zero_device_random random_args(zero_dtype dtype, void *out, size_t first, size_t count,
				      double a, double b, uint64_t stream, bool uniform)
{
	struct zero_device_random args = {.out = out,
					  .first = first,
					  .count = count,
					  .seed = seed,
					  .stream = stream,
					  .a = a,
					  .b = b,
					  .dtype = dtype};

	if (uniform)
		args.cut = host->uniform_ends(dtype, a, b, &args.first_value, &args.last_value);
	return args;
}

uint64_t tiles_of(const struct zero_device_piece *pieces, size_t count, uint64_t *starts)
{
	starts[0] = 0;
	for (size_t i = 0; i < count; i++)
		starts[i + 1] = starts[i] + pieces[i].bytes / ZERO_COPY_TILE +
				(pieces[i].bytes % ZERO_COPY_TILE != 0);
	return starts[count];
}

/* ---- all ------------------------------------------------------------------------------------- */

#define ROW(name) {#name, check_##name},

void check_all(void)
{
	static const struct {
		const char *name;
		void (*check)(void);
	} checks[] = {KERNEL_CHECKS(ROW)};

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		checks[i].check();
		printf("kernels: %s is right\n", checks[i].name);
		fflush(stdout);
	}
}
