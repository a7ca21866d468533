/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_restore: a restored job goes on to the same bits as an uninterrupted one, at each stage,
 * with other groups, teams and settings, and at another number of ranks. Damaged checkpoints are
 * refused. The models are random, and train to the same values at each number of ranks.
 *
 * restore.ranks                         all tests, in the folder that run.sh creates
 * restore.ranks save DIR [EXPORT]       for restore_worlds.sh: saves at one number of ranks
 * restore.ranks load DIR RANKS          restores what was saved at RANKS ranks
 * restore.ranks save-large|load-large   the same with a larger model, and a bound on the bytes read
 */
#include <dirent.h>
#include <sys/stat.h>

#include "restore.h"

enum { BEFORE = 3, AFTER = 2, CASES = 4, SMALL = 700, MEDIUM = 60000, LARGE = 600000 };

static uint64_t bytes_read(zero_job *job)
{
	zero_traffic traffic;

	ok(zero_traffic_now(job, &traffic));
	return traffic.bytes_read;
}

static void save(struct model *model, const char *dir)
{
	char user[64];
	zero_save_options options = {.user = user, .keep_last = 2};

	options.user_bytes =
		(size_t)snprintf(user, sizeof(user), "seed %llu step %llu",
				 (unsigned long long)model->seed, (unsigned long long)model->steps);
	fill_states(model, model->steps);
	ok(zero_save(model->job, dir, &options));
}

/* COLLECTIVE. Restores, and checks the description of the checkpoint. */
static void restore(struct model *model, const char *path, uint64_t steps, int world)
{
	zero_checkpoint_info checkpoint;
	char user[64];
	int bytes = snprintf(user, sizeof(user), "seed %llu step %llu",
			     (unsigned long long)model->seed, (unsigned long long)steps);

	memset(&checkpoint, 0xa5, sizeof(checkpoint));
	fill_states(model, steps + 1);
	ok(zero_restore(model->job, path, &checkpoint));
	check_states(model, steps);
	check(checkpoint.path && strstr(checkpoint.path, "step-0000000"), "%s", checkpoint.path);
	check(checkpoint.step == steps, "step %llu", (unsigned long long)checkpoint.step);
	check(checkpoint.world == world, "world %d", checkpoint.world);
	check(checkpoint.user_bytes == (size_t)bytes &&
		      !memcmp(checkpoint.user, user, (size_t)bytes),
	      "%.*s", (int)checkpoint.user_bytes, (char *)checkpoint.user);
	zero_checkpoint_info_free(&checkpoint);
	check(!checkpoint.path && !checkpoint.user, "not emptied");
	model->steps = steps;
}

/* A job trains, is saved, and goes on. Other jobs restore the checkpoint, and must come to the same
   values. */
static void run_case(uint64_t seed, const char *dir, bool stepped)
{
	struct model model = {0}, again;
	uint64_t random = seed;
	struct digests saved, end, got;
	int before = stepped ? BEFORE : 0;
	char settings[256];

	make_tensors(&model, seed, below(&random, 2) ? SMALL : MEDIUM);
	choose_settings(&random, settings, sizeof(settings));
	open_model(&model, draw(&random), settings);
	load_values(&model);
	train(&model, before);
	saved = digest(&model);
	save(&model, dir);
	got = digest(&model);
	expect_same(&model, &got, &saved, "after the save");
	train(&model, AFTER);
	end = digest(&model);
	close_model(&model);

	for (int i = 0; i < 2; i++) {
		again = model;
		choose_settings(&random, settings, sizeof(settings));
		open_model(&again, draw(&random), settings);
		/* The values before the restore do not matter. */
		load_values(&again);
		train(&again, (int)below(&random, 3));
		restore(&again, dir, (uint64_t)before, zero_world(again.job));
		got = digest(&again);
		expect_same(&again, &got, &saved, settings);
		train(&again, AFTER);
		got = digest(&again);
		expect_same(&again, &got, &end, settings);
		close_model(&again);
	}
	for (int t = 0; t < TENSORS && !zero_rank(NULL); t++)
		printf("same %d: %.0f %.0f\n", t, saved.of[t], end.of[t]);
}

