/* SPDX-License-Identifier: Apache-2.0 */
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "srun_pmix.h"

struct search {
	char *folder; /* "" if no plugin of Slurm is loaded */
	bool found;
};

/* srun has always loaded one of these by now, and all plugins are in one folder. */
static bool is_slurm_plugin(const char *name)
{
	static const char *const kinds[] = {"auth_", "hash_", "select_", "switch_"};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (strncmp(name, kinds[i], strlen(kinds[i])) == 0)
			return true;
	}
	return false;
}

static int search_folder(struct dl_phdr_info *object, size_t size, void *context)
{
	struct search *search = context;
	const char *name = object->dlpi_name, *slash = strrchr(name, '/');
	char path[PATH_MAX + 16];

	(void)size;
	if (!slash || !is_slurm_plugin(slash + 1))
		return 0;
	snprintf(search->folder, PATH_MAX, "%.*s", (int)(slash - name), name);
	snprintf(path, sizeof path, "%s/mpi_pmix.so", search->folder);
	search->found = access(path, F_OK) == 0;
	return search->found;
}

bool srun_lacks_pmix(char folder[PATH_MAX])
{
	struct search search = {.folder = folder};

	folder[0] = '\0';
	dl_iterate_phdr(search_folder, &search);
	return folder[0] && !search.found;
}
