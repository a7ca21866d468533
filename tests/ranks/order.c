/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that do not do the same: different operations are ZERO_E_ORDER on all of them with a
 * sentence that names both, an error of one rank is returned on all with that rank's sentence, and
 * afterwards all can close, or go on. Also what a job says of its groups and parameters.
 */
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "ranks.h"

static int world, rank, last;

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
	model.pa = new_param(model.a, "pa", ZERO_F32, 1000, true);
	model.pb = new_param(model.b, "pb", ZERO_F32, 1000, true);
	ok(zero_layout(model.job));
	return model;
}

/* Every call of a job after ZERO_E_ORDER fails at once, except zero_close. */
static void close_broken(zero_job *job)
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
	float *values = calloc(1000, sizeof(*values));
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

/* ---- what a job consists of ------------------------------------------------------------------ */

static void check_param(const zero_group *group, size_t i, const zero_param_spec *spec,
			size_t numel)
{
	zero_param *param = zero_group_param(group, i);

	check(param, "no parameter %zu", i);
	check(!strcmp(zero_param_name(param), spec->name), "%s", zero_param_name(param));
	check(zero_param_group(param) == group, "'%s' in another group", spec->name);
	check(zero_param_alias_of(param) == spec->alias_of, "'%s' is tied otherwise", spec->name);
	check(zero_param_dtype(param) == spec->dtype, "'%s' is %s", spec->name,
	      zero_dtype_name(zero_param_dtype(param)));
	check(zero_param_trainable(param) == spec->trainable, "'%s' is trained", spec->name);
	check(zero_param_numel(param) == numel, "%zu elements", zero_param_numel(param));
	check(zero_param_ndim(param) == spec->ndim, "%d dimensions", zero_param_ndim(param));
	check(zero_param_shape(param), "'%s' has no shape", spec->name);
	for (int d = 0; d < spec->ndim; d++)
		check(zero_param_shape(param)[d] == spec->shape[d], "dimension %d: %zu", d,
		      zero_param_shape(param)[d]);
}

static void check_groups(zero_job *job, zero_group *const *groups, zero_team *team,
			 const zero_param_spec *specs, const size_t *numels)
{
	check(zero_job_group_count(job) == 3, "%zu groups", zero_job_group_count(job));
	for (size_t g = 0; g < 3; g++)
		check(zero_job_group(job, g) == groups[g], "group %zu", g);
	check(!zero_job_group(job, 3) && !zero_job_group(job, SIZE_MAX), "a group beyond the last");
	check(!strcmp(zero_group_name(groups[1]), "of a team"), "%s", zero_group_name(groups[1]));
	check(!zero_group_team(groups[0]) && zero_group_team(groups[1]) == team, "teams");
	check(zero_group_param_count(groups[0]) == 4, "%zu", zero_group_param_count(groups[0]));
	check(zero_group_param_count(groups[2]) == 0, "%zu", zero_group_param_count(groups[2]));
	check(!zero_group_param(groups[2], 0), "a parameter of an empty group");
	check(!zero_group_param(groups[0], 4), "a parameter beyond the last");
	for (size_t p = 0; p < 4; p++)
		check_param(groups[0], p, &specs[p], numels[p]);
}

static void descriptions(void)
{
	const size_t shape[3] = {3, 5, 7}, flat[1] = {105}, empty[2] = {1000000, 0};
	const size_t numels[4] = {105, 1, 0, 105};
	zero_param_spec specs[4] = {
		{.name = "w", .dtype = ZERO_BF16, .ndim = 3, .shape = shape, .trainable = true},
		{.name = "scalar", .dtype = ZERO_I64},
		{.name = "empty", .dtype = ZERO_F32, .ndim = 2, .shape = empty},
		{.name = "tied", .dtype = ZERO_BF16, .ndim = 1, .shape = flat, .trainable = true},
	};
	zero_job *job = open_job("stage=3 allgather=single");
	zero_param_spec both = {.name = "both", .dtype = ZERO_F32};
	zero_param *params[4], *other;
	zero_group *groups[3];
	zero_team *team;

	check(zero_job_group_count(job) == 0 && !zero_job_group(job, 0), "a group of none");
	ok(zero_team_new(job, &last, 1, &team));
	groups[0] = new_group(job, "of all");
	ok(zero_group_new(job, "of a team", team, &groups[1]));
	groups[2] = new_group(job, "of nothing");
	for (int p = 0; p < 4; p++) {
		specs[p].alias_of = p == 3 ? params[0] : NULL;
		ok(zero_param_new(groups[0], &specs[p], &params[p]));
		check(zero_group_param(groups[0], (size_t)p) == params[p], "parameter %d", p);
	}
	other = new_param(groups[1], "other", ZERO_F32, 10, true);
	check(zero_param_group(other) == groups[1], "the group of another parameter");
	both.no_weight_decay = true;
	both.weight_decay_scale = 1;
	fails(zero_param_new(groups[1], &both, &other), ZERO_E_INVALID, "set one of them");
	check_groups(job, groups, team, specs, numels);
	ok(zero_layout(job));
	check_groups(job, groups, team, specs, numels);
	ok(zero_close(job));
}

