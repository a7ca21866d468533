/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_save: the files have, byte for byte, the values of the moment of the call, at each stage and
 * whatever the program does next. A save that fails leaves the last checkpoint as it was. This
 * program reads the files itself.
 */
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "save_model.h"

static struct moment now, then;
static char dir[1024];

/* ---- a slow disk, a full one, and no memory -------------------------------------------------- */

/* The delay of every write, and the number of the write that takes long or fails; 0: none. */
static atomic_int slow_us, long_at, full_after, no_memory;

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at);
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at);

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
	if (slow_us)
		usleep((useconds_t)slow_us);
	if (long_at && !--long_at)
		usleep(50000);
	if (full_after && !--full_after) {
		errno = ENOSPC;
		return -1;
	}
	return (ssize_t)syscall(SYS_pwrite64, fd, data, bytes, at);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at)
{
	return pwrite(fd, data, bytes, at);
}

/* Sanitizers define mmap themselves. */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t offset);

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	if (no_memory && flags & MAP_ANONYMOUS) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
	return mmap(at, bytes, protection, flags, fd, offset);
}
#endif

/* ---- the folder ------------------------------------------------------------------------------ */

static const char *in_dir(const char *name)
{
	static char path[1200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static bool is_there(const char *name)
{
	return !access(in_dir(name), F_OK);
}

/* Counts the entries whose names contain `words`. */
static size_t count_named(const char *words)
{
	struct dirent *entry;
	size_t count = 0;
	DIR *list = opendir(dir);

	check(list, "no folder %s", dir);
	while ((entry = readdir(list)))
		count += entry->d_name[0] != '.' && strstr(entry->d_name, words);
	closedir(list);
	return count;
}

static void check_latest(uint64_t steps)
{
	char want[64], got[64] = "";

	snprintf(want, sizeof(want), "step-%09llu", (unsigned long long)steps);
	check(readlink(in_dir("latest"), got, sizeof(got) - 1) > 0, "no latest");
	check(!strcmp(want, got), "latest is %s, not %s", got, want);
	check(!count_named(".partial-"), "partial files remain");
}

/* Each case has its own folder. */
static void use_dir(const char *name)
{
	snprintf(dir, sizeof(dir), "%s", file_path(name));
}

static void meet(struct model *model)
{
	ok(zero_agree(model->job, NULL));
}

/* ---- in the foreground ----------------------------------------------------------------------- */

/* A step that is taken again after a restore gives the same values. */
static void restore_and_step(struct model *model)
{
	zero_checkpoint_info checkpoint = {0};

	step_model(model, NULL);
	remember(model, &now);
	ok(zero_restore(model->job, dir, &checkpoint));
	model->steps = checkpoint.step;
	check(checkpoint.user_bytes == 8 && !memcmp(checkpoint.user, "place 17", 8), "user");
	zero_checkpoint_info_free(&checkpoint);
	step_model(model, NULL);
	remember(model, &then);
	check(now.steps == then.steps && !memcmp(now.values, then.values, sizeof(now.values)),
	      "another step %d", (int)now.steps);
}

static void foreground(const char *settings, uint64_t seed)
{
	static int turn;
	char name[32];
	struct model model = open_model(settings, seed);
	zero_save_options options = {.user = "place 17", .user_bytes = 8};
	zero_memory memory;

	snprintf(name, sizeof(name), "fore-%d", turn++);
	use_dir(name);
	load_model(&model, seed);
	remember(&model, &now);
	ok(zero_save(model.job, dir, NULL));
	check_latest(0);
	check_checkpoint(&model, dir, &now, NULL);
	for (int i = 0; i < 2; i++) {
		step_model(&model, NULL);
		/* At stages 1 and 2 the gather of new values may still run. */
		ok(zero_save(model.job, dir, &options));
	}
	remember(&model, &now);
	check_latest(2);
	check_checkpoint(&model, dir, &now, "place 17");
	ok(zero_memory_now(model.job, &memory));
	check(!memory.checkpoint.peak, "%zu bytes of copies", memory.checkpoint.peak);
	restore_and_step(&model);
	ok(zero_close(model.job));
}

/* A job without parameters, and a folder's name that ends in slashes. */
static void nothing(void)
{
	zero_job *job = open_job("stage=3");
	char path[1100];

	use_dir("nothing");
	fails(zero_save(job, dir, NULL), ZERO_E_STATE, "after zero_layout");
	ok(zero_layout(job));
	snprintf(path, sizeof(path), "%s//", dir);
	ok(zero_save(job, path, &(zero_save_options){.user = "", .user_bytes = 0}));
	check_latest(0);
	ok(zero_save_wait(job));
	ok(zero_close(job));
}

static void make_leftovers(void)
{
	static const char *const names[] = {"step-000000001.partial-0123456789abcdef",
					    "step-000000099.partial-0123456789abcde", "notes"};

	for (int i = 0; i < 3; i++) {
		char path[1300];
		FILE *file;

		check(!mkdir(in_dir(names[i]), 0700), "%s", in_dir(names[i]));
		snprintf(path, sizeof(path), "%s/file", in_dir(names[i]));
		file = fopen(path, "w");
		check(file, "no %s", path);
		fclose(file);
	}
	check(!symlink("nowhere", in_dir("latest.partial-0123456789abcdef")), "no link");
}

static void retention(uint64_t seed)
{
	struct model model = open_model("stage=3", seed);
	zero_save_options options = {.keep_last = 2};

	use_dir("retention");
	load_model(&model, seed);
	if (rank == 0) {
		check(!mkdir(dir, 0700), "no %s", dir);
		make_leftovers();
	}
	for (int i = 0; i < 4; i++) {
		options.background = i % 2;
		ok(zero_save(model.job, dir, &options));
		ok(zero_save_wait(model.job));
		check(is_there("notes/file"), "a folder of another program is gone");
		step_model(&model, NULL);
	}
	check(!is_there("step-000000001.partial-0123456789abcdef"), "a leftover is there");
	check(!is_there("latest.partial-0123456789abcdef"), "a leftover is there");
	check(is_there("step-000000099.partial-0123456789abcde/file"), "too much is gone");
	check(is_there("step-000000002") && is_there("step-000000003"), "too few");
	check(!is_there("step-000000001") && !is_there("step-000000000"), "too many");
	meet(&model);
	/* A later step, from before the job was restored. */
	if (rank == 0)
		check(!rename(in_dir("step-000000002"), strdup(in_dir("step-1234567890"))),
		      "no rename");
	meet(&model);
	options.background = false;
	ok(zero_save(model.job, dir, &options));
	check(is_there("step-000000003") && is_there("step-000000004"), "too few");
	check(!is_there("step-1234567890"), "too many");
	/* The same step again, with other bytes. */
	ok(zero_save(model.job, dir, &(zero_save_options){.user = "other", .user_bytes = 5}));
	remember(&model, &now);
	check_checkpoint(&model, dir, &now, "other");
	check(is_there("step-000000003"), "an old checkpoint was deleted");
	ok(zero_close(model.job));
}

/* ---- in the background ----------------------------------------------------------------------- */

static void check_copies(struct model *model, uint64_t steps)
{
	size_t most = own_bytes(dir, steps);
	zero_memory memory;

	ok(zero_memory_now(model->job, &memory));
	check(!memory.checkpoint.now, "%zu bytes are still there", memory.checkpoint.now);
	/* Copies are rounded up to pages for each group and kind. */
	check(memory.checkpoint.peak <= most + most / 8 + GROUPS * 4 * 8192, "%zu bytes, not %zu",
	      memory.checkpoint.peak, most);
}

enum change { STEPS, LOADS, UPDATES, RESTORES, CHANGES };

static void change_values(struct model *model, enum change change, uint64_t seed)
{
	zero_source source = zero_from_constant(3);

	if (change == STEPS) {
		step_model(model, NULL);
		step_model(model, NULL);
	} else if (change == LOADS) {
		load_model(model, seed + 1);
	} else if (change == RESTORES) {
		ok(zero_restore(model->job, in_dir("step-000000000"), NULL));
		model->steps = 0;
	} else {
		/* Values that are gathered in another type are not the ones that are saved. */
		ok(zero_gather(model->groups[1], ZERO_F32));
		if (rank == last && zero_gathered_dtype(model->params[8 + 1]) == ZERO_F32)
			((float *)zero_data(model->params[8 + 1]))[0] = 42;
		ok(zero_param_changed(model->params[8 + 1], last));
		ok(zero_release(model->groups[1]));
		ok(zero_load(model->params[0], &source));
	}
}

static void background(const char *settings, enum change change, uint64_t seed)
{
	static int turn;
	struct model model = open_model(settings, seed);
	zero_save_options options = {.user = "behind", .user_bytes = 6, .background = true};
	char name[32], user[] = "behind";

	snprintf(name, sizeof(name), "back-%d", turn++);
	use_dir(name);
	load_model(&model, seed);
	if (change == RESTORES)
		ok(zero_save(model.job, dir, NULL));
	step_model(&model, NULL);
	remember(&model, &then);
	options.user = user;
	slow_us = 300;
	/* The write of the second of three pieces, after the header and rank 0's user bytes. */
	long_at = rank ? 3 : 4;
	ok(zero_save(model.job, dir, &options));
	memset(user, 'x', sizeof(user) - 1);
	no_memory = !on_gpu() && change == LOADS && turn % 2;
	change_values(&model, change, seed);
	no_memory = 0;
	slow_us = 0;
	ok(zero_save_wait(model.job));
	check_latest(1);
	check_checkpoint(&model, dir, &then, "behind");
	check_copies(&model, 1);
	/* Two saves: the second waits for the first. */
	remember(&model, &now);
	if (change == STEPS) {
		slow_us = 100;
		ok(zero_save(model.job, dir, &options));
		step_model(&model, NULL);
		ok(zero_save(model.job, dir, &options));
		slow_us = 0;
		check_checkpoint(&model, dir, &now, "xxxxxx");
	}
	ok(zero_close(model.job));
}

/* Steps alone complete the save. */
static void by_steps(uint64_t seed)
{
	struct model model = open_model("stage=3", seed);
	zero_save_options options = {.background = true};
	char text[64];
	int tries = 0;

	use_dir("steps");
	load_model(&model, seed);
	remember(&model, &then);
	ok(zero_save(model.job, dir, &options));
	do {
		step_model(&model, NULL);
		usleep(1000);
		meet(&model);
		check(tries++ < 10000, "the save does not end");
		snprintf(text, sizeof(text), "%s", is_there("latest") ? "" : "not yet");
	} while (zero_agree(model.job, *text ? text : NULL));
	check_checkpoint(&model, dir, &then, NULL);
	ok(zero_close(model.job));
}

/* The job is closed during the save. */
static void by_close(uint64_t seed)
{
	struct model model = open_model("stage=2", seed), other;
	zero_save_options options = {.background = true};

	use_dir("close");
	load_model(&model, seed);
	remember(&model, &then);
	slow_us = 1000;
	ok(zero_save(model.job, dir, &options));
	ok(zero_close(model.job));
	slow_us = 0;
	other = open_model("stage=3", seed);
	meet(&other);
	check_latest(0);
	check_checkpoint(&other, dir, &then, NULL);
	ok(zero_close(other.job));
}

/* One rank fails during the save: there is no checkpoint, and no partial files remain. */
static void by_failure(uint64_t seed)
{
	struct model model = open_model("stage=3", seed);
	zero_save_options options = {.background = true};
	double value = 1;

	use_dir("failure");
	load_model(&model, seed);
	slow_us = 1000;
	ok(zero_save(model.job, dir, &options));
	if (rank == last)
		fails(zero_mean(model.job, &value, 1, 1), ZERO_E_ORDER, "zero_close");
	ok(zero_close(model.job));
	slow_us = 0;
	model = open_model("stage=3", seed);
	meet(&model);
	check(!count_named(""), "partial files remain");
	ok(zero_close(model.job));
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void refused(uint64_t seed)
{
	struct model model = open_model("stage=3", seed);
	char path[1100];

	load_model(&model, seed);
	snprintf(path, sizeof(path), "%s", file_path("no/where"));
	fails(zero_save(model.job, path, NULL), ZERO_E_FILE, "no/where");
	check(zero_last_error_rank() == 0, "%d", zero_last_error_rank());
	fails(zero_save(model.job, "/proc", NULL), ZERO_E_FILE, "/proc/step-000000000");
	fails(zero_save(model.job, "", NULL), ZERO_E_INVALID, "name of a folder");
	fails(zero_save(model.job, path, &(zero_save_options){.keep_last = -1}), ZERO_E_INVALID,
	      "-1");
	ok(zero_gather(model.groups[0], ZERO_DTYPE_PARAM));
	fails(zero_save(model.job, path, NULL), ZERO_E_STATE, "release it");
	ok(zero_release(model.groups[0]));
	ok(zero_save_wait(model.job));
	if (world > 1)
		fails(zero_save(model.job, rank ? path : "/tmp", NULL), ZERO_E_ORDER, "save of");
	ok(zero_close(model.job));
}

/* The disk is full on one rank at its n-th write. */
static void full_disk(int from, int writes, bool background, uint64_t seed)
{
	struct model model = open_model("stage=1", seed);
	zero_save_options options = {.background = background};
	zero_status status;

	load_model(&model, seed);
	remember(&model, &then);
	ok(zero_save(model.job, dir, NULL));
	step_model(&model, NULL);
	full_after = rank == from ? writes : 0;
	status = zero_save(model.job, dir, &options);
	if (background && !status) {
		step_model(&model, NULL);
		step_model(&model, NULL);
		status = zero_save_wait(model.job);
	}
	check(status == ZERO_E_FILE, "%s", zero_strerror(status));
	check(strstr(zero_last_error(), "No space left"), "%s", zero_last_error());
	check(zero_last_error_rank() == from, "%d: %s", zero_last_error_rank(), zero_last_error());
	meet(&model);
	check_latest(0);
	check(count_named("") == 2, "%zu names", count_named(""));
	check_checkpoint(&model, dir, &then, NULL);
	ok(zero_save_wait(model.job));
	/* The next save succeeds, and returns the error of the earlier one. */
	full_after = rank == from ? writes : 0;
	options.background = true;
	status = zero_save(model.job, dir, &options);
	if (!status) {
		step_model(&model, NULL);
		remember(&model, &now);
		fails(zero_save(model.job, dir, NULL), ZERO_E_FILE, "No space left");
		check_latest(now.steps);
		check_checkpoint(&model, dir, &now, NULL);
	}
	full_after = 0;
	ok(zero_close(model.job));
}

static void full_disks(uint64_t seed)
{
	for (int i = 0; i < 8; i++) {
		char name[32];

		snprintf(name, sizeof(name), "full-%d", i);
		use_dir(name);
		full_disk(i & 1 ? last : 0, i & 4 ? 6 : 1, i & 2, seed);
	}
}

int main(void)
{
	static const char *const settings[] = {"stage=0",
					       "stage=1 allgather=single",
					       "stage=2 stream_chunk=100000",
					       "stage=3",
					       "stage=3 offload=optimizer stream_chunk=64K",
					       "stage=1 offload=optimizer"};
	uint64_t seed = test_seed();
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	ok(zero_close(job));
	nothing();
	for (size_t i = 0; i < 6; i++)
		foreground(settings[i], seed + i);
	for (size_t i = 0; i < 6; i++)
		background(settings[i], (enum change)(i % CHANGES), seed + i);
	for (size_t i = 0; i < 4; i++)
		background(settings[i], STEPS, seed + i);
	retention(seed);
	by_steps(seed);
	by_close(seed);
	if (world > 1)
		by_failure(seed);
	refused(seed);
	full_disks(seed);
	return 0;
}
