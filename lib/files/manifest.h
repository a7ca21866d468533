/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a manifest, each checked by itself: its type and its range. */
#ifndef ZERO_FILES_MEMBERS_H
#define ZERO_FILES_MEMBERS_H

#include "files/input.h"

#include <jansson.h>

/* Ranks of a job: more would not be named alike in files. */
enum { MEMBERS_WORLD_MOST = 99999 };

/* Whether a manifest has such a member beside its arrays. */
bool members_known(const char *name);
/* Those members; there are so many files. */
zero_status members_small(const char *path, const json_t *json, size_t file_count,
			  struct zero_manifest *manifest);
/* Item number `i` of an array. What they have filled in before an error is freed with the
   manifest. */
zero_status members_team(const char *path, size_t i, const json_t *json,
			 struct zero_manifest_team *team);
zero_status members_tensor(const char *path, size_t i, const json_t *json,
			   struct zero_manifest_tensor *tensor);
zero_status members_file(const char *path, size_t i, const json_t *json,
			 struct zero_manifest_file *file);

#endif
