/* SPDX-License-Identifier: Apache-2.0 */
#include "vec.h"

enum {
	BLOCK = 1024, /* elements between two looks at what was found */
	LANES = 16,
	AHEAD = 1024, /* bytes */
};

/* One unit above the exponent of infinity and NaN carries into the sign bit, and of none else. */
static inline void look_at(vecu seen[LANES / VEC], const float *x)
{
	for (size_t k = 0; k < LANES / VEC; k++)
		seen[k] |= (vec_bits(vec_load(x + k * VEC)) & 0x7f800000) + 0x00800000;
}

static inline bool any_sign(const vecu seen[LANES / VEC])
{
	bool any = false;

	for (size_t k = 0; k < LANES / VEC; k++)
		any |= vec_any_nan(vec_from_bits(0 - (seen[k] >> 31)));
	return any;
}

bool ZERO_NAME(finite)(const float *x, size_t count)
{
	const size_t whole = count - count % LANES;
	float rest[LANES] = {0};

	for (size_t at = 0; at < whole; at += BLOCK) {
		const size_t end = whole - at < BLOCK ? whole : at + BLOCK;
		vecu seen[LANES / VEC] = {0};

		for (size_t i = at; i < end; i += LANES) {
			vec_prefetch(x + i, AHEAD);
			look_at(seen, x + i);
		}
		if (any_sign(seen))
			return false;
	}
	if (whole < count) {
		vecu seen[LANES / VEC] = {0};

		memcpy(rest, x + whole, (count - whole) * sizeof(float));
		look_at(seen, rest);
		return !any_sign(seen);
	}
	return true;
}
