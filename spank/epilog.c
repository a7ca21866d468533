/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs in a process of Slurm's, as root, on each node that a job leaves. Removes what the job has
 * protected in the node's memory. All of that is done by a child that has dropped root, which does
 * not outlive its time; an error is nobody's.
 */
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "plugin.h"
#include "protect/leftover.h"

/* Longer than any removal; Slurm drains a node whose epilog exceeds PrologEpilogTimeout. */
#define SECONDS 20.0

struct job {
	uid_t user;
	gid_t group;
	char level[16];
};

static void remove_in(void *context, const char *dir)
{
	zero_protect_remove(dir, ((const struct job *)context)->level, "");
}

/* Which sections applied to the job is not known any more: each of them may have named its folder.
 */
static void remove_all(struct job *job, const struct plugin_arguments *arguments)
{
	char why[512];
	struct zero_config *site =
		zero_config_read(arguments->config, ZERO_CONFIG_SITE, why, sizeof(why));

	remove_in(job, zero_option_table[ZERO_OPT_PROTECT_DIR].default_text);
	if (site)
		zero_config_texts(site, ZERO_OPT_PROTECT_DIR, remove_in, job);
	zero_config_free(site);
}

/* For good; and no process of the user may read the memory of this one. */
static bool become(const struct job *job)
{
	return !setgroups(0, NULL) && !setresgid(job->group, job->group, job->group) &&
	       !setresuid(job->user, job->user, job->user) && !prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

/* The user may stop the child, or its file system may hang: it is not waited for any longer then.
 */
static void wait_for(pid_t child)
{
	const struct timespec pause = {.tv_nsec = 2000000};
	double until = zero_seconds() + SECONDS;

	while (!waitpid(child, NULL, WNOHANG)) {
		if (zero_seconds() >= until) {
			kill(child, SIGKILL);
			return;
		}
		nanosleep(&pause, NULL);
	}
}

void job_epilog(spank_t spank, const struct plugin_arguments *arguments)
{
	struct job job;
	uint32_t id;
	pid_t child;

	if (spank_get_item(spank, S_JOB_ID, &id) || spank_get_item(spank, S_JOB_UID, &job.user) ||
	    spank_get_item(spank, S_JOB_GID, &job.group))
		return;
	snprintf(job.level, sizeof(job.level), "%u", id);
	child = fork();
	if (child == 0) {
		if (become(&job))
			remove_all(&job, arguments);
		_exit(0);
	}
	if (child > 0)
		wait_for(child);
}