/* What another job restores and saves again is the same to the last byte of the manifest, which has
   the checksums of all files. */
static void check_saved_again(struct model *model, const char *dir)
{
	char again[1200], path[2][1300];
	char *text[2];
	size_t bytes[2];

	close_model(model);
	open_model(model, 1, "stage=3");
	restore(model, dir, 2, zero_world(model->job));
	snprintf(again, sizeof(again), "%s-again", dir);
	save(model, again);
	for (int i = 0; i < 2; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/step-%09d/manifest.json", i ? again : dir,
			 2);
		text[i] = read_all(path[i], &bytes[i]);
	}
	check(!strcmp(text[0], text[1]), "%s%s", text[0], text[1]);
	free(text[0]);
	free(text[1]);
}

/* ---- folders --------------------------------------------------------------------------------- */

static void folders(const char *dir)
{
	struct model model = {0};
	zero_checkpoint_info checkpoint;
	char path[1200], link[1300];
	struct digests saved, got, end;
	bool first;

	make_tensors(&model, test_seed() ^ 5, SMALL);
	open_model(&model, 1, "stage=3");
	/* Rank 0 looks for it, so that it is rank 0's question which all ranks answer alike. */
	first = zero_rank(model.job) == 0;
	fails(zero_restore(model.job, dir, first ? NULL : &checkpoint), ZERO_E_FILE,
	      "there is no checkpoint");
	memset(&checkpoint, 0xa5, sizeof(checkpoint));
	ok(zero_restore(model.job, dir, first ? &checkpoint : NULL));
	check(!first || (!checkpoint.path && !checkpoint.user && !checkpoint.step),
	      "a checkpoint from nowhere");
	load_values(&model);
	train(&model, 1);
	save(&model, dir);
	saved = digest(&model);
	train(&model, 1);
	save(&model, dir);
	got = digest(&model);
	restore(&model, dir, 2, zero_world(model.job));
	snprintf(path, sizeof(path), "%s/step-%09d", dir, 1);
	restore(&model, path, 1, zero_world(model.job));
	/* The link names the checkpoint. Without a valid link it is the last one. */
	snprintf(link, sizeof(link), "%s/latest", dir);
	meet(model.job);
	if (!zero_rank(model.job))
		check(!unlink(link) && !symlink("step-000000001", link), "%s", link);
	meet(model.job);
	restore(&model, dir, 1, zero_world(model.job));
	meet(model.job);
	if (!zero_rank(model.job))
		check(!unlink(link) && !symlink("step-000000007", link), "%s", link);
	meet(model.job);
	restore(&model, dir, 2, zero_world(model.job));
	meet(model.job);
	if (!zero_rank(model.job))
		check(!unlink(link), "%s", link);
	meet(model.job);
	restore(&model, dir, 2, zero_world(model.job));
	end = digest(&model);
	expect_same(&model, &end, &got, "the last");
	restore(&model, path, 1, zero_world(model.job));
	got = digest(&model);
	expect_same(&model, &got, &saved, "the first");
	/* A file is not a checkpoint. */
	snprintf(link, sizeof(link), "%s/manifest.json", path);
	fails(zero_restore(model.job, link, NULL), ZERO_E_FILE, "is not a folder");
	fails(zero_restore(model.job, "", NULL), ZERO_E_INVALID, "empty");
	/* No restore while a group is gathered, nor before the layout. */
	ok(zero_gather(model.groups[0], ZERO_DTYPE_PARAM));
	fails(zero_restore(model.job, dir, NULL), ZERO_E_STATE, "gathered");
	ok(zero_release(model.groups[0]));
	check_saved_again(&model, dir);
	close_model(&model);
	model.job = open_job("stage=3");
	fails(zero_restore(model.job, dir, NULL), ZERO_E_STATE, "after zero_layout");
	close_model(&model);
}

