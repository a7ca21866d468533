/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An access to a parameter that is not gathered ends the process by SIGSEGV, since its address has
 * no memory then. A handler of that signal prints a sentence first. All else is as without it:
 * other faults, handlers that the program or a debugger had installed before, and the core file.
 *
 * The handler belongs to the process, which has one job at a time. It only reads: what is fixed
 * from the layout to zero_close.
 */
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "train.h"

static _Atomic(const zero_job *) watched; /* NULL: no job has gather buffers */
static struct sigaction before;

struct sentence {
	char text[1024];
	size_t length;
};

/* printf may take locks, and allocates. */
static void add(struct sentence *sentence, const char *text)
{
	for (; *text && sentence->length < sizeof(sentence->text) - 1; text++)
		sentence->text[sentence->length++] = *text;
}

static void add_number(struct sentence *sentence, size_t number)
{
	char digits[24];
	char *at = digits + sizeof(digits) - 1;

	*at = 0;
	do {
		*--at = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	add(sentence, at);
}

/* The flat buffer with a gather buffer at that address, and which of its own that is. */
static const struct zero_flat *find_buffer(const zero_group *group, uintptr_t at, size_t *which)
{
	for (size_t f = 0; f < group->flat_count; f++)
		for (*which = 0; *which < ZERO_GATHER_BUFFERS; ++*which) {
			const struct zero_gather_buffer *buffer = &group->flats[f].buffers[*which];

			if (buffer->address && at - (uintptr_t)buffer->address < buffer->bytes)
				return &group->flats[f];
		}
	return NULL;
}

/* No parameter of the flat buffer is there if it is padding. */
static void add_param(struct sentence *sentence, const struct zero_flat *flat, zero_dtype as,
		      uintptr_t at)
{
	const zero_group *group = flat->group;

	for (size_t p = 0; p < group->param_count; p++) {
		const zero_param *param = group->params[p];
		zero_dtype dtype;
		uintptr_t begin;

		if (param->alias_of || param->flat != flat)
			continue;
		begin = (uintptr_t)zero_param_gather_buffer(param, as, &dtype);
		if (!begin || (at - begin) / zero_dtype_size(dtype) >= param->count)
			continue;
		add(sentence, ": element ");
		add_number(sentence, (at - begin) / zero_dtype_size(dtype));
		add(sentence, " of parameter '");
		add(sentence, param->name);
		add(sentence, "' as ");
		add(sentence, zero_dtype_name(dtype));
	}
}

static void add_reason(struct sentence *sentence, const struct zero_flat *flat,
		       const struct zero_gather_buffer *buffer)
{
	const zero_group *group = flat->group;

	if (group->ready && buffer->address == (void *)flat->gathered.data)
		add(sentence, "; it is in the memory of a device, which the host cannot access");
	else if (group->ready) {
		add(sentence, "; it is gathered as ");
		add(sentence, zero_dtype_name(group->gathered_as));
	} else if (group->gather)
		add(sentence, "; its gather is under way, and zero_gather waits for it");
	else if (buffer->used)
		add(sentence, "; zero_release has released it");
	else
		add(sentence, "; it was never gathered in that type");
}

static void describe(struct sentence *sentence, const zero_job *job, const struct zero_flat *flat,
		     size_t which, uintptr_t at)
{
	static const zero_dtype types[ZERO_GATHER_BUFFERS] = {ZERO_DTYPE_PARAM, ZERO_F32, ZERO_F16,
							      ZERO_BF16};

	add(sentence, "zero: rank ");
	add_number(sentence, (size_t)job->place.rank);
	add(sentence, " on node ");
	add(sentence, job->place.node);
	add(sentence, ": group '");
	add(sentence, flat->group->name);
	add(sentence, "' is accessed while it is not gathered");
	add_param(sentence, flat, types[which], at);
	add_reason(sentence, flat, &flat->buffers[which]);
	add(sentence, "\n");
}

/* Prints the sentence if the address is one of a gather buffer. */
static bool print(const zero_job *job, uintptr_t at)
{
	struct sentence sentence = {.length = 0};
	const struct zero_flat *flat = NULL;
	size_t which = 0;

	for (zero_group *group = NULL; !flat && (group = zero_group_after(job->model, group));)
		flat = find_buffer(group, at, &which);
	if (!flat)
		return false;
	describe(&sentence, job, flat, which, at);
	return write(STDERR_FILENO, sentence.text, sentence.length) >= 0;
}

/* What would have happened without this handler. */
static void pass_on(int number, siginfo_t *info, void *context)
{
	struct sigaction action = before;

	if (action.sa_flags & (int)SA_RESETHAND)
		before = (struct sigaction){.sa_handler = SIG_DFL};
	if (action.sa_flags & SA_SIGINFO)
		action.sa_sigaction(number, info, context);
	else if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)
		action.sa_handler(number);
	else if (info->si_code > 0 || action.sa_handler == SIG_DFL) {
		/* A fault of the processor occurs again on return, so that a core file shows its
		   place. */
		sigaction(number, &before, NULL);
		if (info->si_code <= 0)
			raise(number);
	}
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	const zero_job *job = atomic_load(&watched);

	if (job && info->si_code > 0 && print(job, (uintptr_t)info->si_addr)) {
		atomic_store(&watched, NULL); /* once, if several threads do so */
		/* It occurs again on return, under the handler of before. */
		sigaction(number, &before, NULL);
	} else {
		pass_on(number, info, context);
	}
}

zero_status zero_unmapped_access_open(zero_job *job)
{
	struct sigaction action = {.sa_sigaction = on_fault};

	if (!job->ops->reserve || sigaction(SIGSEGV, NULL, &before))
		return ZERO_OK;
	action.sa_mask = before.sa_mask;
	action.sa_flags = SA_SIGINFO | SA_ONSTACK | (before.sa_flags & (SA_NODEFER | SA_RESTART));
	atomic_store(&watched, job);
	sigaction(SIGSEGV, &action, NULL);
	return ZERO_OK;
}

void zero_unmapped_access_close(void)
{
	struct sigaction now;

	/* A handler that the program has set since then stays, and may call this one. */
	if (atomic_exchange(&watched, NULL) && !sigaction(SIGSEGV, NULL, &now) &&
	    now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault)
		sigaction(SIGSEGV, &before, NULL);
}
