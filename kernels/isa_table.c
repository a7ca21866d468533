/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the instruction set that is compiled for: zero_kernels_avx2 and so on. */
#include "simd.h"

const struct zero_kernels ZERO_NAME(kernels) = {
	.isa = ZERO_TEXT(ZERO_ISA),
	.cast = ZERO_NAME(cast),
	.sum = ZERO_NAME(sum),
	.norm2 = ZERO_NAME(norm2),
	.adamw = ZERO_NAME(adamw),
	.muon_momentum = ZERO_NAME(muon_momentum),
	.muon_update = ZERO_NAME(muon_update),
	.quantize = ZERO_NAME(quantize),
	.dequantize = ZERO_NAME(dequantize),
	.fill_uniform = ZERO_NAME(fill_uniform),
	.uniform_ends = ZERO_NAME(uniform_ends),
	.fill_normal = ZERO_NAME(fill_normal),
	.fill_constant = zero_fill_constant,
	.convertible = zero_convertible,
	.convert = zero_convert,
	.transpose = zero_transpose,
	.dynamic_map = zero_dynamic_map,
};
