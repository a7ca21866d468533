/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that do not do the same: different operations are ZERO_E_ORDER on all of them with a
 * sentence that names both, an error of one rank is returned on all with that rank's sentence, and
 * afterwards all can close, or go on.
 */
#include <dirent.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "order.h"

int world, rank, last;

struct model {
	zero_job *job;
	zero_group *a, *b;
	zero_param *pa, *pb;
};

static struct model open_model(const char *settings)
{
	struct model model = {.job = open_job("%s", settings)};

	model.a = new_group(model.job, "alpha");
	model.b = new_group(model.job, "beta");
	model.pa = new_param(model.a, "pa", ZERO_F32, 5000, true);
	model.pb = new_param(model.b, "pb", ZERO_F32, 5000, true);
	ok(zero_layout(model.job));
	return model;
}

void close_broken(zero_job *job)
{
	double value = 1;

	fails(zero_agree(job, NULL), ZERO_E_ORDER, "");
	fails(zero_mean(job, &value, 1, 1), ZERO_E_ORDER, "");
	ok(zero_close(job));
}

/* An agreed error has the same sentence on all ranks, that of the rank where it arose. */
static void check_agreed(zero_job *job, int from, const char *words)
{
	const char *text = zero_last_error();
	double hashes[16], hash = 0;
	char own[1024], prefix[32];

	snprintf(own, sizeof(own), "%s", text);
	check(zero_last_error_rank() == from, "%d: %s", zero_last_error_rank(), own);
	check(strstr(own, words), "no '%s' in: %s", words, own);
	snprintf(prefix, sizeof(prefix), "rank %d (", from);
	check(!strncmp(own, prefix, strlen(prefix)), "%s", own);
	check(!strstr(own, "): rank "), "told twice: %s", own);
	for (const char *c = own; *c; c++)
		hash = fmod(hash * 31 + *c, 1000003);
	all_values(job, hash, hashes);
	for (int r = 0; r < world; r++)
		check(fabs(hashes[r] - hash) < 0.5, "rank %d has another sentence than: %s", r,
		      own);
}

static zero_status agreed(zero_job *job, zero_status status, zero_status want, int from,
			  const char *words)
{
	check(status == want, "%s (%s), not %s", zero_strerror(status),
	      status ? zero_last_error() : "", zero_strerror(want));
	check_agreed(job, from, words);
	return status;
}

/* ---- different operations -------------------------------------------------------------------- */

static void gathers_of_two_groups(const char *settings)
{
	struct model model = open_model(settings);

	fails(zero_gather(rank == last ? model.b : model.a, ZERO_DTYPE_PARAM), ZERO_E_ORDER,
	      "'alpha'");
	check(strstr(zero_last_error(), "'beta'") && strstr(zero_last_error(), "gather"), "%s",
	      zero_last_error());
	close_broken(model.job);
}

static void prefetches_in_two_orders(const char *settings)
{
	struct model model = open_model(settings);
	zero_group *one[] = {model.a, model.b}, *other[] = {model.b, model.a};

	ok(zero_prefetch(rank == last ? other : one, 2, ZERO_DTYPE_PARAM));
	fails(zero_gather(model.a, ZERO_DTYPE_PARAM), ZERO_E_ORDER, "'alpha', 'beta'");
	check(strstr(zero_last_error(), "'beta', 'alpha'"), "%s", zero_last_error());
	close_broken(model.job);
}

static void second_group_of_prefetches(void)
{
	struct model model = {.job = open_job("stage=3")};
	zero_group *groups[3], *pair[2];

	for (int g = 0; g < 3; g++) {
		char name[300];

		/* The names differ only after the part that an error can show. */
		snprintf(name, sizeof(name), "%0250d", g);
		groups[g] = new_group(model.job, name);
		name[0] = 'p';
		new_param(groups[g], name, ZERO_F32, 64, true);
	}
	ok(zero_layout(model.job));
	ok(zero_gather(groups[2], ZERO_DTYPE_PARAM));
	pair[0] = groups[rank == last];
	pair[1] = groups[2];
	ok(zero_prefetch(pair, 2, ZERO_DTYPE_PARAM));
	fails(zero_gather(pair[0], ZERO_DTYPE_PARAM), ZERO_E_ORDER, "rank 0");
	close_broken(model.job);
}

static void gather_and_load(void)
{
	struct model model = open_model("stage=3");
	zero_source source = zero_from_constant(1);

	if (rank == 0)
		fails(zero_gather(model.b, ZERO_BF16), ZERO_E_ORDER,
		      "began 'gather of group 'beta' as bf16'");
	else
		fails(zero_load(model.pa, &source), ZERO_E_ORDER, "began 'load of 'pa'");
	check(zero_last_error_rank() == 1, "%d", zero_last_error_rank());
	close_broken(model.job);
}

