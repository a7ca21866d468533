/* SPDX-License-Identifier: Apache-2.0 */
/* A random model beside its reference, and what the files of the property test share. */
#ifndef PROPERTY_H
#define PROPERTY_H

#include "ranks.h"
#include "reference.h"

enum { GROUPS_MAX = 4, TENSORS_MAX = 6, CASE_DIMS = 3, COUNT_MAX = 120000, WORLD_MAX = 16 };

struct group;

struct tensor {
	zero_param *param;
	zero_param_spec spec;
	char name[16];
	size_t shape[CASE_DIMS];
	size_t count;
	struct group *group;
	struct tensor *tied;  /* to this one, whose reference is its own; NULL: to none */
	struct ref_param ref; /* unless tied */
	bool written;         /* its slices have a gradient on this rank */
	/* By the rules of the layout, unless tied: its first element in a segment of so many. */
	size_t flat, first, segment;
};

struct group {
	zero_group *handle;
	char name[16];
	struct tensor tensors[TENSORS_MAX];
	size_t count;
	zero_team *team;      /* NULL: all ranks */
	uint64_t members;     /* a bit for each rank */
	int ranks[WORLD_MAX]; /* of the team, ascending */
	int world;            /* number of them */
	bool member;          /* this rank is one */
	zero_dtype gradients; /* their type */
	bool trainable;
	size_t slices;  /* bytes of each; 0: it has none */
	bool reduced;   /* since the last step */
	bool pending;   /* some rank has a gradient that is not reduced */
	bool begun;     /* gathered or under way, as `as` */
	bool by_slices; /* then: by its slices, not as a whole */
	unsigned uses;
	zero_dtype as;
};

struct model {
	uint64_t random; /* draws what must be the same at every stage, on all ranks */
	zero_job *job;
	struct group groups[GROUPS_MAX];
	size_t group_count;
	int stage, world, rank;
	int most;         /* ranks that share memory; 0: all */
	int team;         /* ranks that store a copy; less than world at stage 3 alone */
	zero_dtype set;   /* what ZERO_DTYPE_DEFAULT stands for */
	uint64_t steps;   /* that changed something */
	unsigned stepped; /* calls that succeeded */
	bool exported;
	bool sliced;  /* some group is */
	bool limited; /* a prefetch may pass groups over */
	bool told;    /* rank 0 of a case that runs alone prints what it does */
	zero_loss_scale scale;
	uint64_t digest; /* of the gradients' norms, later of all values too */
};

/* ---- what fails, and where ------------------------------------------------------------------- */

extern char case_text[512]; /* the case, for messages */

__attribute__((noreturn, format(printf, 4, 5))) SOME void
case_failed(const char *file, int line, const char *what, const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	give_up(file, line, what, "%s\n\tin %s", text, case_text);
}

SOME void case_status(const char *file, int line, const char *call, zero_status got,
		      zero_status want)
{
	if (got != want)
		case_failed(file, line, call, "'%s' (%s), not '%s'", zero_strerror(got),
			    got ? zero_last_error() : "", zero_strerror(want));
}

