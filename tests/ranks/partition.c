/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partition then gather gives back every tensor bit for bit: random models, from every source, in
 * every type, at every stage and in every gather mode. What each rank stores, sends and allocates
 * is held against the layout's rules, written down here once more.
 */
#include <fcntl.h>

#include "ranks.h"

enum {
	GROUPS_MAX = 3,
	PARAMS_MAX = 7,
	NOISE_BYTES = 3 << 20,
	COUNT_MAX = 200000,
	RANDOM_COUNT = 4096,
	WORLD_MAX = 16,
};

/* Values of tensors are slices of this, in memory and in a file. */
static unsigned char noise[NOISE_BYTES];
static char noise_path[1024];
/* The random sources' first elements: by dtype; uniform, normal. */
static unsigned char random_values[ZERO_BOOL + 1][2][RANDOM_COUNT * 8];

struct tensor {
	zero_param *param;
	char name[48];
	zero_dtype dtype;
	bool trainable;
	int ndim;
	size_t shape[4];
	size_t count, bytes;
	const unsigned char *values;
	struct tensor *tied;
	/* of the layout, by the rules */
	size_t flat, first, segment_elements;
};

struct model {
	uint64_t random;
	int stage, mode; /* 0 auto, 1 single, 2 grouped */
	size_t bucket;
	zero_job *job;
	size_t group_count;
	zero_group *groups[GROUPS_MAX];
	struct tensor tensors[GROUPS_MAX][PARAMS_MAX];
	size_t counts[GROUPS_MAX]; /* of tensors */
};

static int world, rank;

static size_t round_up(size_t x, size_t unit)
{
	return (x + unit - 1) / unit * unit;
}

/* ---- the rules, once more -------------------------------------------------------------------- */

static bool same_segment(const struct tensor *a, const struct tensor *b)
{
	return a->flat == b->flat && a->dtype == b->dtype && a->trainable == b->trainable;
}

/* Which tensors are gathered as one, where they lie in their segment, and how long that is. */
static void lay_out(const struct model *model, struct tensor *tensors, size_t count)
{
	size_t flat = 0, bytes = 0, small = 64 * (size_t)world;
	bool has_large = false;

	for (size_t i = 0; i < count; i++) {
		struct tensor *tensor = &tensors[i];
		bool cut = model->mode == 1 ||
			   (model->mode == 0 && bytes + tensor->bytes > model->bucket);

		if (tensor->tied)
			continue;
		if (cut && has_large && tensor->count >= small) {
			flat++;
			bytes = 0;
			has_large = false;
		}
		tensor->flat = flat;
		bytes += tensor->bytes;
		has_large = has_large || tensor->count >= small;
	}
	for (size_t i = 0; i < count; i++) {
		size_t end = 0;

		if (tensors[i].tied)
			continue;
		for (size_t j = 0; j < count; j++) {
			if (tensors[j].tied || !same_segment(&tensors[i], &tensors[j]))
				continue;
			if (j == i)
				tensors[i].first = end;
			end = round_up(end + tensors[j].count, 64);
		}
		tensors[i].segment_elements = round_up(end, 64 * (size_t)world);
	}
	for (size_t i = 0; i < count; i++)
		if (tensors[i].tied) {
			tensors[i].first = tensors[i].tied->first;
			tensors[i].segment_elements = tensors[i].tied->segment_elements;
		}
}

static bool replicates(const struct model *model)
{
	return is_replicated(model->job);
}

/* Elements of the tensor that `who` owns: [*first, *first + *count). */
static void owned(const struct tensor *tensor, int who, size_t *first, size_t *count)
{
	size_t shard = tensor->segment_elements / (size_t)world;
	size_t begin = shard * (size_t)who, end = begin + shard;
	size_t from = tensor->first > begin ? tensor->first : begin;
	size_t to = tensor->first + tensor->count < end ? tensor->first + tensor->count : end;

	*count = to > from ? to - from : 0;
	*first = *count ? from - tensor->first : 0;
}

/* ---- making a model -------------------------------------------------------------------------- */

static size_t random_count(uint64_t *random)
{
	static const size_t edges[] = {0, 1, 2, 63, 64, 65, 127, 128, 192, 256, 448, 449};

	switch (below(random, 8)) {
	case 0:
	case 1:
		return edges[below(random, sizeof(edges) / sizeof(edges[0]))];
	case 2:
		return below(random, COUNT_MAX);
	case 3:
		return below(random, 100);
	default:
		return below(random, 5000);
	}
}

