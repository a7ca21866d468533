/* SPDX-License-Identifier: Apache-2.0 */
/* How a job in a Slurm allocation goes on after the loss of nodes: with others, or fewer. */
#ifndef ZERORUN_RECOVER_H
#define ZERORUN_RECOVER_H

#include "launcher/plan/plan.h"
#include "launcher/recover/choose.h"
#include "launcher/recover/nodes.h"
#include "net/launcher.h"

struct recovery {
	struct plan *plan;
	size_t flags_at, flags; /* where in plan->argv its own flags are, and how many */
	struct nodes nodes;
	struct layout layout;
	bool *used;     /* which nodes the attempt uses */
	bool *told;     /* of which lost nodes a line was printed */
	char *names;    /* of the used nodes */
	pid_t releases; /* the process that releases lost nodes; 0: none */
	unsigned ranks; /* of the attempt */
	/* What a rank has told of its loss; no node and ZERO_NO_STEP: nothing. */
	struct zero_loss_notice notice;
};

/*
 * Prepares the first attempt. *recovery is NULL where nodes cannot be replaced: outside an
 * allocation, and where Slurm does not say which there are. Returns 0, or the exit status after an
 * error.
 */
int recovery_prepare(struct recovery **recovery, struct plan *plan, const struct request *request);
/* NULL is a no-op. */
void recovery_free(struct recovery *recovery);
/* Whether a node is lost of which recovery_print_loss has printed no line. */
bool recovery_has_loss(struct recovery *recovery);
/* Prints which nodes are lost, `seconds` after the attempt began. */
void recovery_print_loss(struct recovery *recovery, double seconds);
/* Changes the plan for an attempt without the lost nodes. Returns false, after a sentence that says
   why, if the job cannot go on. */
bool recovery_continue(struct recovery *recovery);

#endif
