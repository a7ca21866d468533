/* SPDX-License-Identifier: Apache-2.0 */
/*
 * srun executed once more, with other variables: what it reads before any plugin sees its flags can
 * be changed in no other way. The process number, stdin, the terminal and signals stay what they
 * are.
 */
#ifndef ZERO_AGAIN_H
#define ZERO_AGAIN_H

#include <stdbool.h>
#include <stddef.h>

/* Notes the environment, before srun adds to it. False: no memory. */
bool again_note(void);
/* Whether this srun is such a second one. */
bool again_is_second(void);
/* Its arguments, read once and never freed; ends with a NULL. NULL: they cannot be read. */
char **again_arguments(void);

struct again_variable {
	const char *name;
	const char *value; /* NULL: taken away */
};

/* With the environment that was noted but for these. Returns only on error, with errno set. */
void again_begin(const struct again_variable *variables, size_t count);

#endif
