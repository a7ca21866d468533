/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses at which other nodes may reach this one, in the library's order. */
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "_zero.h"
#include "net/address.h"

static void add(void *context, const struct ifaddrs *entry)
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
		PyList_Append(context, pair);
	Py_DecRef(pair);
}

static PyObject *py_addresses(PyObject *self, PyObject *args)
{
	PyObject *list = PyList_New(0);

	(void)self, (void)args;
	if (list && !zero_address_each(add, list, AF_INET6))
		PyErr_SetFromErrno(PyExc_OSError);
	if (!PyErr_Occurred())
		return list;
	Py_DecRef(list);
	return NULL;
}

PyMethodDef zero_py_net_methods[] = {
	{"addresses", py_addresses, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};