/* Descriptions that are refused, beside a trainable "w" of 10 of f32. */
static void wrong_descriptions(void)
{
	static const size_t ten = 10, eleven = 11, huge[2] = {(size_t)1 << 31, (size_t)1 << 31},
			    over[2] = {(size_t)1 << 33, (size_t)1 << 33};
	zero_job *job = open_job("stage=3");
	zero_group *group = new_group(job, "g"), *next = new_group(job, "h");
	zero_param *w = new_param(group, "w", ZERO_F32, ten, true), *param, *tied;
	const struct {
		zero_param_spec spec;
		const char *words;
	} cases[] = {
		{{.name = "", .dtype = ZERO_F32}, "needs a name"},
		{{.name = "w", .dtype = ZERO_F32}, "exists already, in group 'g'"},
		{{.name = "p"}, "is no type"},
		{{.name = "p", .dtype = ZERO_F32, .ndim = 9, .shape = huge}, "9 dimensions, not"},
		{{.name = "p", .dtype = ZERO_F32, .ndim = -1}, "-1 dimensions, not"},
		{{.name = "p", .dtype = ZERO_F32, .ndim = 1}, "has no shape"},
		{{.name = "p", .dtype = ZERO_F16, .ndim = 2, .shape = huge}, "more than 2^63"},
		{{.name = "p", .dtype = ZERO_U8, .ndim = 2, .shape = over}, "more than 2^63"},
		{{.name = "p", .dtype = ZERO_F64, .trainable = true}, "what is trained is"},
		{{"p", ZERO_F32, 1, &ten, .trainable = false, .alias_of = w}, "is not trainable"},
		{{"p", ZERO_F32, 1, &eleven, .trainable = true, .alias_of = w}, "is tied to 'w'"},
		{{"p", ZERO_F16, 1, &ten, .trainable = true, .alias_of = w}, "is tied to 'w'"},
	};
	zero_param_spec alias = {"t", ZERO_F32, 1, &ten, .trainable = true, .alias_of = w};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		fails(zero_param_new(group, &cases[i].spec, &param), ZERO_E_INVALID,
		      cases[i].words);
	fails(zero_param_new(next, &alias, &param), ZERO_E_INVALID, "in another group");
	ok(zero_param_new(group, &alias, &tied));
	alias = (zero_param_spec){"u", ZERO_F32, 1, &ten, .trainable = true, .alias_of = tied};
	fails(zero_param_new(group, &alias, &param), ZERO_E_INVALID, "which is tied itself");
	fails(zero_group_new(job, "g", NULL, &next), ZERO_E_INVALID, "exists already");
	ok(zero_layout(job));
	fails(zero_group_new(job, "i", NULL, &next), ZERO_E_STATE, "before zero_layout");
	ok(zero_close(job));
}

static void other_options(void)
{
	static const struct {
		const char *usual, *other, *words;
		zero_status status;
	} cases[] = {
		{"stage=3", "stage=2", "stage is not the same", ZERO_E_INVALID},
		{"allgather=auto", "allgather=single", "allgather is not the same", ZERO_E_INVALID},
		{"bucket=1M", "bucket=2M", "bucket is not the same", ZERO_E_INVALID},
		{"gather_dtype=f32", "", "gather_dtype is not the same", ZERO_E_INVALID},
		{"offload=none", "offload=optimizer", "offload is not the same", ZERO_E_INVALID},
		{"flatten=device", "flatten=host", "flatten is not the same", ZERO_E_INVALID},
		{"share=0", "share=1", "share is not the same", ZERO_E_INVALID},
		{"check=0", "check=1", "check is not the same", ZERO_E_INVALID},
		{"watch_seconds=9", "watch_seconds=8", "watch_seconds is not the same",
		 ZERO_E_INVALID},
		{"stall_seconds=99", "stall_seconds=98", "stall_seconds is not the same",
		 ZERO_E_INVALID},
		{"on_fault=abort", "on_fault=return", "on_fault is not the same", ZERO_E_INVALID},
		{"stage=3", "stage=4", "'4' is out of range", ZERO_E_INVALID},
		{"stage=3", "stagee=3", "there is no option 'stagee'", ZERO_E_INVALID},
	};
	char *resolved = strdup(getenv("ZERO_RESOLVED"));
	zero_options options = {0};
	zero_job *job;

	check(resolved, "no memory");
	/* A search for a GPU that finds none does not replace the sentence. */
	if (!on_gpu()) {
		setenv("ZERO_RESOLVED", "backend=auto", 1);
		setenv("CUDA_VISIBLE_DEVICES", "", 1);
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		options.settings = rank == last ? cases[i].other : cases[i].usual;
		job = (zero_job *)&options;
		fails(zero_open(&options, &job), cases[i].status, cases[i].words);
		check(!job, "a job in spite of %s", cases[i].other);
		check(zero_last_error_rank() == (strstr(cases[i].words, "same") ? 0 : last),
		      "%d: %s", zero_last_error_rank(), zero_last_error());
	}
	setenv("ZERO_RESOLVED", resolved, 1);
	free(resolved);
	/* Sizes may differ: all ranks use the lowest, so that pieces are the same. */
	options.settings = rank == last ? "stream_chunk=1000 stream_threshold=10 budget=1G "
					  "gather_limit=70000"
					: "stage=3";
	if (rank == 0)
		options.settings = "stream_chunk=4000 stream_threshold=2000 stage=3 budget=2G "
				   "gather_limit=80000";
	ok(zero_open(&options, &job));
	check(!strcmp(zero_setting(job, "budget"), "1073741824"), "%s",
	      zero_setting(job, "budget"));
	check(!strcmp(zero_setting(job, "gather_limit"), "70000"), "%s",
	      zero_setting(job, "gather_limit"));
	check(!strcmp(zero_setting(job, "stream_chunk"), "1000"), "%s",
	      zero_setting(job, "stream_chunk"));
	check(!strcmp(zero_setting(job, "stream_threshold"), "10"), "%s",
	      zero_setting(job, "stream_threshold"));
	{
		zero_group *group = new_group(job, "g");
		zero_param *param = new_param(group, "p", ZERO_F32, 100000, false);
		float *values = calloc(100000, sizeof(*values));
		zero_source source = zero_from_rank(last, rank == last ? values : NULL);

		check(values, "no memory");
		for (size_t i = 0; i < 100000; i++)
			values[i] = (float)i;
		ok(zero_layout(job));
		ok(zero_load(param, &source));
		ok(zero_gather(group, ZERO_DTYPE_PARAM));
		check(!memcmp(zero_data(param), values, 400000), "values");
		free(values);
	}
	ok(zero_close(job));
}

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