static void random_shape(uint64_t *random, struct tensor *tensor)
{
	size_t count = random_count(random);

	tensor->ndim = 1 + (int)below(random, 3);
	if (below(random, 12) == 0) {
		tensor->ndim = 0;
		tensor->count = 1;
		return;
	}
	tensor->count = 1;
	for (int i = 0; i < tensor->ndim; i++) {
		size_t dim = i < tensor->ndim - 1 ? 1 + below(random, 5) : count;

		tensor->shape[i] = dim;
		count = i < tensor->ndim - 1 ? count / dim : count;
		tensor->count *= dim;
	}
}

static void make_tensor(struct model *model, size_t g, size_t p)
{
	struct tensor *tensor = &model->tensors[g][p];
	zero_param_spec spec = {.name = tensor->name, .shape = tensor->shape};
	uint64_t *random = &model->random;

	memset(tensor, 0, sizeof(*tensor));
	snprintf(tensor->name, sizeof(tensor->name), "%zu.%zu", g, p);
	tensor->dtype = (zero_dtype)(ZERO_F32 + below(random, 8));
	tensor->trainable = tensor->dtype <= ZERO_BF16 && below(random, 2);
	random_shape(random, tensor);
	if (p && below(random, 8) == 0 && !model->tensors[g][p - 1].tied) {
		struct tensor *tied = &model->tensors[g][p - 1];
		char name[sizeof(tensor->name)];

		memcpy(name, tensor->name, sizeof(name));
		*tensor = *tied;
		memcpy(tensor->name, name, sizeof(name));
		tensor->tied = tied;
		spec.alias_of = tied->param;
	}
	spec.dtype = tensor->dtype;
	spec.ndim = tensor->ndim;
	spec.trainable = tensor->trainable;
	tensor->bytes = tensor->count * zero_dtype_size(tensor->dtype);
	ok(zero_param_new(model->groups[g], &spec, &tensor->param));
	check(zero_param_numel(tensor->param) == tensor->count, "%zu, not %zu",
	      zero_param_numel(tensor->param), tensor->count);
}

static void make_model(struct model *model, uint64_t seed)
{
	static const char *const modes[] = {"auto", "single", "grouped"};
	static const size_t chunks[] = {1, 2, 7, 64, 1000, 4096, 100000, 40 << 20};
	uint64_t *random = &model->random;
	zero_traffic traffic;
	size_t threshold;

	memset(model, 0, sizeof(*model));
	*random = seed;
	model->stage = below(random, 2) ? 3 : (int)below(random, 4);
	model->mode = (int)below(random, 3);
	model->bucket = (64 << 10) + below(random, 1 << 20);
	threshold = below(random, 2) ? 1 : below(random, 100000);
	model->job = open_job("stage=%d allgather=%s bucket=%zu stream_chunk=%zu "
			      "stream_threshold=%zu",
			      model->stage, modes[model->mode], model->bucket,
			      chunks[below(random, sizeof(chunks) / sizeof(chunks[0]))], threshold);
	model->group_count = 1 + below(random, GROUPS_MAX);
	for (size_t g = 0; g < model->group_count; g++) {
		char name[32];

		snprintf(name, sizeof(name), "group %zu", g);
		model->groups[g] = new_group(model->job, name);
		model->counts[g] = below(random, PARAMS_MAX + 1);
		for (size_t p = 0; p < model->counts[g]; p++)
			make_tensor(model, g, p);
		lay_out(model, model->tensors[g], model->counts[g]);
	}
	ok(zero_layout(model->job));
	ok(zero_traffic_now(model->job, &traffic));
	check(traffic.bytes_sent == 0 && traffic.collectives == 0, "%llu bytes for a layout",
	      (unsigned long long)traffic.bytes_sent);
}

/* ---- loading --------------------------------------------------------------------------------- */

struct filling {
	const struct tensor *tensor;
	size_t first, count; /* what may be asked for */
	size_t done;
};

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	struct filling *filling = context;
	size_t size = zero_dtype_size(filling->tensor->dtype);

	check(first == filling->first + filling->done, "%zu", first);
	check(first + count <= filling->first + filling->count, "%zu %zu", first, count);
	memcpy(elements, filling->tensor->values + first * size, count * size);
	filling->done += count;
	return ZERO_OK;
}

