/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of zero_restore share. */
#ifndef ZERO_RESTORE_H
#define ZERO_RESTORE_H

#include "checkpoint/checkpoint.h"
#include "load/load.h"
#include "train/train.h"

struct zero_restore {
	zero_job *job;
	const char *path; /* as the caller gave it */
	const struct zero_files_ops *files;
	char *folder;                           /* of the checkpoint; NULL: there is none */
	const struct zero_shard_source *source; /* NULL: the folder's files */
	struct zero_manifest *manifest;
	zero_param **params; /* the parameter of each of the manifest's tensors */
	uint64_t *steps;     /* of each group, in the checkpoint */
};

/* restore_match.c: finds the parameter of each tensor, and compares their types and shapes. */
zero_status zero_restore_match(struct zero_restore *restore);
/* restore_reshard.c: reads the values and states that this rank stores. */
zero_status zero_restore_reshard(const struct zero_restore *restore);

#endif
