/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the ranks of a node have between them: a rank that reads long after the others have
 * released and gone on still reads what it gathered, each rank counts its part, the node holds a
 * group once, and where memory cannot be shared all works without.
 */
#include <pthread.h>
#include <sys/resource.h>

#include "ranks.h"

enum {
	WORLD_MAX = 16,
	GROUPS = 6,
	PER_GROUP = 3,
	COUNT = 50021,
	ROUNDS = 120,
	THREADS = 4,
	PAGE = 4096,
};

static int world, rank, last;
static uint64_t seed, own; /* the same on all ranks; this rank's alone */

/* ---- a model whose values have versions ------------------------------------------------------ */

static const zero_dtype dtypes[PER_GROUP] = {ZERO_F32, ZERO_BF16, ZERO_I32};
static const size_t counts[PER_GROUP] = {COUNT, 777, 65};

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[GROUPS][PER_GROUP];
	uint64_t version[GROUPS];
};

struct which {
	size_t group, param;
	uint64_t version;
};

static float value_of(const struct which *which, size_t i)
{
	uint64_t at = (which->version * GROUPS + which->group) * PER_GROUP + which->param;

	return signed_unit(mixed(seed ^ mixed(at * COUNT + i)));
}

static uint16_t to_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, 4);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The element's bytes in a type that it is stored or gathered as. */
static size_t element(const struct which *which, zero_dtype to, size_t i, void *out)
{
	float value = value_of(which, i);
	uint16_t half = to_bf16(value);
	uint32_t wide = (uint32_t)half << 16;

	if (to == ZERO_BF16) {
		memcpy(out, &half, 2);
		return 2;
	}
	/* What is stored as bf16 has no more bits when it is wide. */
	memcpy(out, dtypes[which->param] == ZERO_BF16 ? (void *)&wide : (void *)&value, 4);
	return 4;
}

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	const struct which *which = context;
	char *out = elements;

	for (size_t i = 0; i < count; i++)
		out += element(which, dtypes[which->param], first + i, out);
	return ZERO_OK;
}

static void load(struct model *model, size_t g)
{
	model->version[g]++;
	for (size_t p = 0; p < PER_GROUP; p++) {
		struct which which = {g, p, model->version[g]};
		zero_source source = zero_from_callback(fill, &which);

		ok(zero_load(model->params[g][p], &source));
	}
}

static void begin(struct model *model, const char *settings)
{
	char name[32];

	*model = (struct model){.job = open_job("%s", settings)};
	for (size_t g = 0; g < GROUPS; g++) {
		snprintf(name, sizeof(name), "%zu", g);
		model->groups[g] = new_group(model->job, name);
		for (size_t p = 0; p < PER_GROUP; p++) {
			snprintf(name, sizeof(name), "%zu.%zu", g, p);
			model->params[g][p] = new_param(model->groups[g], name, dtypes[p],
							counts[p], dtypes[p] != ZERO_I32);
		}
	}
	ok(zero_layout(model->job));
	for (size_t g = 0; g < GROUPS; g++)
		load(model, g);
}

static void check_group(const struct model *model, size_t g, zero_dtype as, const char *when)
{
	for (size_t p = 0; p < PER_GROUP; p++) {
		const char *data = zero_data(model->params[g][p]);
		struct which which = {g, p, model->version[g]};
		zero_dtype to = as != ZERO_DTYPE_PARAM && dtypes[p] != ZERO_I32 ? as : dtypes[p];
		/* Every element of the small ones, and one here and there of the large. */
		size_t step = counts[p] > 1000 ? 1 + below(&own, 33) : 1;
		char want[4];

		check(data, "group %zu, parameter %zu: no data", g, p);
		for (size_t i = 0; i < counts[p]; i += step) {
			size_t size = element(&which, to, i, want);

			check(!memcmp(data + i * size, want, size),
			      "%s: group %zu as %s, parameter %zu, element %zu", when, g,
			      zero_dtype_name(as), p, i);
		}
	}
}

static zero_dtype any_type(uint64_t *random)
{
	static const zero_dtype types[] = {ZERO_DTYPE_PARAM, ZERO_BF16, ZERO_F32};

	return types[below(random, 3)];
}

static void doze(void)
{
	if (below(&own, 4) == 0)
		usleep((useconds_t)below(&own, 1500));
}

