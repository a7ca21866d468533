/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ZERO_REPORT_PAGE_H
#define ZERO_REPORT_PAGE_H

#include "zero.h"

/*
 * Has zerorun make folder/zero-<id>.html of the zero-<id>.json that is there. Returns when it has
 * ended, after 10 seconds at most. `path` is the folder's name in errors.
 */
zero_status zero_report_page(int folder, const char *path, const char *id);

#endif