/* What the caller asks for counts more than what a launcher has resolved, and that more than what
   the user wants. */
static void origins(void)
{
	const char *resolved = getenv("ZERO_RESOLVED");
	char *before = resolved ? strdup(resolved) : NULL;
	zero_job *job;

	setenv("ZERO_RESOLVED", "stream_chunk=5000 bucket=3M", 1);
	setenv("ZERO_BUCKET", "4M", 1);
	setenv("ZERO_GATHER_LIMIT", "90000", 1);
	job = open_job("stream_chunk=6000");
	check(!strcmp(zero_setting(job, "stream_chunk"), "6000") &&
		      !strcmp(zero_setting(job, "bucket"), "3145728") &&
		      !strcmp(zero_setting(job, "gather_limit"), "90000"),
	      "stream_chunk %s, bucket %s, gather_limit %s", zero_setting(job, "stream_chunk"),
	      zero_setting(job, "bucket"), zero_setting(job, "gather_limit"));
	ok(zero_close(job));
	unsetenv("ZERO_BUCKET");
	unsetenv("ZERO_GATHER_LIMIT");
	if (before)
		setenv("ZERO_RESOLVED", before, 1);
	else
		unsetenv("ZERO_RESOLVED");
	free(before);
}

/* ---- errors of one rank ---------------------------------------------------------------------- */

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	(void)first;
	memset(elements, 0, count * sizeof(float));
	return context ? ZERO_E_APPLICATION : ZERO_OK;
}

static void failing_sources(struct model *model, int from)
{
	const char *path = rank == from ? "/nowhere/at all" : file_path("values");
	size_t shape[] = {1000};
	zero_tensor tensor = {.name = "pa", .dtype = ZERO_F32, .ndim = 1, .path = path};
	zero_source source = zero_from_file(&tensor);
	float values[1000] = {0};
	FILE *file;

	tensor.shape[0] = shape[0];
	if (rank == 0) {
		file = fopen(file_path("values"), "wb");
		check(file && fwrite(values, 4, 1000, file) == 1000 && !fclose(file), "values");
	}
	ok(zero_agree(model->job, NULL));
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_FILE, from, "/nowhere/at all");
	if (rank == from)
		tensor.path = file_path("values");
	ok(zero_load(model->pa, &source));
	/* The file ends before the end of one rank's slice. */
	tensor.offset = rank == from ? 3999 : 0;
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_FORMAT, from, "'pa'");
	tensor.offset = 0;
	tensor.shape[0] = rank == from ? 999 : 1000;
	agreed(model->job, zero_load(model->pa, &source), ZERO_E_FORMAT, from,
	       "has shape [999], parameter 'pa' has [1000]");
	source = zero_from_file(rank == from ? NULL : &tensor);
	tensor.shape[0] = 1000;
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
	check(zero_last_error_rank() == last, "%d", zero_last_error_rank());
	ok(zero_mean(job, values, 0, 1));
	values[0] = rank == 0 ? INFINITY : 1;
	ok(zero_mean(job, values, 1, 1));
	check(isinf(values[0]), "%g", values[0]);
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
	means(job);
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