/* A field of /proc/self/smaps_rollup, in bytes; 0: this kernel has it not. */
static size_t proportional_bytes(const char *key)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	unsigned long long kilobytes = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, key, strlen(key)))
			sscanf(line + strlen(key), " %llu", &kilobytes);
	if (file)
		fclose(file);
	return (size_t)kilobytes << 10;
}

/* Of all ranks together. COLLECTIVE. */
static double total_of(zero_job *job, double mine)
{
	double all[WORLD_MAX], sum = 0;

	all_values(job, mine, all);
	for (int r = 0; r < world; r++)
		sum += all[r];
	return sum;
}

/* ---- those who stay while others go on ------------------------------------------------------- */

/* Groups that this rank holds, the oldest first: as many as it likes. */
struct held {
	size_t group[GROUPS];
	zero_dtype as[GROUPS];
	size_t count;
};

static void release_oldest(struct model *model, struct held *held)
{
	doze();
	check_group(model, held->group[0], held->as[0], "at the end");
	ok(zero_release(model->groups[held->group[0]]));
	held->count--;
	memmove(held->group, held->group + 1, held->count * sizeof(held->group[0]));
	memmove(held->as, held->as + 1, held->count * sizeof(held->as[0]));
}

/* All groups in turn; each rank lets go of them when it likes, but before they come again. */
static void at_different_times(const char *settings)
{
	struct held held = {.count = 0};
	uint64_t random = seed;
	double before = 0, after;
	zero_memory memory;
	struct model model;

	begin(&model, settings);
	for (size_t round = 0; round < ROUNDS; round++) {
		size_t g = round % GROUPS;
		zero_dtype as = any_type(&random);
		size_t keep = below(&own, GROUPS);

		if (below(&random, 3) == 0)
			ok(zero_prefetch(&model.groups[g], 1, as));
		doze();
		ok(zero_gather(model.groups[g], as));
		held.group[held.count] = g;
		held.as[held.count++] = as;
		if (below(&own, 2))
			check_group(&model, g, as, "at first");
		while (held.count > keep)
			release_oldest(&model, &held);
		/* New values, while a peer may still be reading those of before. */
		if (below(&random, 20) == 0) {
			while (held.count)
				release_oldest(&model, &held);
			load(&model, below(&random, GROUPS));
		}
		if (round == ROUNDS / 4)
			before = total_of(model.job, (double)proportional_bytes("Pss_Shmem:"));
	}
	while (held.count)
		release_oldest(&model, &held);
	/* What was shared is used again, whoever let go of it last; but for parts of huge pages. */
	after = total_of(model.job, (double)proportional_bytes("Pss_Shmem:"));
	check(after <= before + 8e6, "%s: %.0f bytes, %.0f before", settings, after, before);
	ok(zero_memory_now(model.job, &memory));
	check(!memory.gathered.now, "%s: %zu bytes are still gathered", settings,
	      memory.gathered.now);
	ok(zero_close(model.job));
}

/* Open jobs are closed while peers still read, and while gathers are under way. */
static void close_early(void)
{
	struct model model;

	for (int round = 0; round < 4; round++) {
		begin(&model, round % 2 ? "stage=3" : "stage=1");
		ok(zero_gather(model.groups[0], ZERO_BF16));
		ok(zero_gather(model.groups[1], ZERO_DTYPE_PARAM));
		ok(zero_prefetch(model.groups + 2, 3, ZERO_F32));
		if (rank % 2 == round / 2)
			ok(zero_release(model.groups[0]));
		doze();
		check_group(&model, 1, ZERO_DTYPE_PARAM, "before the close");
		ok(zero_close(model.job));
	}
}

/* ---- what is counted ------------------------------------------------------------------------- */

