/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ZERO_THREAD_H
#define ZERO_THREAD_H

#include <pthread.h>
#include <signal.h>

/*
 * Starts a thread of the library, which has its name, of at most 15 bytes, on return. Signals are
 * delivered to the program's threads, never to this one, except for those that report a fault of
 * the thread itself. Returns 0 or an errno value.
 */
static inline int zero_thread_start(pthread_t *thread, const char *name, void *(*function)(void *),
				    void *context)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
	sigset_t blocked, before;
	int error;

	sigfillset(&blocked);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&blocked, faults[i]);
	pthread_sigmask(SIG_SETMASK, &blocked, &before);
	error = pthread_create(thread, NULL, function, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error)
		pthread_setname_np(*thread, name);
	return error;
}

#endif