/* 2.5 in every type: what lies halfway between integers is the even one. */
static const unsigned char *constant(struct tensor *tensor)
{
	static unsigned char values[COUNT_MAX * 8];
	const union {
		unsigned char bytes[8];
		float f32;
		double f64;
		uint16_t half;
		int64_t i64;
	} element[ZERO_BOOL + 1] = {[ZERO_F32] = {.f32 = 2.5F},    [ZERO_F64] = {.f64 = 2.5},
				    [ZERO_F16] = {.half = 0x4100}, [ZERO_BF16] = {.half = 0x4020},
				    [ZERO_I64] = {.i64 = 2},       [ZERO_I32] = {.i64 = 2},
				    [ZERO_U8] = {.i64 = 2},        [ZERO_BOOL] = {.i64 = 1}};
	size_t size = zero_dtype_size(tensor->dtype);

	for (size_t i = 0; i < tensor->count; i++)
		memcpy(values + i * size, element[tensor->dtype].bytes, size);
	return values;
}

static void check_bytes(const struct model *model, const struct tensor *tensor, const void *got,
			const unsigned char *want, size_t bytes, const char *what)
{
	const unsigned char *values = got;

	for (size_t i = 0; i < bytes; i++)
		check(values[i] == want[i],
		      "%s of '%s' (%s, %zu elements, stage %d, mode %d): byte %zu is %02x, not "
		      "%02x",
		      what, tensor->name, zero_dtype_name(tensor->dtype), tensor->count,
		      model->stage, model->mode, i, values[i], want[i]);
}

static void check_shard(const struct model *model, const struct tensor *tensor)
{
	size_t first, count, want_first = 0, want_count = tensor->count;
	size_t size = zero_dtype_size(tensor->dtype);
	void *data;

	ok(zero_shard(tensor->param, &data, &first, &count));
	if (!replicates(model))
		owned(tensor, rank, &want_first, &want_count);
	check(count == want_count && (!count || first == want_first),
	      "'%s' stage %d mode %d: [%zu, +%zu), not [%zu, +%zu)", tensor->name, model->stage,
	      model->mode, first, count, want_first, want_count);
	check(!count == !data, "'%s': %zu elements at %p", tensor->name, count, data);
	if (count)
		check_bytes(model, tensor, data, tensor->values + first * size, count * size,
			    "shard");
}

/* A random source of a slice that is known; loads, and checks what was sent. */
static void load(struct model *model, struct tensor *tensor)
{
	uint64_t *random = &model->random;
	size_t offset = below(random, NOISE_BYTES - tensor->bytes), first = 0,
	       count = tensor->count;
	size_t size = zero_dtype_size(tensor->dtype);
	zero_tensor slice = {.name = tensor->name,
			     .dtype = tensor->dtype,
			     .ndim = tensor->ndim,
			     .path = noise_path,
			     .offset = offset};
	struct filling filling = {.tensor = tensor};
	zero_source source = {0};
	zero_traffic before, after;
	uint64_t sent = 0;
	int root = 0;

	memcpy(slice.shape, tensor->shape, sizeof(tensor->shape));
	tensor->values = noise + offset;
	if (!replicates(model))
		owned(tensor, rank, &first, &count);
	filling.first = first;
	filling.count = count;
	switch (below(random, 5)) {
	case 0:
		source = zero_from_file(&slice);
		break;
	case 1:
		source = zero_from_all(tensor->values);
		break;
	case 2:
		source = zero_from_callback(fill, &filling);
		break;
	default:
		root = below(random, 2) ? world - 1 : 0;
		source = zero_from_rank(root, rank == root ? tensor->values : NULL);
		if (rank == root)
			sent = replicates(model) ? tensor->bytes * (uint64_t)(world - 1)
						 : tensor->bytes - count * size;
	}
	ok(zero_traffic_now(model->job, &before));
	ok(zero_load(tensor->param, &source));
	ok(zero_traffic_now(model->job, &after));
	check(after.bytes_sent - before.bytes_sent == sent, "%zu bytes of '%s': %llu, not %llu",
	      tensor->bytes, tensor->name,
	      (unsigned long long)(after.bytes_sent - before.bytes_sent), (unsigned long long)sent);
	if (source.kind == ZERO_FROM_CALLBACK)
		check(filling.done == count, "'%s': %zu of %zu", tensor->name, filling.done, count);
	check_shard(model, tensor);
	if (below(random, 6) == 0) {
		source = zero_from_constant(2.5);
		tensor->values = constant(tensor);
		ok(zero_load(tensor->param, &source));
		check_shard(model, tensor);
		/* Other tensors' constants go to the same place: back to values of its own. */
		tensor->values = noise + offset;
		source = zero_from_all(tensor->values);
		ok(zero_load(tensor->param, &source));
	}
}

