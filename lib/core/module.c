/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens modules from the library's own folder. Hardware, PMIx and file formats stay out of
 * processes that have the library preloaded and never use it.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "module.h"

#include "error.h"

const struct zero_core zero_library_core = {
	.fail = zero_fail,
	.fail_on = zero_fail_on,
	.last_error = zero_last_error,
	.strerror = zero_strerror,
	.dtype_size = zero_dtype_size,
	.hash = zero_hash,
	.module_open = zero_module_open,
};

/* Writes "<folder of libzero.so>/<below>zero_<name>.so". Returns whether there is such a file. */
static bool module_path(char *path, const char *below, const char *name)
{
	const char *slash;
	Dl_info self;

	if (!dladdr(&zero_library_core, &self) || !self.dli_fname)
		return false;
	slash = strrchr(self.dli_fname, '/');
	snprintf(path, PATH_MAX, "%.*s%szero_%s.so", slash ? (int)(slash + 1 - self.dli_fname) : 0,
		 self.dli_fname, below, name);
	return access(path, F_OK) == 0;
}

zero_status zero_module_open(const char *name, const void **table)
{
	char symbol[64], path[PATH_MAX];
	zero_module_entry entry;
	void *handle;

	if (!module_path(path, "slurm-zero/", name) && !module_path(path, "", name))
		return zero_fail(ZERO_E_UNSUPPORTED,
				 "module zero_%s.so is not installed beside libzero.so: the build "
				 "had no packages for it (see the summary of configure)",
				 name);
	/* NODELETE: MPI may leave threads and exit handlers behind. */
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!handle)
		return zero_fail(ZERO_E_UNSUPPORTED, "cannot load %s: %s", path, dlerror());
	snprintf(symbol, sizeof(symbol), "zero_module_%s", name);
	*(void **)&entry = dlsym(handle, symbol);
	if (!entry)
		return zero_fail(ZERO_E_UNSUPPORTED, "%s has no %s", path, symbol);
	*table = entry(&zero_library_core);
	if (*(const int *)*table != ZERO_MODULE_ABI)
		return zero_fail(ZERO_E_UNSUPPORTED,
				 "%s is of another build than libzero.so (%d, not %d): install "
				 "both from one package",
				 path, *(const int *)*table, ZERO_MODULE_ABI);
	return ZERO_OK;
}
