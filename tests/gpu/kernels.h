/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of cases for the device's kernels, which two programs run: kernels.c on a device, and
 * tests/unit/test_device.c on the host, with the same sources compiled by emulate.h.
 */
#ifndef TESTS_GPU_KERNELS_H
#define TESTS_GPU_KERNELS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/kernels.h"
#include "../ranks/reference.h"
#include "device.h"

extern uint64_t seed;
extern const struct zero_kernels *host; /* the same kernels on the host */

/* Ends the program unless the condition holds. */
#define expect(condition, ...) \
	((condition) ? (void)0 : unexpected(__FILE__, __LINE__, #condition, __VA_ARGS__))
__attribute__((noreturn, format(printf, 4, 5))) void
unexpected(const char *file, int line, const char *what, const char *format, ...);

void start_drawing(void); /* from ZERO_TEST_SEED, which is printed */
uint64_t draw(void);      /* random bits */
float unit(void);         /* in [0, 1) */
/* Elements of f32, f16 or bf16 with any bits: every kind of NaN, infinities, subnormals. */
void random_bits(zero_dtype dtype, void *out, size_t count);
/* Finite ones of usual size, and one in 1000 from random_bits. */
void random_values(zero_dtype dtype, void *out, size_t count);
void *memory(size_t bytes); /* of the host */

/*
 * An array on the device that begins `shift` bytes after a 256-byte boundary, poison before and
 * behind it.
 */
struct array {
	char *block, *data;
	size_t bytes;
};

struct array array_new(const void *values, size_t bytes, size_t shift); /* NULL: poison */
/* What it holds, in memory that the caller frees; nothing was written outside. */
void *array_take(struct array *array, const char *what);
void array_free(struct array *array);

/* Launches with so many blocks, or, for 0, with what fills the device. */
void launch(const char *name, const void *arguments, size_t count, size_t blocks);
double device_norm2(const float *x, size_t count, double *parts, double *sum, size_t blocks);
/* The struct of a random kernel for these values. */
struct zero_device_random random_args(zero_dtype dtype, void *out, size_t first, size_t count,
				      double a, double b, uint64_t stream, bool uniform);
/* starts[count + 1]; returns the number of tiles. */
uint64_t tiles_of(const struct zero_device_piece *pieces, size_t count, uint64_t *starts);

/* The sizes that each check goes through are those up to `longest`, and the shifts in elements. */
extern size_t longest;
extern const size_t counts[], shifts[];
enum { COUNTS = 19, SHIFTS = 4 };
/* One of the shifts, or, as often, `same`. */
size_t some_shift(size_t same);

/* check_cast and so on, which check_all calls. */
#define KERNEL_CHECKS(X) \
	X(cast)          \
	X(sum)           \
	X(adamw)         \
	X(norm2)         \
	X(step_rule)     \
	X(fill)          \
	X(random)        \
	X(copy_many)     \
	X(muon)          \
	X(pack)
#define DECLARE_CHECK(name) void check_##name(void);
KERNEL_CHECKS(DECLARE_CHECK)
#undef DECLARE_CHECK
void check_all(void);   /* all of these */
void check_large(void); /* beyond 2^32 elements, where memory allows */
void bandwidths(double scale);

#endif
