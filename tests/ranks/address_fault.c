/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An access to a parameter that is not gathered ends the process by SIGSEGV after a sentence. All
 * other faults are as without the library, and so are handlers of the program. A forked child has
 * the fault, so that the rank goes on.
 */
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "address.h"

enum { HANDLED = 42, PAGE = 4096 };

static struct sigaction at_first;
static volatile char *page; /* no access */
static sigjmp_buf again;
static volatile uintptr_t expected;

static void by_program(int number, siginfo_t *info, void *context)
{
	(void)context;
	_exit(number == SIGSEGV && (uintptr_t)info->si_addr == expected ? HANDLED : 1);
}

static void jump_back(int number)
{
	(void)number;
	siglongjmp(again, 1);
}

static void install(int flags, void (*handler)(int, siginfo_t *, void *), void (*plain)(int))
{
	struct sigaction action = {.sa_flags = flags};

	if (handler)
		action.sa_sigaction = handler;
	else
		action.sa_handler = plain;
	check(!sigaction(SIGSEGV, &action, NULL), "no handler");
}

static void read_at(const volatile char *at)
{
	expected = (uintptr_t)at;
	(void)*at;
}

static void raise_it(const volatile char *at)
{
	(void)at;
	raise(SIGSEGV);
}

struct fault {
	void (*before)(void); /* NULL, or what the child does first */
	void (*make)(const volatile char *at);
	const volatile char *at;
	int handled;         /* the exit status by a handler; 0: it dies of the signal */
	const char *words;   /* of the sentence; NULL: it has none */
	const char *words_2; /* of the same; may be NULL */
};

/* Returns what the child printed; static. */
static const char *run(const struct fault *fault)
{
	static char text[65536];
	const struct rlimit no_core = {0};
	size_t length = 0;
	ssize_t got;
	int ends[2], status = 0;
	pid_t child;

	check(!pipe(ends), "no pipe");
	fflush(NULL);
	child = fork();
	check(child >= 0, "no child");
	if (!child) {
		setrlimit(RLIMIT_CORE, &no_core);
		dup2(ends[1], STDERR_FILENO);
		if (fault->before)
			fault->before();
		fault->make(fault->at);
		_exit(0);
	}
	close(ends[1]);
	while (length < sizeof(text) - 1 &&
	       (got = read(ends[0], text + length, sizeof(text) - 1 - length)) > 0)
		length += (size_t)got;
	text[length] = 0;
	close(ends[0]);
	check(waitpid(child, &status, 0) == child, "no child");
#ifndef __SANITIZE_ADDRESS__
	check(fault->handled ? WIFEXITED(status) && WEXITSTATUS(status) == fault->handled
			     : WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV,
	      "status %x after: %s", status, text);
#endif
	return text;
}

static void check_fault(const struct fault *fault)
{
	const char *text = run(fault), *first = strstr(text, "is accessed while");

	if (!fault->words) {
		check(!first, "%s", text);
		return;
	}
	check(first && !strstr(first + 1, "is accessed while"), "not one sentence: %s", text);
	check(strstr(text, fault->words), "no '%s' in: %s", fault->words, text);
	check(!fault->words_2 || strstr(text, fault->words_2), "no '%s' in: %s", fault->words_2,
	      text);
}

static void unmapped(const volatile char *at, const char *words, const char *words_2)
{
	check_fault(&(struct fault){.make = read_at, .at = at, .words = words, .words_2 = words_2});
}

/* The program's own handler, set after the layout. */
static void set_handler(void)
{
	install(SA_SIGINFO, by_program, NULL);
}

/* The program's handler jumps back. */
static void read_caught(const volatile char *at)
{
	if (!sigsetjmp(again, 1)) {
		(void)*at;
		_exit(1);
	}
	_exit(HANDLED);
}

static void recover_twice(void)
{
	for (volatile int i = 0; i < 2; i++)
		if (!sigsetjmp(again, 1)) {
			(void)*page;
			_exit(1);
		}
}

void faults_before_layout(void)
{
	check(!sigaction(SIGSEGV, NULL, &at_first), "no SIGSEGV");
	page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(page != MAP_FAILED, "no page");
}

void faults(zero_job *job, zero_group *group, zero_param *param)
{
	const volatile char *at = zero_gathered_address(param, ZERO_BF16);
	const volatile char *wide = zero_gathered_address(param, ZERO_F32);

	check(at, "%s", zero_last_error());
	unmapped(at, "group 'f.0'", "it was never gathered in that type");
	ok(zero_gather(group, ZERO_BF16));
	read_at(at);
	if (!gathers_in_place(job))
		unmapped(wide + 4 * 9, "element 9 of parameter 'f.0.0' as f32", "gathered as bf16");
	ok(zero_release(group));
	unmapped(at + 2 * 7 + 1, "element 7 of parameter 'f.0.0' as bf16",
		 "zero_release has released it");
	/* Again, since a block may come back to its place. */
	ok(zero_gather(group, ZERO_BF16));
	read_at(at);
	ok(zero_release(group));
	unmapped(at, "zero_release has released it", NULL);

	check_fault(&(struct fault){.make = read_at, .at = page});
	check_fault(&(struct fault){.make = raise_it});
	check_fault(&(struct fault){
		.before = set_handler, .make = read_at, .at = page, .handled = HANDLED});
}

/* Handlers that the program has before the layout: they get its own faults as ever, and the others
   after the sentence. */
static void with_handler(bool jumps)
{
	zero_job *job;
	zero_group *group;
	zero_param *param;
	const volatile char *at;
	struct sigaction now;

	install(jumps ? 0 : SA_SIGINFO, jumps ? NULL : by_program, jump_back);
	job = open_job("stage=3");
	group = new_group(job, "f.0");
	param = new_param(group, "p", ZERO_F32, 1000, true);
	ok(zero_layout(job));
	at = zero_gathered_address(param, ZERO_BF16);
	check_fault(&(struct fault){
		.make = jumps ? read_caught : read_at, .at = page, .handled = HANDLED});
	check_fault(&(struct fault){.before = jumps ? recover_twice : NULL,
				    .make = jumps ? read_caught : read_at,
				    .at = at,
				    .handled = HANDLED,
				    .words = "'f.0'"});
	ok(zero_close(job));
	check(!sigaction(SIGSEGV, NULL, &now) &&
		      (jumps ? now.sa_handler == jump_back : now.sa_sigaction == by_program),
	      "another handler is left");
}

void faults_after_close(void)
{
	struct sigaction now;

	check(!sigaction(SIGSEGV, NULL, &now) && now.sa_handler == at_first.sa_handler &&
		      now.sa_flags == at_first.sa_flags,
	      "another handler is left");
	with_handler(false);
	with_handler(true);
	sigaction(SIGSEGV, &at_first, NULL);
}
