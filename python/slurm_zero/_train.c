/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers, gradients and steps. */
#include "_zero.h"

static PyObject *py_gather(PyObject *self, PyObject *args)
{
	zero_group *group;
	zero_status status;
	int as;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&i", zero_py_to_group, &group, &as))
		return NULL;
	WAIT(zero_gather(group, (zero_dtype)as));
	return zero_py_status(status);
}

/* Whether the gather of the group, which has this parameter, was begun. */
static PyObject *py_prefetch(PyObject *self, PyObject *args)
{
	zero_group *group;
	zero_param *param;
	zero_status status;
	int as;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&O&i", zero_py_to_group, &group, zero_py_to_param, &param,
			      &as))
		return NULL;
	WAIT(zero_prefetch(&group, 1, (zero_dtype)as));
	return status ? zero_py_fail()
		      : PyBool_FromLong(zero_gathered_dtype(param) != ZERO_DTYPE_PARAM);
}

static PyObject *py_release(PyObject *self, PyObject *args)
{
	zero_group *group;
	zero_status status;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&", zero_py_to_group, &group))
		return NULL;
	WAIT(zero_release(group));
	return zero_py_status(status);
}

/* The parameter's gradient, flat. Its values are undefined before the group's first write. */
static PyObject *py_gradient(PyObject *self, PyObject *args)
{
	zero_param *param;
	size_t count;
	void *data;
	int dtype;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&i", zero_py_to_param, &param, &dtype))
		return NULL;
	count = zero_param_numel(param);
	if (!count)
		Py_RETURN_NONE;
	Py_BEGIN_ALLOW_THREADS data = zero_gradient_undefined(param, (zero_dtype)dtype);
	Py_END_ALLOW_THREADS if (!data) return zero_py_fail();
	return zero_py_tensor(data, (zero_dtype)dtype, 1, &count);
}

static PyObject *with_group(PyObject *args, zero_status (*call)(zero_group *))
{
	zero_group *group;
	zero_status status;

	if (!PyArg_ParseTuple(args, "O&", zero_py_to_group, &group))
		return NULL;
	WAIT(call(group));
	return zero_py_status(status);
}

static PyObject *py_reduce(PyObject *self, PyObject *args)
{
	(void)self;
	return with_group(args, zero_reduce);
}

static PyObject *py_write_begin(PyObject *self, PyObject *args)
{
	(void)self;
	return with_group(args, zero_write_begin);
}

static PyObject *py_write_end(PyObject *self, PyObject *args)
{
	(void)self;
	return with_group(args, zero_write_end);
}

/* The sums that this rank owns, or None. */
static PyObject *py_gradient_shard(PyObject *self, PyObject *args)
{
	zero_param *param;
	zero_status status;
	float *data;
	size_t first, count;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&", zero_py_to_param, &param))
		return NULL;
	WAIT(zero_gradient_shard(param, &data, &first, &count));
	if (status)
		return zero_py_fail();
	return zero_py_tensor(data, ZERO_F32, 1, &count);
}

/* A call of a list of groups. */
static PyObject *with_groups(PyObject *args, zero_status (*call)(zero_job *, zero_group **, size_t))
{
	zero_group **groups;
	zero_status status;
	PyObject *list;
	size_t count;

	if (!PyArg_ParseTuple(args, "O", &list) || !zero_py_to_groups(list, &groups, &count))
		return NULL;
	WAIT(call(zero_py_job, groups, count));
	PyMem_Free(groups);
	return zero_py_status(status);
}

static PyObject *py_reduce_replicas(PyObject *self, PyObject *args)
{
	(void)self;
	return with_groups(args, zero_reduce_replicas);
}

static PyObject *py_step_begin(PyObject *self, PyObject *args)
{
	(void)self;
	return with_groups(args, zero_step_begin);
}

static PyObject *py_step_end(PyObject *self, PyObject *args)
{
	zero_status status;
	bool stop = false;

	(void)self, (void)args;
	if (!zero_py_has_job())
		return NULL;
	WAIT(zero_step_end(zero_py_job, &stop));
	return status ? zero_py_fail() : PyBool_FromLong(stop);
}

static PyObject *py_stop_on(PyObject *self, PyObject *args)
{
	int number;

	(void)self;
	if (!PyArg_ParseTuple(args, "i", &number) || !zero_py_has_job())
		return NULL;
	return zero_py_status(zero_stop_on(zero_py_job, number));
}

