/* SPDX-License-Identifier: Apache-2.0 */
/* Each thread's last error: a full sentence, and the rank on which it arose. */
#ifndef ZERO_ERROR_H
#define ZERO_ERROR_H

#include "zero.h"

/* Stores the sentence as the thread's last error, which arose on this rank. Returns `status`. */
zero_status zero_fail(zero_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Stores the sentence of an error that arose on `rank` and that all ranks have. */
zero_status zero_fail_on(int rank, zero_status status, const char *text);
/* Whether all ranks have the thread's last error. */
bool zero_last_error_shared(void);

/* A copy of the thread's last error, to restore it after other calls may have failed. The text is
   empty if there was none. */
struct zero_saved_error {
	zero_status status;
	int rank;
	bool shared; /* all ranks have it */
	char text[1024];
};
void zero_error_save(struct zero_saved_error *saved);
void zero_error_restore(const struct zero_saved_error *saved);

/* The rank of this process, for errors outside of a job's calls; 0 until it is set. */
void zero_process_rank_set(int rank);
int zero_process_rank(void);

uint64_t zero_hash(const void *data, size_t bytes, uint64_t seed); /* FNV-1a */

#endif
