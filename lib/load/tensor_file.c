/* SPDX-License-Identifier: Apache-2.0 */
/* Opens files of tensors through the module for formats; all ranks agree on the outcome. */
#include "load.h"

static const struct zero_files_ops *loaded;

zero_status zero_files_open(const struct zero_files_ops **files)
{
	const struct zero_files_ops *ops = __atomic_load_n(&loaded, __ATOMIC_ACQUIRE);
	const void *table;
	zero_status status;

	if (!ops) {
		status = zero_module_open("files", &table);
		if (status)
			return status;
		ops = table;
		__atomic_store_n(&loaded, ops, __ATOMIC_RELEASE);
	}
	*files = ops;
	return ZERO_OK;
}

zero_status zero_file_open(zero_job *job, const char *path, zero_file **file)
{
	const struct zero_files_ops *files = NULL;
	zero_status status;

	*file = NULL;
	status = zero_files_open(&files);
	if (!status)
		status = files->open(path, file);
	status =
		zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_LOAD, "opening of %s", path);
	if (status && files) {
		files->close(*file);
		*file = NULL;
	}
	return status;
}

void zero_file_close(zero_file *file)
{
	if (file)
		loaded->close(file);
}

size_t zero_file_count(const zero_file *file)
{
	return file ? loaded->count(file) : 0;
}

const zero_tensor *zero_file_tensor(const zero_file *file, size_t i)
{
	return file ? loaded->tensor(file, i) : NULL;
}

const zero_tensor *zero_file_find(const zero_file *file, const char *name)
{
	return file ? loaded->find(file, name) : NULL;
}
