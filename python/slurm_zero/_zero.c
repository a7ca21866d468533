/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libzero of which the package slurm_zero is made. The table at the end says what
 * each takes; call() reads the arguments, runs it without the interpreter's lock, and raises its
 * error. A process has one job, so that it is no argument. Teams, groups and parameters are
 * capsules that end with their job. Memory of the library is a memoryview, which owns nothing:
 * zero_close frees it. On a GPU it is an address that nobody reads through the memoryview.
 */
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "config.h"
#include "net/address.h"
#include "zero.h"

/* Runs an assignment of a call that may wait. */
#define WAIT(assignment)                           \
	do {                                       \
		Py_BEGIN_ALLOW_THREADS assignment; \
		Py_END_ALLOW_THREADS               \
	} while (0)

#define TEAM_CAPSULE  "slurm_zero.team"
#define GROUP_CAPSULE "slurm_zero.group"
#define PARAM_CAPSULE "slurm_zero.param"

enum { WRITABLE = 0x200 }; /* PyBUF_WRITE, which the limited API names since 3.11 only */

/* An argument; in brackets the letter of its kind. Other letters are those of PyArg_Parse. */
union value {
	zero_team *team;   /* [t], or None for all ranks */
	zero_group *group; /* [g] */
	zero_param *param; /* [P] */
	struct {
		zero_group **list;
		size_t count;
	} groups; /* [G], always the first argument */
	struct {
		char *data;
		Py_ssize_t count;
	} bytes;                 /* [b] */
	const char *text;        /* [s], or [z], where None is NULL */
	int number;              /* [i], or [p] for a truth value */
	float real;              /* [f] */
	unsigned long long size; /* [K] */
	PyObject *object;        /* [O] */
};

enum { MOST_VALUES = 13 };

static zero_job *job;
/* The number of the present job, which its capsules have as their context. */
static uintptr_t job_number;
static PyObject *Error;

/* ---- values ---------------------------------------------------------------------------------- */

static PyObject *fail(void)
{
	PyErr_SetString(Error, zero_last_error());
	return NULL;
}

static bool has_job(void)
{
	if (!job)
		PyErr_SetString(Error, "there is no open job: call slurm_zero.init() first");
	return job;
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

	if (pointer && (!job || PyCapsule_GetContext(capsule) != (void *)job_number))
		PyErr_SetString(Error, "a team, group or parameter of a job that has been closed");
	return pointer;
}

/* A result of this kind. */
static PyObject *give(const union value *value, char kind)
{
	switch (kind) {
	case 't':
		return handle(value->team, TEAM_CAPSULE);
	case 'g':
		return handle(value->group, GROUP_CAPSULE);
	case 'p':
		return PyBool_FromLong(value->number);
	case 'm':
		if (value->bytes.count)
			return PyMemoryView_FromMemory(value->bytes.data, value->bytes.count,
						       WRITABLE);
		/* fallthrough */
	default:
		Py_RETURN_NONE;
	}
}

static union value memory_of(void *data, size_t count, zero_dtype dtype)
{
	size_t bytes = data ? count * zero_dtype_size(dtype) : 0;

	return (union value){.bytes = {data, (Py_ssize_t)bytes}};
}

static void convert(PyObject *object, char kind, union value *value)
{
	const char format[] = {kind, '\0'};
	Py_ssize_t count;

	switch (kind) {
	case 't':
		value->team = object == Py_None ? NULL : handle_of(object, TEAM_CAPSULE);
		break;
	case 'g':
		value->group = handle_of(object, GROUP_CAPSULE);
		break;
	case 'P':
		value->param = handle_of(object, PARAM_CAPSULE);
		break;
	case 'G':
		count = PyList_Size(object);
		value->groups.list = PyMem_Calloc((size_t)count + 1, sizeof(zero_group *));
		if (!value->groups.list)
			PyErr_NoMemory();
		for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
			value->groups.list[i] = handle_of(PyList_GetItem(object, i), GROUP_CAPSULE);
		value->groups.count = (size_t)count;
		break;
	case 'b':
		PyBytes_AsStringAndSize(object, &value->bytes.data, &value->bytes.count);
		break;
	default:
		PyArg_Parse(object, format, value);
	}
}

/* Reads a tuple of these kinds. Returns false with an exception set. */
static bool parse(PyObject *tuple, const char *kinds, union value *values)
{
	size_t count = strlen(kinds);

	if (PyTuple_Size(tuple) != (Py_ssize_t)count)
		PyErr_Format(PyExc_TypeError, "%zu arguments are needed", count);
	for (size_t i = 0; i < count && !PyErr_Occurred(); i++)
		convert(PyTuple_GetItem(tuple, (Py_ssize_t)i), kinds[i], &values[i]);
	return !PyErr_Occurred();
}

/* ---- a GPU ----------------------------------------------------------------------------------- */

/* DLPack's DLManagedTensor (dlpack.h, version 0.8), of bytes. */
struct dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides;
	uint64_t byte_offset;
	PyObject *memory; /* its manager_ctx */
	void (*deleter)(struct dl_tensor *tensor);
	int64_t count; /* ours */
};

enum { DL_UINT = 1 };

