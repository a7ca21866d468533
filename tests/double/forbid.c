/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for systems that forbid one process to read another's memory, as Yama and seccomp do
 * for users, for those before Linux 5.7, which cannot move a mapping and leave its addresses
 * reserved, and for those without user namespaces, where no user can mount; preloaded. MPI is to be
 * told not to try the first.
 */
#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

void *mremap(void *from, size_t old_bytes, size_t bytes, int flags, ...)
{
	void *to = NULL;
	va_list arguments;

	va_start(arguments, flags);
	if (flags & MREMAP_FIXED)
		to = va_arg(arguments, void *);
	va_end(arguments);
	if (!(flags & MREMAP_DONTUNMAP))
		return (void *)syscall(SYS_mremap, from, old_bytes, bytes, flags, to);
	errno = EINVAL;
	return MAP_FAILED;
}

int mount(const char *source, const char *target, const char *type, unsigned long flags,
	  const void *data)
{
	(void)source;
	(void)target;
	(void)type;
	(void)flags;
	(void)data;
	errno = EPERM;
	return -1;
}

ssize_t process_vm_readv(pid_t process, const struct iovec *mine, unsigned long mine_count,
			 const struct iovec *theirs, unsigned long their_count, unsigned long flags)
{
	(void)process;
	(void)mine;
	(void)mine_count;
	(void)theirs;
	(void)their_count;
	(void)flags;
	errno = EPERM;
	return -1;
}
