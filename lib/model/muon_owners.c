/* SPDX-License-Identifier: Apache-2.0 */
#include "muon_owners.h"

double zero_muon_cost(size_t rows, size_t columns)
{
	double s = (double)(rows < columns ? rows : columns), l = (double)(rows + columns) - s;

	return 4 * s * s * l + 2 * s * s * s;
}

int zero_muon_owner(double cost, double *loads, int world)
{
	int least = 0;

	for (int rank = 1; rank < world; rank++)
		if (loads[rank] < loads[least])
			least = rank;
	loads[least] += cost;
	return least;
}
