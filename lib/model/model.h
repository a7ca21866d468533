/* SPDX-License-Identifier: Apache-2.0 */
/* A job's model: its groups and parameters, where they are stored, and on which ranks. */
#ifndef ZERO_MODEL_H
#define ZERO_MODEL_H

#include "files/files.h"
#include "job/job.h"
#include "segments.h"
#include "flatten_tier.h"

/* An array of the program's beside a parameter. */
struct zero_named_state {
	char name[ZERO_STATE_NAME_MAX + 1];
	zero_dtype dtype;
	uint64_t block; /* elements of the parameter for one value, or ZERO_BLOCK_WHOLE */
	void *data;     /* the program's; NULL where this rank keeps no value */
	bool moment;    /* the library's own, of what this rank steps */
};

/* The named states that moments are, but for f32 ones. */
enum { ZERO_MOMENT_PARTS = 5 };
struct zero_moment_part {
	enum zero_moments_kind kind;
	const char *name;
	zero_dtype dtype;
	uint64_t block;
};

struct zero_param {
	zero_group *group;
	struct zero_flat *flat; /* from the layout on; an alias has its target's */
	zero_param *alias_of;
	zero_adopt_spec *adopted; /* the tensor that zero_layout packs; NULL: none */
	char *name;
	size_t shape[ZERO_MAX_DIMS];
	size_t count;      /* elements */
	size_t segment;    /* index of flat->segments */
	size_t first;      /* element of the segment at which the parameter begins */
	size_t moments_at; /* element of flat->moments where those of its kind begin */
	zero_dtype dtype;
	int ndim;
	float weight_decay;
	float lr_scale;
	bool trainable;    /* laid out as such */
	bool muon;         /* stepped by Muon */
	bool frozen;       /* by zero_param_set_trainable: a step leaves it as it is */
	bool matched;      /* the checkpoint that is being restored has a tensor for it */
	uint64_t checksum; /* of the gathered values, if the group is `checked` */
	struct zero_named_state *states; /* their names ascend; an alias has none */
	size_t state_count;
};

/* The parameters of one type in a flat buffer, trainable or not. Equal on all ranks but for
   stored_at. */
struct zero_segment {
	zero_dtype dtype;
	bool trainable;
	size_t count;       /* elements of all shards */
	size_t shard;       /* elements of one shard: what one rank owns */
	size_t stored_at;   /* byte of flat->stored where this rank's part begins */
	size_t first_at;    /* byte of flat->stored of element 0, if all of the segment is there */
	size_t gathered_at; /* byte of flat->gathered; ZERO_IN_PLACE: read where it is stored */
	size_t gradient_at; /* element of flat->gradient, for a trainable segment */
	size_t state_at;    /* element of what the rank steps: sums, masters, moments */
};

#define ZERO_IN_PLACE SIZE_MAX

/* A group is gathered as the stored type, f32, f16 or bf16. Each has its own gather buffer. */
enum { ZERO_GATHER_BUFFERS = 4 };

/* Where a gather buffer is whenever the flat buffer is gathered in its type. */
struct zero_gather_buffer {
	void *address; /* NULL: not reserved yet */
	size_t bytes;
	bool used; /* it was gathered at least once */
};

/* What the program does with values by itself, between two calls. A call tells in which of these
   states it may be made. */
enum zero_values_state {
	ZERO_IDLE = 1,
	ZERO_STEPPING = 2,     /* between zero_step_begin and zero_step_end */
	ZERO_WRITING = 4,      /* between zero_write_begin and zero_write_end */
	ZERO_INCONSISTENT = 8, /* of a model: a step failed half-way, so values and optimizer states
	                          are undefined until a restore */
};

/* A flat buffer: what is gathered as one. It is a group, or the part of one that the layout cut. */
struct zero_flat {
	zero_group *group;
	struct zero_segment *segments;
	size_t segment_count;
	size_t gradient_count; /* elements of all trainable segments */
	size_t state_count;    /* of these, the elements that this rank steps */
	size_t stored_bytes;

