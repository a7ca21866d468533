/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libzero that the package slurm_zero is made of. A process has one job, so that it is
 * no argument. Groups and parameters are capsules, which end with the job that they are of.
 * Memory of the library is passed as DLPack capsules, which own nothing: zero_close frees it.
 * Functions that may wait for other ranks or for files release the interpreter's lock.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "_zero.h"

#include "config.h"

/* The number of the present job, which its capsules have as their context. */
static uintptr_t job_number;
static PyObject *Error;
zero_job *zero_py_job;

#define GROUP "slurm_zero.group"
#define PARAM "slurm_zero.param"

PyObject *zero_py_fail(void)
{
	PyErr_SetString(Error, zero_last_error());
	return NULL;
}

PyObject *zero_py_status(zero_status status)
{
	if (status)
		return zero_py_fail();
	Py_RETURN_NONE;
}

bool zero_py_has_job(void)
{
	if (!zero_py_job)
		PyErr_SetString(Error, "there is no open job: call slurm_zero.init() first");
	return zero_py_job;
}

static PyObject *handle(void *pointer, const char *kind)
{
	PyObject *capsule = PyCapsule_New(pointer, kind, NULL);

	if (capsule)
		PyCapsule_SetContext(capsule, (void *)job_number);
	return capsule;
}

static void *handle_of(PyObject *capsule, const char *kind)
{
	void *pointer = PyCapsule_GetPointer(capsule, kind);

	if (!pointer)
		return NULL;
	if (!zero_py_job || PyCapsule_GetContext(capsule) != (void *)job_number) {
		PyErr_SetString(Error, "a group or parameter of a job that has been closed");
		return NULL;
	}
	return pointer;
}

int zero_py_to_group(PyObject *capsule, void *group)
{
	return (*(zero_group **)group = handle_of(capsule, GROUP)) != NULL;
}

int zero_py_to_param(PyObject *capsule, void *param)
{
	return (*(zero_param **)param = handle_of(capsule, PARAM)) != NULL;
}

bool zero_py_to_groups(PyObject *list, zero_group ***groups, size_t *count)
{
	Py_ssize_t n = zero_py_has_job() ? PyList_Size(list) : -1;

	*groups = NULL;
	*count = 0;
	if (n < 0)
		return false;
	*groups = PyMem_Malloc(((size_t)n + 1) * sizeof(**groups));
	if (!*groups) {
		PyErr_NoMemory();
		return false;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		if (!zero_py_to_group(PyList_GetItem(list, i), &(*groups)[i])) {
			PyMem_Free(*groups);
			return false;
		}
	*count = (size_t)n;
	return true;
}

/* ---- DLPack ---------------------------------------------------------------------------------- */

/* As in dlpack.h, whose layout is fixed. */
struct dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides;
	uint64_t byte_offset;
};

struct dl_managed_tensor {
	struct dl_tensor tensor;
	void *context;
	void (*deleter)(struct dl_managed_tensor *);
	int64_t shape[ZERO_MAX_DIMS];
};

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

static void dl_free(struct dl_managed_tensor *managed)
{
	free(managed);
}

/* A capsule that was consumed has another name, and its tensor another owner. */
static void dl_drop(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, "dltensor"))
		dl_free(PyCapsule_GetPointer(capsule, "dltensor"));
}

PyObject *zero_py_tensor(void *data, zero_dtype dtype, int ndim, const size_t *shape)
{
	struct dl_managed_tensor *managed;
	PyObject *capsule;

	if (!data)
		Py_RETURN_NONE;
	managed = calloc(1, sizeof(*managed));
	if (!managed)
		return PyErr_NoMemory();
	managed->deleter = dl_free;
	managed->tensor = (struct dl_tensor){
		.data = data,
		.device_type = DL_CPU,
		.ndim = ndim,
		.code = dtype == ZERO_BF16 ? DL_BFLOAT : DL_FLOAT,
		.bits = (uint8_t)(8 * zero_dtype_size(dtype)),
		.lanes = 1,
		.shape = managed->shape,
	};
	for (int i = 0; i < ndim; i++)
		managed->shape[i] = (int64_t)shape[i];
	capsule = PyCapsule_New(managed, "dltensor", dl_drop);
	if (!capsule)
		dl_free(managed);
	return capsule;
}

/* ---- a job ----------------------------------------------------------------------------------- */

