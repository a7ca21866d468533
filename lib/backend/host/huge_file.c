/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file in memory with huge pages, for an arena. Most systems have none for memfd, whose setting
 * shmem_enabled is `never` by default: then the first touch of memory that ranks share takes
 * several times as long as that of a rank's own. But any user may mount a tmpfs with huge=advise
 * where the system allows user namespaces. A child does so in namespaces of its own, opens the
 * file, and ends. It shares memory and open files with this process, which sees the mount nowhere
 * else; mount and namespaces go with the file.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared_arena.h"

enum { STACK = 64 << 10 };

/* ThreadSanitizer takes the child for a fork, after which it allows no threads. */
#ifdef __SANITIZE_THREAD__
static const bool allowed = false;
#else
static const bool allowed = true;
#endif

struct request {
	char users[64], groups[64]; /* the maps of the namespace */
	int file;
};

static bool write_text(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);
	bool written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);

	if (file >= 0)
		close(file);
	return written;
}

/* In the child. Its memory is the parent's, which waits. */
static int make_file(void *context)
{
	struct request *request = context;

	/* Without a map of its own a process cannot make files there. */
	write_text("/proc/self/setgroups", "deny");
	if (write_text("/proc/self/uid_map", request->users) &&
	    write_text("/proc/self/gid_map", request->groups) &&
	    !mount("slurm-zero", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
		   "huge=advise,size=0,mode=700"))
		request->file = open("/tmp/slurm-zero",
				     O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
	return 0;
}

/* `deny` holds for each tmpfs. With the others memfd has huge pages where they are advised. */
static bool memfd_has_none(void)
{
	int file = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
	char text[128] = "";
	ssize_t length = file < 0 ? 0 : read(file, text, sizeof(text) - 1);

	if (file >= 0)
		close(file);
	return length > 0 && strstr(text, "[never]");
}

int zero_huge_file(void)
{
	const int flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_VM | CLONE_VFORK | CLONE_FILES;
	struct request request = {.file = -1};
	sigset_t all, before;
	char *stack;
	int child;

	if (!allowed || !memfd_has_none())
		return -1;
	stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack == MAP_FAILED)
		return -1;
	snprintf(request.users, sizeof(request.users), "%u %u 1", geteuid(), geteuid());
	snprintf(request.groups, sizeof(request.groups), "%u %u 1", getegid(), getegid());
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	/* No SIGCHLD, which the program could take for one of its own children's. */
	child = clone(make_file, stack + STACK, flags, &request);
	if (child > 0)
		waitpid(child, NULL, __WALL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	munmap(stack, STACK);
	return request.file;
}
