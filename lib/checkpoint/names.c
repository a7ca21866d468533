/* SPDX-License-Identifier: Apache-2.0 */
/* The names of checkpoints and of partial files. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/write.h"

char *zero_checkpoint_path(const char *folder, const char *name)
{
	size_t length = strlen(folder);
	char *path;

	if (asprintf(&path, "%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/",
		     name) < 0)
		return NULL;
	return path;
}

const char *zero_checkpoint_step(const char *name, uint64_t *step)
{
	static const char prefix[] = "step-";
	enum { MIN_DIGITS = 9 };
	const char *digits = name + strlen(prefix);
	size_t count;
	char *end;

	if (strncmp(name, prefix, strlen(prefix)) != 0)
		return NULL;
	count = strspn(digits, "0123456789");
	/* A step has only one name: no zeros are added to a longer number. */
	if (count < MIN_DIGITS || (count > MIN_DIGITS && *digits == '0'))
		return NULL;
	errno = 0;
	*step = strtoull(digits, &end, 10);
	return errno ? NULL : end;
}

bool zero_checkpoint_name(const char *name, uint64_t *step)
{
	const char *end = zero_checkpoint_step(name, step);

	return end && !*end;
}

bool zero_checkpoint_exists(const char *folder)
{
	char *path = zero_checkpoint_path(folder, "manifest.json");
	struct stat info;
	/* Also true for a manifest that cannot be read: opening it reports why. */
	bool exists = path && lstat(path, &info) == 0;

	free(path);
	return exists;
}

char *zero_checkpoint_step_path(const char *dir, uint64_t step)
{
	char *path;

	return asprintf(&path, "%s/step-%09llu", dir, (unsigned long long)step) < 0 ? NULL : path;
}

char *zero_partial_path(const char *path, uint64_t token)
{
	char *partial;

	return asprintf(&partial, "%s.partial-%016llx", path, (unsigned long long)token) < 0
		       ? NULL
		       : partial;
}

uint64_t zero_random_token(void)
{
	uint64_t token;

	if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token))
		token = (uint64_t)getpid();
	return token;
}

zero_status zero_agree_token(zero_job *job, zero_status status, const char *label, uint64_t *token)
{
	uint64_t mine = zero_random_token(), *all = calloc((size_t)job->place.world, sizeof(*all));
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = &mine, .recv = all, .count = sizeof(mine)};

	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory for %s", label);
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_CHECKPOINT, "%s", label);
	*token = status ? 0 : all[0];
	free(all);
	return status;
}
