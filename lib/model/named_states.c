/* SPDX-License-Identifier: Apache-2.0 */
/* Named states: arrays that the program keeps beside a parameter, and that checkpoints carry. */
#include <stdlib.h>
#include <string.h>

#include "model.h"

void zero_param_shard_part(const zero_param *param, size_t *first, size_t *count)
{
	size_t segment_first, segment_count;

	zero_owned_part(param->group, &param->flat->segments[param->segment], &segment_first,
			&segment_count);
	zero_param_part(param, segment_first, segment_count, first, count);
}

static void stepped_part(const zero_param *param, size_t *first, size_t *count)
{
	size_t segment_first, segment_count;

	zero_stepped_part(param->group, &param->flat->segments[param->segment], &segment_first,
			  &segment_count);
	zero_param_part(param, segment_first, segment_count, first, count);
}

struct zero_state_part zero_param_state_kept(const zero_param *param,
					     const struct zero_named_state *state)
{
	size_t first, count;

	if (!zero_is_member(param->group))
		return (struct zero_state_part){0, 0};
	if (state->moment)
		stepped_part(param, &first, &count);
	else
		zero_param_shard_part(param, &first, &count);
	return zero_state_kept(state->block, first, count);
}

struct zero_state_part zero_param_state_saved(const zero_param *param,
					      const struct zero_named_state *state)
{
	size_t first, count;

	if (!zero_is_member(param->group))
		return (struct zero_state_part){0, 0};
	zero_param_shard_part(param, &first, &count);
	return zero_state_saved(state->block, first, count, param->group->own_shard == 0);
}

/* Finds the state, or else the place where it belongs. */
static bool find(const zero_param *param, const char *name, size_t *at)
{
	int order = 1;

	for (*at = 0; *at < param->state_count; ++*at) {
		order = strcmp(param->states[*at].name, name);
		if (order >= 0)
			break;
	}
	return !order;
}

const struct zero_named_state *zero_param_find_state(const zero_param *param, const char *name)
{
	size_t at;

	return find(param, name, &at) ? &param->states[at] : NULL;
}

bool zero_state_on_device(const zero_param *param, const struct zero_named_state *state)
{
	const zero_job *job = param->group->job;

	return !job->ops->host_memory &&
	       !(state->moment &&
		 job->settings.value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER);
}

static zero_status check_spec(const zero_param *param, const zero_state_spec *spec)
{
	const char *name = spec->name;

	if (!name || !*name || strlen(name) > ZERO_STATE_NAME_MAX || strchr(name, '/'))
		return zero_fail(ZERO_E_INVALID,
				 "a state of parameter '%s' has the name '%s'; it must have 1 to "
				 "%d bytes and no slash",
				 param->name, name ? name : "", ZERO_STATE_NAME_MAX);
	if (!strncmp(name, ZERO_STATE_OWN, strlen(ZERO_STATE_OWN)))
		return zero_fail(
			ZERO_E_INVALID,
			"a state of parameter '%s' has the name '%s'; names that begin with "
			"'" ZERO_STATE_OWN "' are the library's",
			param->name, name);
	if (!zero_dtype_size(spec->dtype))
		return zero_fail(ZERO_E_INVALID,
				 "state '%s' of parameter '%s' has dtype %d, which is no type",
				 name, param->name, (int)spec->dtype);
	if (spec->block != ZERO_STATE_WHOLE && (spec->block & (spec->block - 1)))
		return zero_fail(ZERO_E_INVALID,
				 "state '%s' of parameter '%s' has a block of %zu; it must be 0, "
				 "a power of two or ZERO_STATE_WHOLE",
				 name, param->name, spec->block);
	if (!param->flat)
		return zero_fail(ZERO_E_STATE,
				 "state '%s' of parameter '%s' must be registered after "
				 "zero_layout",
				 name, param->name);
	return ZERO_OK;
}

static zero_status insert(zero_param *param, size_t at, const struct zero_named_state *state)
{
	struct zero_named_state *grown =
		realloc(param->states, (param->state_count + 1) * sizeof(*grown));

	if (!grown)
		return zero_fail(ZERO_E_MEMORY, "no memory for state '%s' of parameter '%s'",
				 state->name, param->name);
	param->states = grown;
	memmove(grown + at + 1, grown + at, (param->state_count - at) * sizeof(*grown));
	grown[at] = *state;
	param->state_count++;
	return ZERO_OK;
}

zero_status zero_state_add_moment(zero_param *param, const struct zero_moment_part *part,
				  void *data)
{
	struct zero_named_state made = {
		.dtype = part->dtype, .block = part->block, .data = data, .moment = true};
	size_t at;

	memcpy(made.name, part->name, strlen(part->name));
	return find(param, part->name, &at) ? ZERO_OK : insert(param, at, &made);
}

void zero_state_drop_moments(zero_param *param)
{
	size_t kept = 0;

	for (size_t s = 0; s < param->state_count; s++)
		if (!param->states[s].moment)
			param->states[kept++] = param->states[s];
	param->state_count = kept;
}

zero_status zero_state_register(zero_param *param, const zero_state_spec *spec)
{
	zero_param *target = param->alias_of ? param->alias_of : param;
	struct zero_named_state made = {.dtype = spec->dtype, .data = spec->data};
	zero_status status = check_spec(target, spec);
	struct zero_state_part kept;
	size_t at;

	if (status)
		return status;
	made.block = spec->block == ZERO_STATE_WHOLE ? ZERO_BLOCK_WHOLE
		     : spec->block                   ? spec->block
						     : 1;
	memcpy(made.name, spec->name, strlen(spec->name));
	kept = zero_param_state_kept(target, &made);
	if (kept.count && !spec->data)
		return zero_fail(ZERO_E_INVALID,
				 "state '%s' of parameter '%s' has %zu values on this rank, but no "
				 "data",
				 spec->name, target->name, (size_t)kept.count);
	if (find(target, spec->name, &at))
		return zero_fail(ZERO_E_INVALID,
				 "state '%s' of parameter '%s' is registered already; unregister "
				 "it first",
				 spec->name, target->name);
	return insert(target, at, &made);
}

zero_status zero_state_unregister(zero_param *param, const char *name)
{
	zero_param *target = param->alias_of ? param->alias_of : param;
	size_t at;

	if (!name || !find(target, name, &at))
		return zero_fail(ZERO_E_INVALID, "parameter '%s' has no state '%s'", target->name,
				 name ? name : "");
	/* A save in the background may not have written it yet. */
	zero_hooks_before_change(target->group->job, target->group, false);
	target->state_count--;
	memmove(target->states + at, target->states + at + 1,
		(target->state_count - at) * sizeof(*target->states));
	return ZERO_OK;
}

uint64_t zero_named_states_hash(const zero_job *job, size_t *count)
{
	uint64_t hash = 0;

	*count = 0;
	for (size_t g = 0; g < job->model->group_count; g++)
		for (size_t p = 0; p < job->model->groups[g]->param_count; p++) {
			const zero_param *param = job->model->groups[g]->params[p];

			for (size_t s = 0; s < param->state_count; s++) {
				const struct zero_named_state *state = &param->states[s];
				uint64_t values[] = {g, p, (uint64_t)state->dtype, state->block};

				hash = zero_hash(values, sizeof(values), hash);
				hash = zero_hash(state->name, strlen(state->name) + 1, hash);
				++*count;
			}
		}
	return hash;
}
