/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dynamic maps of 8-bit states (Dettmers et al., arXiv 2110.02861): 0, the middles of the equal
 * parts of each of seven decades, of which each has twice as many as the one below it, and 1.
 * Within a decade code and value are linear, so that a few tables of eight replace one of 256 and a
 * search in it. The values are those of bitsandbytes and torchao to 5e-7 of themselves; their
 * rounding follows torch.linspace.
 */
#include <math.h>
#include <pthread.h>

#include "kernels.h"

enum { DECADES = 7 };

static struct zero_dynamic_map maps[2];

static const double decade_ends[DECADES] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};

/* The middle of part i of n of a decade. */
static double middle(int decade, int i, int n)
{
	return decade_ends[decade] * (0.1 + 0.9 * (i + 0.5) / n);
}

static void make_decade(struct zero_dynamic_map *map, int decade)
{
	const int n = 1 << (map->is_signed ? decade : decade + 1),
		  first = map->is_signed ? n : n - 1;
	const double end = decade_ends[decade], j = 2 << decade;
	const double half = map->is_signed ? 0 : 0.5; /* j counts halves of parts of a signed map */

	map->value_by[decade] = (float)(end * 0.9 / j);
	map->value_at[decade] = (float)(end * (0.1 - 0.9 + 0.9 * half / j));
	map->code_by[decade + 1] = (float)(n / (0.9 * end));
	map->code_at[decade + 1] = (float)(first - n * 0.1 / 0.9);
	map->code_most[decade + 1] = (float)(first + n - 1);
	if (decade + 1 < DECADES)
		map->bound[decade + 1] =
			(float)((middle(decade, n - 1, n) + middle(decade + 1, 0, 2 * n)) / 2);
	else
		map->one = (float)((middle(decade, n - 1, n) + 1) / 2);
}

static void make(bool is_signed)
{
	struct zero_dynamic_map *map = &maps[is_signed];
	const double last = is_signed ? 1.0 / 256 : 1.0 / 255;

	map->is_signed = is_signed;
	for (int decade = 0; decade < DECADES; decade++)
		make_decade(map, decade);
	map->value_by[DECADES] = (float)last;
	map->value_at[DECADES] = -(float)last;
	map->bound[0] = (float)(middle(0, 0, is_signed ? 1 : 2) / 2);
	map->bound[DECADES] = INFINITY;
}

static void make_both(void)
{
	make(false);
	make(true);
}

const struct zero_dynamic_map *zero_dynamic_map(bool is_signed)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_both);
	return &maps[is_signed];
}
