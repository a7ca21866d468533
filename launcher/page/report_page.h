/* SPDX-License-Identifier: Apache-2.0 */
/* The page of a job's report, made of the JSON that libzero wrote. */
#ifndef ZERO_PAGE_REPORT_H
#define ZERO_PAGE_REPORT_H

/*
 * Makes the page of `path`, a report's JSON. With `page` NULL it is beside that and ends in .html.
 * Returns 0, or the exit status after an error.
 */
int report_page(const char *path, const char *page);

#endif