static PyObject *py_open(PyObject *self, PyObject *args)
{
	zero_options options = {.program_steps = true};
	zero_status status;

	(void)self;
	if (!PyArg_ParseTuple(args, "s", &options.settings))
		return NULL;
	job_number++;
	WAIT(zero_open(&options, &zero_py_job));
	return zero_py_status(status);
}

static PyObject *py_close(PyObject *self, PyObject *args)
{
	zero_status status;
	zero_job *closing = zero_py_job;

	(void)self, (void)args;
	zero_py_job = NULL;
	WAIT(zero_close(closing));
	return zero_py_status(status);
}

static PyObject *py_is_open(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	return PyBool_FromLong(zero_py_job != NULL);
}

static PyObject *py_finish(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	return zero_py_has_job() ? zero_py_status(zero_finish(zero_py_job)) : NULL;
}

static int loss_signal, stacks_file;

/* In one write, since what runs the ranks mixes the lines of several as they come. */
static void write_stacks(void *rank)
{
	static char text[1 << 16];
	int length = snprintf(text, sizeof(text), "zero: rank %d was here:\n", (int)(intptr_t)rank);
	ssize_t more;

	raise(loss_signal);
	more = pread(stacks_file, text + length, sizeof(text) - (size_t)length, 0);
	if (more > 0)
		(void)!write(STDERR_FILENO, text, (size_t)length + (size_t)more);
}

/*
 * on_loss(signal, file): before the process is ended because of a lost rank the signal is raised, and what
 * its handler writes to the file descriptor goes to stderr; on_loss(0): nothing is
 */
static PyObject *py_on_loss(PyObject *self, PyObject *args)
{
	int number, file = -1;

	(void)self;
	if (!PyArg_ParseTuple(args, "i|i", &number, &file) || !zero_py_has_job())
		return NULL;
	zero_on_loss(zero_py_job, NULL, NULL);
	loss_signal = number;
	stacks_file = file;
	if (number)
		zero_on_loss(zero_py_job, write_stacks, (void *)(intptr_t)zero_rank(zero_py_job));
	Py_RETURN_NONE;
}

static PyObject *py_place(PyObject *self, PyObject *args)
{
	(void)self, (void)args;
	return Py_BuildValue("iiii", zero_rank(zero_py_job), zero_world(zero_py_job),
			     zero_local_rank(zero_py_job), zero_local_world(zero_py_job));
}

static PyObject *py_setting(PyObject *self, PyObject *args)
{
	const char *name;

	(void)self;
	if (!PyArg_ParseTuple(args, "s", &name) || !zero_py_has_job())
		return NULL;
	return Py_BuildValue("z", zero_setting(zero_py_job, name));
}

static PyObject *py_agree(PyObject *self, PyObject *args)
{
	const char *error;
	zero_status status;

	(void)self;
	if (!PyArg_ParseTuple(args, "z", &error) || !zero_py_has_job())
		return NULL;
	WAIT(zero_agree(zero_py_job, error));
	return zero_py_status(status);
}

static PyObject *py_exchange(PyObject *self, PyObject *args)
{
	const char *mine;
	Py_ssize_t bytes;
	PyObject *all;
	char *data;
	zero_status status;

	(void)self;
	if (!PyArg_ParseTuple(args, "y#", &mine, &bytes) || !zero_py_has_job())
		return NULL;
	all = PyBytes_FromStringAndSize(NULL, bytes * zero_world(zero_py_job));
	if (!all)
		return NULL;
	data = PyBytes_AsString(all);
	WAIT(zero_exchange(zero_py_job, mine, (size_t)bytes, data));
	if (status) {
		Py_DecRef(all);
		return zero_py_fail();
	}
	return all;
}

static PyObject *py_memory(PyObject *self, PyObject *args)
{
	zero_memory m;

	(void)self, (void)args;
	if (!zero_py_has_job())
		return NULL;
	if (zero_memory_now(zero_py_job, &m))
		return zero_py_fail();
#define BYTES(field) #field, (unsigned long long)m.field.now, (unsigned long long)m.field.peak
	return Py_BuildValue("{s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)}", BYTES(shards),
			     BYTES(gathered), BYTES(gradients), BYTES(optimizer), BYTES(staging),
			     BYTES(caller), BYTES(pinned), BYTES(offload), BYTES(checkpoint),
			     BYTES(total));
#undef BYTES
}

