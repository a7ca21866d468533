/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADDRESS_H
#define ADDRESS_H

#include "ranks.h"

/* address_fault.c: what an access to a parameter does that is not gathered. The parameter is f32,
   its group 'f.0' is not gathered, and it has at least 10 elements. Before the layout, and
   after. */
void faults_before_layout(void);
void faults(zero_job *job, zero_group *group, zero_param *param);
/* After zero_close. */
void faults_after_close(void);

#endif
