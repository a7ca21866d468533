/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "user_request.h"

/* Appends the working folder, since that of a step may not be that of the command. */
static void append_folder(const char *path, char *why, size_t size)
{
	char folder[PATH_MAX];

	if (*path != '/' && getcwd(folder, sizeof folder))
		zero_append(why, size, strlen(why), " (in %s)", folder);
}

bool user_request_read(user_variable variable, void *context, struct user_request *request,
		       char *why, size_t size)
{
	const char *path;

	request->file = NULL;
	if (!user_settings(variable, context, &request->settings, why, size))
		return false;
	path = request->settings.value[ZERO_OPT_CONFIG].text;
	if (!path || !*path)
		return true;
	request->file = zero_config_read(path, ZERO_CONFIG_USER, why, size);
	if (request->file)
		return true;
	append_folder(path, why, size);
	zero_settings_clear(&request->settings);
	return false;
}

void user_request_clear(struct user_request *request)
{
	zero_config_free(request->file);
	zero_settings_clear(&request->settings);
}

bool user_request_resolve(const struct user_request *request, const struct zero_config *site,
			  const struct zero_where *where, struct zero_settings *resolved, char *why,
			  size_t size)
{
	return zero_config_resolve(site, request->file, &request->settings, where, resolved, why,
				   size);
}