static size_t whole_pages(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* A rank's part of the output of one parameter of `count` elements that is gathered alone. */
static size_t part_of(const zero_job *job, size_t count, size_t size)
{
	size_t unit = 256 * (size_t)world, share = (size_t)sharing(job);
	size_t bytes = whole_pages((count + unit - 1) / unit * unit * size);

	return is_replicated(job) ? bytes : whole_pages((bytes + share - 1) / share);
}

static size_t gathered_now(zero_job *job)
{
	zero_memory memory;

	ok(zero_memory_now(job, &memory));
	return memory.gathered.now;
}

static void accounting(int stage)
{
	zero_job *job = open_job("stage=%d", stage);
	zero_param *params[3];
	zero_group *groups[3];
	size_t want = 0;

	for (size_t g = 0; g < 3; g++) {
		char name[8];

		snprintf(name, sizeof(name), "%zu", g);
		groups[g] = new_group(job, name);
		params[g] = new_param(groups[g], name, ZERO_F32, 100 + g * 50021, true);
	}
	ok(zero_layout(job));
	for (size_t g = 0; g < 3; g++) {
		ok(zero_gather(groups[g], ZERO_BF16));
		want += part_of(job, zero_param_numel(params[g]), 2);
		check(gathered_now(job) == want, "stage %d: %zu bytes, not %zu", stage,
		      gathered_now(job), want);
		ok(zero_agree(job, NULL));
	}
	/* Each rank counts what it holds, not what others do. */
	if (rank % 2)
		ok(zero_release(groups[1]));
	if (rank % 2)
		want -= part_of(job, zero_param_numel(params[1]), 2);
	ok(zero_agree(job, NULL));
	check(gathered_now(job) == want, "stage %d: %zu bytes, not %zu", stage, gathered_now(job),
	      want);
	for (size_t g = 0; g < 3; g++)
		if (g != 1 || rank % 2 == 0)
			ok(zero_release(groups[g]));
	check(!gathered_now(job), "%zu bytes", gathered_now(job));
	want = gathers_in_place(job) ? 0 : part_of(job, zero_param_numel(params[2]), 4);
	ok(zero_gather(groups[2], ZERO_DTYPE_PARAM));
	check(gathered_now(job) == want, "stage %d: %zu bytes in place, not %zu", stage,
	      gathered_now(job), want);
	ok(zero_release(groups[2]));
	ok(zero_close(job));
}

/* A large group: the node has it once, whoever reads it. */
static void once_a_node(void)
{
	const size_t elements = (size_t)16 << 20, bytes = 4 * elements;
	const double slack = 8e6 * world;
	double before, between, after, nodes = 0, want;
	zero_source source = zero_from_constant(3);
	zero_job *job = open_job("stage=3");
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, elements, false);
	double sum = 0;

	before = total_of(job, (double)proportional_bytes("Pss:"));
	nodes = total_of(job, 1.0 / sharing(job));
	ok(zero_layout(job));
	ok(zero_load(param, &source));
	for (int as = 0; as < 2; as++) {
		/* The shards, and what each set of ranks that share memory has of outputs. */
		want = (double)bytes;
		if (as || !gathers_in_place(job))
			want += nodes * (double)bytes / (as ? 2 : 1);
		ok(zero_gather(group, as ? ZERO_BF16 : ZERO_DTYPE_PARAM));
		for (size_t i = 0; i < bytes / (as ? 8 : 4); i += PAGE / 4)
			sum += (double)((const float *)zero_data(param))[i];
		ok(zero_agree(job, NULL));
		between = total_of(job, (double)proportional_bytes("Pss:"));
		ok(zero_agree(job, NULL));
		ok(zero_release(group));
		/* A rank that goes on sooner than a peer releases needs more. */
		ok(zero_agree(job, NULL));
		if (before > 0) {
			check(between - before <= want + slack, "%.0f bytes, not %.0f",
			      between - before, want);
			check(between - before >= want - slack, "%.0f bytes, not %.0f",
			      between - before, want);
		}
	}
	check(sum > 0, "%g", sum);
	ok(zero_close(job));
	job = open_job("stage=3");
	after = total_of(job, (double)proportional_bytes("Pss:"));
	check(after <= before + slack, "%.0f bytes are left of %.0f", after - before,
	      (double)bytes);
	ok(zero_close(job));
}

