/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of kernels share: the instruction sets, fresh random input (ZERO_TEST_SEED repeats
 * a run) and outputs between guards.
 */
#ifndef TEST_SETS_H
#define TEST_SETS_H

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "unit.h"

enum {
	GUARD = 64,           /* bytes before and after an output */
	BIG = (1 << 18) + 77, /* elements, enough for stores past the cache */
};

static const struct zero_kernels *sets[8]; /* scalar, the others, NULL */
static const struct zero_kernels *scalar;
static const size_t sizes[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 1000, 1024, 4099, BIG};

/* ---- random input ---------------------------------------------------------------------------- */

static uint64_t state;

static inline uint64_t random64(void)
{
	return next_random(&state);
}

static inline double random_unit(void)
{
	return (double)(random64() >> 11) * 0x1p-53;
}

static inline float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof x);
	return x;
}

static inline uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof bits);
	return bits;
}

/* Any bits: NaNs and infinities (one in 8), subnormals and zeros (one in 8), the rest anything. */
static inline float random_any(void)
{
	const uint32_t bits = (uint32_t)random64();

	switch (random64() % 16) {
	case 0:
		return float_of(bits | 0x7f800000);
	case 1:
		return float_of((bits & 0x80000000) | 0x7f800000);
	case 2:
		return float_of(bits & 0x807fffff);
	case 3:
		return float_of(bits & 0x80000000);
	default:
		return float_of(bits);
	}
}

static inline float random_sane(void)
{
	return (float)(random_unit() * 2 - 1) * ldexpf(1, (int)(random64() % 8) - 4);
}

/* An array that ends where its memory ends, `offset` elements off its alignment. */
struct array {
	void *base;
	float *x;
};

static inline struct array random_array(size_t count, size_t offset, float (*draw)(void))
{
	struct array a = {.base = malloc((count + offset) * sizeof(float) + 1)};

	ck_assert_ptr_nonnull(a.base);
	a.x = (float *)a.base + offset;
	for (size_t i = 0; i < count; i++)
		a.x[i] = draw();
	return a;
}

/* ---- guarded output -------------------------------------------------------------------------- */

struct output {
	unsigned char *base;
	void *out;
	size_t bytes, offset; /* in bytes */
};

/* The first byte is `offset` bytes past a multiple of 64. */
static inline struct output output_new(size_t bytes, size_t offset)
{
	struct output o = {.bytes = bytes, .offset = offset};
	const size_t capacity = (bytes + offset + 3 * GUARD) / GUARD * GUARD;

	o.base = aligned_alloc(GUARD, capacity);
	ck_assert_ptr_nonnull(o.base);
	memset(o.base, 0xa5, capacity);
	o.out = o.base + GUARD + offset;
	return o;
}

static inline struct output output_of(const float *x, size_t count, size_t offset)
{
	struct output o = output_new(count * sizeof(float), offset * sizeof(float));

	if (count)
		memcpy(o.out, x, o.bytes);
	return o;
}

static inline void guards_stand(const struct output *o, const char *what)
{
	const unsigned char *end = (unsigned char *)o->out + o->bytes;

	for (const unsigned char *c = o->base; c < (unsigned char *)o->out; c++)
		must(*c == 0xa5, "%s wrote before its output", what);
	for (size_t i = 0; i < GUARD; i++)
		must(end[i] == 0xa5, "%s wrote after its output", what);
}

/* The same bits as the first set's, and both within their guards. Frees `o`, unless it is `first`.
 */
static inline void same_as(struct output *first, struct output *o, const char *kernel,
			   const char *isa, size_t count)
{
	char what[128];

	snprintf(what, sizeof what, "%s of %s, %zu elements at +%zu bytes", kernel, isa, count,
		 o->offset);
	guards_stand(o, what);
	if (!first->base)
		*first = *o;
	if (first->base == o->base)
		return;
	for (size_t i = 0; i < o->bytes; i++)
		must(((unsigned char *)first->out)[i] == ((unsigned char *)o->out)[i],
		     "%s: byte %zu differs from %s", what, i, scalar->isa);
	free(o->base);
}

/* The scalar set first: the others are held against it. Prints the seed; the number of sets. */
static inline int find_sets(void)
{
	int count = 0;

	sets[count++] = scalar = zero_kernels_choose("scalar");
	for (size_t i = 0; zero_kernels_isa(i); i++)
		if (zero_kernels_choose(zero_kernels_isa(i)) != scalar)
			sets[count++] = zero_kernels_choose(zero_kernels_isa(i));
	state = seed_of_test();
	printf("sets:");
	for (int s = 0; s < count; s++)
		printf(" %s", sets[s]->isa);
	printf("\n");
	fflush(stdout);
	return count;
}

/* ---- meaning of elements --------------------------------------------------------------------- */

/* What a 16-bit element means, by the definition of its format. */
static inline double meaning_of(zero_dtype dtype, uint16_t h)
{
	const int fraction_bits = dtype == ZERO_F16 ? 10 : 7, bias = dtype == ZERO_F16 ? 15 : 127;
	const int fraction = h & ((1 << fraction_bits) - 1);
	const int exponent = (h & 0x7fff) >> fraction_bits, top = 2 * bias + 1;
	double x;

	if (exponent == top)
		x = fraction ? NAN : INFINITY;
	else if (exponent == 0)
		x = ldexp(fraction, 1 - bias - fraction_bits);
	else
		x = ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
	return h & 0x8000 ? -x : x;
}

/* The bits of the f32, f16 or bf16 nearest to x, ties to even, by definition; x is no NaN. */
static inline uint32_t nearest(zero_dtype dtype, double x)
{
	const int fraction_bits = dtype == ZERO_F32 ? 23 : dtype == ZERO_F16 ? 10 : 7;
	const int bias = dtype == ZERO_F16 ? 15 : 127;
	const uint32_t sign = signbit(x) ? dtype == ZERO_F32 ? 0x80000000 : 0x8000 : 0;
	const uint32_t infinity = (uint32_t)(2 * bias + 1) << fraction_bits;
	int exponent;

	x = fabs(x);
	if (isinf(x))
		return sign | infinity;
	frexp(x, &exponent);
	exponent -= 1; /* x = 1.f * 2^exponent */
	if (x == 0 || exponent < 1 - bias)
		exponent = 1 - bias;
	/* Units of the last place; a carry into the next power of two is right by itself. */
	const double units = nearbyint(ldexp(x, fraction_bits - exponent));
	const double bits = units + ldexp(exponent + bias - 1, fraction_bits);
	return sign | (bits < infinity ? (uint32_t)bits : infinity);
}

#endif
