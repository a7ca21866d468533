/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank sends to itself, with and without MPI. */
#include <string.h>

#include "host.h"

void zero_copy_to_self(const struct zero_op *op, int self)
{
	size_t size = zero_core->dtype_size(op->from), r = 0;

	for (size_t s = 0; s < op->send_count; s++) {
		if (op->sends[s].rank != self)
			continue;
		while (op->receives[r].rank != self)
			r++;
		memcpy(op->receives[r++].data, op->sends[s].data, op->sends[s].count * size);
	}
}
