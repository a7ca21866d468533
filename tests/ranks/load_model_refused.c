/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints that do not fit the job, or cannot be read to their end: refused on all ranks with
 * one sentence, which names file, tensor and value; after each of them the job loads a good one.
 */
#include <fcntl.h>

#include "checkpoint.h"

enum { M, U, H, T, PARAMS, EXTRA = PARAMS, TENSORS };

/* A job and a checkpoint that fits, until a case changes something. */
struct fixture {
	zero_job *job;
	zero_group *group;
	zero_param *params[PARAMS];
	struct file_tensor tensors[TENSORS];
	const char *names[PARAMS]; /* that the callback gives */
	bool transpose[PARAMS];
	int stopper, returned; /* the rank whose callbacks return this */
	const char *cut;       /* a file that rank 0 cuts short while names are asked for */
	zero_source source;    /* that the callback gives to what is missing */
	zero_load_model_options load;
	char folder[1100];
};

static int world, rank, last;
static unsigned char values[TENSORS][64 * 64 * 8];

/* ---- callbacks ------------------------------------------------------------------------------- */

static const char *tensor_name(void *context, const char *param, bool *transpose)
{
	struct fixture *fixture = context;

	if (fixture->cut && rank == 0)
		check(!truncate(fixture->cut, 5000), "cannot cut %s", fixture->cut);
	for (int i = 0; i < PARAMS; i++)
		if (!strcmp(param, fixture->tensors[i].name)) {
			*transpose = fixture->transpose[i];
			return fixture->names[i];
		}
	return NULL;
}

static zero_status progress(void *context, const char *param, uint64_t done, uint64_t total)
{
	const struct fixture *fixture = context;

	(void)param;
	return rank == fixture->stopper && done >= total / 2 ? (zero_status)fixture->returned
							     : ZERO_OK;
}

static zero_status initialise(void *context, const char *param, zero_source *source)
{
	const struct fixture *fixture = context;

	check(!strcmp(param, "u"), "'%s' is asked for", param);
	*source = fixture->source;
	return rank == fixture->stopper ? (zero_status)fixture->returned : ZERO_OK;
}

/* ---- a job and its checkpoint ---------------------------------------------------------------- */

/* In the checkpoint `t` is turned and of another type, and there is one tensor more. */
static void fit(struct fixture *fixture)
{
	const struct fixture fresh = {
		.job = fixture->job,
		.group = fixture->group,
		.tensors = {{"m", ZERO_F32, 2, {30, 50}, 6000, values[M], 0},
			    {"u", ZERO_U8, 1, {700}, 700, values[U], 1},
			    {"h", ZERO_BF16, 2, {64, 64}, 8192, values[H], 0},
			    {"t", ZERO_I64, 2, {31, 20}, 4960, values[T], 1},
			    {"extra", ZERO_I64, 0, {0}, 8, values[EXTRA], 1}},
		.names = {"m", "u", "h", "t"},
		.transpose = {[T] = true},
		.stopper = -1,
	};

	zero_param *params[PARAMS];

	memcpy(params, fixture->params, sizeof(params));
	*fixture = fresh;
	memcpy(fixture->params, params, sizeof(params));
	fixture->load = (zero_load_model_options){.tensor_name = tensor_name,
						  .progress = progress,
						  .context = fixture,
						  .allow_unexpected = true};
	memset(values, 0, sizeof(values));
}

static void open_fixture(struct fixture *fixture)
{
	static const size_t turned[] = {20, 31};

	fixture->job = open_job("stage=3 stream_chunk=64");
	fixture->group = new_group(fixture->job, "g");
	fit(fixture);
	for (int i = 0; i < PARAMS; i++) {
		const struct file_tensor *tensor = &fixture->tensors[i];
		zero_param_spec spec = {.name = tensor->name,
					.dtype = tensor->dtype,
					.ndim = tensor->ndim,
					.shape = tensor->shape,
					.trainable = i == H};

		if (i == T) {
			spec.dtype = ZERO_I32;
			spec.shape = turned;
		}
		ok(zero_param_new(fixture->group, &spec, &fixture->params[i]));
	}
}

static void write_files(struct fixture *fixture)
{
	static int written;

	snprintf(fixture->folder, sizeof(fixture->folder), "%s-%d", file_path("unfit"), written++);
	if (rank == 0)
		write_checkpoint(fixture->folder, fixture->tensors, TENSORS, 2);
	ok(zero_agree(fixture->job, NULL));
}

static const char *shard_path(const struct fixture *fixture, int shard)
{
	static char path[1200];

	snprintf(path, sizeof(path), "%s/model-%05d-of-00002.safetensors", fixture->folder, shard);
	return path;
}

/* The next case begins with a good checkpoint. */
static void loads(struct fixture *fixture)
{
	fit(fixture);
	write_files(fixture);
	ok(zero_load_model(fixture->job, fixture->folder, &fixture->load, NULL));
}

