/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs that were captured. A launch repeats all steps: those of the first lane on the stream that
 * it is launched on, those of the others on streams of the graph. So work that the capture gave no
 * order runs at the same time, and is checked as if the program had queued it again.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

struct CUgraph_st {
	struct double_object object;
	CUcontext context;
	struct double_script *script;
};

struct CUgraphExec_st {
	struct double_object object;
	CUcontext context;
	struct double_script *script;
	CUstream lanes[DOUBLE_CLOCKS]; /* from 1 */
	struct double_marker *last;    /* the end of its last launch */
};

struct double_script *double_script_new(void)
{
	struct double_script *script = double_new(1, sizeof(*script));

	script->references = 1;
	return script;
}

void double_script_put(struct double_script *script)
{
	if (--script->references)
		return;
	for (size_t i = 0; i < script->count; i++) {
		struct double_op *op = script->steps[i].op;

		if (op && op->drop)
			op->drop(op->user);
		if (op)
			double_op_free(op);
	}
	free(script->steps);
	free(script);
}

CUgraph double_graph_new(struct double_script *script)
{
	CUgraph graph = double_new(1, sizeof(*graph));

	double_object_add(graph, DOUBLE_GRAPH);
	graph->context = double_current();
	graph->script = script;
	return graph;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && double_object_check(graph, DOUBLE_GRAPH, __func__))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		graph->object.dead = true;
		double_script_put(graph->script);
	}
	return double_leave(result);
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph,
					     unsigned long long flags)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	CUgraphExec exec;

	if (!result && (!made || double_object_check(graph, DOUBLE_GRAPH, __func__) || flags))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		*made = exec = double_new(1, sizeof(*exec));
		double_object_add(exec, DOUBLE_EXEC);
		exec->context = graph->context;
		exec->script = graph->script;
		exec->script->references++;
		for (int i = 1; i < exec->script->lanes; i++)
			exec->lanes[i] = double_stream_new(exec->context, CU_STREAM_NON_BLOCKING);
	}
	return double_leave(result);
}

/* A launch of it that has not ended goes on. */
CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && double_object_check(exec, DOUBLE_EXEC, __func__))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		exec->object.dead = true;
		for (int i = 1; i < exec->script->lanes; i++)
			double_stream_end(exec->lanes[i]);
		double_marker_put(exec->last);
		double_script_put(exec->script);
	}
	return double_leave(result);
}

/* Where in the copy what is at `slot` in the operation is. */
static void **moved(const struct double_op *op, struct double_op *copy, void **slot)
{
	size_t in_op = (size_t)((char *)slot - (const char *)op);
	size_t in_arguments = (size_t)((char *)slot - (const char *)op->arguments);

	return (void **)(in_op < sizeof(*op) ? (char *)copy + in_op
					     : (char *)copy->arguments + in_arguments);
}

/* Nothing of the operation has changed since it was captured, because it never runs itself. */
static struct double_op *copy_of(const struct double_op *op)
{
	struct double_op *copy = double_new(1, sizeof(*copy));

	*copy = *op;
	copy->next = NULL;
	copy->drop = NULL;
	if (op->arguments) {
		copy->arguments = double_new(1, op->kernel->size);
		memcpy(copy->arguments, op->arguments, op->kernel->size);
	}
	copy->access_size = op->access_count;
	copy->accesses = double_new(op->access_count + 1, sizeof(*copy->accesses));
	for (size_t i = 0; i < op->access_count; i++) {
		copy->accesses[i] = op->accesses[i];
		copy->accesses[i].slot = moved(op, copy, op->accesses[i].slot);
	}
	if (op->renew)
		copy->user = op->renew(op->user);
	return copy;
}

static void launch(CUgraphExec exec, CUstream stream)
{
	struct double_script *script = exec->script;
	struct double_marker **markers = double_new((size_t)script->markers + 1, sizeof(*markers));
	struct double_marker *start;

	if (exec->last)
		double_marker_wait(stream, exec->last);
	start = double_marker_record(stream);
	for (int i = 1; i < script->lanes; i++)
		double_marker_wait(exec->lanes[i], start);
	double_marker_put(start);
	for (size_t i = 0; i < script->count; i++) {
		const struct double_step *step = &script->steps[i];
		CUstream lane = step->lane ? exec->lanes[step->lane] : stream;

		if (step->marks)
			markers[step->marker] = double_marker_record(lane);
		else if (step->waits)
			double_marker_wait(lane, markers[step->marker]);
		else
			double_queue(lane, copy_of(step->op));
	}
	for (int i = 0; i < script->markers; i++)
		double_marker_put(markers[i]);
	free(markers);
	double_marker_put(exec->last);
	exec->last = double_marker_record(stream);
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	CUstream stream;

	if (!result && double_object_check(exec, DOUBLE_EXEC, __func__))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	if (!result && stream->capture)
		result = double_capture_spoil(stream->capture,
					      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (!result)
		launch(exec, stream);
	return double_leave(result);
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && (nodes || !count || double_object_check(graph, DOUBLE_GRAPH, __func__)))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		*count = 0;
		for (size_t i = 0; i < graph->script->count; i++)
			*count += graph->script->steps[i].op != NULL;
	}
	return double_leave(result);
}
