/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "step.h"

/*
 * Returns the root of the container that the task's program will run in: "" for the root that is
 * here already, such as that of pyxis or of the node, and NULL without memory. srun --container
 * hands its bundle to a runtime only after this (src/slurmd/slurmstepd/container.c). *is_container:
 * it has one.
 */
static char *find_root(spank_t spank, const struct step_node *node, bool *is_container)
{
	char *bundle = step_variable(spank, "SLURM_CONTAINER"), *root;
	struct stat here;

	*is_container = bundle && *bundle;
	if (asprintf(&root, "%s%s", *is_container ? bundle : "", *is_container ? "/rootfs" : "") <
	    0)
		root = NULL;
	free(bundle);
	if (!*is_container && !stat("/", &here))
		*is_container =
			here.st_dev != node->root.st_dev || here.st_ino != node->root.st_ino;
	return root;
}

/* Returns 0 if the library may be read, or an error number. */
static int check_library(const char *root, const char *path)
{
	/* what the loader puts in for $LIB, on Debian and on others */
	static const char *const folders[] = {"lib64", "lib/x86_64-linux-gnu",
					      "lib/aarch64-linux-gnu", "lib"};
	const char *variable = strstr(path, "$LIB");
	size_t count = variable ? sizeof(folders) / sizeof(folders[0]) : 1;
	int error = ENOENT;

	for (size_t i = 0; i < count && error; i++) {
		char *file;
		int length = variable ? asprintf(&file, "%s%.*s%s%s", root, (int)(variable - path),
						 path, folders[i], variable + strlen("$LIB"))
				      : asprintf(&file, "%s%s", root, path);

		if (length < 0)
			return ENOMEM;
		error = access(file, R_OK) ? errno : 0;
		free(file);
	}
	return error;
}

/* Also sets the option `fact`, by which nested_step.c finds the path in the variable. An empty part
   of PYTHONPATH would be the working folder. */
static bool prepend(spank_t spank, const char *variable, const char *path,
		    struct zero_settings *resolved, enum zero_option_id fact, char *why,
		    size_t size)
{
	char *before = step_variable(spank, variable), *both;
	bool more = before && *before;
	int length = asprintf(&both, "%s%s%s", path, more ? ":" : "", more ? before : "");
	bool ok = length >= 0 && !spank_setenv(spank, variable, both, 1);

	if (length >= 0)
		free(both);
	free(before);
	if (ok)
		return task_budget_set_fact(resolved, fact, path, why, size);
	snprintf(why, size, "%s cannot be set in the environment of the task", variable);
	return false;
}

static bool refuse_library(const struct zero_settings *resolved, const char *path, int error,
			   char *why, size_t size)
{
	bool configured = resolved->value[ZERO_OPT_PRELOAD_PATH].text[0];

	return zero_refuse(why, size, "%s cannot be preloaded: %s; %s%s, or use --zero-preload=no",
			   path, strerror(error),
			   configured ? "correct preload_path of "
				      : "install the package on this node",
			   configured ? resolved->origin[ZERO_OPT_PRELOAD_PATH] : "");
}

static bool set_nothing(struct zero_settings *resolved, char *why, size_t size)
{
	return task_budget_set_fact(resolved, ZERO_OPT_PRELOAD_PATH, "", why, size);
}

static bool set_library(spank_t spank, const struct step_node *node, const char *path,
			struct zero_settings *resolved, char *why, size_t size)
{
	bool is_container;
	char *root = find_root(spank, node, &is_container), *note;
	int error = root ? check_library(root, path) : ENOMEM;

	free(root);
	/* the loader splits the variable at these */
	if (strpbrk(path, ": "))
		error = EINVAL;
	if (!error)
		return prepend(spank, "LD_PRELOAD", path, resolved, ZERO_OPT_PRELOAD_PATH, why,
			       size);
	if (!is_container) {
		refuse_library(resolved, path, error, why, size);
		/* the user did not ask for it */
		if (node->by_site)
			log_once(node, NOTICE_PRELOAD, why);
		return node->by_site && set_nothing(resolved, why, size);
	}
	if (asprintf(&note,
		     "nothing is preloaded, since the container has no %s: mount it, set "
		     "preload_path, or use --zero-preload=no",
		     path) >= 0) {
		log_once(node, NOTICE_PRELOAD, note);
		free(note);
	}
	return set_nothing(resolved, why, size);
}

bool task_preload_set(spank_t spank, const struct step_node *node, struct zero_settings *resolved,
		      char *why, size_t size)
{
	const char *configured = resolved->value[ZERO_OPT_PRELOAD_PATH].text;
	char *path;
	bool ok;

	if (resolved->value[ZERO_OPT_PRELOAD].number != ZERO_PRELOAD_YES)
		return set_nothing(resolved, why, size);
	/* a copy, since what is preloaded becomes the option's value */
	path = strdup(*configured ? configured : ZERO_LIBRARY);
	ok = path ? set_library(spank, node, path, resolved, why, size)
		  : zero_refuse(why, size, "out of memory for LD_PRELOAD");
	free(path);
	return ok;
}

/* Returns whether the folder can be in PYTHONPATH, and has the package. */
static bool check_folder(spank_t spank, const struct step_node *node, const char *folder)
{
	bool is_container, found = false;
	char *root = find_root(spank, node, &is_container), *package;

	if (root && !strpbrk(folder, ": ") &&
	    asprintf(&package, "%s%s/slurm_zero/__init__.py", root, folder) >= 0) {
		found = !access(package, R_OK);
		free(package);
	}
	free(root);
	return found;
}

bool task_python_set(spank_t spank, const struct step_node *node, struct zero_settings *resolved,
		     char *why, size_t size)
{
	const char *library = resolved->value[ZERO_OPT_PRELOAD_PATH].text, *slash;
	char *folder;
	bool ok = true;

	if (resolved->value[ZERO_OPT_PYTHON].number != ZERO_PYTHON_YES)
		return true;
	/* Python does not know $LIB */
	if (!*library || strchr(library, '$'))
		library = ZERO_LIBRARY;
	slash = strrchr(library, '/');
	if (asprintf(&folder, "%.*s/slurm-zero/python", (int)(slash - library), library) < 0)
		return zero_refuse(why, size, "out of memory for PYTHONPATH");
	if (check_folder(spank, node, folder))
		ok = prepend(spank, "PYTHONPATH", folder, resolved, ZERO_OPT_PYTHON_PATH, why,
			     size);
	free(folder);
	return ok;
}
