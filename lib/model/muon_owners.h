/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank owns a matrix in a step of Muon. The functions are pure: `zerorun --plan` and the job
 * deal out alike.
 */
#ifndef ZERO_MUON_OWNERS_H
#define ZERO_MUON_OWNERS_H

#include <stddef.h>

/* Multiplications of an iteration of Newton and Schulz: two products with the long side and one
   without. */
double zero_muon_cost(size_t rows, size_t columns);
/*
 * Gives a matrix to the rank of `loads[world]` with the least to do, and adds its cost there. Returns
 * the rank. Matrices that come by falling cost end up at most a third from the best share (Graham
 * 1969, LPT).
 */
int zero_muon_owner(double cost, double *loads, int world);

#endif