/* Set where the job has a GPU. */
static struct {
	int32_t type, id;
	PyObject *stream; /* returns the stream that the calling thread computes on, as a number */
	PyObject *trim;   /* has PyTorch free what it does not use, and says what it holds */
} gpu;

/* From any thread of torch. */
static void dl_delete(struct dl_tensor *tensor)
{
	if (Py_IsInitialized()) {
		PyGILState_STATE lock = PyGILState_Ensure();

		Py_DecRef(tensor->memory);
		PyGILState_Release(lock);
	}
	free(tensor);
}

static void dl_unused(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, "dltensor"))
		dl_delete(PyCapsule_GetPointer(capsule, "dltensor"));
}

/* bytes_on_device(memoryview, its address, bytes): a capsule of DLPack, which keeps it. The limited
   API has no way from a memoryview to its address before 3.11. */
static PyObject *py_bytes_on_device(union value *v)
{
	struct dl_tensor *tensor = malloc(sizeof(*tensor));
	PyObject *capsule;

	if (!tensor)
		return PyErr_NoMemory();
	*tensor = (struct dl_tensor){
		.data = (void *)(uintptr_t)v[1].size,
		.device_type = gpu.type,
		.device_id = gpu.id,
		.ndim = 1,
		.code = DL_UINT,
		.bits = 8,
		.lanes = 1,
		.shape = &tensor->count,
		.memory = v[0].object,
		.deleter = dl_delete,
		.count = (int64_t)v[2].size,
	};
	Py_IncRef(tensor->memory);
	capsule = PyCapsule_New(tensor, "dltensor", dl_unused);
	if (!capsule)
		dl_delete(tensor);
	return capsule;
}

static PyObject *py_device_index(union value *v)
{
	(void)v;
	return PyLong_FromLong(zero_device_index(job));
}

/* on_device(DLPack's type, index, stream, trim): see `gpu` */
static PyObject *py_on_device(union value *v)
{
	Py_XDECREF(gpu.stream);
	Py_XDECREF(gpu.trim);
	gpu.type = v[0].number;
	gpu.id = v[1].number;
	gpu.stream = v[2].object;
	gpu.trim = v[3].object;
	Py_IncRef(gpu.stream);
	Py_IncRef(gpu.trim);
	Py_RETURN_NONE;
}

/* Before each call: what the library enqueues is in the order of the thread's present stream.
   Returns false with an exception set. */
