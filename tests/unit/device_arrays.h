/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays for the tests of the device's kernels, and how these are launched on the host. */
#ifndef DEVICE_ARRAYS_H
#define DEVICE_ARRAYS_H

#include "sets.h"

#include "device.h"
#include "double/kernels.h"

__attribute__((unused)) static const size_t counts[] = {0, 1,  2,  3,  4,    5,    7,    8,
							9, 63, 64, 65, 1000, 1023, 4099, 21003};
__attribute__((unused)) static const zero_dtype floats[] = {ZERO_F32, ZERO_F16, ZERO_BF16};

/* Some grid, in some order. */
__attribute__((unused)) static void launch(const char *kernel, const void *args)
{
	__attribute__((unused)) static const unsigned int blocks[] = {1, 2, 3, 5, 8, 37};

	must(zero_emulate_kernel(kernel, blocks[random64() % COUNT_OF(blocks)], args,
				 random64() % 2 ? random64() : 0),
	     "there is no kernel %s", kernel);
}

/* Elements of any bits; half of the arrays have an alignment of their own, the others the same. */
__attribute__((unused)) static struct output random_elements(zero_dtype dtype, size_t count,
							     size_t same)
{
	const size_t size = zero_dtype_size(dtype),
		     elements = random64() % 2 ? same : random64() % 17;
	struct output o = output_new(count * size, elements * size);

	for (size_t i = 0; i < count; i++) {
		const float x = random_any();
		const uint64_t bits = random64();

		memcpy((char *)o.out + i * size, dtype == ZERO_F32 ? (void *)&x : (void *)&bits,
		       size);
	}
	return o;
}

__attribute__((unused)) static struct output copy_of(const struct output *o)
{
	struct output copy = output_new(o->bytes, o->offset);

	if (o->bytes)
		memcpy(copy.out, o->out, o->bytes);
	return copy;
}

/* Frees both. */
__attribute__((unused)) static void same_bits(struct output *right, struct output *o,
					      const char *what, size_t count)
{
	guards_stand(right, what);
	guards_stand(o, what);
	for (size_t i = 0; i < o->bytes; i++)
		must(((char *)right->out)[i] == ((char *)o->out)[i],
		     "%s of %zu at +%zu bytes: byte %zu differs", what, count, o->offset, i);
	free(right->base);
	free(o->base);
}

#endif
