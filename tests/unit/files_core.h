/* SPDX-License-Identifier: Apache-2.0 */
/* The module of files alone: it uses no other function of the library than the one for errors. */
#ifndef FILES_CORE_H
#define FILES_CORE_H

#include "files/files.h"

#include <stdarg.h>
#include <stdio.h>

char sentence[4096]; /* the message of the last error */
const struct zero_files_ops *ops;

static zero_status save_error(zero_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static zero_status save_error(zero_status status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(sentence, sizeof(sentence), format, arguments);
	va_end(arguments);
	return status;
}

static const struct zero_core core = {.fail = save_error};

#endif