/* Models that differ from that of the checkpoint. */
static void other_models(const char *dir)
{
	struct model model = {0}, other;

	make_tensors(&model, test_seed() ^ 5, SMALL);
	other = model;
	snprintf(other.tensors[3].name, sizeof(other.tensors[3].name), "new.name");
	open_model(&other, 2, "stage=3");
	fails(zero_restore(other.job, dir, NULL), ZERO_E_FORMAT,
	      "1 parameters have no tensor there ('new.name'); 1 of 13 tensors there have no "
	      "parameter ('");
	close_model(&other);
	other = model;
	other.tensors[0].trainable = false;
	if (other.tensors[TENSORS - 1].tied == 0)
		other.tensors[TENSORS - 1].trainable = false;
	open_model(&other, 2, "stage=1");
	fails(zero_restore(other.job, dir, NULL), ZERO_E_FORMAT, "was trainable, parameter");
	close_model(&other);
	other = model;
	other.tensors[6].dtype = model.tensors[6].dtype == ZERO_F64 ? ZERO_I64 : ZERO_F64;
	other.tensors[6].trainable = false;
	open_model(&other, 2, "stage=1");
	fails(zero_restore(other.job, dir, NULL), ZERO_E_FORMAT, other.tensors[6].name);
	close_model(&other);
	other = model;
	other.tensors[7].shape[0]++;
	other.tensors[7].count = other.tensors[7].shape[0] *
				 (other.tensors[7].ndim == 2 ? other.tensors[7].shape[1] : 1);
	open_model(&other, 2, "stage=1");
	fails(zero_restore(other.job, dir, NULL), ZERO_E_FORMAT, "has shape [");
	close_model(&other);
}

static void set_trainable(struct model *model, int t, bool trainable)
{
	model->tensors[t].trainable = trainable;
	if (model->tensors[TENSORS - 1].tied == t)
		model->tensors[TENSORS - 1].trainable = trainable;
}

/* What was saved as not trainable can be trained from then on, in a group that was not stepped. */
static void thawed(const char *dir)
{
	struct model model = {0}, frozen;
	struct digests want, got;
	uint64_t grouping = test_seed();

	make_tensors(&model, test_seed() ^ 11, SMALL);
	set_trainable(&model, 1, true);
	open_model(&model, 2, "stage=1");
	load_values(&model);
	train(&model, 1);
	want = digest(&model);
	close_model(&model);

	frozen = model;
	for (int t = TENSORS - 1; t >= 0; t--)
		frozen.tensors[t].trainable = false;
	open_model(&frozen, 1, "stage=3");
	load_values(&frozen);
	save(&frozen, dir);
	close_model(&frozen);
	open_model(&model, 2, "stage=1");
	load_values(&model);
	train(&model, 1);
	restore(&model, dir, 0, zero_world(model.job));
	train(&model, 1);
	got = digest(&model);
	expect_same(&model, &got, &want, "thawed");
	close_model(&model);

	frozen = model;
	set_trainable(&frozen, 0, false);
	open_model(&frozen, 1, "stage=3");
	load_values(&frozen);
	train(&frozen, 1);
	save(&frozen, dir);
	close_model(&frozen);
	open_model(&model, grouping, "stage=3");
	while (model.group_of[0] != model.group_of[1]) {
		close_model(&model);
		open_model(&model, ++grouping, "stage=3");
	}
	fails(zero_restore(model.job, dir, NULL), ZERO_E_FORMAT,
	      "put them into groups of their own");
	close_model(&model);
}

static int count_open_files(void)
{
	DIR *list = opendir("/proc/self/fd");
	int count = 0;

	check(list, "no /proc");
	while (readdir(list))
		count++;
	closedir(list);
	return count;
}

static void damaged(const char *dir)
{
	struct model model = {0};
	const char *flips = getenv("ZERO_TEST_FLIPS");
	struct digests saved, got;
	char path[1200];
	size_t world;
	int files;

	model.job = open_job("stage=3");
	world = (size_t)zero_world(model.job);
	close_model(&model);
	make_tensors(&model, test_seed() ^ 9, SMALL);
	/* A rank's part of one tensor has more blocks than are read at once. */
	model.tensors[0].ndim = 1;
	model.tensors[0].count = 150000 * world;
	model.tensors[0].shape[0] = model.tensors[0].count;
	model.tensors[TENSORS - 1].tied = -1;
	open_model(&model, 3, "stage=3");
	load_values(&model);
	train(&model, 2);
	save(&model, dir);
	saved = digest(&model);
	snprintf(path, sizeof(path), "%s/step-%09d", dir, 2);
	restore(&model, path, 2, zero_world(model.job));
	files = count_open_files();
	damage(&model, path, flips ? atoi(flips) : 30);
	check(count_open_files() == files, "%d files are open, not %d", count_open_files(), files);
	restore(&model, path, 2, zero_world(model.job));
	got = digest(&model);
	expect_same(&model, &got, &saved, "after the damage");
	close_model(&model);
}

