/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the analyser, which looks at one source at a time, is told of functions in others: that a
 * failure is one, and that zero_submit_wait fails on every rank if it is begun with an error.
 */
#ifndef ZERO_ANALYZE_H
#define ZERO_ANALYZE_H

#ifdef ANALYZE_LIBRARY
#include "core/error.h"
#include "job/job.h"

#define zero_fail(status, ...) ((zero_fail)(status, __VA_ARGS__) ? (status) : (status))
#define zero_submit_wait(team, status, ...) \
	((status) ? (status) : (zero_submit_wait)(team, status, __VA_ARGS__))
#else
#include "core/module.h"
#ifdef ANALYZE_FILES
#include "files/input.h"

#define files_no_memory(path) ((files_no_memory)(path) ? ZERO_E_MEMORY : ZERO_E_MEMORY)
#endif
/* core->fail(...) */
#define fail(status, ...) fail(status, __VA_ARGS__) ? (status) : (status)
#endif

#endif