/* ---- gathering ------------------------------------------------------------------------------- */

static float as_f32(zero_dtype dtype, const unsigned char *element)
{
	uint32_t bits = 0;
	float value;
	uint16_t half;

	if (dtype == ZERO_F32) {
		memcpy(&value, element, sizeof(value));
		return value;
	}
	memcpy(&half, element, sizeof(half));
	if (dtype == ZERO_BF16) {
		bits = (uint32_t)half << 16;
	} else {
		uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;

		bits = (uint32_t)(half >> 15) << 31;
		if (exponent == 31) {
			bits |= 0x7f800000 | mantissa << 13;
		} else if (exponent) {
			bits |= (exponent + 112) << 23 | mantissa << 13;
		} else {
			value = (float)mantissa * 0x1p-24F;
			return half >> 15 ? -value : value;
		}
	}
	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Two 16-bit neighbours of which a nearest is sought: `got` is right if no neighbour is nearer. */
static void check_rounded(zero_dtype to, const unsigned char *got, float want, const char *name)
{
	double x = want, here, up, down;
	uint16_t bits, other;
	uint16_t top = to == ZERO_F16 ? 0x7c00 : 0x7f80;

	memcpy(&bits, got, sizeof(bits));
	here = as_f32(to, got);
	if (x != x) {
		check(here != here, "'%s': a NaN became %g", name, here);
		return;
	}
	check(here == here, "'%s': %g became a NaN", name, x);
	check(x == 0 || bits >> 15 == (x < 0), "'%s': %g became %g", name, x, here);
	if ((bits & 0x7fff) == top) {
		/* Infinity: beyond halfway from the largest to what would follow it. */
		other = top - 1;
		down = as_f32(to, (unsigned char *)&other);
		other = top - 2;
		check((x < 0 ? -x : x) >= down + (down - as_f32(to, (unsigned char *)&other)) / 2,
		      "'%s': %g became infinite", name, x);
		return;
	}
	x = x < 0 ? -x : x;
	here = here < 0 ? -here : here;
	other = (bits & 0x7fff) + 1;
	up = as_f32(to, (unsigned char *)&other);
	other = (bits & 0x7fff) ? (bits & 0x7fff) - 1 : 0;
	down = as_f32(to, (unsigned char *)&other);
	if (up > 1e39) /* as far on as the last step */
		up = here + (here - down);
	if (x > here)
		check(x - here < up - x || (x - here == up - x && !(bits & 1)),
		      "'%s': %.9g became %.9g", name, x, here);
	if (x < here)
		check(here - x < x - down || (here - x == x - down && !(bits & 1)),
		      "'%s': %.9g became %.9g", name, x, here);
}

static bool is_cast(const struct tensor *tensor, zero_dtype as)
{
	return as != ZERO_DTYPE_PARAM && tensor->dtype <= ZERO_BF16 && tensor->dtype != as;
}

static void check_cast(const struct tensor *tensor, zero_dtype as, const unsigned char *got)
{
	size_t from = zero_dtype_size(tensor->dtype), to = zero_dtype_size(as);

	for (size_t i = 0; i < tensor->count; i++) {
		float want = as_f32(tensor->dtype, tensor->values + i * from), have;

		if (as != ZERO_F32) {
			check_rounded(as, got + i * to, want, tensor->name);
			continue;
		}
		have = as_f32(ZERO_F32, got + i * to);
		check(!memcmp(&have, &want, sizeof(have)) || (want != want && have != have),
		      "'%s' element %zu: %a, not %a", tensor->name, i, (double)have, (double)want);
	}
}

/* A type in which all of the group can be gathered. */
static zero_dtype choose_as(struct model *model, size_t g)
{
	static const zero_dtype types[] = {ZERO_DTYPE_PARAM, ZERO_DTYPE_PARAM, ZERO_F32, ZERO_F16,
					   ZERO_BF16};
	zero_dtype as = types[below(&model->random, 5)];

	for (size_t p = 0; p < model->counts[g]; p++) {
		zero_dtype dtype = model->tensors[g][p].dtype;

		if (dtype != as && ((dtype == ZERO_F16 && as == ZERO_BF16) ||
				    (dtype == ZERO_BF16 && as == ZERO_F16)))
			return ZERO_DTYPE_PARAM;
	}
	return as;
}

/* Sets of ranks that share memory; run.sh says how many ranks at most. */
static int count_nodes(void)
{
	const char *text = getenv("ZERO_SHARE");
	int most = text ? atoi(text) : 0;

	return most ? (world + most - 1) / most : 1;
}

/* Bytes that a rank sends in the gather of a group: its part of every segment, once to each other
   node. */
static uint64_t gather_bytes(const struct model *model, size_t g, zero_dtype as)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < model->counts[g]; i++) {
		const struct tensor *tensor = &model->tensors[g][i];
		bool seen = tensor->tied;

		for (size_t j = 0; j < i; j++)
			seen = seen || (!model->tensors[g][j].tied &&
					same_segment(tensor, &model->tensors[g][j]));
		if (!seen)
			bytes += tensor->segment_elements / (size_t)world *
				 zero_dtype_size(is_cast(tensor, as) ? as : tensor->dtype);
	}
	return replicates(model) ? 0 : bytes * (uint64_t)(count_nodes() - 1);
}

