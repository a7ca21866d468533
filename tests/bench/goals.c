/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every operation may cost: memory beyond inputs and outputs, bytes sent by all ranks together
 * and time beside the bare operation. A row that no run has recorded is shown as not measured.
 *
 * Memory that the kernel counts may be 16 MB more than was asked for: what MPI keeps for itself.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "record.h"

static const char from_file[] = "partition from a shared file";
static const char from_checkpoint[] = "load of a sharded checkpoint";
static const char from_initialiser[] = "partition from an initialiser";
static const char from_rank[] = "partition from a host tensor on one rank";
static const char from_all[] = "partition from the same tensor on all ranks";
static const char gather[] = "gather";
static const char downcast[] = "gather with downcast";
static const char prefetch[] = "prefetch of 8 groups";
static const char reduce[] = "reduce";
static const char flatten_device[] = "flatten, tensors on the device";
static const char flatten_host[] = "flatten, tensors on the host";
static const char step[] = "step";
static const char copies[] = "copies, and Muon";
static const char save[] = "save";
static const char save_background[] = "save in the background";
static const char restore[] = "restore";
static const char protect[] = "protection in the memory of nodes";
static const char training[] = "a training step of the gpt example";
static const char torch[] = "a training step of PyTorch";
static const char torch_load[] = "a load of PyTorch";
static const char torch_save[] = "a save of PyTorch";
static const char streamed[] = "streamed parameters of PyTorch";