static PyObject *py_traffic(PyObject *self, PyObject *args)
{
	zero_traffic t;

	(void)self, (void)args;
	if (!zero_py_has_job())
		return NULL;
	if (zero_traffic_now(zero_py_job, &t))
		return zero_py_fail();
	return Py_BuildValue("{sKsKsK}", "bytes_sent", (unsigned long long)t.bytes_sent,
			     "collectives", (unsigned long long)t.collectives, "bytes_read",
			     (unsigned long long)t.bytes_read);
}

/* ---- groups and parameters ------------------------------------------------------------------- */

/* set_shard(ranks) */
static PyObject *py_set_shard(PyObject *self, PyObject *args)
{
	int ranks;

	(void)self;
	if (!PyArg_ParseTuple(args, "i", &ranks) || !zero_py_has_job())
		return NULL;
	return zero_py_status(zero_set_shard(zero_py_job, ranks));
}

static PyObject *py_group_new(PyObject *self, PyObject *args)
{
	const char *name;
	zero_group *group;

	(void)self;
	if (!PyArg_ParseTuple(args, "s", &name) || !zero_py_has_job())
		return NULL;
	if (zero_group_new(zero_py_job, name, NULL, &group))
		return zero_py_fail();
	return handle(group, GROUP);
}

static PyObject *py_group_gradient_dtype(PyObject *self, PyObject *args)
{
	zero_group *group;
	int dtype;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&i", zero_py_to_group, &group, &dtype))
		return NULL;
	return zero_py_status(zero_group_gradient_dtype(group, (zero_dtype)dtype));
}

static PyObject *py_param_new(PyObject *self, PyObject *args)
{
	zero_group *group;
	zero_param *param;
	zero_param_spec spec = {0};
	size_t shape[ZERO_MAX_DIMS];
	PyObject *sizes;
	int dtype, trainable;
	Py_ssize_t ndim;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&siOp", zero_py_to_group, &group, &spec.name, &dtype, &sizes,
			      &trainable))
		return NULL;
	ndim = PyTuple_Size(sizes);
	if (ndim < 0)
		return NULL;
	if (ndim > ZERO_MAX_DIMS)
		return PyErr_Format(Error, "parameter %s has %zd dimensions; %d are allowed",
				    spec.name, ndim, ZERO_MAX_DIMS);
	for (Py_ssize_t i = 0; i < ndim; i++)
		shape[i] = PyLong_AsSize_t(PyTuple_GetItem(sizes, i));
	if (PyErr_Occurred())
		return NULL;
	spec.dtype = (zero_dtype)dtype;
	spec.ndim = (int)ndim;
	spec.shape = shape;
	spec.trainable = trainable;
	if (zero_param_new(group, &spec, &param))
		return zero_py_fail();
	return handle(param, PARAM);
}

static PyObject *py_layout(PyObject *self, PyObject *args)
{
	zero_status status;

	(void)self, (void)args;
	if (!zero_py_has_job())
		return NULL;
	WAIT(zero_layout(zero_py_job));
	return zero_py_status(status);
}

/* owned(group, param): [(first element, end)] of what each rank owns */
static PyObject *py_owned(PyObject *self, PyObject *args)
{
	zero_group *group;
	zero_param *param;
	PyObject *list = NULL;
	size_t world = (size_t)zero_world(zero_py_job), *cuts;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&O&", zero_py_to_group, &group, zero_py_to_param, &param))
		return NULL;
	cuts = PyMem_Calloc(world + 1, sizeof(*cuts));
	if (!cuts)
		return PyErr_NoMemory();
	list = zero_param_cuts(param, cuts) ? zero_py_fail() : PyList_New((Py_ssize_t)world);
	for (size_t i = 0; list && i < world; i++) {
		int rank = zero_shard_owner(group, (int)i);
		PyObject *range =
			Py_BuildValue("(nn)", (Py_ssize_t)cuts[i], (Py_ssize_t)cuts[i + 1]);

		if (!range || PyList_SetItem(list, rank, range)) {
			Py_DecRef(list);
			list = NULL;
		}
	}
	PyMem_Free(cuts);
	return list;
}

/* The elements [first, end) of what this rank stores, or None. As tensors of their own: torch takes the
   offset in a larger one for that of a FlatShard, which has no memory. */
