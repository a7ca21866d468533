/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the instruction set that is compiled for: zero_kernels_avx2 and so on. */
#include "simd.h"

#define ZERO_ENTRY(kernel) .kernel = ZERO_NAME(kernel),

const struct zero_kernels ZERO_NAME(kernels) = {.isa = ZERO_TEXT(ZERO_ISA),
						.fill_constant = zero_fill_constant,
						.convertible = zero_convertible,
						.convert = zero_convert,
						.transpose = zero_transpose,
						.dynamic_map = zero_dynamic_map,
						ZERO_ISA_KERNELS(ZERO_ENTRY)};