/* lr and weight_decay of a parameter, as factors of those of step_groups, which are 1. */
static PyObject *py_param_scales(PyObject *self, PyObject *args)
{
	zero_param *param;
	float lr, weight_decay;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&ff", zero_py_to_param, &param, &lr, &weight_decay))
		return NULL;
	if (zero_param_set_lr_scale(param, lr))
		return zero_py_fail();
	return zero_py_status(zero_param_set_weight_decay_scale(param, weight_decay));
}

static PyObject *py_param_trainable(PyObject *self, PyObject *args)
{
	zero_param *param;
	int trainable;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&p", zero_py_to_param, &param, &trainable))
		return NULL;
	return zero_py_status(zero_param_set_trainable(param, trainable));
}

/* param_muon(param): Muon steps it */
static PyObject *py_param_muon(PyObject *self, PyObject *args)
{
	zero_param *param;

	(void)self;
	if (!PyArg_ParseTuple(args, "O&", zero_py_to_param, &param))
		return NULL;
	return zero_py_status(zero_param_set_muon(param, true));
}

/* set_states(states): of the moments, F32 or 8 bits as zero_states has them */
static PyObject *py_set_states(PyObject *self, PyObject *args)
{
	zero_status status;
	int states;

	(void)self;
	if (!PyArg_ParseTuple(args, "i", &states) || !zero_py_has_job())
		return NULL;
	WAIT(zero_set_states(zero_py_job, (zero_states)states));
	return zero_py_status(status);
}

/* step_groups(groups, (beta1, beta2, eps), muon): whether a rank was told to stop. muon is None, or
   (momentum, plain, steps, (a, b, c), eps, rate) */
static PyObject *py_step_groups(PyObject *self, PyObject *args)
{
	zero_adamw adamw = {.lr = 1, .weight_decay = 1, .gradients_are_means = true};
	zero_muon muon = {.lr = 1, .weight_decay = 1};
	zero_step_result result;
	zero_group **groups;
	zero_status status;
	PyObject *list, *by_muon;
	size_t count;
	int plain = 0, rate = 0;

	(void)self;
	if (!PyArg_ParseTuple(args, "O(fff)O", &list, &adamw.beta1, &adamw.beta2, &adamw.eps,
			      &by_muon))
		return NULL;
	if (by_muon != Py_None &&
	    !PyArg_ParseTuple(by_muon, "fpi(fff)fi", &muon.momentum, &plain, &muon.steps,
			      &muon.coefficients[0], &muon.coefficients[1], &muon.coefficients[2],
			      &muon.eps, &rate))
		return NULL;
	muon.plain_momentum = plain;
	muon.rate = (zero_muon_rate)rate;
	adamw.muon = by_muon != Py_None ? &muon : NULL;
	if (!zero_py_to_groups(list, &groups, &count))
		return NULL;
	WAIT(zero_step_groups(zero_py_job, groups, count, &adamw, &result));
	PyMem_Free(groups);
	return status ? zero_py_fail() : PyBool_FromLong(result.stop);
}

static PyObject *py_reset(PyObject *self, PyObject *args)
{
	zero_status status;

	(void)self, (void)args;
	if (!zero_py_has_job())
		return NULL;
	WAIT(zero_reset(zero_py_job));
	return zero_py_status(status);
}

PyMethodDef zero_py_train_methods[] = {
	{"gather", py_gather, METH_VARARGS, NULL},
	{"prefetch", py_prefetch, METH_VARARGS, NULL},
	{"release", py_release, METH_VARARGS, NULL},
	{"gradient", py_gradient, METH_VARARGS, NULL},
	{"reduce", py_reduce, METH_VARARGS, NULL},
	{"gradient_shard", py_gradient_shard, METH_VARARGS, NULL},
	{"reduce_replicas", py_reduce_replicas, METH_VARARGS, NULL},
	{"write_begin", py_write_begin, METH_VARARGS, NULL},
	{"write_end", py_write_end, METH_VARARGS, NULL},
	{"step_begin", py_step_begin, METH_VARARGS, NULL},
	{"step_end", py_step_end, METH_NOARGS, NULL},
	{"stop_on", py_stop_on, METH_VARARGS, NULL},
	{"param_muon", py_param_muon, METH_VARARGS, NULL},
	{"param_scales", py_param_scales, METH_VARARGS, NULL},
	{"param_trainable", py_param_trainable, METH_VARARGS, NULL},
	{"set_states", py_set_states, METH_VARARGS, NULL},
	{"step_groups", py_step_groups, METH_VARARGS, NULL},
	{"reset", py_reset, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};
