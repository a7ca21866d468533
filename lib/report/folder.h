/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of reports, and files in it that appear when they are complete. */
#ifndef ZERO_REPORT_FOLDER_H
#define ZERO_REPORT_FOLDER_H

#include "zero.h"

/* Opens the folder, or makes it, and checks that files can be made in it. `origin` is where the
   path was set. */
zero_status zero_report_folder(const char *path, const char *origin, int *folder);
/* Writes folder/name, and replaces a file of that name. `path` is the folder's name in errors. */
zero_status zero_report_put(int folder, const char *path, const char *name, const char *text,
			    size_t bytes);

#endif
