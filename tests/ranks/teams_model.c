/* SPDX-License-Identifier: Apache-2.0 */
/* A model with a group for each team: its shapes, its values, and where they are loaded from. */
#include <fcntl.h>

#include "teams.h"

int world, rank;
uint64_t seed;
struct shape shapes[GROUPS_MAX];
size_t groups;
char *image;
size_t image_at[PARAMS_MAX + 1];

static struct shape *new_shape(void)
{
	check(groups < GROUPS_MAX, "%zu", groups);
	return &shapes[groups++];
}

/* Every `stride`th rank of [first, last]. */
static void add_team(int first, int last, int stride)
{
	struct shape *shape;

	if (first < 0 || last >= world || first > last)
		return;
	shape = new_shape();
	for (int r = first; r <= last; r += stride)
		shape->members[shape->count++] = r;
}

void choose_teams(void)
{
	for (int i = 0; i < 2; i++) {
		add_team(0, world - 1, 1);
		shapes[i].implicit = i == 0;
	}
	for (int r = 0; r < world; r++) {
		add_team(r, r, 1);
		add_team(r, r + 1, 1);
	}
	/* The ends may be of different nodes; even and odd ranks are. */
	if (world > 2)
		add_team(0, world - 1, world - 1);
	add_team(0, world - 1, 2);
	add_team(1, world - 1, 2);
	add_team(1, world - 1, 1);
}

bool is_member(size_t g, int who)
{
	for (size_t i = 0; i < shapes[g].count; i++)
		if (shapes[g].members[i] == who)
			return true;
	return false;
}

size_t group_of(size_t p)
{
	return p / PER_GROUP;
}

zero_dtype dtype_of(size_t p)
{
	static const zero_dtype dtypes[PER_GROUP] = {ZERO_F32, ZERO_BF16, ZERO_I32, ZERO_F32};

	return dtypes[p % PER_GROUP];
}

size_t count_of(size_t p)
{
	static const size_t counts[PER_GROUP] = {1000, 130, 77, 1};

	return counts[p % PER_GROUP] + (p % PER_GROUP ? 0 : 13 * p);
}

bool is_trained(size_t p)
{
	return dtype_of(p) != ZERO_I32;
}

size_t bytes_of(size_t p)
{
	return count_of(p) * zero_dtype_size(dtype_of(p));
}

float initial(size_t p, size_t i)
{
	return signed_unit(mixed(seed ^ mixed(p * 1000003 + i)));
}

/* The element's bytes as it is stored. */
void element(size_t p, size_t i, void *out)
{
	float value = initial(p, i);
	char bytes[4];

	memcpy(bytes, &value, 4);
	/* The upper half of a float is a bf16. */
	memcpy(out, dtype_of(p) == ZERO_BF16 ? bytes + 2 : bytes, zero_dtype_size(dtype_of(p)));
}

static void elements(size_t p, void *out, size_t first, size_t count)
{
	for (size_t i = 0; i < count; i++)
		element(p, first + i, (char *)out + i * zero_dtype_size(dtype_of(p)));
}

float from_bf16(uint16_t half)
{
	uint32_t bits = (uint32_t)half << 16;
	float value;

	memcpy(&value, &bits, 4);
	return value;
}

static void make_team(struct model *model, size_t g)
{
	const struct shape *shape = &shapes[g];
	int at = -1, all[WORLD_MAX];

	ok(zero_team_new(model->job, shape->members, shape->count, &model->teams[g]));
	for (size_t i = 0; i < shape->count; i++)
		if (shape->members[i] == rank)
			at = (int)i;
	check(zero_team_rank(model->teams[g]) == at, "team %zu: rank %d, not %d", g,
	      zero_team_rank(model->teams[g]), at);
	if (at < 0) {
		fails(zero_team_allgather_bytes(model->teams[g], &rank, sizeof(rank), all),
		      ZERO_E_INVALID, "not in the team");
		return;
	}
	ok(zero_team_allgather_bytes(model->teams[g], &rank, sizeof(rank), all));
	check(!memcmp(all, shape->members, shape->count * sizeof(int)), "team %zu", g);
}

void make_groups(struct model *model, size_t from, size_t to)
{
	char name[32];

	for (size_t g = from; g < to; g++) {
		if (!shapes[g].implicit)
			make_team(model, g);
		snprintf(name, sizeof(name), "g%zu", g);
		ok(zero_group_new(model->job, name, model->teams[g], &model->groups[g]));
	}
	for (size_t p = from * PER_GROUP; p < to * PER_GROUP; p++) {
		snprintf(name, sizeof(name), "g%zu.p%zu", group_of(p), p % PER_GROUP);
		model->params[p] = new_param(model->groups[group_of(p)], name, dtype_of(p),
					     count_of(p), is_trained(p));
	}
}

void begin(struct model *model, const char *settings)
{
	uint64_t random = seed;
	size_t later = below(&random, groups + 1);

	*model = (struct model){.job = open_job("%s", settings)};
	make_groups(model, 0, later);
	ok(zero_layout(model->job));
	make_groups(model, later, groups);
	ok(zero_layout(model->job));
}

/* ---- loads ----------------------------------------------------------------------------------- */

void make_image(void)
{
	for (size_t p = 0; p < groups * PER_GROUP; p++)
		image_at[p + 1] = image_at[p] + bytes_of(p);
	image = malloc(image_at[groups * PER_GROUP]);
	check(image, "no memory");
	for (size_t p = 0; p < groups * PER_GROUP; p++)
		elements(p, image + image_at[p], 0, count_of(p));
}

void write_image(zero_job *job)
{
	size_t bytes = image_at[groups * PER_GROUP];
	int fd;

	if (rank == 0) {
		fd = open(file_path("image"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
		check(fd >= 0 && write(fd, image, bytes) == (ssize_t)bytes && !close(fd),
		      "no file of %zu bytes", bytes);
	}
	ok(zero_agree(job, NULL));
}

static zero_status fill(void *context, void *out, size_t first, size_t count)
{
	elements(*(const size_t *)context, out, first, count);
	return ZERO_OK;
}

static size_t numbers[PARAMS_MAX];
static zero_tensor tensors[PARAMS_MAX];

static zero_source source_of(size_t p, size_t kind, uint64_t *random)
{
	const struct shape *shape = &shapes[group_of(p)];
	int root = shape->members[below(random, shape->count)];

	numbers[p] = p;
	tensors[p] = (zero_tensor){.name = "raw",
				   .dtype = dtype_of(p),
				   .ndim = 1,
				   .shape = {count_of(p)},
				   .path = file_path("image"),
				   .offset = image_at[p]};
	switch (kind % 4) {
	case 0:
		return zero_from_file(&tensors[p]);
	case 1:
		return zero_from_all(image + image_at[p]);
	case 2:
		return zero_from_callback(fill, &numbers[p]);
	default:
		return zero_from_rank(root, rank == root ? image + image_at[p] : NULL);
	}
}

void load_each(struct model *model, size_t kind, uint64_t *random)
{
	for (size_t p = 0; p < groups * PER_GROUP; p++) {
		zero_source source = source_of(p, kind + p, random);

		ok(zero_load(model->params[p], &source));
	}
}

void load_zeros(struct model *model)
{
	zero_source source = zero_from_constant(0);

	for (size_t p = 0; p < groups * PER_GROUP; p++)
		ok(zero_load(model->params[p], &source));
}