	/* The segments, if the group is replicated. Else what the ranks of shard_team store that
	   share memory, one behind the other in each segment; this rank's own part is among
	   them. */
	char *stored;
	struct zero_shared shared_stored; /* the memory of `stored`, if it is shared */
	struct zero_gather_buffer buffers[ZERO_GATHER_BUFFERS];
	struct zero_shared
		gathered; /* the gather buffer in use; empty if all is read where it is stored */
	void *gradient; /* this rank's own, [gradient_count] of the group's gradient_dtype; NULL if
	                   unused since the last reduce */
	float *team_sums; /* in a grid, of all that this rank stores: sums over shard_team */
	float *reduced;   /* sums over the ranks, [state_count] */
	/* Of each parameter at its moments_at; without it if none is of that kind. All NULL before
	   the first step. */
	struct zero_moments moments;
	float *master; /* f32 values of 16-bit segments, [state_count]; NULL if there are none */
};

struct zero_group {
	zero_job *job;
	zero_team *team; /* each of its ranks owns a shard of every segment, which it steps */
	/* From the layout on: the ranks that store a copy between them, `team` or a part of it, and
	   those that store what this rank does; NULL but in a grid. */
	zero_team *shard_team, *replica_team;
	int own_shard; /* the one that this rank owns; -1 if it is not in the team */
	char *name;
	zero_param **params; /* owned */
	struct zero_flat *flats;
	size_t param_count, param_capacity, flat_count;
	bool trainable;        /* one of its parameters is */
	bool adopts;           /* one of its parameters is: flatten allocates the buffers */
	bool replicated;       /* each rank stores all of every segment */
	bool steps_replicated; /* each rank steps all of every segment, as at stage 0 */
	bool in_place; /* a gather in the storage type needs no copy: the node has all of it */
	zero_dtype gradient_dtype;
	size_t index; /* in the order of zero_group_new; of a slice, its parent's */
	/* Of a group that is to have slices, and has them where it is not read in place. */
	size_t slice_bytes; /* of each, gathered; 0: it is to have none */
	zero_group *slices; /* [slice_count], owned, from the layout on */
	size_t slice_count;
	/* Of a slice: the group that it is a part of, and which element of what each rank stores of
	   that it begins with. */
	zero_group *parent;
	size_t slice_first;

	/* How often the group was stepped, and what a step needs of that; in memory of the backend,
	   or in host memory if the states are staged. From the layout on. */
	struct zero_step_state *step_state;
	struct zero_step_state *own_step_states; /* of a layout; held by its first group */
	uint64_t steps; /* as far as the host knows: zero_group_steps_read tells */

	/* Guarded by the job's lock. */
	struct zero_work *gather; /* under way or done; NULL: not gathered */
	bool listed;              /* by the zero_prefetch under way */
	unsigned use_count;
	unsigned other_thread_uses;     /* of these, by others than the one that began it */
	pthread_t begun_by, other_user; /* the last one of these others */
	_Atomic bool ready;             /* a gather waited for it; read without the lock */
	zero_dtype gathered_as;         /* valid while `gather` is set */
	bool checked;      /* its parameters' checksums are those of the gathered values */
	uint64_t checksum; /* likewise of a slice */
	size_t live_bytes; /* bytes of its gather buffers */
	bool reduced;      /* since the last step, on all ranks alike */
	bool team_reduced; /* in a grid: since then, over shard_team alone */
	bool sums_exposed; /* at stage 0, by zero_gradient_shard, so that they may have changed */
	enum zero_values_state state;
	/* Its first reduce, and its first sum over copies, allocate, which may fail on one rank. */
	bool ever_reduced, ever_summed;
	bool ever_stepped;        /* by zero_step, on all ranks alike: it has its states */
	struct zero_work *reduce; /* the last one under way; NULL: none */
	struct zero_work *post_step_gather; /* of stepped values, at stages 1 and 2; NULL: none */
	/* The same work from the step to the next gather, on all ranks alike. A gather waits for
	   this alone as long as zero_group_wait_count is still `step_wait_count`. */
	struct zero_work *step_work;
	unsigned step_wait_count;
};

