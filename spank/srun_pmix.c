/* SPDX-License-Identifier: Apache-2.0 */
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "srun_pmix.h"

struct look {
	char *folder; /* "" if no plugin of Slurm's was met */
	bool found;
};

/* Of these Slurm has always one loaded by now, and the others lie beside it. */
static bool is_slurm_plugin(const char *name)
{
	static const char *const kinds[] = {"auth_", "hash_", "select_", "switch_"};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (strncmp(name, kinds[i], strlen(kinds[i])) == 0)
			return true;
	}
	return false;
}

static int look_beside(struct dl_phdr_info *object, size_t size, void *context)
{
	struct look *look = context;
	const char *name = object->dlpi_name, *slash = strrchr(name, '/');
	char path[PATH_MAX + 16];

	(void)size;
	if (!slash || !is_slurm_plugin(slash + 1))
		return 0;
	snprintf(look->folder, PATH_MAX, "%.*s", (int)(slash - name), name);
	snprintf(path, sizeof path, "%s/mpi_pmix.so", look->folder);
	look->found = access(path, F_OK) == 0;
	return look->found;
}

bool pmix_is_missing(char folder[PATH_MAX])
{
	struct look look = {.folder = folder};

	folder[0] = '\0';
	dl_iterate_phdr(look_beside, &look);
	return folder[0] && !look.found;
}
