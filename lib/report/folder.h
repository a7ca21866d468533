/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of reports, and files in it that appear when they are complete. */
#ifndef ZERO_REPORT_FOLDER_H
#define ZERO_REPORT_FOLDER_H

#include "zero.h"

/* Opens the folder, or makes it, and checks that files can be made in it. `origin` is where the
   path was set. */
zero_status zero_report_folder(const char *path, const char *origin, int *folder);
/* Writes folder/zero-<id>.json and the page .html of it, and replaces files of that name. `path` is
   the folder's name in errors. */
zero_status zero_report_put(int folder, const char *path, const char *id, const char *json);

/* page.html: the build makes a C file of it. */
extern const char zero_report_html[];

#endif