static void two_roots(void)
{
	struct model model = open_model("stage=3");
	float *values = calloc(5000, sizeof(*values));
	zero_source source;

	check(values, "no memory");
	source = zero_from_rank(rank == last ? last : 0, values);
	fails(zero_load(model.pa, &source), ZERO_E_ORDER, "from rank 0");
	close_broken(model.job);
	free(values);
}

static void reduce_and_step(void)
{
	struct model model = open_model("stage=2");
	zero_adamw adamw = {.lr = 1, .eps = 1e-8F};

	check(zero_gradient(model.pa), "%s", zero_last_error());
	if (rank == last)
		ok(zero_reduce(model.b));
	else
		ok(zero_reduce(model.a));
	fails(zero_step(model.job, &adamw, NULL), ZERO_E_ORDER, "reduce of group 'beta'");
	close_broken(model.job);
}

/* The last rank comes to the operation of all ranks first, rank 0 to that of a team of the two. The
   others wait for rank 0, as for a rank that is slow. */
static void teams_in_two_orders(void)
{
	zero_job *job = open_job("stage=3 watch_seconds=30");
	zero_source source = zero_from_constant(1);
	int ranks[] = {0, last};
	zero_group *group;
	zero_param *param;
	zero_team *team;

	ok(zero_team_new(job, ranks, 2, &team));
	ok(zero_group_new(job, "of a team", team, &group));
	param = new_param(group, "p", ZERO_F32, 5000, true);
	ok(zero_layout(job));
	if (rank)
		fails(zero_agree(job, NULL), ZERO_E_ORDER, "rank 0 began 'load of 'p'");
	else
		fails(zero_load(param, &source), ZERO_E_ORDER, "began 'zero_agree' with");
	check(zero_last_error_rank() == 1, "%d", zero_last_error_rank());
	close_broken(job);
}

/* Begins to gather some groups, the last one first if `turned`. */
static void gather_some(zero_group **groups, int count, bool turned)
{
	for (int i = 0; i < count; i++)
		ok(zero_prefetch(&groups[turned ? count - 1 - i : i], 1, ZERO_DTYPE_PARAM));
	for (int i = 0; i < count; i++)
		ok(zero_release(groups[i]));
}

/*
 * On devices nobody waits in the calls that begin such operations: the devices wait for each other.
 * In the circle no two ranks have two teams in common.
 */
static void devices_in_two_orders(bool circle)
{
	int ranks[][2] = {{0, circle ? 1 : last}, {1, 2}, {0, 2}};
	zero_adamw adamw = {.lr = 1, .eps = 1e-8F};
	/* of the teams; two of them, or one, are this rank's */
	zero_group *groups[3], *mine[2];
	int count = 0;
	zero_job *job;

	unsetenv("ZERO_CHECK");
	job = open_job("stage=3 check=0 watch_seconds=30");
	for (int t = 0; t < (circle ? 3 : 2); t++) {
		char name[] = {'t', (char)('0' + t), 0};
		zero_team *team = NULL;

		if (circle || !t)
			ok(zero_team_new(job, ranks[t], 2, &team));
		ok(zero_group_new(job, name, team, &groups[t]));
		new_param(groups[t], name, ZERO_F32, 5000, true);
		if (!team || zero_team_rank(team) >= 0)
			mine[count++] = groups[t];
	}
	ok(zero_layout(job));
	/* The first gathers allocate, and are agreed on. */
	gather_some(mine, count, false);
	ok(zero_step(job, &adamw, NULL));
	gather_some(mine, count, circle ? rank > 0 : rank == last);
	fails(zero_step(job, &adamw, NULL), ZERO_E_ORDER,
	      "all ranks wait for each other: rank 0 began 'gather of group 't0'");
	check(strstr(zero_last_error(), "while rank 1 began"), "%s", zero_last_error());
	close_broken(job);
	setenv("ZERO_CHECK", "1", true);
}

static void other_sizes(void)
{
	zero_job *job = open_job("stage=3");
	double values[2] = {1, 2};

	fails(zero_mean(job, values, rank == last ? 2 : 1, 1), ZERO_E_ORDER, "zero_mean of 2");
	close_broken(job);
}

static void other_models(void)
{
	for (int kind = 0; kind < 7; kind++) {
		zero_job *job = open_job("stage=3");
		bool other = rank == last;
		zero_group *group = new_group(job, kind == 0 && other ? "other" : "group");
		size_t shape[2] = {10, 20}, turned[2] = {20, 10};
		zero_param_spec spec = {.name = "p",
					.dtype = kind == 1 && other ? ZERO_F16 : ZERO_F32,
					.ndim = 2,
					.shape = kind == 2 && other ? turned : shape,
					.trainable = kind == 3 && other,
					.lr_scale = kind == 4 && other ? 2 : 0,
					.no_weight_decay = kind == 5 && other,
					.weight_decay_scale = kind == 6 && other ? 2 : 0};
		zero_param *param;

		ok(zero_param_new(group, &spec, &param));
		fails(zero_layout(job), ZERO_E_ORDER, "layout of 1 groups");
		close_broken(job);
	}
}

