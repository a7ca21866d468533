/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: the model that the test's files share, and what each of them offers. */
#ifndef TEAMS_H
#define TEAMS_H

#include "ranks.h"

enum {
	WORLD_MAX = 16,
	GROUPS_MAX = 2 * WORLD_MAX + 8,
	PER_GROUP = 4,
	PARAMS_MAX = GROUPS_MAX * PER_GROUP,
	COUNT_MAX = 2048,
};

extern int world, rank;
extern uint64_t seed;

/* ---- teams_model.c: a group for each team ---------------------------------------------------- */

struct shape {
	int members[WORLD_MAX];
	size_t count;
	bool implicit; /* a group without a team */
};

extern struct shape shapes[GROUPS_MAX];
extern size_t groups;

void choose_teams(void);
bool is_member(size_t g, int who);
size_t group_of(size_t p);
zero_dtype dtype_of(size_t p);
size_t count_of(size_t p);
bool is_trained(size_t p);
size_t bytes_of(size_t p);
float initial(size_t p, size_t i);
/* The element's bytes as it is stored. */
void element(size_t p, size_t i, void *out);
float from_bf16(uint16_t half);

struct model {
	zero_job *job;
	zero_team *teams[GROUPS_MAX];
	zero_group *groups[GROUPS_MAX];
	zero_param *params[PARAMS_MAX];
};

/* Groups [from, to), and their teams. */
void make_groups(struct model *model, size_t from, size_t to);
/* All up to the layout, which are two, of some groups each. */
void begin(struct model *model, const char *settings);

/* All parameters, one behind the other; every rank's own copy of what rank 0 writes. */
extern char *image;
extern size_t image_at[PARAMS_MAX + 1];

void make_image(void);
/* COLLECTIVE. The file that some are loaded from. */
void write_image(zero_job *job);
/* Each from a source of another kind, and by another kind for another `kind`. */
void load_each(struct model *model, size_t kind, uint64_t *random);
void load_zeros(struct model *model);

/* ---- teams_train.c --------------------------------------------------------------------------- */

extern const zero_adamw adamw;

void training(void);

#endif