/* ---- two numbers of ranks -------------------------------------------------------------------- */

static void save_half(const char *dir, size_t size, const char *export)
{
	struct model model = {0};
	uint64_t random = test_seed() ^ 21;
	char settings[256];

	make_tensors(&model, test_seed(), size);
	choose_settings(&random, settings, sizeof(settings));
	open_model(&model, draw(&random), size == LARGE ? "stage=3" : settings);
	load_values(&model);
	train(&model, size == LARGE ? 1 : BEFORE);
	save(&model, dir);
	if (export)
		ok(zero_export(model.job, export));
	close_model(&model);
}

/* Restores what was saved at `ranks` ranks, and compares it with a model that trains here. */
static void load_half(const char *dir, size_t size, int ranks)
{
	int before = size == LARGE ? 1 : BEFORE;
	uint64_t random = test_seed() ^ (uint64_t)zero_rank(NULL);
	struct model model = {0}, again;
	struct digests saved, end, got;
	char settings[256];
	double total;

	random = test_seed() ^ 22;
	make_tensors(&model, test_seed(), size);
	open_model(&model, draw(&random), "stage=3");
	load_values(&model);
	train(&model, before);
	saved = digest(&model);
	train(&model, AFTER);
	end = digest(&model);
	close_model(&model);
	again = model;
	choose_settings(&random, settings, sizeof(settings));
	open_model(&again, draw(&random), size == LARGE ? "stage=3" : settings);
	restore(&again, dir, (uint64_t)before, ranks);
	total = (double)bytes_read(again.job) * zero_world(again.job);
	ok(zero_mean(again.job, &total, 1, 1));
	if (size == LARGE) {
		if (!zero_rank(again.job))
			printf("%.0f bytes read of %.0f, %.4f\n", total, state_bytes(&again),
			       total / state_bytes(&again));
		/* A rank reads at most two blocks in part of each slice that it shares. */
		check(total <= state_bytes(&again) + TENSORS * (4.0 + STATES) *
							     (ranks + zero_world(again.job)) *
							     65536,
		      "%.0f bytes read of %.0f", total, state_bytes(&again));
	}
	got = digest(&again);
	expect_same(&again, &got, &saved, settings);
	train(&again, AFTER);
	got = digest(&again);
	expect_same(&again, &got, &end, settings);
	close_model(&again);
}

int main(int argc, char **argv)
{
	struct model model = {0};
	char dir[1100];

	if (argc >= 3 && !strcmp(argv[1], "save")) {
		save_half(argv[2], MEDIUM, argv[3]);
	} else if (argc >= 3 && !strcmp(argv[1], "save-large")) {
		save_half(argv[2], LARGE, NULL);
	} else if (argc >= 4 && !strcmp(argv[1], "load")) {
		load_half(argv[2], MEDIUM, atoi(argv[3]));
	} else if (argc >= 4 && !strcmp(argv[1], "load-large")) {
		load_half(argv[2], LARGE, atoi(argv[3]));
	} else {
		for (int i = 0; i < CASES; i++) {
			snprintf(dir, sizeof(dir), "%s/case%d", file_path(""), i);
			run_case(mixed(test_seed() + (uint64_t)i), dir, i != CASES - 1);
		}
		snprintf(dir, sizeof(dir), "%s/folders", file_path(""));
		folders(dir);
		other_models(dir);
		make_tensors(&model, test_seed() ^ 5, SMALL);
		states(&model, dir);
		snprintf(dir, sizeof(dir), "%s/own", file_path(""));
		own_steps(dir);
		snprintf(dir, sizeof(dir), "%s/thawed", file_path(""));
		thawed(dir);
		snprintf(dir, sizeof(dir), "%s/damaged", file_path(""));
		damaged(dir);
	}
	return 0;
}