/* ---- errors of one rank ---------------------------------------------------------------------- */

static atomic_bool refuses_reads;

/* The system's call, which the library finds here first. */
ssize_t process_vm_readv(pid_t process, const struct iovec *mine, unsigned long mine_count,
			 const struct iovec *theirs, unsigned long their_count, unsigned long flags)
{
	if (!refuses_reads)
		return syscall(SYS_process_vm_readv, process, mine, mine_count, theirs, their_count,
			       flags);
	errno = EFAULT;
	return -1;
}

/* The last rank cannot read what the root has: it is an error on all ranks. */
static void failed_read(void)
{
	zero_job *job = open_job("stage=3");
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, 100000, false);
	float *values = calloc(100000, sizeof(*values));
	zero_source source = zero_from_rank(last - 1, rank == last - 1 ? values : NULL);
	bool shares = sharing(job) == world;

	check(values, "no memory");
	ok(zero_layout(job));
	/* In 3/2 the last rank is alone, and gets a message. */
	refuses_reads = rank == last;
	if (shares)
		fails(zero_load(param, &source), ZERO_E_COMM,
		      rank == last ? "cannot read" : "another rank could not read");
	else
		ok(zero_load(param, &source));
	refuses_reads = false;
	free(values);
	ok(zero_close(job));
}

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	(void)first;
	memset(elements, 0, count * sizeof(float));
	return context ? ZERO_E_APPLICATION : ZERO_OK;
}

static void failing_sources(struct model *model, int from)
{
	const char *path = rank == from ? "/nowhere/at all" : file_path("values");
	size_t shape[] = {5000};
	zero_tensor tensor = {.name = "pa", .dtype = ZERO_F32, .ndim = 1, .path = path};
	zero_source source = zero_from_file(&tensor);
	float values[5000] = {0};
	FILE *file;

	tensor.shape[0] = shape[0];
	if (rank == 0) {
		file = fopen(file_path("values"), "wb");
		check(file && fwrite(values, 4, 5000, file) == 5000 && !fclose(file), "values");
	}
	ok(zero_agree(model->job, NULL));
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_FILE, from, "/nowhere/at all");
	if (rank == from)
		tensor.path = file_path("values");
	ok(zero_load(model->pa, &source));
	/* The file ends before the end of one rank's slice. */
	tensor.offset = rank == from ? 19999 : 0;
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_FORMAT, from, "'pa'");
	tensor.offset = 0;
	tensor.shape[0] = rank == from ? 4999 : 5000;
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_FORMAT, from,
	       "has shape [4999], parameter 'pa' has [5000]");
	source = zero_from_file(rank == from ? NULL : &tensor);
	tensor.shape[0] = 5000;
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_INVALID, from,
	       "missing from the file?");
	source = zero_from_callback(fill, rank == from ? values : NULL);
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_APPLICATION, from,
	       "the callback for parameter 'pa' returned 9");
	source = zero_from_rank(from, NULL);
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_INVALID, from,
	       "the source is NULL");
	source = zero_from_rank(rank == from ? world : 0, values);
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_INVALID, from, "ranks are 0 to");
}

static void calls_that_do_not_fit(struct model *model, int from)
{
	zero_source source = zero_from_constant(1);
	zero_adamw adamw = {.lr = 1, .eps = 1e-8F};
	zero_file *file;

	/* On the ranks with valid arguments the step would reduce two groups. */
	adamw.beta1 = rank == from ? 1 : 0;
	agreed(model->job, zero_step(model->job, &adamw, NULL), ZERO_E_INVALID, from, "beta1 1");
	adamw.beta1 = 0;
	ok(zero_gather(model->a, ZERO_DTYPE_PARAM));
	if (rank != from)
		ok(zero_release(model->a));
	agreed(model->job, zero_step(model->job, &adamw, NULL), ZERO_E_STATE, from,
	       "group 'alpha' is gathered");
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_STATE, from,
	       "group 'alpha' is gathered");
	if (rank == from)
		ok(zero_release(model->a));
	agreed(model->job, zero_gather(model->b, rank == from ? ZERO_I32 : ZERO_F32),
	       ZERO_E_INVALID, from, "cannot be gathered as i32");
	agreed(model->job, zero_file_open(model->job, "/nowhere/to be", &file), ZERO_E_FILE, 0,
	       "/nowhere/to be");
	ok(zero_step(model->job, &adamw, NULL));
	agreed(model->job, zero_agree(model->job, rank == from ? "my own reason" : NULL),
	       ZERO_E_APPLICATION, from, "my own reason");
	/* The lowest rank's error is returned. */
	agreed(model->job, zero_agree(model->job, rank ? "a reason" : NULL), ZERO_E_APPLICATION, 1,
	       "a reason");
}

