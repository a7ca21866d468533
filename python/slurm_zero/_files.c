/* SPDX-License-Identifier: Apache-2.0 */
/* Loading, exporting and checkpoints. */
#include "_zero.h"

/* Gives a parameter the values at an address of host memory, the same on all ranks. */
static PyObject *py_load_from(PyObject *self, PyObject *args)
{
	zero_param *param;
	zero_source source;
	zero_status status;
	unsigned long long address;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&K", zero_py_to_param, &param, &address))
		return NULL;
	source = zero_from_all((const void *)(uintptr_t)address);
	WAIT(zero_load(param, &source));
	return zero_py_status(status);
}

/* What the callbacks of a load need: the names of tensors, and a callable or None. */
struct load {
	PyObject *names, *progress;
};

static const char *load_name(void *context, const char *param, bool *transpose)
{
	struct load *load = context;
	PyGILState_STATE lock = PyGILState_Ensure();
	PyObject *name = PyDict_GetItemString(load->names, param);
	/* The dict keeps the text. */
	const char *text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;

	*transpose = false;
	PyErr_Clear();
	PyGILState_Release(lock);
	return text;
}

static zero_status load_progress(void *context, const char *param, uint64_t done, uint64_t total)
{
	struct load *load = context;
	PyGILState_STATE lock = PyGILState_Ensure();
	PyObject *result = PyObject_CallFunction(
		load->progress, "zKK", param, (unsigned long long)done, (unsigned long long)total);
	zero_status status = result ? ZERO_OK : ZERO_E_APPLICATION;

	Py_XDECREF(result);
	if (!result)
		PyErr_WriteUnraisable(load->progress);
	PyGILState_Release(lock);
	return status;
}

static PyObject *name_list(const char **names, size_t count)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < count; i++) {
		PyObject *name = PyUnicode_FromString(names[i]);

		if (!name || PyList_Append(list, name)) {
			Py_DecRef(list);
			list = NULL;
		}
		Py_XDECREF(name);
	}
	return list;
}

/* load_model(path, {parameter: tensor}, progress or None, strict): (missing, unexpected) */
static PyObject *py_load_model(PyObject *self, PyObject *args)
{
	struct load load;
	zero_load_model_options options = {.tensor_name = load_name, .context = &load};
	zero_load_model_report report = {0};
	PyObject *result;
	const char *path;
	zero_status status;
	int strict;

	(void)self;
	if (!PyArg_ParseTuple(args, "sOOp", &path, &load.names, &load.progress, &strict) ||
	    !zero_py_has_job())
		return NULL;
	if (load.progress != Py_None)
		options.progress = load_progress;
	options.allow_missing = options.allow_unexpected = !strict;
	WAIT(zero_load_model(zero_py_job, path, &options, &report));
	result = status ? zero_py_fail()
			: Py_BuildValue("NN", name_list(report.missing, report.missing_count),
					name_list(report.unexpected, report.unexpected_count));
	zero_load_model_report_free(&report);
	return result;
}

static PyObject *py_export(PyObject *self, PyObject *args)
{
	const char *path;
	zero_status status;

	(void)self;
	if (!PyArg_ParseTuple(args, "s", &path) || !zero_py_has_job())
		return NULL;
	WAIT(zero_export(zero_py_job, path));
	return zero_py_status(status);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* state_register(param, name, dtype, one value for all of the parameter, address) */
static PyObject *py_state_register(PyObject *self, PyObject *args)
{
	zero_param *param;
	zero_state_spec spec = {0};
	unsigned long long address;
	int dtype, whole;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&sipK", zero_py_to_param, &param, &spec.name, &dtype, &whole,
			      &address))
		return NULL;
	spec.dtype = (zero_dtype)dtype;
	spec.block = whole ? ZERO_STATE_WHOLE : 1;
	spec.data = (void *)(uintptr_t)address;
	return zero_py_status(zero_state_register(param, &spec));
}

static PyObject *py_state_unregister(PyObject *self, PyObject *args)
{
	zero_param *param;
	zero_status status;
	const char *name;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&s", zero_py_to_param, &param, &name))
		return NULL;
	WAIT(zero_state_unregister(param, name));
	return zero_py_status(status);
}

/* save(folder, bytes of the program, step, keep_last, background) */
static PyObject *py_save(PyObject *self, PyObject *args)
{
	zero_save_options options = {0};
	unsigned long long step;
	zero_status status;
	const char *path, *user;
	Py_ssize_t bytes;
	int background;

	(void)self;
	if (!PyArg_ParseTuple(args, "sy#Kip", &path, &user, &bytes, &step, &options.keep_last,
			      &background) ||
	    !zero_py_has_job())
		return NULL;
	options.user = user;
	options.user_bytes = (size_t)bytes;
	options.step = step;
	options.background = background;
	WAIT(zero_save(zero_py_job, path, &options));
	return zero_py_status(status);
}

static PyObject *py_save_wait(PyObject *self, PyObject *args)
{
	zero_status status;

	(void)self, (void)args;
	if (!zero_py_has_job())
		return NULL;
	WAIT(zero_save_wait(zero_py_job));
	return zero_py_status(status);
}

/* restore(path): (step, bytes of the program) */
static PyObject *py_restore(PyObject *self, PyObject *args)
{
	zero_checkpoint_info info = {0};
	zero_status status;
	PyObject *result;
	const char *path;

	(void)self;
	if (!PyArg_ParseTuple(args, "s", &path) || !zero_py_has_job())
		return NULL;
	WAIT(zero_restore(zero_py_job, path, &info));
	if (status)
		result = zero_py_fail();
	else
		result = Py_BuildValue("Ky#", (unsigned long long)info.step,
				       info.user ? (const char *)info.user : "",
				       (Py_ssize_t)info.user_bytes);
	zero_checkpoint_info_free(&info);
	return result;
}

PyMethodDef zero_py_file_methods[] = {
	{"load_from", py_load_from, METH_VARARGS, NULL},
	{"load_model", py_load_model, METH_VARARGS, NULL},
	{"export", py_export, METH_VARARGS, NULL},
	{"state_register", py_state_register, METH_VARARGS, NULL},
	{"state_unregister", py_state_unregister, METH_VARARGS, NULL},
	{"save", py_save, METH_VARARGS, NULL},
	{"save_wait", py_save_wait, METH_NOARGS, NULL},
	{"restore", py_restore, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};