static PyObject *py_shard(PyObject *self, PyObject *args)
{
	zero_param *param;
	zero_status status;
	void *data;
	size_t first, count;
	Py_ssize_t from, end;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&nn", zero_py_to_param, &param, &from, &end))
		return NULL;
	WAIT(zero_shard(param, &data, &first, &count));
	if (status)
		return zero_py_fail();
	if (from == end)
		Py_RETURN_NONE;
	data = (char *)data + ((size_t)from - first) * zero_dtype_size(zero_param_dtype(param));
	count = (size_t)(end - from);
	return zero_py_tensor(data, zero_param_dtype(param), 1, &count);
}

/* The whole parameter where it is when its group is gathered. */
static PyObject *py_address(PyObject *self, PyObject *args)
{
	zero_param *param;
	void *data;
	int as, type;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&ii", zero_py_to_param, &param, &as, &type))
		return NULL;
	data = zero_gathered_address(param, (zero_dtype)as);
	if (!data && zero_param_numel(param))
		return zero_py_fail();
	return zero_py_tensor(data, (zero_dtype)type, zero_param_ndim(param),
			      zero_param_shape(param));
}

static PyMethodDef methods[] = {
	{"open", py_open, METH_VARARGS, NULL},
	{"close", py_close, METH_NOARGS, NULL},
	{"is_open", py_is_open, METH_NOARGS, NULL},
	{"finish", py_finish, METH_NOARGS, NULL},
	{"on_loss", py_on_loss, METH_VARARGS, NULL},
	{"place", py_place, METH_NOARGS, NULL},
	{"setting", py_setting, METH_VARARGS, NULL},
	{"agree", py_agree, METH_VARARGS, NULL},
	{"exchange", py_exchange, METH_VARARGS, NULL},
	{"memory", py_memory, METH_NOARGS, NULL},
	{"traffic", py_traffic, METH_NOARGS, NULL},
	{"set_shard", py_set_shard, METH_VARARGS, NULL},
	{"group_new", py_group_new, METH_VARARGS, NULL},
	{"group_gradient_dtype", py_group_gradient_dtype, METH_VARARGS, NULL},
	{"param_new", py_param_new, METH_VARARGS, NULL},
	{"layout", py_layout, METH_NOARGS, NULL},
	{"owned", py_owned, METH_VARARGS, NULL},
	{"shard", py_shard, METH_VARARGS, NULL},
	{"address", py_address, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_zero", .m_size = -1,
					.m_methods = methods};

/* A library that was preloaded may be of another build than this module. */
static bool library_fits(void)
{
	Dl_info module, library;

	if (strcmp(zero_version(), PACKAGE_VERSION) == 0)
		return true;
	if (dladdr(&definition, &module) && dladdr((void *)(uintptr_t)zero_version, &library))
		PyErr_Format(PyExc_ImportError,
			     "%s is of slurm-zero %s, but this process has loaded %s, which is %s: "
			     "use both of one build",
			     module.dli_fname, PACKAGE_VERSION, library.dli_fname, zero_version());
	return false;
}

PyMODINIT_FUNC PyInit__zero(void)
{
	PyObject *module;

	if (!library_fits())
		return NULL;
	module = PyModule_Create(&definition);
	if (!module)
		return NULL;
	Error = PyErr_NewException("slurm_zero.Error", PyExc_RuntimeError, NULL);
	if (!Error || PyModule_AddObjectRef(module, "Error", Error) ||
	    PyModule_AddFunctions(module, zero_py_file_methods) ||
	    PyModule_AddFunctions(module, zero_py_net_methods) ||
	    PyModule_AddFunctions(module, zero_py_train_methods) ||
	    PyModule_AddIntConstant(module, "PARAM", ZERO_DTYPE_PARAM) ||
	    PyModule_AddIntConstant(module, "F32", ZERO_F32) ||
	    PyModule_AddIntConstant(module, "F16", ZERO_F16) ||
	    PyModule_AddIntConstant(module, "BF16", ZERO_BF16) ||
	    PyModule_AddIntConstant(module, "F64", ZERO_F64) ||
	    PyModule_AddIntConstant(module, "I64", ZERO_I64) ||
	    PyModule_AddIntConstant(module, "I32", ZERO_I32) ||
	    PyModule_AddIntConstant(module, "U8", ZERO_U8) ||
	    PyModule_AddIntConstant(module, "BOOL", ZERO_BOOL)) {
		Py_DecRef(module);
		return NULL;
	}
	return module;
}