static void gather(struct model *model, size_t g)
{
	zero_dtype as = choose_as(model, g);
	zero_traffic before, after;

	ok(zero_traffic_now(model->job, &before));
	if (below(&model->random, 2))
		ok(zero_prefetch(&model->groups[g], 1, as));
	ok(zero_gather(model->groups[g], as));
	ok(zero_traffic_now(model->job, &after));
	check(after.bytes_sent - before.bytes_sent == gather_bytes(model, g, as),
	      "group %zu, stage %d: %llu, not %llu", g, model->stage,
	      (unsigned long long)(after.bytes_sent - before.bytes_sent),
	      (unsigned long long)gather_bytes(model, g, as));
	for (size_t p = 0; p < model->counts[g]; p++) {
		const struct tensor *tensor = &model->tensors[g][p];
		const struct tensor *target = tensor->tied ? tensor->tied : tensor;
		unsigned char *data = zero_data(tensor->param);

		check(!data == !tensor->count, "'%s' has %zu elements", tensor->name,
		      tensor->count);
		if (is_cast(tensor, as))
			check_cast(target, as, data);
		else if (data)
			check_bytes(model, tensor, data, target->values, tensor->bytes, "gather");
	}
	/* What is left in the buffer must not help the next gather; unless others look at it. */
	for (size_t p = 0; p < model->counts[g] && sharing(model->job) == 1; p++) {
		struct tensor *tensor = &model->tensors[g][p];

		if (tensor->count && !is_cast(tensor, as) && !replicates(model))
			memset(zero_data(tensor->param), 0xa5, tensor->bytes);
	}
	ok(zero_release(model->groups[g]));
	check(!model->counts[g] || !zero_data(model->tensors[g][0].param), "not released");
}

static void check_memory(const struct model *model)
{
	size_t least = 0, most = 0;
	zero_memory memory;

	for (size_t g = 0; g < model->group_count; g++)
		for (size_t p = 0; p < model->counts[g]; p++) {
			const struct tensor *tensor = &model->tensors[g][p];
			size_t count = tensor->count, first;

			if (tensor->tied)
				continue;
			if (!replicates(model))
				owned(tensor, rank, &first, &count);
			least += count * zero_dtype_size(tensor->dtype);
			/* A parameter is padded to 64 elements, a segment to 64 * world and pages.
			   */
			most += (count + 64 + 64 * (size_t)world) * zero_dtype_size(tensor->dtype) +
				4096;
		}
	ok(zero_memory_now(model->job, &memory));
	check(memory.shards.now >= least && memory.shards.now <= most, "%zu, not %zu to %zu",
	      memory.shards.now, least, most);
	check(memory.gathered.now == 0, "%zu", memory.gathered.now);
	check(memory.gradients.peak == 0 && memory.optimizer.peak == 0, "%zu %zu",
	      memory.gradients.peak, memory.optimizer.peak);
}

/* Rank by rank the shards are the whole tensor, once. */
static void check_cover(const struct model *model, const struct tensor *tensor)
{
	double firsts[WORLD_MAX], counts[WORLD_MAX], at = 0;
	size_t first, count;
	void *data;

	ok(zero_shard(tensor->param, &data, &first, &count));
	all_values(model->job, (double)first, firsts);
	all_values(model->job, (double)count, counts);
	for (int r = 0; r < world; r++) {
		double want = replicates(model) ? 0 : at;

		check(counts[r] < 0.5 || (firsts[r] > want - 0.5 && firsts[r] < want + 0.5),
		      "rank %d begins at %g, not %g", r, firsts[r], want);
		at += counts[r];
	}
	at = replicates(model) ? at / world : at;
	check(at > (double)tensor->count - 0.5 && at < (double)tensor->count + 0.5, "%g, not %zu",
	      at, tensor->count);
}

