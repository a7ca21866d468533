/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the extension share. */
#ifndef SLURM_ZERO_PYTHON_H
#define SLURM_ZERO_PYTHON_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "zero.h"

/* Runs a call that may wait, and sets `status`. */
#define WAIT(call)                                      \
	do {                                            \
		Py_BEGIN_ALLOW_THREADS status = (call); \
		Py_END_ALLOW_THREADS                    \
	} while (0)

/* The open job, or NULL. */
extern zero_job *zero_py_job;

/* Sets the exception of the library's last error; returns NULL. */
PyObject *zero_py_fail(void);
/* None, or that. */
PyObject *zero_py_status(zero_status status);
/* Sets an exception if there is no open job. */
bool zero_py_has_job(void);
/* Converters of PyArg_ParseTuple: capsule to zero_param * and zero_group *. */
int zero_py_to_param(PyObject *capsule, void *param);
int zero_py_to_group(PyObject *capsule, void *group);
/* Fills *groups from a list, to be freed with PyMem_Free. Returns false with an exception set. */
bool zero_py_to_groups(PyObject *list, zero_group ***groups, size_t *count);
/* A DLPack capsule of the library's memory; None if there is none. */
PyObject *zero_py_tensor(void *data, zero_dtype dtype, int ndim, const size_t *shape);

/* The functions that gather, reduce and step. */
extern PyMethodDef zero_py_train_methods[];
/* The functions that read and write files. */
extern PyMethodDef zero_py_file_methods[];
/* addresses(): a list of pairs of an interface's name and an address. */
extern PyMethodDef zero_py_net_methods[];

#endif