/* clang-format off */
const struct goal goals[] = {
	{from_file, "partition from a file: beyond the shards, VmHWM of all ranks", 2, "<= 32"},
	{from_file, "partition from a file: beyond the shard, accounted", 2, "<= 16"},
	{from_file, "partition from a file: bytes sent in all", 2, "= 0"},
	{from_file, "partition from a file: time", 2, "<= 1.2"},

	{from_checkpoint, "load of a checkpoint: bytes read in all", 4, "<= 1.01"},
	{from_checkpoint, "load of a checkpoint: time", 4, "<= 1.2"},

	{from_initialiser, "partition by initialiser: beyond the shards, VmHWM of all ranks",
	 2, "<= 32"},
	{from_initialiser, "partition by initialiser: bytes sent in all", 2, "= 0"},

	{from_rank, "partition from rank 0: beyond tensor and shard, VmHWM there", 2, "<= 16"},
	{from_rank, "partition from rank 0: beyond the shard, VmHWM elsewhere", 2, "<= 16"},
	{from_rank, "partition from rank 0: beyond the shard, accounted", 2, "<= 16"},
	{from_rank, "partition from rank 0: beyond tensor and shards, VmHWM of all ranks",
	 2, "<= 32"},
	{from_rank, "partition from rank 0: bytes sent in all", 2, "= 0.5"},
	{from_rank, "partition from rank 0: bytes sent in all", 4, "= 0.75"},
	{from_rank, "partition from rank 0: bytes sent in all", 8, "= 0.875"},
	{from_rank, "partition from rank 0 between nodes: time", 2, "<= 1.15"},
	{from_rank, "partition from rank 0 within a node: time", 2, "<= 1.15"},
	{from_rank, "partition from rank 0 within a node: time over that of 2 ranks", 4, "<= 1.15"},
	{from_rank, "partition from rank 0 within a node: time over that of 2 ranks", 8, "<= 1.15"},

	{from_all, "partition from all ranks: beyond tensor and shards, VmHWM of all ranks",
	 2, "<= 32"},
	{from_all, "partition from all ranks: bytes sent in all", 2, "= 0"},

	{gather, "gather between nodes: beyond the output, VmHWM", 2, "<= 16"},
	{gather, "gather between nodes: beyond the output, accounted", 2, "<= 16"},
	{gather, "gather between nodes: bytes sent in all", 2, "= 1"},
	{gather, "gather between nodes: bytes sent in all", 4, "= 3"},
	{gather, "gather between nodes: time", 2, "<= 1.05"},
	{gather, "gather between nodes: time", 4, "<= 1.05"},
	{gather, "gather within a node: beyond the shards, VmHWM of all ranks", 2, "<= 32"},
	{gather, "gather within a node: time", 2, "<= 0.1"},

	{prefetch, "prefetch between nodes: beyond the output, VmHWM", 2, "<= 16"},
	{prefetch, "prefetch between nodes: bytes sent in all", 2, "= 1"},
	{prefetch, "prefetch between nodes: time", 2, "<= 1.05"},
	{prefetch, "prefetch within a node: time", 2, "<= 0.1"},

	{downcast, "gather as bf16 between nodes: beyond the output, VmHWM", 2, "<= 16"},
	{downcast, "gather as bf16 between nodes: beyond the output, VmHWM", 4, "<= 16"},
	{downcast, "gather as bf16 between nodes: bytes sent in all", 2, "= 0.5"},
	{downcast, "gather as bf16 between nodes: bytes sent in all", 4, "= 1.5"},
	{downcast, "gather as bf16 between nodes: time over f32 gather, then cast", 2, "<= 0.5"},
	{downcast, "gather as bf16 between nodes: time over f32 gather, then cast", 4, "<= 0.4"},
	{downcast, "gather as bf16 between nodes: time over cast, then bf16 gather", 2, "<= 1.05"},
	{downcast, "gather as bf16 between nodes: time over cast, then bf16 gather", 4, "<= 1.05"},
	{downcast, "gather as bf16 within a node: beyond one output, VmHWM of all ranks",
	 2, "<= 32"},
	{downcast, "gather as bf16 within a node: time over f32 gather, then cast", 2, "<= 0.5"},
	{downcast, "gather as bf16 within a node: time over f32 gather, then cast", 4, "<= 0.4"},

	{reduce, "reduce between nodes: staging, accounted", 2, "<= 2.2"},
	{reduce, "reduce between nodes: bytes sent in all", 2, "= 1"},
	{reduce, "reduce between nodes: bytes sent in all", 4, "= 3"},
	{reduce, "reduce between nodes: time", 2, "<= 0.28"},
	{reduce, "reduce between nodes: time", 4, "<= 0.28"},
	{reduce, "reduce within a node: time", 2, "<= 0.12"},
	{reduce, "reduce within a node: time", 4, "<= 0.12"},

	{flatten_device, "flatten from the device, tier device: memory over G", 2, "<= 1.01"},
	{flatten_device, "flatten from the device, tier distributed: memory over G/N",
	 2, "<= 1.01"},
	{flatten_device, "flatten from the device, tier distributed: bytes sent in all", 2, "<= 1"},
	{flatten_device, "flatten from the device, tier host: memory over 2C", 2, "<= 1.01"},

	{flatten_host, "flatten from the host, tier device: memory over G + 2C", 2, "<= 1.01"},
	{flatten_host, "flatten from the host, tier distributed: memory over G + 2C", 2, "<= 1.01"},
	{flatten_host, "flatten from the host, tier distributed: bytes sent in all", 2, "<= 1"},
	{flatten_host, "flatten from the host, tier distributed: host bytes read in all",
	 2, "<= 1.01"},
	{flatten_host, "flatten from the host, tier host: memory", 2, "= 0"},
	{flatten_host, "flatten from the host within a node: time over one rank alone",
	 2, "<= 1.1"},

	{step, "AdamW with bf16 output, one thread: bandwidth", 1, ">= 1.2"},
	{step, "AdamW with bf16 output, one thread: elements a second", 1, ">= 0.92"},
	{step, "AdamW with 8-bit moments, one thread: elements a second", 1, ">= 0.8"},
	{step, "AdamW, one thread: bandwidth", 1, ">= 1.25"},
	{step, "step, all cores of a rank: bandwidth", 1, ">= 0.85"},
	{step, "step: beyond its states, VmHWM", 2, "<= 16"},
	{step, "step: bytes sent in all", 2, "= 0"},
	{step, "step: elements a second over kernels of norm and AdamW", 2, ">= 0.95"},

	{copies, "a copy on each rank: bytes sent for an element, of 3 micro-batches",
	 2, "<= 6.05"},
	{copies, "Muon: bytes sent in all", 2, "<= 1.025"},

	{save, "save: bandwidth over dd to the same folder", 4, ">= 0.9"},
	{save, "save: beyond what is saved, VmHWM", 4, "<= 16"},
	{save, "save: beyond what is saved, accounted", 4, "<= 2.2"},
	{save_background, "save in the background: pause over a copy of what a rank owns",
	 4, "<= 1"},
	{save_background, "save in the background: copies over what a rank owns", 4, "<= 1"},
	{restore, "restore: bytes read in all", 4, "<= 1.05"},
	{restore, "restore: bytes read in all", 3, "<= 1.05"},
	{restore, "restore at another number of ranks: time over the same number", 3, "<= 1.2"},

	{protect, "protect: a step of 30 pushes over the same unprotected", 2, "<= 1.03"},
	{protect, "protect: a step of 30 pushes over the same, of the processors", 2, "<= 1.03"},
	{protect, "protect: bytes a rank sends, bf16", 2, "<= 1.01"},

	{training, "gpt: step at stage 3 over stage 0", 2, "<= 1.05"},
	{training, "gpt: step over PyTorch FSDP2", 2, "<= 0.6"},

	{torch, "PyTorch: step over FSDP2, the same AdamW", 2, "<= 0.8"},
	{torch, "PyTorch: step with zero.AdamW over FSDP2", 2, "<= 0.75"},
	{torch, "PyTorch: step over the unsharded model's", 2, "<= 1.05"},
	{torch, "PyTorch: peak of both ranks together over FSDP2", 2, "<= 0.95"},
	{torch, "PyTorch: time of the hooks of 8 groups in a step", 1, "<= 2"},
	{torch_load, "PyTorch: load over FSDP2's way", 2, "<= 0.15"},
	{torch_load, "PyTorch: load over DeepSpeed's way", 2, "<= 0.08"},
	{torch_load, "PyTorch: load: beyond shards and Python", 2, "<= 64"},
	{torch_save, "PyTorch: pause of a save in the background over DCP's async_save",
	 2, "<= 0.5"},
	{streamed, "PyTorch: experts streamed over whole: gathered and gradients", 2, "<= 0.07"},
	{streamed, "PyTorch: experts streamed over whole: time", 2, "<= 1.05"},
	{streamed, "PyTorch: experts streamed over whole: bytes sent", 2, "<= 1"},
	{streamed, "PyTorch: a head and its loss streamed over whole: memory of the process",
	 2, "<= 0.3"},
	{streamed, "PyTorch: a head and its loss streamed over whole: time", 2, "<= 1.05"},
	{streamed, "PyTorch: a head and its loss streamed over whole: bytes sent", 2, "<= 1"},
	{0},
};
/* clang-format on */

const struct goal *goal_of(const char *what, int ranks)
{
	for (const struct goal *goal = goals; goal->operation; goal++)
		if (goal->ranks == ranks && !strcmp(goal->what, what))
			return goal;
	return NULL;
}

/* A figure is recorded with six digits. */
bool goal_met(const struct goal *goal, double figure)
{
	double number = atof(goal->text + strcspn(goal->text, "0123456789"));
	double slack = 1e-5 * fabs(number);

	switch (goal->text[0]) {
	case '<':
		return figure <= number + slack;
	case '>':
		return figure >= number - slack;
	default:
		return fabs(figure - number) <= slack;
	}
}