static bool use_stream(void)
{
	PyObject *number;
	void *stream;

	if (!gpu.stream || !job || zero_device_index(job) < 0)
		return true;
	number = PyObject_CallNoArgs(gpu.stream);
	stream = number ? PyLong_AsVoidPtr(number) : NULL;
	Py_XDECREF(number);
	if (PyErr_Occurred())
		return false;
	return !zero_set_stream(job, stream) || fail();
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* open(settings, bytes that the program holds on the device) */
static zero_status open_job(union value *v)
{
	zero_options options = {
		.settings = v[0].text, .program_steps = true, .program_holds = v[1].size};

	job_number++;
	return zero_open(&options, &job);
}

static PyObject *py_is_open(union value *v)
{
	(void)v;
	return PyBool_FromLong(job != NULL);
}

static zero_status close_job(zero_job *closing)
{
	job = NULL;
	return zero_close(closing);
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
 * on_loss(signal, file): before the process is ended because of a lost rank the signal is raised,
 * and what its handler writes to the file descriptor goes to stderr; on_loss(0, -1): nothing is
 */
static PyObject *py_on_loss(union value *v)
{
	zero_on_loss(job, NULL, NULL);
	loss_signal = v[0].number;
	stacks_file = v[1].number;
	if (loss_signal)
		zero_on_loss(job, write_stacks, (void *)(intptr_t)zero_rank(job));
	Py_RETURN_NONE;
}

static PyObject *py_place(union value *v)
{
	(void)v;
	return Py_BuildValue("iiii", zero_rank(job), zero_world(job), zero_local_rank(job),
			     zero_local_world(job));
}

static PyObject *py_setting(union value *v)
{
	return Py_BuildValue("z", zero_setting(job, v[0].text));
}

/* team_exchange(bytes, team, ranks of the team): the bytes of each of its ranks, in their order */
static PyObject *py_team_exchange(union value *v)
{
	PyObject *all = PyBytes_FromStringAndSize(NULL, v[0].bytes.count * v[2].number);
	zero_team *team = v[1].team;
	zero_status status;

	if (!all)
		return NULL;
	WAIT(status = team ? zero_team_allgather_bytes(team, v[0].bytes.data,
						       (size_t)v[0].bytes.count,
						       PyBytes_AsString(all))
			   : zero_allgather_bytes(job, v[0].bytes.data, (size_t)v[0].bytes.count,
						  PyBytes_AsString(all)));
	if (!status)
		return all;
	Py_DecRef(all);
	return fail();
}

/* backward_end(flags): those that are set on any rank */
static PyObject *py_backward_end(union value *v)
{
	PyObject *flags = PyBytes_FromStringAndSize(v[0].bytes.data, v[0].bytes.count);
	unsigned char *data = flags ? (unsigned char *)PyBytes_AsString(flags) : NULL;
	zero_status status;

	if (!flags)
		return NULL;
	WAIT(status = zero_backward_end(job, data, (size_t)v[0].bytes.count));
	if (!status)
		return flags;
	Py_DecRef(flags);
	return fail();
}

static PyObject *py_exchange(union value *v)
{
	v[1].team = NULL;
	v[2].number = zero_world(job);
	return py_team_exchange(v);
}

static PyObject *memory_by_kind(const zero_memory *m)
{
#define BYTES(field) #field, (unsigned long long)m->field.now, (unsigned long long)m->field.peak
	return Py_BuildValue("{s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)s(KK)}", BYTES(shards),
			     BYTES(gathered), BYTES(gradients), BYTES(optimizer), BYTES(staging),
			     BYTES(caller), BYTES(pinned), BYTES(offload), BYTES(checkpoint),
			     BYTES(total));
#undef BYTES
}

static PyObject *py_memory(union value *v)
{
	zero_memory m;

	(void)v;
	return zero_memory_now(job, &m) ? fail() : memory_by_kind(&m);
}

static PyObject *py_holds(union value *v)
{
	zero_program_holds(job, v[0].size);
	Py_RETURN_NONE;
}

static PyObject *py_trim(union value *v)
{
	(void)v;
	zero_trim(job);
	Py_RETURN_NONE;
}

static PyObject *py_traffic(union value *v)
{
	zero_traffic t;

	(void)v;
	if (zero_traffic_now(job, &t))
		return fail();
	return Py_BuildValue("{sKsKsKsK}", "bytes_sent", (unsigned long long)t.bytes_sent,
			     "collectives", (unsigned long long)t.collectives, "agreements",
			     (unsigned long long)t.agreements, "bytes_read",
			     (unsigned long long)t.bytes_read);
}

static void add_address(void *list, const struct ifaddrs *entry)
{
	bool four = entry->ifa_addr->sa_family == AF_INET;
	socklen_t length = four ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	char text[NI_MAXHOST];
	PyObject *pair;

	if (PyErr_Occurred() ||
	    getnameinfo(entry->ifa_addr, length, text, sizeof(text), NULL, 0, NI_NUMERICHOST))
		return;
	pair = Py_BuildValue("(ss)", entry->ifa_name, text);
	if (pair)
		PyList_Append(list, pair);
	Py_DecRef(pair);
}

/* addresses(): [(interface, address)] where other nodes may reach this one, the best first */
static PyObject *py_addresses(union value *v)
{
	PyObject *list = PyList_New(0);

	(void)v;
	if (list && !zero_address_each(add_address, list, AF_INET6, getenv("NCCL_SOCKET_IFNAME")))
		PyErr_SetFromErrno(PyExc_OSError);
	if (!PyErr_Occurred())
		return list;
	Py_DecRef(list);
	return NULL;
}

/* ---- groups and parameters ------------------------------------------------------------------- */

/* team_new(ranks, a tuple) */
static PyObject *py_team_new(union value *v)
{
	size_t count = (size_t)PyTuple_Size(v[0].object);
	int *ranks = PyErr_Occurred() ? NULL : PyMem_Calloc(count + 1, sizeof(*ranks));
	zero_team *team;
	zero_status status;

	if (!ranks)
		return PyErr_Occurred() ? NULL : PyErr_NoMemory();
	for (size_t i = 0; i < count; i++)
		ranks[i] = (int)PyLong_AsLong(PyTuple_GetItem(v[0].object, (Py_ssize_t)i));
	WAIT(status = zero_team_new(job, ranks, count, &team));
	PyMem_Free(ranks);
	return status ? fail() : handle(team, TEAM_CAPSULE);
}

/* group_new(name, team) */
static zero_status group_new(union value *v)
{
	return zero_group_new(job, v[0].text, v[1].team, &v[0].group);
}

/* Reads a shape. Returns false with an exception set. */
static bool read_shape(PyObject *dims, zero_param_spec *spec, size_t shape[ZERO_MAX_DIMS])
{
	spec->ndim = (int)PyTuple_Size(dims);
	spec->shape = shape;
	if (spec->ndim > ZERO_MAX_DIMS)
		PyErr_Format(Error, "parameter %s has %d dimensions; %d are allowed", spec->name,
			     spec->ndim, ZERO_MAX_DIMS);
	for (int i = 0; i < spec->ndim && !PyErr_Occurred(); i++)
		shape[i] = PyLong_AsSize_t(PyTuple_GetItem(dims, i));
	return !PyErr_Occurred();
}

/* param_new(group, name, dtype, shape, trainable) */
static PyObject *py_param_new(union value *v)
{
	size_t shape[ZERO_MAX_DIMS];
	zero_param_spec spec = {
		.name = v[1].text, .dtype = (zero_dtype)v[2].number, .trainable = v[4].number};
	zero_param *param;

	if (!read_shape(v[3].object, &spec, shape))
		return NULL;
	if (zero_param_new(v[0].group, &spec, &param))
		return fail();
	return handle(param, PARAM_CAPSULE);
}

struct planned {
	zero_param_spec *params;
	size_t (*shapes)[ZERO_MAX_DIMS];
	size_t *groups, *slices;
	size_t count;
};

/* From a list of (group, name, dtype, shape, trainable, bytes of a slice or -1 for what `stream`
   says). Returns false with an exception set. */
static bool read_planned(PyObject *list, struct planned *planned)
{
	if (!planned->params || !planned->shapes || !planned->groups || !planned->slices)
		PyErr_NoMemory();
	for (size_t i = 0; i < planned->count && !PyErr_Occurred(); i++) {
		zero_param_spec *spec = &planned->params[i];
		PyObject *dims;
		Py_ssize_t group, slice;
		int dtype, trainable;

		if (!PyArg_ParseTuple(PyList_GetItem(list, (Py_ssize_t)i), "nsiOpn", &group,
				      &spec->name, &dtype, &dims, &trainable, &slice))
			return false;
		planned->groups[i] = (size_t)group;
		planned->slices[i] = slice < 0 ? ZERO_SLICES_AUTO : (size_t)slice;
		spec->dtype = (zero_dtype)dtype;
		spec->trainable = trainable;
		if (!read_shape(dims, spec, planned->shapes[i]))
			return false;
	}
	return !PyErr_Occurred();
}

/* plan(parameters, settings, world, share, on GPUs): what a rank needs, and the bytes of a slice of
   each parameter; see read_planned */
static PyObject *py_plan(union value *v)
{
	size_t count = (size_t)PyList_Size(v[0].object);
	struct planned planned = {
		.params = PyMem_Calloc(count + 1, sizeof(*planned.params)),
		.shapes = PyMem_Calloc(count + 1, sizeof(*planned.shapes)),
		.groups = PyMem_Calloc(count + 1, sizeof(*planned.groups)),
		.slices = PyMem_Calloc(count + 1, sizeof(*planned.slices)),
		.count = count,
	};
	const zero_plan_spec spec = {
		.settings = v[1].text,
		.world = v[2].number,
		.share = v[3].number,
		.device = v[4].number,
		.one_stays = true,
		.params = planned.params,
		.count = count,
		.groups = planned.groups,
		.slices = planned.slices,
	};
	zero_memory need;
	PyObject *result = NULL, *slices = PyList_New(0);

	if (slices && read_planned(v[0].object, &planned))
		result = zero_plan(&spec, &need) ? fail() : memory_by_kind(&need);
	for (size_t i = 0; result && i < count; i++) {
		PyObject *slice = PyLong_FromSize_t(planned.slices[i]);

		if (!slice || PyList_Append(slices, slice))
			Py_CLEAR(result);
		Py_XDECREF(slice);
	}
	if (result)
		result = Py_BuildValue("(NO)", result, slices);
	Py_XDECREF(slices);
	PyMem_Free(planned.params);
	PyMem_Free(planned.shapes);
	PyMem_Free(planned.groups);
	PyMem_Free(planned.slices);
	return result;
}

/* owned(group, param): [(first element, end)] of what each rank of the group's team owns */
static PyObject *py_owned(union value *v)
{
	size_t world = (size_t)zero_world(job), *cuts = PyMem_Calloc(world + 1, sizeof(*cuts));
	size_t shards = 0;
	PyObject *list;

	if (!cuts)
		return PyErr_NoMemory();
	while (zero_shard_owner(v[0].group, (int)shards) >= 0)
		shards++;
	list = zero_param_cuts(v[1].param, cuts) ? fail() : PyList_New((Py_ssize_t)shards);
	for (size_t i = 0; list && i < shards; i++) {
		int rank = zero_shard_owner(v[0].group, (int)i);
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

/* shard(param, first, end): these elements of what this rank stores. As memory of their own: torch
   takes the offset in a larger one for that of a FlatShard, which has no memory. */
static zero_status shard(union value *v)
{
	zero_dtype dtype = zero_param_dtype(v[0].param);
	size_t first, count;
	void *data;
	zero_status status = zero_shard(v[0].param, &data, &first, &count);

	if (!status && data)
		data = (char *)data + (v[1].size - first) * zero_dtype_size(dtype);
	v[0] = memory_of(data, v[2].size - v[1].size, dtype);
	return status;
}

/* address(param, dtype): the whole parameter where it is when its group is gathered as that */
static zero_status address(union value *v)
{
	zero_dtype as = (zero_dtype)v[1].number, stored = zero_param_dtype(v[0].param);
	size_t count = zero_param_numel(v[0].param);
	void *data = zero_gathered_address(v[0].param, as);
	bool casts = stored == ZERO_F32 || stored == ZERO_F16 || stored == ZERO_BF16;

	v[0] = memory_of(data, count, as == ZERO_DTYPE_PARAM || !casts ? stored : as);
	return data || !count ? ZERO_OK : zero_last_error_status();
}

/* load_from(param, address): fills it from host memory, which has the same values on all ranks */
static zero_status load_from(union value *v)
{
	zero_source source = zero_from_all((const void *)(uintptr_t)v[1].size);

	return zero_load(v[0].param, &source);
}

static void release_adopted(void *context, void *data)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *result = PyObject_CallObject(context, NULL);

	(void)data;
	if (!result)
		PyErr_WriteUnraisable(context);
	Py_XDECREF(result);
	Py_DECREF((PyObject *)context);
	PyGILState_Release(state);
}

/* adopt(param, address, on a device, release): layout() takes its values, which are the same on all
   ranks, and then calls release() */
static PyObject *py_adopt(union value *v)
{
	zero_adopt_spec spec = {
		.data = (void *)(uintptr_t)v[1].size,
		.location = v[2].number ? ZERO_ON_DEVICE : ZERO_ON_HOST,
		.values = ZERO_VALUES_EQUAL,
		.release = release_adopted,
		.context = v[3].object,
	};

	if (zero_adopt(v[0].param, &spec))
		return fail();
	Py_INCREF(v[3].object);
	Py_RETURN_NONE;
}

/* load_from_rank(param, rank, address): that rank has them, on others the address is ignored */
static zero_status load_from_rank(union value *v)
{
	zero_source source = zero_from_rank(v[1].number, (const void *)(uintptr_t)v[2].size);

	return zero_load(v[0].param, &source);
}

/* ---- gathers, gradients and steps ------------------------------------------------------------ */

static zero_status set_slices(union value *v)
{
	return zero_group_set_slices(v[0].group, (size_t)v[1].size);
}

/* Of a slice: (first element, how many, element of the slice) of each run, and how many elements it
   spans. */
static PyObject *runs_of(const zero_group *slice, zero_run *runs, size_t *elements)
{
	size_t count = zero_slice_runs(slice, runs);
	PyObject *list = PyList_New((Py_ssize_t)count);

	*elements = count ? runs[count - 1].at + runs[count - 1].count : 0;
	for (size_t r = 0; list && r < count; r++) {
		PyObject *run = Py_BuildValue("(nnn)", (Py_ssize_t)runs[r].first,
					      (Py_ssize_t)runs[r].count, (Py_ssize_t)runs[r].at);

		if (!run || PyList_SetItem(list, (Py_ssize_t)r, run)) {
			Py_DecRef(list);
			list = NULL;
		}
	}
	return list;
}

/* slices(group, its parameter, dtype): [(slice, its memory while it is gathered as that, runs)] */
static PyObject *py_slices(union value *v)
{
	zero_dtype as = (zero_dtype)v[2].number, dtype = zero_param_dtype(v[1].param);
	zero_run *runs = PyMem_Calloc((size_t)zero_world(job), sizeof(*runs));
	size_t count = zero_group_slice_count(v[0].group), elements;
	PyObject *list = runs ? PyList_New((Py_ssize_t)count) : PyErr_NoMemory();

	for (size_t s = 0; list && s < count; s++) {
		zero_group *slice = zero_group_slice(v[0].group, s);
		PyObject *found = runs_of(slice, runs, &elements), *made = NULL;
		void *data = zero_slice_address(slice, as);
		union value memory = memory_of(data, elements, as == ZERO_DTYPE_PARAM ? dtype : as);

		if (found && elements && !data)
			fail();
		else if (found)
			made = Py_BuildValue("(NNO)", handle(slice, GROUP_CAPSULE),
					     give(&memory, 'm'), found);
		Py_XDECREF(found);
		if (!made || PyList_SetItem(list, (Py_ssize_t)s, made)) {
			Py_DecRef(list);
			list = NULL;
		}
	}
	PyMem_Free(runs);
	return list;
}

static zero_status prefetch_slice(union value *v)
{
	return zero_prefetch(&v[0].group, 1, (zero_dtype)v[1].number);
}

/* slice_gradient(slice, dtype, elements): its values are undefined before the first write */
static zero_status slice_gradient(union value *v)
{
	void *data = zero_slice_gradient(v[0].group, (zero_dtype)v[1].number);

	v[0] = memory_of(data, (size_t)v[2].size, (zero_dtype)v[1].number);
	return data || !v[2].size ? ZERO_OK : zero_last_error_status();
}

/* prefetch(group, one of its parameters, dtype): whether the gather was begun */
static zero_status prefetch(union value *v)
{
	zero_status status = zero_prefetch(&v[0].group, 1, (zero_dtype)v[2].number);

	v[0].number = zero_gathered_dtype(v[1].param) != ZERO_DTYPE_PARAM;
	return status;
}

/* gradient(param, dtype): flat; its values are undefined before the group's first write */
static zero_status gradient(union value *v)
{
	zero_dtype dtype = (zero_dtype)v[1].number;
	size_t count = zero_param_numel(v[0].param);
	void *data = count ? zero_gradient_undefined(v[0].param, dtype) : NULL;

	v[0] = memory_of(data, count, dtype);
	return data || !count ? ZERO_OK : ZERO_E_STATE;
}

/* gradient_shard(param): the sums that this rank owns, f32, or None */
static zero_status gradient_shard(union value *v)
{
	size_t first, count = 0;
	float *data = NULL;
	zero_status status = zero_gradient_shard(v[0].param, &data, &first, &count);

	v[0] = memory_of(data, count, ZERO_F32);
	return status;
}

/* step_end(): whether a rank was told to stop */
static zero_status step_end(union value *v)
{
	zero_status status = zero_step_end(job, NULL);

	v[0].number = zero_stopping(job);
	return status;
}

/* set_states(states): of the moments, as zero_states has them */
static zero_status set_states(union value *v)
{
	return zero_set_states(job, (zero_states)v[0].number);
}

/* set_moments(param, first, count, exp_avg, exp_avg_sq): addresses of f32 in host memory */
static zero_status set_moments(union value *v)
{
	return zero_set_moments(v[0].param, (size_t)v[1].size, (size_t)v[2].size,
				(const float *)(uintptr_t)v[3].size,
				(const float *)(uintptr_t)v[4].size);
}

/* get_moments(param, first, count, exp_avg, exp_avg_sq) */
static zero_status get_moments(union value *v)
{
	return zero_get_moments(v[0].param, (size_t)v[1].size, (size_t)v[2].size,
				(float *)(uintptr_t)v[3].size, (float *)(uintptr_t)v[4].size);
}

/* set_steps(groups, steps): that the job and these have taken */
static zero_status set_steps(union value *v)
{
	return zero_set_steps(job, v[0].groups.list, v[0].groups.count, v[1].size);
}

/* step_groups(groups, beta1, beta2, eps, whether there is Muon, and of that momentum, plain, steps,
   a, b, c, eps, rate): whether a rank was told to stop */
static zero_status step_groups(union value *v)
{
	zero_muon muon = {
		.lr = 1,
		.momentum = v[5].real,
		.weight_decay = 1,
		.plain_momentum = v[6].number,
		.steps = v[7].number,
		.coefficients = {v[8].real, v[9].real, v[10].real},
		.eps = v[11].real,
		.rate = (zero_muon_rate)v[12].number,
	};
	zero_adamw adamw = {
		.lr = 1,
		.beta1 = v[1].real,
		.beta2 = v[2].real,
		.eps = v[3].real,
		.weight_decay = 1,
		.gradients_are_means = true,
		.muon = v[4].number ? &muon : NULL,
	};
	/* Without a result nothing waits for a GPU. */
	zero_status status =
		zero_step_groups(job, v[0].groups.list, v[0].groups.count, &adamw, NULL);

	v[0].number = zero_stopping(job);
	return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

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
static PyObject *py_load_model(union value *v)
{
	struct load load = {.names = v[1].object, .progress = v[2].object};
	zero_load_model_options options = {
		.tensor_name = load_name,
		.progress = load.progress != Py_None ? load_progress : NULL,
		.context = &load,
		.allow_missing = !v[3].number,
		.allow_unexpected = !v[3].number,
	};
	zero_load_model_report report = {0};
	PyObject *result;
	zero_status status;

	WAIT(status = zero_load_model(job, v[0].text, &options, &report));
	result = status ? fail()
			: Py_BuildValue("NN", name_list(report.missing, report.missing_count),
					name_list(report.unexpected, report.unexpected_count));
	zero_load_model_report_free(&report);
	return result;
}

/* state_register(param, name, dtype, one value for all of the parameter, address) */
static zero_status state_register(union value *v)
{
	zero_state_spec spec = {
		.name = v[1].text,
		.dtype = (zero_dtype)v[2].number,
		.block = v[3].number ? ZERO_STATE_WHOLE : 1,
		.data = (void *)(uintptr_t)v[4].size,
	};

	return zero_state_register(v[0].param, &spec);
}

/* save(folder, bytes of the program, step, keep_last, background) */
static zero_status save(union value *v)
{
	zero_save_options options = {
		.user = v[1].bytes.data,
		.user_bytes = (size_t)v[1].bytes.count,
		.step = v[2].size,
		.keep_last = v[3].number,
		.background = v[4].number,
	};

	return zero_save(job, v[0].text, &options);
}

/* restore(path): (step, bytes of the program) */
static PyObject *py_restore(union value *v)
{
	zero_checkpoint_info info = {0};
	zero_status status;
	PyObject *result;

	WAIT(status = zero_restore(job, v[0].text, &info));
	result = status ? fail()
			: Py_BuildValue("Ky#", (unsigned long long)info.step,
					info.user ? (const char *)info.user : "",
					(Py_ssize_t)info.user_bytes);
	zero_checkpoint_info_free(&info);
	return result;
}

/* protect_due(every, step) */
static zero_status protect_due(union value *v)
{
	v[0].number = zero_protect_due(job, v[0].size, v[1].size);
	return ZERO_OK;
}

/* protect(bytes of the program, of this rank, step, every) */
static zero_status protect(union value *v)
{
	zero_protect_options options = {
		.user = v[0].bytes.data,
		.user_bytes = (size_t)v[0].bytes.count,
		.own = v[1].bytes.data,
		.own_bytes = (size_t)v[1].bytes.count,
		.step = v[2].size,
		.every = v[3].size,
		.due = true,
	};

	return zero_protect(job, &options);
}

/* protect_find(folder or None): (path, manifest, bytes of this rank), each of which may be None */
static PyObject *py_protect_find(union value *v)
{
	zero_protected found = {0};
	zero_status status;

	WAIT(status = zero_protect_find(job, v[0].text, &found));
	return status ? fail()
		      : Py_BuildValue("zy#y#", found.path, found.manifest,
				      (Py_ssize_t)found.manifest_bytes, (const char *)found.own,
				      (Py_ssize_t)found.own_bytes);
}

/* ---- the module ------------------------------------------------------------------------------ */

static const struct function {
	const char *name;
	const char *kinds; /* of the arguments, see union value */
	/* One of the above, to be run without the lock or with it; or else a function of the
	   library, of the type that the kinds say. */
	zero_status (*run)(union value *v);
	PyObject *(*locked)(union value *v);
	union {
		zero_status (*of_job)(zero_job *job);
		zero_status (*job_int)(zero_job *job, int number);
		zero_status (*job_text)(zero_job *job, const char *text);
		zero_status (*groups)(zero_job *job, zero_group **groups, size_t count);
		zero_status (*group)(zero_group *group);
		zero_status (*group_dtype)(zero_group *group, zero_dtype dtype);
		zero_status (*group_bool)(zero_group *group, bool flag);
		zero_status (*param_bool)(zero_param *param, bool flag);
		zero_status (*param_float)(zero_param *param, float number);
		zero_status (*param_text)(zero_param *param, const char *text);
	};
	bool again; /* once more, if there was no memory: all ranks know then, or none need */
	char gives; /* the kind of what `run` leaves as the first value; 0: None */
	bool without_job;
} functions[] = {
	{"open", "sK", .run = open_job, .without_job = true},
	{"is_open", "", .locked = py_is_open, .without_job = true},
	{"addresses", "", .locked = py_addresses, .without_job = true},
	{"plan", "Osiip", .locked = py_plan, .without_job = true},
	{"close", "", .of_job = close_job},
	{"finish", "", .of_job = zero_finish},
	{"on_loss", "ii", .locked = py_on_loss},
	{"place", "", .locked = py_place},
	{"setting", "s", .locked = py_setting},
	{"device_index", "", .locked = py_device_index},
	{"on_device", "iiOO", .locked = py_on_device},
	{"bytes_on_device", "OKK", .locked = py_bytes_on_device},
	{"agree", "z", .job_text = zero_agree},
	{"exchange", "b", .locked = py_exchange},
	{"team_exchange", "bti", .locked = py_team_exchange},
	{"memory", "", .locked = py_memory},
	{"holds", "K", .locked = py_holds},
	{"trim", "", .locked = py_trim},
	{"traffic", "", .locked = py_traffic},
	{"set_shard", "i", .job_int = zero_set_shard},
	{"team_new", "O", .locked = py_team_new},
	{"group_new", "st", .run = group_new, .gives = 'g'},
	{"group_gradient_dtype", "gi", .group_dtype = zero_group_gradient_dtype},
	{"set_slices", "gK", .run = set_slices},
	{"slices", "gPi", .locked = py_slices},
	{"prefetch_slice", "gi", .run = prefetch_slice, .again = true},
	{"slice_gradient", "giK", .run = slice_gradient, .again = true, .gives = 'm'},
	{"param_new", "gsiOp", .locked = py_param_new},
	{"layout", "", .of_job = zero_layout, .again = true},
	{"group_drop", "g", .group = zero_group_drop},
	{"owned", "gP", .locked = py_owned},
	{"shard", "PKK", .run = shard, .gives = 'm'},
	{"address", "Pi", .run = address, .gives = 'm'},
	{"gather", "gi", .group_dtype = zero_gather, .again = true},
	{"prefetch", "gPi", .run = prefetch, .gives = 'p'},
	{"release", "g", .group = zero_release},
	{"gradient", "Pi", .run = gradient, .again = true, .gives = 'm'},
	{"reduce", "g", .group = zero_reduce},
	{"reduce_replicas", "G", .groups = zero_reduce_replicas},
	{"gradient_shard", "P", .run = gradient_shard, .gives = 'm'},
	{"gradient_sums", "gp", .group_bool = zero_gradient_sums, .again = true},
	{"write_begin", "g", .group = zero_write_begin},
	{"write_end", "g", .group = zero_write_end},
	{"backward_end", "b", .locked = py_backward_end},
	{"step_begin", "G", .groups = zero_step_begin},
	{"step_end", "", .run = step_end, .gives = 'p'},
	{"step_groups", "Gfffpfpiffffi", .run = step_groups, .gives = 'p'},
	{"set_states", "i", .run = set_states},
	{"set_moments", "PKKKK", .run = set_moments},
	{"get_moments", "PKKKK", .run = get_moments},
	{"set_steps", "GK", .run = set_steps},
	{"param_muon", "Pp", .param_bool = zero_param_set_muon},
	{"param_trainable", "Pp", .param_bool = zero_param_set_trainable},
	{"lr_scale", "Pf", .param_float = zero_param_set_lr_scale},
	{"weight_decay_scale", "Pf", .param_float = zero_param_set_weight_decay_scale},
	{"stop_on", "i", .job_int = zero_stop_on},
	{"reset", "", .of_job = zero_reset},
	{"adopt", "PKpO", .locked = py_adopt},
	{"load_from", "PK", .run = load_from},
	{"load_from_rank", "PiK", .run = load_from_rank},
	{"load_model", "sOOp", .locked = py_load_model},
	{"export", "s", .job_text = zero_export},
	{"state_register", "PsipK", .run = state_register},
	{"state_unregister", "Ps", .param_text = zero_state_unregister},
	{"save", "sbKip", .run = save},
	{"save_wait", "", .of_job = zero_save_wait},
	{"restore", "s", .locked = py_restore},
	{"protect_due", "KK", .run = protect_due, .gives = 'p'},
	{"protect", "bbKK", .run = protect},
	{"protect_find", "z", .locked = py_protect_find},
};

enum { COUNT = sizeof(functions) / sizeof(functions[0]) };

static zero_status run(const struct function *f, union value *v)
{
	if (f->run)
		return f->run(v);
	switch (f->kinds[0]) {
	case 'i':
		return f->job_int(job, v[0].number);
	case 's':
	case 'z':
		return f->job_text(job, v[0].text);
	case 'G':
		return f->groups(job, v[0].groups.list, v[0].groups.count);
	case 'g':
		if (f->kinds[1] == 'p')
			return f->group_bool(v[0].group, v[1].number);
		return f->kinds[1] ? f->group_dtype(v[0].group, (zero_dtype)v[1].number)
				   : f->group(v[0].group);
	case 'P':
		if (f->kinds[1] == 's')
			return f->param_text(v[0].param, v[1].text);
		return f->kinds[1] == 'f' ? f->param_float(v[0].param, v[1].real)
					  : f->param_bool(v[0].param, v[1].number);
	default:
		return f->of_job(job);
	}
}

/* The GPU had no memory, after the library gave back what it does not use. PyTorch's allocator does
   the same, and says what it holds. */
static PyObject *run_again(const struct function *f, union value *v)
{
	PyObject *first, *held, *result = NULL;
	zero_status status;

	first = PyUnicode_FromString(zero_last_error());
	held = first ? PyObject_CallNoArgs(gpu.trim) : NULL;
	if (held) {
		WAIT(status = run(f, v));
		if (!status)
			result = give(v, f->gives);
		else
			PyErr_Format(Error, "%U; %U", first, held);
	}
	Py_XDECREF(first);
	Py_XDECREF(held);
	return result;
}

static PyObject *call(PyObject *index, PyObject *args)
{
	const struct function *f = &functions[PyLong_AsSize_t(index)];
	union value v[MOST_VALUES] = {0};
	bool ready = (f->without_job || has_job()) && parse(args, f->kinds, v) && use_stream();
	zero_group **list = f->kinds[0] == 'G' ? v[0].groups.list : NULL;
	PyObject *result = NULL;
	zero_status status;

	if (ready && f->locked) {
		result = f->locked(v);
	} else if (ready) {
		const union value first = v[0];

		WAIT(status = run(f, v));
		if (status == ZERO_E_MEMORY && f->again && zero_device_index(job) >= 0) {
			v[0] = first;
			result = run_again(f, v);
		} else {
			result = status ? fail() : give(v, f->gives);
		}
	}
	PyMem_Free(list);
	return result;
}

/* A library that was preloaded may be of another build than this module. */
static bool library_fits(void)
{
	Dl_info module, library;

	if (strcmp(zero_version(), PACKAGE_VERSION) == 0)
		return true;
	if (dladdr(functions, &module) && dladdr((void *)(uintptr_t)zero_version, &library))
		PyErr_Format(PyExc_ImportError,
			     "%s is of slurm-zero %s, but this process has loaded %s, which is %s: "
			     "use both of one build",
			     module.dli_fname, PACKAGE_VERSION, library.dli_fname, zero_version());
	return false;
}

static bool add_functions(PyObject *module)
{
	static PyMethodDef methods[COUNT];
	bool added = true;

	for (size_t i = 0; i < COUNT && added; i++) {
		PyObject *index = PyLong_FromSize_t(i), *function;

		methods[i] = (PyMethodDef){functions[i].name, call, METH_VARARGS, NULL};
		function = PyCFunction_NewEx(&methods[i], index, NULL);
		added = function && !PyModule_AddObjectRef(module, functions[i].name, function);
		Py_XDECREF(function);
		Py_XDECREF(index);
	}
	return added;
}

PyMODINIT_FUNC PyInit__zero(void)
{
	static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_zero",
						.m_size = -1};
	PyObject *module = library_fits() ? PyModule_Create(&definition) : NULL;

	if (!module)
		return NULL;
	Error = PyErr_NewException("slurm_zero.Error", PyExc_RuntimeError, NULL);
	if (!Error || PyModule_AddObjectRef(module, "Error", Error) || !add_functions(module) ||
	    PyModule_AddIntConstant(module, "PARAM", ZERO_DTYPE_PARAM) ||
	    PyModule_AddIntConstant(module, "F32", ZERO_F32) ||
	    PyModule_AddIntConstant(module, "F16", ZERO_F16) ||
	    PyModule_AddIntConstant(module, "BF16", ZERO_BF16) ||
	    PyModule_AddIntConstant(module, "F64", ZERO_F64) ||
	    PyModule_AddIntConstant(module, "I64", ZERO_I64) ||
	    PyModule_AddIntConstant(module, "I32", ZERO_I32) ||
	    PyModule_AddIntConstant(module, "U8", ZERO_U8) ||
	    PyModule_AddIntConstant(module, "BOOL", ZERO_BOOL) ||
	    PyModule_AddIntConstant(module, "F8_E4M3", ZERO_F8_E4M3) ||
	    PyModule_AddIntConstant(module, "F8_E5M2", ZERO_F8_E5M2)) {
		Py_DecRef(module);
		return NULL;
	}
	return module;
}
