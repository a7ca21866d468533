/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device as a program sees it that has no CUDA runtime: memory, copies and kernels by the
 * driver, which is opened when it is asked for. All of it goes to the legacy default stream, the
 * one that the library orders its own work with. With ZERO_TEST_BACKEND=host the same functions
 * work on host memory, so that a program of theirs can be tried against the host backend.
 */
#ifndef TESTS_GPU_DEVICE_H
#define TESTS_GPU_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL, or a sentence that says why there is no device. Of several devices it is the one that this
   rank's number on the node says, and stays the calling thread's current one. */
const char *device_open(void);
/* Name, compute capability and driver, such as "NVIDIA H200, sm_90, driver for CUDA 13.0". */
void device_describe(char *text, size_t size);
int device_count(void);
bool device_on_host(void); /* ZERO_TEST_BACKEND=host */

/* A failure ends the program with a line and status 1, except that of device_alloc. */
void *device_alloc(size_t bytes); /* NULL: no memory */
void device_free(void *data);
size_t device_memory_free(void);
void *pinned_alloc(size_t bytes); /* page-locked host memory */
void pinned_free(void *data);

/* They run in order, and are complete when synchronise returns. */
void upload(void *to, const void *from, size_t bytes);
void download(void *to, const void *from, size_t bytes);
void device_copy(void *to, const void *from, size_t bytes); /* device to device */
void device_set(void *to, unsigned char value, size_t bytes);
void synchronise(void);

/* ---- kernels --------------------------------------------------------------------------------- */

/* Loads the library's kernels, zero_device_image of kernels/kernels.h. */
void kernels_load(const void *image);
/* Launches a kernel with its struct of arguments. */
void kernels_launch(const char *name, const void *arguments, size_t blocks, unsigned threads);
/* Returns a number of blocks that fills the device. */
size_t kernels_blocks(size_t count);

/* ---- streams --------------------------------------------------------------------------------- */

void *stream_new(void); /* not ordered with the default stream */
void stream_finish(void *stream);
void copy_on(void *stream, void *to, const void *from, size_t bytes);

/* ---- graphs ---------------------------------------------------------------------------------- */

/* Waits for the device before. Then no thread of the process may make a call that could wait for
   the device, until the end. */
void capture_begin(void *stream);
void *capture_end(void *stream); /* a graph that can be launched */
void graph_launch(void *graph, void *stream);
void graph_delete(void *graph);

/* ---- time ------------------------------------------------------------------------------------ */

/* Milliseconds of the device between two marks in a stream; needs a real one. */
typedef struct device_mark device_mark;
device_mark *mark_new(void);
void mark(device_mark *m);
void mark_on(device_mark *m, void *stream);
double marks_between(device_mark *begin, device_mark *end);
double wall_ms(void);
double median(double *values, size_t count); /* sorts them */

#endif