/* A gather for which one rank has no room fails on all, and none counts what it did not get. */
static void no_room(int poor)
{
	const size_t count = 65536 * (size_t)world, spare = (size_t)64 << 20;
	zero_job *job = open_job("stage=3 budget=%zu", spare);
	zero_group *groups[2] = {new_group(job, "small"), new_group(job, "large")};
	zero_memory before, after;
	void *taken = NULL;

	new_param(groups[0], "p", ZERO_F32, 64 * (size_t)world, false);
	new_param(groups[1], "q", ZERO_F32, count, false);
	ok(zero_layout(job));
	ok(zero_memory_now(job, &before));
	/* From here on the budget counts: the small output fits, the large one does not. */
	ok(zero_device_alloc(job, rank == poor ? spare - before.total.now - 8 * PAGE : (size_t)PAGE,
			     &taken));
	ok(zero_memory_now(job, &before));
	for (int round = 0; round < 3; round++) {
		fails(zero_gather(groups[1], ZERO_BF16), ZERO_E_MEMORY, "of gathered parameters");
		check(zero_last_error_rank() == poor, "%d", zero_last_error_rank());
		ok(zero_memory_now(job, &after));
		check(after.gathered.now == before.gathered.now &&
			      after.total.now == before.total.now,
		      "round %d: %zu bytes, not %zu", round, after.total.now, before.total.now);
		ok(zero_prefetch(groups, 2, ZERO_BF16));
		fails(zero_gather(groups[1], ZERO_BF16), ZERO_E_MEMORY, "of gathered parameters");
		check(zero_gather(groups[0], ZERO_BF16), "a part of what failed was gathered");
	}
	zero_device_free(job, taken);
	for (int g = 0; g < 2; g++) {
		ok(zero_gather(groups[g], ZERO_BF16));
		ok(zero_release(groups[g]));
	}
	ok(zero_memory_now(job, &after));
	check(!after.gathered.now && !after.caller.now, "%zu and %zu bytes are left",
	      after.gathered.now, after.caller.now);
	ok(zero_close(job));
}

/* ---- a limit on what is fetched ahead -------------------------------------------------------- */

static uint64_t collectives_now(zero_job *job)
{
	zero_traffic traffic;

	ok(zero_traffic_now(job, &traffic));
	return traffic.collectives;
}

static void limited(int fit)
{
	/* Each output is 50021 elements of f32 as bf16, 777 of bf16 and 65 of i32. */
	size_t unit = 256 * (size_t)world, bytes = 0;
	char settings[64];
	struct model model;
	uint64_t before;

	for (size_t p = 0; p < PER_GROUP; p++)
		bytes += whole_pages((counts[p] + unit - 1) / unit * unit *
				     (dtypes[p] == ZERO_I32 ? 4 : 2));
	snprintf(settings, sizeof(settings), "stage=3 allgather=grouped gather_limit=%zu",
		 bytes * (size_t)fit);
	begin(&model, settings);
	/* Where all is here, what is as it is stored takes no room: only the f32 segment does. */
	if (gathers_in_place(model.job)) {
		ok(zero_close(model.job));
		bytes = whole_pages((counts[0] + unit - 1) / unit * unit * 2);
		snprintf(settings, sizeof(settings), "stage=3 allgather=grouped gather_limit=%zu",
			 bytes * (size_t)fit + bytes / 2);
		begin(&model, settings);
	}
	for (int round = 0; round < 3; round++) {
		size_t segments = world == 1 ? 0 : gathers_in_place(model.job) ? 1 : 3;

		before = collectives_now(model.job);
		/* What an earlier call has begun counts too. */
		ok(zero_prefetch(model.groups, 1, ZERO_BF16));
		ok(zero_prefetch(model.groups, GROUPS, ZERO_BF16));
		ok(zero_agree(model.job, NULL));
		check(collectives_now(model.job) - before == (size_t)fit * segments,
		      "%llu collectives, not %zu",
		      (unsigned long long)(collectives_now(model.job) - before),
		      (size_t)fit * segments);
		for (size_t g = 0; g < GROUPS; g++) {
			ok(zero_gather(model.groups[g], ZERO_BF16));
			check_group(&model, g, ZERO_BF16, "beyond the limit");
		}
		check(collectives_now(model.job) - before == GROUPS * segments, "%llu collectives",
		      (unsigned long long)(collectives_now(model.job) - before));
		ok(zero_prefetch(model.groups, GROUPS, ZERO_BF16));
		for (size_t g = 0; g < GROUPS; g++)
			ok(zero_release(model.groups[g]));
		check(!gathered_now(model.job), "%zu bytes", gathered_now(model.job));
	}
	ok(zero_close(model.job));
}

/* ---- threads --------------------------------------------------------------------------------- */

static struct model threaded;
static pthread_barrier_t begun, gathered;

