/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the buffers of operations. */
#include "nccl.h"

static bool meet(struct range a, struct range b)
{
	return a.bytes && b.bytes && a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

static size_t parts(enum kind kind, int world, bool sent)
{
	if ((kind == ALL_GATHER && !sent) || (kind == REDUCE_SCATTER && sent))
		return (size_t)world;
	return 1;
}

static bool has_send(const struct op *op)
{
	if (op->kind == BROADCAST)
		return op->root == op->comm->rank;
	return op->kind != RECV;
}

static struct range read_range(const struct op *op)
{
	size_t bytes = op->count * type_size(op->type) * parts(op->kind, op->comm->world, true);

	return has_send(op) ? (struct range){op->send, bytes} : (struct range){NULL, 0};
}

static struct range write_range(const struct op *op)
{
	size_t bytes = op->count * type_size(op->type) * parts(op->kind, op->comm->world, false);

	return op->kind == SEND ? (struct range){NULL, 0} : (struct range){op->recv, bytes};
}

/* Whether the operation may be in place. */
bool in_place(const struct op *op)
{
	const char *send = op->send, *recv = op->recv;
	size_t own = (size_t)op->comm->rank * op->count * type_size(op->type);

	if (!has_send(op))
		return false;
	switch (op->kind) {
	case ALL_GATHER:
		return send == recv + own;
	case REDUCE_SCATTER:
		return recv == send + own;
	default:
		return send == recv;
	}
}

static ncclResult_t check_buffer(const struct op *op, struct range range, const char *what)
{
	const char *why = NULL;

	if (!range.bytes)
		return ncclSuccess;
	if (!range.data)
		why = "is NULL";
	else if ((uintptr_t)range.data % type_size(op->type))
		why = "is not aligned to its elements";
	else
		why = driver_refuses(range.data, range.bytes);
	if (!why)
		return ncclSuccess;
	return refuse(ncclInvalidArgument, "%s of %zu %s: %s buffer %p of %zu bytes %s",
		      kind_name(op->kind), op->count, type_name(op->type), what,
		      (const void *)range.data, range.bytes, why);
}

ncclResult_t check_op(const struct op *op)
{
	const struct ncclComm *comm = op->comm;
	const char *name = kind_name(op->kind);
	size_t size = type_size(op->type);
	ncclResult_t result;

	if (!size ||
	    ((op->kind == REDUCE_SCATTER || op->kind == ALL_REDUCE) && op->type != ncclFloat32 &&
	     op->type != ncclFloat16 && op->type != ncclBfloat16))
		return refuse(ncclInvalidArgument, "%s: the stand-in has no such %s", name,
			      type_name(op->type));
	if (op->kind >= BROADCAST && (op->root < 0 || op->root >= comm->world))
		return refuse(ncclInvalidArgument, "%s: rank %d of %d", name, op->root,
			      comm->world);
	result = check_buffer(op, read_range(op), "send");
	if (!result)
		result = check_buffer(op, write_range(op), "receive");
	if (result)
		return result;
	if (!in_place(op) && meet(read_range(op), write_range(op)))
		return refuse(ncclInvalidArgument, "%s of %zu %s: its buffers overlap", name,
			      op->count, type_name(op->type));
	return ncclSuccess;
}

struct touch touch_of(const struct op *op)
{
	struct touch touch = {read_range(op), {write_range(op), {NULL, 0}}};
	size_t part = op->count * type_size(op->type);
	size_t before = (size_t)op->comm->rank * part;

	if (!in_place(op))
		return touch;
	if (op->kind == BROADCAST)
		touch.write[0].bytes = 0;
	if (op->kind == ALL_GATHER) {
		touch.write[1].data = touch.write[0].data + before + part;
		touch.write[1].bytes = touch.write[0].bytes - before - part;
		touch.write[0].bytes = before;
	}
	return touch;
}

bool op_uses(const struct op *op, const void *data, size_t bytes)
{
	struct touch touch = touch_of(op);
	struct range range = {data, bytes};

	return meet(touch.read, range) || meet(touch.write[0], range) ||
	       meet(touch.write[1], range);
}

static bool spoils(const struct touch *writer, const struct touch *other)
{
	for (int i = 0; i < 2; i++)
		if (meet(writer->write[i], other->read) ||
		    meet(writer->write[i], other->write[0]) ||
		    meet(writer->write[i], other->write[1]))
			return true;
	return false;
}

ncclResult_t check_group(const struct op *ops)
{
	int count = 0;

	for (const struct op *a = ops; a; a = a->next) {
		struct touch one = touch_of(a);

		/* the cost is quadratic in their number */
		if (count++ == 1000)
			break;
		for (const struct op *b = ops; b != a; b = b->next) {
			struct touch two = touch_of(b);

			if (spoils(&one, &two) || spoils(&two, &one))
				return refuse(ncclInvalidUsage,
					      "in one group, the buffers of %s of %zu %s and %s of "
					      "%zu %s overlap",
					      kind_name(b->kind), b->count, type_name(b->type),
					      kind_name(a->kind), a->count, type_name(a->type));
		}
	}
	return ncclSuccess;
}