struct zero_model {
	zero_group **groups; /* owned, in the order of zero_group_new */
	size_t group_count;  /* the first ones, which are laid out or about to be */
	size_t made_count, group_capacity;
	size_t layout_first;  /* the first group of the last layout */
	void *params_by_name; /* tsearch trees */
	void *groups_by_name;
	bool adopts;           /* a group that is not laid out yet does */
	bool released_tensors; /* in a layout that failed: another one would miss them */
	bool stepping;         /* also a step of no groups */
	bool inconsistent;
	zero_states states;        /* of the moments */
	struct zero_sizing sizing; /* from the layout on */
	enum zero_tier tier;       /* from the layout on, at stages 0 to 2 */
	/* Gradients and values, twice, on the way to offloaded states and back. */
	void *offload_buffers[2][2];
	size_t offload_count; /* f32 elements of each; 0: not allocated */
};

extern const struct zero_hooks zero_model_hooks;

/* ---- grid_size.c ----------------------------------------------------------------------------- */

/* What a rank needs for groups [layout_first, group_count) with teams of `size` ranks, with the
   states of an optimizer, whoever steps. */
zero_status zero_grid_measure(const zero_job *job, size_t size, struct zero_sizing *sizing);
/* The ranks that store a copy by the option `shard`; with `auto` all of them. */
zero_status zero_grid_setting(const zero_job *job, const struct zero_nodes *nodes, size_t *size);
/* The least size of teams with which that fits into the budget, or else all ranks: for `auto`. */
zero_status zero_grid_fit(const zero_job *job, const struct zero_nodes *nodes, size_t *size);
/* COLLECTIVE. Makes job->grid, if the option `shard` asks for one, for groups [layout_first,
   group_count). */
zero_status zero_grid_choose(zero_job *job);

/* ---- layout.c -------------------------------------------------------------------------------- */

/* The sizing of the job before it has groups. */
struct zero_sizing zero_sizing_of(const zero_job *job);
/* How a group's parameters lie in segments, but for aliases. */
struct zero_group_layout {
	struct zero_layout_item *items;
	zero_param **params; /* [item_count] */
	struct zero_layout_segment *segments;
	size_t item_count, segment_count, flat_count;
};
/* Finds it; to be freed, also after an error. */
zero_status zero_group_layout_find(const zero_group *group, struct zero_group_layout *layout);
void zero_group_layout_free(struct zero_group_layout *layout);

/* ---- group.c --------------------------------------------------------------------------------- */

static inline bool zero_is_member(const zero_group *group)
{
	return group->team->place.rank >= 0;
}
/* How many shards a rank stores, its own and those of its replica_team; unless it stores all. */
static inline size_t zero_replicas(const zero_group *group)
{
	return group->replica_team ? (size_t)group->replica_team->place.world : 1;
}

/* An error, of this rank alone, if it is not in the group's team. `what` is a participle:
   "gathered". */
zero_status zero_require_member(const zero_group *group, const char *what);
/* Waits until the values that other ranks stepped are here (stages 1 and 2). */
zero_status zero_wait_post_step_gather(zero_group *group);
/* Marks the model as inconsistent by a step that failed with `status`, and adds that to the
   sentence. */
zero_status zero_mark_inconsistent(zero_job *job, zero_status status);
/* Refuses the call `what` unless the state of the model, or that of the group, is one of `allowed`.
   Of a group `what` is a participle: "gathered". */
zero_status zero_require_state(const zero_job *job, unsigned allowed, const char *what);
zero_status zero_require_group_state(const zero_group *group, unsigned allowed, const char *what);
/* How many submissions all ranks of its shard_team have waited for: what was submitted before the
   last of them is done on all ranks. */
unsigned zero_group_wait_count(zero_group *group);
/* Frees the parameters of a group, and its name for another one. Its buffers must be free. */
void zero_group_empty(zero_group *group);
/* Frees a group and its parameters. Its buffers must be free. */
void zero_group_free(zero_group *group);

/* The parameter that an alias stands for, or the parameter itself. */
static inline zero_param *zero_param_target(zero_param *param)
{
	return param->alias_of ? param->alias_of : param;
}
/* Whether a step changes a parameter of the group, on all ranks alike. */
bool zero_group_is_stepped(const zero_group *group);

/* ---- slices.c -------------------------------------------------------------------------------- */

/* What a slice is a part of, or the group itself. */
static inline zero_group *zero_group_whole(zero_group *group)
{
	return group->parent ? group->parent : group;
}
/* The group or slice after this one, each slice after the others of its parent; the first after
   NULL. NULL: there are no more. */
zero_group *zero_group_after(const struct zero_model *model, const zero_group *group);
/* Whether the group or one of its slices is gathered. */
bool zero_group_is_gathered(const zero_group *group);

