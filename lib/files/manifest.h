/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests of checkpoints, see zero_checkpoint(5). */
#ifndef ZERO_FILES_MANIFEST_H
#define ZERO_FILES_MANIFEST_H

#include "files/input.h"

#include <jansson.h>

#define MANIFEST_FORMAT   "slurm-zero checkpoint"
#define MANIFEST_VERSION  2
#define MANIFEST_CHECKSUM "xxh3-64"
#define MANIFEST_SEAL     ",\n\"seal\": \""
#define MANIFEST_END      "\"\n}\n"

enum {
	MANIFEST_CHECKSUM_DIGITS = 16,
	MANIFEST_WORLD_MAX = 99999, /* a file's name has five digits for the rank */
	MANIFEST_VERSION_PLAIN = 1, /* of a manifest that older libraries can read */
};

/* ---- entries of struct zero_files_ops -------------------------------------------------------- */

zero_status manifest_format(const struct zero_manifest *manifest, char **text, size_t *bytes);
zero_status manifest_parse(const char *path, const char *text, size_t bytes,
			   struct zero_manifest **manifest);
zero_status manifest_read(const char *path, struct zero_manifest **manifest);
void manifest_free(struct zero_manifest *manifest);
zero_status manifest_shard(const struct zero_manifest *manifest, int rank,
			   struct zero_shard_layout *layout);
void files_checksum_blocks(const void *data, size_t bytes, uint64_t *checksums);
uint64_t files_checksum(const void *data, size_t bytes);
uint64_t files_checksum_avx2(const void *data, size_t bytes);

/* ---- manifest_check.c: whether the members agree with each other ----------------------------- */

zero_status manifest_check(const char *path, const struct zero_manifest *manifest);

#endif