/* As in ranks.h, but that messages say which case it is. */
#undef check
#undef ok
#undef fails
#define check(condition, ...) \
	((condition) ? (void)0 : case_failed(__FILE__, __LINE__, #condition, __VA_ARGS__))
#define ok(call)            case_status(__FILE__, __LINE__, #call, call, ZERO_OK)
#define fails(call, status) case_status(__FILE__, __LINE__, #call, call, status)

/* ---- operations ------------------------------------------------------------------------------ */

/* Done in a case `weight` times in the sum of all weights. */
struct operation {
	const char *name;
	unsigned weight;
	void (*run)(struct model *model);
};

/* Ends with a NULL name. */
extern const struct operation operations[], refusals[];

void run_random(struct model *model, const struct operation *table);

/* COLLECTIVE. Makes the bytes that values are slices of, in memory and in a file; always the
   same. */
void make_noise(zero_job *job);
/* From a random source. The group must not be gathered. */
void load(struct model *model, struct tensor *tensor);
/* Several parameters of one team in one call. */
/* A load that is refused; by those who are not in the team it is not even looked at. */
void refused_load(struct tensor *tensor, const zero_source *source, zero_status status);
/* What was exported last, to all parameters or to some of them. */
void load_export(struct model *model, const char *path);

/* The rules of the layout, after zero_layout. */
void lay_out(struct model *model);
/* What this rank stores of the tensor. */
void stored(const struct model *model, const struct tensor *tensor, size_t *first, size_t *count);
/* What this rank sends in a gather of the group, and in a load from one rank. */
uint64_t gather_bytes(const struct model *model, const struct group *group, zero_dtype as);
uint64_t scatter_bytes(const struct model *model, const struct tensor *tensor, int root);
void check_shards_memory(const struct model *model, const zero_memory *memory);
/* COLLECTIVE. */
uint64_t sent_so_far(const struct model *model);
void check_sent(const struct model *model, uint64_t before, uint64_t want, const char *what);

/* Draws the shape of a tensor that has slices. */
void slice_shape(struct model *model, struct tensor *tensor);
/* The whole rows of which a slice has a number, in elements. */
size_t slice_unit(const struct tensor *tensor);
/* What is gathered of a group: its slices, or all of it. */
size_t part_count(const struct group *group);
zero_group *part_of(const struct group *group, size_t index);
/* The slices in an order of their own. */
zero_group *slice_by_turn(const struct group *group, uint64_t seed, size_t turn);
/* What is gathered of one slice, or of all, is `want` as it says of the parameter; in that type. */
void check_slice(const struct tensor *tensor, const zero_group *slice, zero_dtype as,
		 const char *want);
void check_slices(const struct tensor *tensor, zero_dtype as, const char *want);
void poison_slices(const struct tensor *tensor, size_t size);
/* This rank's gradients, in the type of the group's. */
void read_slice_gradients(const struct tensor *tensor, void *values);
void write_slice_gradients(struct tensor *tensor, void *values);
/* Gathers slice after slice, as a program does. */
void walk_any(struct model *model);

void gather(struct model *model, struct group *group, zero_dtype as);
void release(struct model *model, struct group *group);
void release_all(struct model *model);
void gather_any(struct model *model);
void prefetch_any(struct model *model);
void release_any(struct model *model);
void update_any(struct model *model);
void write_any(struct model *model);
/* What all of these groups can be gathered as; a bit of `chosen` for each group. */
zero_dtype choose_as(struct model *model, unsigned chosen);

void backward(struct model *model);
void overflow(struct model *model);
void reduce_any(struct model *model);
void reduce_slices(struct model *model);
void step(struct model *model);
zero_adamw random_adamw(uint64_t *random);
void random_loss_scale(struct model *model);
/* After a step that failed the gradients are gone too. */
void ref_drop_gradients(struct model *model);
/* A number whose size differs much, so that the order of a sum shows. */
float gradient(uint64_t pass, int from, size_t i);

static inline struct group *any_group(struct model *model)
{
	return &model->groups[below(&model->random, model->group_count)];
}

/* NULL where the group that was drawn is empty. */
static inline struct tensor *any_tensor(struct model *model)
{
	struct group *group = any_group(model);
	size_t index = below(&model->random, TENSORS_MAX);

	return group->count ? &group->tensors[index % group->count] : NULL;
}

static inline struct ref_param *ref_of(struct tensor *tensor)
{
	return tensor->tied ? &tensor->tied->ref : &tensor->ref;
}

/* f32, f16 and bf16 are gathered as one another and trained. */
static inline bool is_real(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16;
}

static inline zero_dtype gathered_as(const struct tensor *tensor, zero_dtype as)
{
	return as != ZERO_DTYPE_PARAM && is_real(tensor->spec.dtype) ? as : tensor->spec.dtype;
}

#endif
