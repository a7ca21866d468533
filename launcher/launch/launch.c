/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "launcher/launch/launch.h"
#include "net/launcher.h"

/*
 * zerorun becomes the launcher instead of waiting for it, so that signals, the terminal, stdin and
 * the exit status are the launcher's. A parent that forwards signals would give Ctrl-C to mpirun
 * twice, once from the terminal, and mpirun aborts at once on the second.
 */
int launch(struct plan *plan)
{
	int error;

	for (size_t i = 0; i < plan->environment.count; i++) {
		/* the environment keeps the string, which the plan owns until the process ends */
		if (putenv(plan->environment.item[i]) != 0) {
			print_error("no memory");
			return EXIT_FAILURE;
		}
	}
	if (plan->unset_preload)
		unsetenv("LD_PRELOAD");
	if (!plan->is_srun) {
		sigset_t quit;

		/*
		 * mpirun can neither catch nor forward SIGQUIT: it would die of it and leave its
		 * ranks running. It unblocks all signals in the ranks. srun does handle it.
		 */
		sigemptyset(&quit);
		sigaddset(&quit, SIGQUIT);
		sigprocmask(SIG_BLOCK, &quit, NULL);
		if (plan->mpirun_version == 4)
			guard_start();
	}
	execv(plan->path, plan->argv.item);
	error = errno;
	print_error("%s cannot be run: %s", plan->path, strerror(error));
	return error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
}

bool launch_set_key(struct plan *plan)
{
	const char *given = getenv("ZERO_RUN");
	uint8_t key[16];
	char text[ZERO_RUN_BYTES];

	/* a zerorun around this one listens for its own ranks */
	unsetenv("ZERO_LAUNCHER");
	if (given && zero_run_parse(given, key))
		return true;
	if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key)) {
		print_error("the system gives no random numbers: %s", strerror(errno));
		return false;
	}
	zero_run_format(key, text);
	setenv("ZERO_RUN", text, 1);
	plan->own_run = true;
	return true;
}