static void run_model(uint64_t seed)
{
	struct model *model = malloc(sizeof(*model));

	check(model, "no memory");
	make_model(model, seed);
	for (size_t g = 0; g < model->group_count; g++)
		for (size_t p = 0; p < model->counts[g]; p++)
			if (!model->tensors[g][p].tied)
				load(model, &model->tensors[g][p]);
	for (size_t g = 0; g < model->group_count; g++)
		for (size_t p = 0; p < model->counts[g]; p++)
			if (!model->tensors[g][p].tied)
				check_shard(model, &model->tensors[g][p]);
	if (model->counts[0])
		check_cover(model, &model->tensors[0][0]);
	for (size_t i = 0; i < 2 * model->group_count; i++)
		gather(model, i % model->group_count);
	check_memory(model);
	ok(zero_close(model->job));
	free(model);
}

/* ---- random sources -------------------------------------------------------------------------- */

static zero_source random_source(int normal)
{
	return normal ? zero_from_normal(-0.5, 3, 77) : zero_from_uniform(-1, 2.5, 78);
}

/* Values are a function of the name and the index: of stage, chunk and count they are not. */
static void run_random(const char *settings, size_t count, bool keep)
{
	zero_job *job = open_job("%s", settings);
	zero_group *group = new_group(job, "random");
	zero_param *params[ZERO_F64 + 1][2];
	zero_source source;

	for (int dtype = ZERO_F32; dtype <= ZERO_F64; dtype++)
		for (int normal = 0; normal < 2; normal++) {
			char name[48];

			snprintf(name, sizeof(name), "%d %d", dtype, normal);
			params[dtype][normal] =
				new_param(group, name, (zero_dtype)dtype, count, false);
		}
	ok(zero_layout(job));
	for (int dtype = ZERO_F32; dtype <= ZERO_F64; dtype++)
		for (int normal = 0; normal < 2; normal++) {
			source = random_source(normal);
			ok(zero_load(params[dtype][normal], &source));
		}
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	for (int dtype = ZERO_F32; dtype <= ZERO_F64; dtype++)
		for (int normal = 0; normal < 2; normal++) {
			size_t bytes = count * zero_dtype_size((zero_dtype)dtype);
			void *data = zero_data(params[dtype][normal]);

			if (keep)
				memcpy(random_values[dtype][normal], data, bytes);
			check(!memcmp(random_values[dtype][normal], data, bytes),
			      "%s: %zu values of %s differ", settings, count,
			      zero_dtype_name((zero_dtype)dtype));
		}
	ok(zero_release(group));
	ok(zero_close(job));
}

/* ---- */

static void make_noise(zero_job *job, uint64_t seed)
{
	FILE *file;
	int error = 0;

	for (size_t i = 0; i < NOISE_BYTES; i += 8) {
		uint64_t word = draw(&seed);

		memcpy(noise + i, &word, 8);
	}
	snprintf(noise_path, sizeof(noise_path), "%s", file_path("noise"));
	if (rank == 0) {
		file = fopen(noise_path, "wb");
		error = !file || fwrite(noise, 1, NOISE_BYTES, file) != NOISE_BYTES || fclose(file);
	}
	ok(zero_agree(job, error ? "cannot write the noise" : NULL));
}

int main(void)
{
	static const char *const settings[] = {
		"stage=3 stream_chunk=1 stream_threshold=0", "stage=3 stream_chunk=1000",
		"stage=1 stream_chunk=12 stream_threshold=1", "stage=3 allgather=single",
		"stage=2 stream_threshold=auto"};
	uint64_t seed = test_seed();
	zero_job *job = open_job("stage=0");

	world = zero_world(job);
	rank = zero_rank(job);
	check(world <= WORLD_MAX, "%d", world);
	make_noise(job, seed);
	ok(zero_close(job));
	run_random("stage=0", RANDOM_COUNT, true);
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		run_random(settings[i], RANDOM_COUNT, false);
		run_random(settings[i], RANDOM_COUNT - 1 - 501 * i, false);
	}
	/* More ranks than cores take turns. */
	for (uint64_t i = 0; i < (world > 4 ? 40 : world > 2 ? 100 : 150); i++)
		run_model(mixed(seed + i));
	return 0;
}