static void still_works(struct model *model)
{
	zero_source source = zero_from_uniform(0, 1, 5);

	ok(zero_load(model->pa, &source));
	ok(zero_gather(model->a, ZERO_DTYPE_PARAM));
	check(zero_data(model->pa), "no data");
	ok(zero_release(model->a));
	ok(zero_agree(model->job, NULL));
}

/* ---- means ----------------------------------------------------------------------------------- */

static void exchange(zero_job *job)
{
	char mine[3] = {(char)rank, 'a', (char)(rank + 1)}, all[3 * 16] = {0};

	ok(zero_allgather_bytes(job, mine, sizeof(mine), all));
	for (int r = 0; r <= last; r++)
		check(all[3 * r] == r && all[3 * r + 1] == 'a' && all[3 * r + 2] == r + 1,
		      "%d: %d %d", r, all[3 * r], all[3 * r + 2]);
}

static void means(zero_job *job)
{
	double values[3] = {rank + 1, rank == last ? NAN : 7, 1e300}, sum = 0, weights = 0;
	double weight = rank == last ? 0 : rank + 1;

	for (int r = 0; r < last; r++) {
		sum += (r + 1.0) * (r + 1.0);
		weights += r + 1.0;
	}
	ok(zero_mean(job, values, 3, weight));
	check(values[0] == sum / weights, "%g", values[0]);
	check(values[1] == 7, "%g of weight %g", values[1], weight);
	check(values[2] > 0.99e300 && values[2] < 1.01e300, "%g", values[2]);
	values[0] = 42;
	fails(zero_mean(job, values, 1, 0), ZERO_E_INVALID, "weights of all ranks are 0");
	check(zero_last_error_rank() == 0, "%d", zero_last_error_rank());
	check(values[0] == 42, "changed by a failed call");
	fails(zero_mean(job, values, 1, rank == last ? -1 : 1), ZERO_E_INVALID, "zero_mean is -1");
	fails(zero_mean(job, values, 1, rank == last ? NAN : 1), ZERO_E_INVALID, "weight");
	fails(zero_mean(job, values, 1, rank == last ? INFINITY : 1), ZERO_E_INVALID,
	      "zero_mean is inf");
	check(zero_last_error_rank() == last, "%d", zero_last_error_rank());
	fails(zero_mean(job, values, 1, DBL_MAX), ZERO_E_INVALID, "all ranks is infinite");
	ok(zero_mean(job, values, 0, 1));
	values[0] = rank == 0 ? INFINITY : 1;
	ok(zero_mean(job, values, 1, 1));
	check(isinf(values[0]), "%g", values[0]);
}

/* A rank has one thread for the network, and on CPUs one for its submissions. */
static void threads(void)
{
	DIR *folder = opendir("/proc/self/task");
	int count = 0;

	for (struct dirent *entry; (entry = readdir(folder));) {
		char path[300], name[32] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		file = fopen(path, "r");
		if (file && fgets(name, sizeof(name), file))
			count += !strncmp(name, "zero-", 5);
		if (file)
			fclose(file);
	}
	closedir(folder);
	check(count == (on_gpu() ? 1 : 2), "%d threads", count);
}

int main(void)
{
	static const char *const stages[] = {"stage=3", "stage=0", "stage=1"};
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	check(world > 1, "this is about several ranks");
	fails(zero_open(NULL, &(zero_job *){NULL}), ZERO_E_STATE, "open in this process already");
	threads();
	means(job);
	exchange(job);
	ok(zero_close(job));
	for (int i = 0; i < 3; i++) {
		struct model model = open_model(stages[i]);

		for (int from = 0; from < world; from += last) {
			failing_sources(&model, from);
			calls_that_do_not_fit(&model, from);
			still_works(&model);
		}
		ok(zero_close(model.job));
		gathers_of_two_groups(stages[i]);
		prefetches_in_two_orders(stages[i]);
	}
	second_group_of_prefetches();
	gather_and_load();
	two_roots();
	reduce_and_step();
	teams_in_two_orders();
	if (on_gpu())
		devices_in_two_orders(false);
	if (on_gpu() && world == 3)
		devices_in_two_orders(true);
	other_sizes();
	other_models();
	other_options();
	origins();
	if (!on_gpu())
		failed_read();
	descriptions();
	wrong_descriptions();
	return 0;
}
