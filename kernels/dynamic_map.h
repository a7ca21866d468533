/* SPDX-License-Identifier: Apache-2.0 */
/* The maps of 8-bit states, for processors and devices. */
#ifndef ZERO_DYNAMIC_MAP_H
#define ZERO_DYNAMIC_MAP_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A dynamic map (Dettmers et al., arXiv 2110.02861): 256 values of [-1, 1], or of [0, 1], that
 * ascend and are the denser the nearer to 0. A block of values has one scale, the largest of their
 * magnitudes. With j = code + 1, or 2 |code - 127| + 1 in a signed map, and d its decade, the lower
 * three bits of its exponent as a float, a value is j * value_by[d] + value_at[d], with the sign of
 * code - 127.
 */
struct zero_dynamic_map {
	float value_by[8], value_at[8];
	/* Decade d, of which 0 has the magnitude 0 alone, ends at bound[d]. Its codes of positive
	   values are, with 127 more in a signed map, the integer part of x * code_by[d] +
	   code_at[d], but at most code_most[d]; and one more from x = `one` on. */
	float bound[8], code_by[8], code_at[8], code_most[8], one;
	bool is_signed;
};

#ifdef __cplusplus
extern "C"
#endif
	/* The map of values of either sign, or of values >= 0. */
	const struct zero_dynamic_map *
	zero_dynamic_map(bool is_signed);

#endif
