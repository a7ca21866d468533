/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a rank tells zerorun that the job has lost a rank: under Slurm, srun may not notice that a
 * node is gone, or waits for it. zerorun listens, and its ranks find where in ZERO_LAUNCHER. The
 * rank connects with a hello, whose cookie is the job's ZERO_RUN and which wants the attempt, the
 * number in ZERO_RESTART, where other hellos want a rank. A notice follows.
 */
#ifndef ZERO_NET_LAUNCHER_H
#define ZERO_NET_LAUNCHER_H

#include "dial.h"

/* All machines of a job have the same byte order. */
struct zero_loss_notice {
	int32_t rank;  /* the lost one */
	uint32_t step; /* of Slurm, in which the sender is; ZERO_NO_STEP: none */
	char node[64];
};
#define ZERO_NO_STEP UINT32_MAX

enum { ZERO_LAUNCHER_BYTES = 64 + 8 + ZERO_ADDRESSES * 46, ZERO_RUN_BYTES = 33 };

/* Where zerorun listens, as "NODE:PORT:ADDRESS,ADDRESS". Addresses that only the node itself can
   use are left out. */
void zero_launcher_format(const struct zero_address *address, char text[ZERO_LAUNCHER_BYTES]);
/* Returns false if the text is another one. */
bool zero_launcher_parse(const char *text, struct zero_address *address);
/* A run's key as 32 hexadecimal digits, and back. */
void zero_run_format(const uint8_t *cookie, char text[ZERO_RUN_BYTES]);
bool zero_run_parse(const char *text, uint8_t *cookie);

/* Reads the environment of a rank, and prepares its notice. Returns false if no zerorun listens. */
bool zero_launcher_find(struct zero_address *address, int *attempt,
			struct zero_loss_notice *notice);
/* Sends a notice, and takes `seconds` at most. Returns whether zerorun has answered. */
bool zero_launcher_notify(const struct zero_address *address, int attempt,
			  const struct zero_loss_notice *notice, double seconds);

#endif
