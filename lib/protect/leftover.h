/* SPDX-License-Identifier: Apache-2.0 */
/* What a job has left in the memory of this node. The launcher and the plugin compile this too. */
#ifndef ZERO_PROTECT_LEFTOVER_H
#define ZERO_PROTECT_LEFTOVER_H

/* The folder of the calling user in protect_dir, and in it that of the calling job. */
struct zero_protect_level {
	char name[80];
};

struct zero_protect_level zero_protect_user_level(void);
struct zero_protect_level zero_protect_job_level(void);

/*
 * Removes what DIR/zero-UID/JOB of the calling user has whose names begin with `run`, which may be
 * ""; then that folder and the one above it, if they are empty. Folders of others stay, and no link
 * is followed. What cannot be removed stays.
 */
void zero_protect_remove(const char *dir, const char *job, const char *run);

#endif
