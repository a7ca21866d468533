/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ZERORUN_INSPECT_H
#define ZERORUN_INSPECT_H

#include <stdio.h>

/*
 * Prints what is in a checkpoint, or in a folder of checkpoints, and verifies it. Returns 0 if it
 * is not damaged, else the exit status after errors.
 */
int inspect(FILE *out, const char *path);

#endif
