/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of reports, and files in it that appear whole. */
#ifndef ZERO_REPORT_FOLDER_H
#define ZERO_REPORT_FOLDER_H

#include "zero.h"

/* Opens the folder, which is made if it is not there, and finds out whether files can be made in
   it. `origin` said its path. */
zero_status zero_report_folder(const char *path, const char *origin, int *folder);
/* Writes folder/name; what was there under that name is replaced. `path` is for sentences. */
zero_status zero_report_put(int folder, const char *path, const char *name, const char *text,
			    size_t bytes);

#endif
