/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/recover/choose.h"

#include <stdio.h>
#include <string.h>

#include "launcher/text.h"

/* Takes unused nodes until there are as many as in the first attempt. Returns the number. */
static unsigned take_nodes(const struct layout *layout, const bool *lost, bool *used, size_t count)
{
	unsigned nodes = 0;

	for (size_t i = 0; i < count; i++) {
		used[i] = used[i] && !lost[i];
		nodes += used[i];
	}
	for (size_t i = 0; i < count && nodes < layout->nodes; i++) {
		if (used[i] || lost[i])
			continue;
		used[i] = true;
		nodes++;
	}
	return nodes;
}

unsigned choose_nodes(const struct layout *layout, const bool *lost, bool *used, size_t count,
		      char *why, size_t size)
{
	unsigned nodes = take_nodes(layout, lost, used, count);
	unsigned least = layout->min_ranks ? layout->min_ranks : layout->ranks;
	unsigned long long room = (unsigned long long)nodes * layout->per_node;
	unsigned ranks = room < layout->ranks ? (unsigned)room : layout->ranks;

	if (ranks && ranks >= least)
		return ranks;
	if (!nodes)
		snprintf(why, size, "no node is left");
	else if (layout->min_ranks)
		snprintf(why, size, "%u node%s left for %u rank%s, fewer than --min-ranks=%u",
			 nodes, nodes > 1 ? "s are" : " is", ranks, ranks > 1 ? "s" : "", least);
	else
		snprintf(why, size,
			 "%u node%s left for %u of its %u ranks (--min-ranks allows fewer ranks, "
			 "--spare-nodes keeps nodes to replace lost ones)",
			 nodes, nodes > 1 ? "s are" : " is", ranks, least);
	return 0;
}

char *scale_gpus(const char *gpus, unsigned first_nodes, unsigned nodes)
{
	const char *colon = strrchr(gpus, ':'), *digits = colon ? colon + 1 : gpus;
	size_t length = strspn(digits, "0123456789");
	unsigned number = 0;

	if (length && length < 8 && !digits[length] && !strchr(gpus, ','))
		sscanf(digits, "%u", &number);
	if (!number || number % first_nodes)
		return NULL;
	return format_text("%.*s%llu", (int)(digits - gpus), gpus,
			   (unsigned long long)(number / first_nodes) * nodes);
}