static void refused(struct fixture *fixture, zero_status status, const char *words)
{
	zero_load_model_report report;

	write_files(fixture);
	fails(zero_load_model(fixture->job, fixture->folder, &fixture->load, &report), status,
	      words);
	zero_load_model_report_free(&report);
	loads(fixture);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void names(struct fixture *fixture)
{
	zero_load_model_report report;

	fixture->names[U] = "v";
	write_files(fixture);
	fails(zero_load_model(fixture->job, fixture->folder, &fixture->load, &report),
	      ZERO_E_FORMAT, "1 of 4 parameters have no tensor there ('u')");
	check(strstr(zero_last_error(), fixture->folder), "%s", zero_last_error());
	check(report.missing_count == 1 && !strcmp(report.missing[0], "u"), "%zu",
	      report.missing_count);
	check(report.unexpected_count == 2 && !strcmp(report.unexpected[1], "extra"), "%zu",
	      report.unexpected_count);
	zero_load_model_report_free(&report);
	fixture->load.allow_unexpected = false;
	refused(fixture, ZERO_E_FORMAT, "; 2 of 5 tensors there have no parameter ('u', 'extra')");
	fixture->load.allow_unexpected = false;
	refused(fixture, ZERO_E_FORMAT, ": 1 of 5 tensors there have no parameter ('extra')");
	/* Without a callback each has its own name, and t's shape is another. */
	fixture->load.tensor_name = NULL;
	refused(fixture, ZERO_E_FORMAT, "'t' has shape [31, 20], parameter 't' has [20, 31]");
	fixture->load.allow_unexpected = false;
	fixture->names[U] = NULL;
	refused(fixture, ZERO_E_FORMAT, "2 of 5 tensors there have no parameter");
}

static void many_names(void)
{
	zero_job *job = open_job("stage=3");
	zero_group *group = new_group(job, "g");
	struct fixture files = {.job = job};
	char name[16];

	for (int i = 0; i < 9; i++) {
		snprintf(name, sizeof(name), "p%d", i);
		new_param(group, name, ZERO_F32, 5, false);
	}
	ok(zero_layout(job));
	fit(&files);
	write_files(&files);
	fails(zero_load_model(job, files.folder, NULL, NULL), ZERO_E_FORMAT,
	      "9 of 9 parameters have no tensor there ('p0', 'p1', 'p2' and 6 more); 5 of 5 ");
	fails(zero_load_model(job, file_path("nowhere"), NULL, NULL), ZERO_E_FILE, "nowhere");
	ok(zero_close(job));
}

/* ---- types, shapes and values ---------------------------------------------------------------- */

static void types(struct fixture *fixture)
{
	const int64_t large = INT64_C(1) << 31;
	const int64_t below = -1;

	fixture->load.strict_dtype = true;
	refused(fixture, ZERO_E_FORMAT, "'t' is i64, parameter 't' is i32");
	fixture->tensors[M].dtype = ZERO_I32;
	refused(fixture, ZERO_E_FORMAT, "'m' is f32; floating types become");
	fixture->tensors[M].shape[0] = 50;
	fixture->tensors[M].shape[1] = 30;
	refused(fixture, ZERO_E_FORMAT, "'m' has shape [50, 30], parameter 'm' has [30, 50]");
	fixture->transpose[M] = true;
	refused(fixture, ZERO_E_FORMAT, "has shape [30, 50] before it is transposed");
	fixture->transpose[U] = true;
	refused(fixture, ZERO_E_INVALID, "'u' has 1 dimensions");
	/* Row 23, column 17 of what becomes [20, 31]. */
	memcpy(values[T] + 8 * (23 * 20 + 17), &large, 8);
	refused(fixture, ZERO_E_FORMAT, "element 477 of tensor 't' (i64) does not fit");
	fixture->tensors[U].dtype = ZERO_I64;
	fixture->tensors[U].bytes = 5600;
	memcpy(values[U] + 8 * 613, &below, 8);
	refused(fixture, ZERO_E_FORMAT, "element 613 of tensor 'u' (i64) does not fit");
}

static void initial_values(struct fixture *fixture)
{
	static const zero_source none;

	fixture->load.allow_missing = true;
	fixture->load.initialise = initialise;
	fixture->names[U] = NULL;
	fixture->source = zero_from_rank(0, values[U]);
	refused(fixture, ZERO_E_INVALID, "its initial source is ZERO_FROM_RANK");
	fixture->load.initialise = initialise;
	fixture->names[U] = NULL;
	fixture->source = zero_from_normal(0, 1, 1);
	refused(fixture, ZERO_E_INVALID, "'u' is u8; random values");
	fixture->load.initial = &none;
	fixture->names[U] = NULL;
	refused(fixture, ZERO_E_INVALID, "the source has no tensor of a file");
	fixture->load.initialise = initialise;
	fixture->names[U] = NULL;
	fixture->source = zero_from_constant(1);
	fixture->stopper = last;
	fixture->returned = 3;
	refused(fixture, ZERO_E_APPLICATION, "initialise parameter 'u' returned 3");
	if (world == 1)
		return;
	fixture->names[U] = rank == last ? NULL : "u";
	refused(fixture, ZERO_E_FORMAT, "differ between ranks 0 and");
	fixture->load.initialise = initialise;
	fixture->names[U] = NULL;
	fixture->source = zero_from_constant(rank == last ? 1 : 1 + 1e-12);
	refused(fixture, ZERO_E_FORMAT, "differ between ranks 0 and");
}

/* Each rank finds a file of its own by the same path, and the last rank's has another type. */
static void other_file(struct fixture *fixture)
{
	int before = open(".", O_RDONLY | O_DIRECTORY);

	write_files(fixture);
	check(before >= 0 && (rank == last || !chdir(fixture->folder)), "no %s", fixture->folder);
	fixture->tensors[M].dtype = ZERO_F64;
	fixture->tensors[M].bytes = 12000;
	write_files(fixture);
	check(rank != last || !chdir(fixture->folder), "no %s", fixture->folder);
	fails(zero_load_model(fixture->job, ".", &fixture->load, NULL), ZERO_E_FORMAT,
	      "differ between ranks 0 and");
	check(!fchdir(before) && !close(before), "no way back");
	loads(fixture);
}

/* ---- on the way ------------------------------------------------------------------------------ */

static void stopped(struct fixture *fixture)
{
	write_files(fixture);
	for (int who = 0; who < world; who++) {
		fixture->stopper = who;
		fixture->returned = 77;
		fails(zero_load_model(fixture->job, fixture->folder, &fixture->load, NULL),
		      ZERO_E_APPLICATION, "it returned 77 at ");
		check(zero_last_error_rank() == who, "rank %d, not %d", zero_last_error_rank(),
		      who);
	}
	loads(fixture);
}

static void cut_short(struct fixture *fixture)
{
	char path[1200];

	write_files(fixture);
	snprintf(path, sizeof(path), "%s", shard_path(fixture, 1));
	if (rank == 0)
		check(!truncate(path, 5000), "cannot cut %s", path);
	ok(zero_agree(fixture->job, NULL));
	fails(zero_load_model(fixture->job, fixture->folder, &fixture->load, NULL), ZERO_E_FORMAT,
	      path);
	loads(fixture);
	/* Once it was found to be whole: a rank that is late finds that it is not. */
	write_files(fixture);
	snprintf(path, sizeof(path), "%s", shard_path(fixture, 1));
	fixture->cut = path;
	fails(zero_load_model(fixture->job, fixture->folder, &fixture->load, NULL), ZERO_E_FORMAT,
	      path);
	if (world == 1)
		check(strstr(zero_last_error(), "ends at byte 5000, "), "%s", zero_last_error());
	loads(fixture);
	/* A file of the index that is not there. */
	write_files(fixture);
	snprintf(path, sizeof(path), "%s", shard_path(fixture, 2));
	if (rank == 0)
		check(!unlink(path), "cannot remove %s", path);
	ok(zero_agree(fixture->job, NULL));
	fails(zero_load_model(fixture->job, fixture->folder, &fixture->load, NULL), ZERO_E_FILE,
	      path);
	loads(fixture);
}

/* One parameter at a time, by the same rules. */
static void singly(struct fixture *fixture)
{
	zero_source source = zero_from_constant(1);
	zero_file *file;

	source.transpose = true;
	fails(zero_load(fixture->params[M], &source), ZERO_E_INVALID,
	      "only a tensor of a file is transposed");
	write_files(fixture);
	ok(zero_file_open(fixture->job, fixture->folder, &file));
	source = zero_from_file(zero_file_find(file, "t"));
	source.transpose = true;
	fails(zero_load(fixture->params[T], &source), ZERO_E_FORMAT,
	      "'t' is i64, parameter 't' is i32");
	source.convert = true;
	ok(zero_load(fixture->params[T], &source));
	source.transpose = false;
	fails(zero_load(fixture->params[T], &source), ZERO_E_FORMAT, "has shape [31, 20], ");
	zero_file_close(file);
	loads(fixture);
}

int main(void)
{
	struct fixture fixture;

	memset(&fixture, 0, sizeof(fixture));
	open_fixture(&fixture);
	world = zero_world(fixture.job);
	rank = zero_rank(fixture.job);
	last = world - 1;
	write_files(&fixture);
	fails(zero_load_model(fixture.job, fixture.folder, &fixture.load, NULL), ZERO_E_STATE,
	      "after zero_layout");
	ok(zero_layout(fixture.job));
	loads(&fixture);
	names(&fixture);
	types(&fixture);
	initial_values(&fixture);
	if (world > 1)
		other_file(&fixture);
	stopped(&fixture);
	cut_short(&fixture);
	singly(&fixture);
	ok(zero_gather(fixture.group, ZERO_DTYPE_PARAM));
	fails(zero_load_model(fixture.job, fixture.folder, &fixture.load, NULL), ZERO_E_STATE,
	      "group 'g' is gathered; release it");
	ok(zero_release(fixture.group));
	loads(&fixture);
	ok(zero_close(fixture.job));
	many_names();
	return 0;
}