/* ---- storage.c ------------------------------------------------------------------------------- */

/* The elements of a segment that this rank stores, and those that it steps: [*first, *first +
   *count). */
void zero_stored_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		      size_t *count);
void zero_stepped_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		       size_t *count);
/* The shard that it owns, also where it stores and steps more. */
void zero_owned_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		     size_t *count);
/* The part of a parameter that lies in elements [segment_first, segment_first + segment_count) of
   its segment, as elements of the parameter. */
void zero_param_part(const zero_param *param, size_t segment_first, size_t segment_count,
		     size_t *first, size_t *count);
/* Where element `element` of the segment is stored; this rank must store it. */
char *zero_stored_at(const struct zero_flat *flat, const struct zero_segment *segment,
		     size_t element);
/* Places the segments of a group, and allocates the buffers that need no other rank. Local. */
zero_status zero_storage_alloc(zero_group *group);
/* COLLECTIVE over the team, which is the shard_team of groups. Allocates the buffers that ranks
   share. */
zero_status zero_storage_alloc_shared(zero_job *job, zero_team *team);
/* Frees the buffers of a group; it is no longer laid out. */
void zero_storage_free(zero_group *group);
/* Frees what alloc_step_states allocated for a layout, whose first group this is. */
void zero_step_states_free(zero_group *group);

/* ---- named_states.c -------------------------------------------------------------------------- */

/* The elements [*first, *first + *count) of the parameter in this rank's shard, also where more is
   stored. */
void zero_param_shard_part(const zero_param *param, size_t *first, size_t *count);
/* The values of a named state that this rank keeps, the first of them at state->data, and those
   that it saves. */
struct zero_state_part zero_param_state_kept(const zero_param *param,
					     const struct zero_named_state *state);
struct zero_state_part zero_param_state_saved(const zero_param *param,
					      const struct zero_named_state *state);
/* Whether a state's memory is a device's, or may be. */
bool zero_state_on_device(const zero_param *param, const struct zero_named_state *state);
/* Registers a part of the moments, unless it is registered. */
zero_status zero_state_add_moment(zero_param *param, const struct zero_moment_part *part,
				  void *data);
void zero_state_drop_moments(zero_param *param);
/* NULL: the parameter, which is no alias, has no state of this name. */
const struct zero_named_state *zero_param_find_state(const zero_param *param, const char *name);
/* A hash of all named states, which is the same on all ranks, and their number. */
uint64_t zero_named_states_hash(const zero_job *job, size_t *count);

/* ---- states.c: optimizer states -------------------------------------------------------------- */

/* Whether the states are in other memory than the values, so that both meet in offload_buffers. */
bool zero_states_staged(const zero_job *job);
extern const struct zero_moment_part zero_moment_parts[ZERO_MOMENT_PARTS]; /* their names ascend */
enum zero_moments_kind zero_param_moments(const zero_param *param);
/* The moments of what this rank steps of a trainable parameter, from its first element on. Returns
   how many elements that are. */
size_t zero_param_stepped(const zero_param *param, struct zero_moments *moments);
/* The f32 moment or master of an element of the parameter that this rank steps. */
float *zero_param_state_at(const zero_param *param, enum zero_saved_kind kind, size_t element);
/* The moments from `at` on, a multiple of ZERO_BLOCK if they have 8 bits. */
struct zero_moments zero_moments_from(struct zero_moments moments, size_t at);
/* Allocates the moments and masters of a group that are not there yet. Local. */
zero_status zero_states_alloc(zero_group *group);
/* Frees the moments, as before the first step; the masters too if `masters`. */
void zero_states_free(zero_group *group, bool masters);
/* Moves the moments of a group's flat buffers to flats[], as if there were none; zero_moments_free
   frees them. */
void zero_states_take(zero_group *group, struct zero_moments *flats);
void zero_moments_free(zero_job *job, struct zero_moments *moments);
/* Sets the f32 masters, if there are any, of elements [first, first + count) of a segment from the
   stored values. This rank must step them. */
void zero_states_set_masters(struct zero_flat *flat, const struct zero_segment *segment,
			     size_t first, size_t count);
/* The same for a parameter whose stored values have changed. */
void zero_param_update_masters(zero_param *param);

#endif
