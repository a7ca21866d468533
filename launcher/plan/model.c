/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/model.h"

#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "files/files.h"

size_t model_group_length(const char *name)
{
	for (const char *part = name; *part;) {
		size_t length = strcspn(part, ".");

		if (part[length] && length && strspn(part, "0123456789") == length)
			return (size_t)(part - name) + length + 1;
		part += length + (part[length] == '.');
	}
	return strlen(name);
}

static zero_status find_group(struct model *model, const char *tensor, zero_group **group)
{
	size_t length = model_group_length(tensor);
	zero_status status;
	char *name;

	for (size_t g = model->of.groups.made_count; g-- > 0;) {
		*group = model->of.groups.groups[g];
		if (!strncmp((*group)->name, tensor, length) && !(*group)->name[length])
			return ZERO_OK;
	}
	name = strndup(tensor, length);
	if (!name)
		return zero_fail(ZERO_E_MEMORY, "no memory for the group of %s", tensor);
	status = zero_planned_group(&model->of, name, group);
	free(name);
	return status;
}

zero_status model_add(struct model *model, const zero_tensor *tensor)
{
	zero_param_spec spec = {.name = tensor->name,
				.dtype = tensor->dtype,
				.ndim = tensor->ndim,
				.shape = tensor->shape,
				.trainable = tensor->dtype == ZERO_F32 ||
					     tensor->dtype == ZERO_F16 ||
					     tensor->dtype == ZERO_BF16};
	size_t slice = spec.trainable && (spec.ndim == 2 || spec.ndim == 3)
			       ? zero_planned_slice(&model->of, &spec)
			       : 0;
	zero_group *group = NULL;
	zero_param *param;
	zero_status status = slice ? ZERO_OK : find_group(model, tensor->name, &group);

	if (!status)
		status = zero_planned_param(&model->of, &spec, slice, &group, &param);
	if (status)
		return status;
	/* the embedding and the head have no number, and are AdamW's */
	param->muon = param->trainable && param->ndim >= 2 &&
		      param->name[model_group_length(param->name)];
	model->tensors++;
	model->elements += param->count;
	model->bytes += param->count * zero_dtype_size(param->dtype);
	return ZERO_OK;
}

#ifdef HAVE_FILES

const struct zero_files_ops *model_files(void)
{
	return zero_module_files(&zero_library_core);
}

zero_status model_read(struct model *model, const char *path)
{
	const struct zero_files_ops *files = model_files();
	struct zero_file *file;
	zero_status status = files->open(path, &file);

	if (status)
		return status;
	for (size_t i = 0; !status && i < files->count(file); i++)
		status = model_add(model, files->tensor(file, i));
	files->close(file);
	return status;
}

#else

zero_status model_read(struct model *model, const char *path)
{
	(void)model;
	return zero_fail(ZERO_E_UNSUPPORTED,
			 "%s cannot be read: zerorun was built without Jansson and xxHash, "
			 "which it needs for the headers of safetensors files",
			 path);
}

#endif