static void *work(void *context)
{
	uint64_t random = seed, mine = own + *(const uint64_t *)context;

	for (size_t round = 0; round < 40; round++) {
		size_t g = below(&random, GROUPS);
		zero_dtype as = any_type(&random);
		const int32_t *table;

		/* All have released before any gathers, and all have gathered before any
		   releases: else one rank would begin once more than another. */
		pthread_barrier_wait(&begun);
		ok(zero_gather(threaded.groups[g], as));
		pthread_barrier_wait(&gathered);
		for (size_t turn = below(&mine, 3); turn > 0; turn--) {
			struct which which = {g, 2, threaded.version[g]};
			float want = value_of(&which, 64);

			usleep((useconds_t)below(&mine, 200));
			table = zero_data(threaded.params[g][2]);
			check(table && !memcmp(&table[64], &want, 4), "group %zu", g);
		}
		ok(zero_release(threaded.groups[g]));
	}
	return NULL;
}

static void threads(const char *settings)
{
	uint64_t numbers[THREADS];
	pthread_t handles[THREADS];

	begin(&threaded, settings);
	pthread_barrier_init(&begun, NULL, THREADS);
	pthread_barrier_init(&gathered, NULL, THREADS);
	for (size_t t = 0; t < THREADS; t++) {
		numbers[t] = t;
		check(!pthread_create(&handles[t], NULL, work, &numbers[t]), "no thread");
	}
	for (size_t t = 0; t < THREADS; t++)
		pthread_join(handles[t], NULL);
	check(!gathered_now(threaded.job), "%zu bytes", gathered_now(threaded.job));
	pthread_barrier_destroy(&begun);
	pthread_barrier_destroy(&gathered);
	ok(zero_close(threaded.job));
}

/* ---- memory that cannot be shared ------------------------------------------------------------ */

/* The last rank may map no more than this beyond what it has. */
static void limit(size_t bytes)
{
	struct rlimit limit;

	getrlimit(RLIMIT_AS, &limit);
	limit.rlim_cur = bytes ? process_bytes("VmSize:") + bytes : limit.rlim_max;
	check(rank != last || !setrlimit(RLIMIT_AS, &limit), "no limit");
}

/* No room on the last rank: those that would share with it do not, the others still do. */
static void without(size_t room, int share)
{
	const char *said = getenv("ZERO_SHARE");
	int most = said && atoi(said) > 0 ? atoi(said) : world;
	int want = rank / most == last / most ? 1 : share;
	struct model model;

	limit(room);
	begin(&model, "stage=3");
	check(sharing(model.job) == want, "%d ranks share, not %d", sharing(model.job), want);
	for (size_t g = 0; g < GROUPS; g++) {
		ok(zero_gather(model.groups[g], g % 2 ? ZERO_BF16 : ZERO_DTYPE_PARAM));
		check_group(&model, g, g % 2 ? ZERO_BF16 : ZERO_DTYPE_PARAM, "without sharing");
		ok(zero_release(model.groups[g]));
		load(&model, g);
	}
	ok(zero_gather(model.groups[0], ZERO_DTYPE_PARAM));
	check_group(&model, 0, ZERO_DTYPE_PARAM, "without sharing");
	limit(0);
	ok(zero_close(model.job));
}

static void cannot_share(void)
{
	const size_t little = (size_t)256 << 20;
	size_t closed = process_bytes("VmSize:"), room;
	zero_job *job = open_job("stage=3");
	int share = sharing(job);

	room = (process_bytes("VmSize:") - closed) / (size_t)share;
	ok(zero_close(job));
	/* Not even its own; then its own, but not that of the peers. */
	without(little, share);
	without(share > 1 ? room + room / 2 : little, share);
}

int main(void)
{
	static const char *const settings[] = {"stage=3", "stage=1", "stage=3 allgather=single"};
	zero_job *job = open_job("stage=0");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	seed = test_seed();
	own = mixed(seed + (uint64_t)rank);
	check(world <= WORLD_MAX, "%d", world);
	ok(zero_close(job));
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		at_different_times(settings[i]);
	close_early();
	for (int stage = 0; stage <= 3; stage++)
		accounting(stage);
	once_a_node();
	for (int poor = 0; poor < world; poor++)
		no_room(poor);
	limited(2);
	limited(4);
	threads("stage=3");
	threads("stage=2");
	if (world > 1)
		cannot_share();
	return 0;
}
