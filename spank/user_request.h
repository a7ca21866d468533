/* SPDX-License-Identifier: Apache-2.0 */
/* All that the user asked for: flags, variables and the file of --zero-config. */
#ifndef ZERO_USER_REQUEST_H
#define ZERO_USER_REQUEST_H

#include "user_options.h"
#include "yaml/site_config.h"

struct user_request {
	struct zero_settings settings;
	struct zero_config *file; /* NULL without --zero-config */
};

/* Reads settings and file, with the current rights of the process. On error, returns false with a
   sentence in *why; *request needs no clearing. */
bool user_request_read(user_variable variable, void *context, struct user_request *request,
		       char *why, size_t size);
void user_request_clear(struct user_request *request);
/* Resolves all options. On error, returns false as above. */
bool user_request_resolve(const struct user_request *request, const struct zero_config *site,
			  const struct zero_where *where, struct zero_settings *resolved, char *why,
			  size_t size);

#endif
