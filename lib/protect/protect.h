/* SPDX-License-Identifier: Apache-2.0 */
/* The room that keeps what a lost node costs at a step: a job calls it by its hooks. */
#ifndef ZERO_PROTECT_H
#define ZERO_PROTECT_H

#include "job/hooks.h"

extern const struct zero_hooks zero_protect_hooks;

#endif
