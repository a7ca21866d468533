/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job consists of, where each setting comes from, and what ranks must have alike.
 */
#include "order.h"

static void check_param(const zero_group *group, const zero_param *param,
			const zero_param_spec *spec, size_t numel)
{
	check(!strcmp(zero_param_name(param), spec->name), "%s", zero_param_name(param));
	check(zero_param_group(param) == group, "'%s' in another group", spec->name);
	check(zero_param_dtype(param) == spec->dtype, "'%s' is %s", spec->name,
	      zero_dtype_name(zero_param_dtype(param)));
	check(zero_param_numel(param) == numel, "%zu elements", zero_param_numel(param));
	check(zero_param_ndim(param) == spec->ndim, "%d dimensions", zero_param_ndim(param));
	check(zero_param_shape(param), "'%s' has no shape", spec->name);
	for (int d = 0; d < spec->ndim; d++)
		check(zero_param_shape(param)[d] == spec->shape[d], "dimension %d: %zu", d,
		      zero_param_shape(param)[d]);
}

void descriptions(void)
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

	ok(zero_team_new(job, &last, 1, &team));
	groups[0] = new_group(job, "of all");
	ok(zero_group_new(job, "of a team", team, &groups[1]));
	groups[2] = new_group(job, "of nothing");
	for (int p = 0; p < 4; p++) {
		specs[p].alias_of = p == 3 ? params[0] : NULL;
		ok(zero_param_new(groups[0], &specs[p], &params[p]));
		check_param(groups[0], params[p], &specs[p], numels[p]);
	}
	other = new_param(groups[1], "other", ZERO_F32, 10, true);
	check(zero_param_group(other) == groups[1], "the group of another parameter");
	both.no_weight_decay = true;
	both.weight_decay_scale = 1;
	fails(zero_param_new(groups[1], &both, &other), ZERO_E_INVALID, "set one of them");
	ok(zero_layout(job));
	for (int p = 0; p < 4; p++)
		check_param(groups[0], params[p], &specs[p], numels[p]);
	ok(zero_close(job));
}

/* Descriptions that are refused, beside a trainable "w" of 10 of f32. */
void wrong_descriptions(void)
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
	alias = (zero_param_spec){"v", ZERO_F32, 1, &ten, .trainable = true};
	fails(zero_param_new(group, &alias, &param), ZERO_E_STATE, "lays out group 'g'");
	ok(zero_close(job));
}

void other_options(void)
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

/* What the caller asks for counts more than what a launcher has resolved, and that more than what
   the user wants. */
void origins(void)
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
