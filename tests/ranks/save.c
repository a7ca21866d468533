/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_save: the files have, byte for byte, the values of the moment of the call, at each stage and
 * whatever the program does next. A save that fails leaves the last checkpoint as it was. This
 * program reads the files itself.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "save_model.h"
#include "double/disk.h"

static struct moment now, then;
static char dir[1024];

/* ---- no memory, and a slow thread ------------------------------------------------------------ */

/* slow_thread: after it has unlocked anything the training thread waits until a few writes more
   have begun, so that the two take turns at each slice. */
static atomic_int no_memory, slow_thread;

/* Sanitizers define these themselves. */
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

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
	static int (*real)(pthread_mutex_t *);
	static uint64_t random;
	int result, until;

	if (!real)
		*(void **)(void *)&real = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
	result = real(mutex);
	if (!slow_thread || gettid() != getpid())
		return result;
	until = disk.writes + (int)below(&random, 4);
	for (int i = 0; i < 20 && disk.writes < until; i++)
		usleep(100);
	return result;
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

/* The two moments that were remembered. */
static void check_same(const struct model *model)
{
	check(now.steps == then.steps, "another step %d", (int)now.steps);
	for (size_t p = 0; p < PARAMS; p++)
		check(!memcmp(now.values[p], then.values[p], value_bytes(model, p)),
		      "another value of parameter %zu", p);
}

/* A step that is taken again after a restore gives the same values. */
static void restore_and_step(struct model *model)
{
	zero_checkpoint_info checkpoint = {0};

	step_model(model, NULL);
	remember(model, &now);
	ok(zero_restore(model->job, dir, &checkpoint));
	model->steps = checkpoint.step;
	check_states(model, model->steps);
	check(checkpoint.user_bytes == 8 && !memcmp(checkpoint.user, "place 17", 8), "user");
	zero_checkpoint_info_free(&checkpoint);
	step_model(model, NULL);
	remember(model, &then);
	check_same(model);
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
	close_model(&model);
}

/* A step that is skipped does not count, also if nobody asked for its result. */
static void skipped(uint64_t seed)
{
	struct model model = open_model("stage=3", seed);
	float *sums = NULL;

	use_dir("skipped");
	load_model(&model, seed);
	step_model(&model, NULL);
	remember(&model, &now);
	for (size_t p = 0; p < KINDS && !sums; p++)
		sums = zero_gradient(model.params[p]);
	check(sums, "%s", zero_last_error());
	if (rank == last)
		sums[0] = INFINITY;
	ok(zero_reduce(model.groups[0]));
	step_model(&model, NULL);
	fill_states(&model, now.steps);
	ok(zero_save(model.job, dir, NULL));
	check_latest(now.steps);
	check_checkpoint(&model, dir, &now, NULL);
	close_model(&model);
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
	if (rank == 0) {
		char *later = strdup(in_dir("step-1234567890"));

		check(!rename(in_dir("step-000000002"), later), "no rename");
		free(later);
	}
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
	close_model(&model);
}

/* ---- in the background ----------------------------------------------------------------------- */

static void check_copies(struct model *model, uint64_t steps)
{
	size_t most = own_bytes(dir, steps);
	zero_memory memory;

	ok(zero_memory_now(model->job, &memory));
	check(!memory.checkpoint.now, "%zu bytes are still there", memory.checkpoint.now);
	/* Copies are rounded up to pages for each group and kind. */
	check(memory.checkpoint.peak <= most + most / 8 + GROUPS * 5 * 8192, "%zu bytes, not %zu",
	      memory.checkpoint.peak, most);
}

enum change {
	STEPS,
	STEPS_SLOWLY,
	LOADS,
	LOADS_WITHOUT_MEMORY,
	LOADS_MODEL,
	UPDATES,
	WRITES,
	RESTORES
};

static void change_values(struct model *model, enum change change, uint64_t seed)
{
	zero_source source = zero_from_constant(3);

	if (change == STEPS || change == STEPS_SLOWLY) {
		slow_thread = change == STEPS_SLOWLY;
		step_model(model, NULL);
		slow_thread = 0;
		step_model(model, NULL);
	} else if (change == LOADS || change == LOADS_WITHOUT_MEMORY) {
		no_memory = !on_gpu() && change == LOADS_WITHOUT_MEMORY;
		load_model(model, seed + 1);
		no_memory = 0;
	} else if (change == LOADS_MODEL) {
		ok(zero_load_model(model->job, file_path("model.safetensors"), NULL, NULL));
	} else if (change == WRITES) {
		size_t first, count;
		void *data;

		for (int g = 0; g < 2; g++) {
			ok(zero_write_begin(model->groups[g]));
			ok(zero_shard(model->params[9 * g], &data, &first, &count));
			if (count)
				memset(data, 0x3c,
				       count * zero_dtype_size(
						       zero_param_dtype(model->params[9 * g])));
			ok(zero_write_end(model->groups[g]));
		}
	} else if (change == RESTORES) {
		ok(zero_restore(model->job, in_dir("step-000000000"), NULL));
		model->steps = 0;
		check_states(model, 0);
	} else {
		drop_states(model);
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
	if (change == LOADS_MODEL)
		ok(zero_export(model.job, file_path("model.safetensors")));
	step_model(&model, NULL);
	remember(&model, &then);
	options.user = user;
	disk.slow_us = 300;
	/* The write of the second of three pieces, after the header and rank 0's user bytes. */
	disk.long_at = 3 + !rank;
	ok(zero_save(model.job, dir, &options));
	memset(user, 'x', sizeof(user) - 1);
	change_values(&model, change, seed);
	disk.slow_us = 0;
	ok(zero_save_wait(model.job));
	check_latest(1);
	check_checkpoint(&model, dir, &then, "behind");
	check_copies(&model, 1);
	/* Two saves: the second waits for the first. */
	remember(&model, &now);
	if (change == STEPS) {
		disk.slow_us = 100;
		ok(zero_save(model.job, dir, &options));
		step_model(&model, NULL);
		ok(zero_save(model.job, dir, &options));
		disk.slow_us = 0;
		check_checkpoint(&model, dir, &now, "xxxxxx");
	}
	close_model(&model);
}

/* A group is dropped before its save has its manifest, and the memory of its names is poisoned. */
static void dropped(uint64_t seed)
{
	struct model model = open_model("stage=3", seed);
	zero_save_options options = {.background = true};

	use_dir("dropped");
	load_model(&model, seed);
	step_model(&model, NULL);
	remember(&model, &then);
	disk.slow_us = 300;
	ok(zero_save(model.job, dir, &options));
	mallopt(M_PERTURB, 0x5a);
	ok(zero_group_drop(model.groups[1]));
	mallopt(M_PERTURB, 0);
	disk.slow_us = 0;
	ok(zero_save_wait(model.job));
	close_model(&model);
	model = open_model("stage=3", seed);
	check_checkpoint(&model, dir, &then, NULL);
	ok(zero_restore(model.job, in_dir("step-000000001"), NULL));
	close_model(&model);
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
	close_model(&model);
}

/* The job is closed during the save. */
static void by_close(uint64_t seed)
{
	struct model model = open_model("stage=2", seed), other;
	zero_save_options options = {.background = true};

	use_dir("close");
	load_model(&model, seed);
	remember(&model, &then);
	disk.slow_us = 200;
	ok(zero_save(model.job, dir, &options));
	close_model(&model);
	disk.slow_us = 0;
	other = open_model("stage=3", seed);
	meet(&other);
	check_latest(0);
	check_checkpoint(&other, dir, &then, NULL);
	close_model(&other);
}

/* One rank fails during the save: there is no checkpoint, and no partial files remain. */
static void by_failure(uint64_t seed)
{
	struct model model = open_model("stage=3", seed);
	zero_save_options options = {.background = true};
	double value = 1;

	use_dir("failure");
	load_model(&model, seed);
	disk.slow_us = 200;
	ok(zero_save(model.job, dir, &options));
	if (rank == last)
		fails(zero_mean(model.job, &value, 1, 1), ZERO_E_ORDER, "zero_close");
	close_model(&model);
	disk.slow_us = 0;
	model = open_model("stage=3", seed);
	meet(&model);
	check(!count_named(""), "partial files remain");
	close_model(&model);
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
	close_model(&model);
}

/* What the disk of one rank refuses: its first or its sixth write, or a sync. */
enum failure { FIRST_WRITE, SIXTH_WRITE, SYNC, FAILURES };

static void break_disk(enum failure failure)
{
	disk.full_at = failure == FIRST_WRITE ? 1 : failure == SIXTH_WRITE ? 6 : 0;
	disk.sync_fails_at = failure == SYNC;
}

static void broken_disk(int from, enum failure failure, bool background, uint64_t seed)
{
	const char *words = failure == SYNC ? "Input/output error" : "No space left";
	struct model model = open_model("stage=1", seed);
	zero_save_options options = {.background = background};
	zero_status status;

	load_model(&model, seed);
	remember(&model, &then);
	ok(zero_save(model.job, dir, NULL));
	step_model(&model, NULL);
	if (rank == from)
		break_disk(failure);
	status = zero_save(model.job, dir, &options);
	if (background && !status) {
		step_model(&model, NULL);
		step_model(&model, NULL);
		status = zero_save_wait(model.job);
	}
	check(status == ZERO_E_FILE, "%s", zero_strerror(status));
	check(strstr(zero_last_error(), words), "%s", zero_last_error());
	check(zero_last_error_rank() == from, "%d: %s", zero_last_error_rank(), zero_last_error());
	meet(&model);
	check_latest(0);
	check(count_named("") == 2, "%zu names", count_named(""));
	check_checkpoint(&model, dir, &then, NULL);
	ok(zero_save_wait(model.job));
	/* The next save succeeds, and returns the error of the earlier one. */
	if (rank == from)
		break_disk(failure);
	options.background = true;
	ok(zero_save(model.job, dir, &options));
	step_model(&model, NULL);
	remember(&model, &now);
	fails(zero_save(model.job, dir, NULL), ZERO_E_FILE, words);
	check_latest(now.steps);
	check_checkpoint(&model, dir, &now, NULL);
	close_model(&model);
}

static void broken_disks(uint64_t seed)
{
	for (int i = 0; i < 2 * FAILURES; i++) {
		char name[32];

		snprintf(name, sizeof(name), "broken-%d", i);
		use_dir(name);
		broken_disk(i & 1 ? last : 0, (enum failure)(i % FAILURES), i >= FAILURES, seed);
	}
}

/* A disk that takes and gives few bytes at once. */
static void few_bytes(uint64_t seed)
{
	struct model model = open_model("stage=3", seed);

	use_dir("few");
	load_model(&model, seed);
	remember(&model, &then);
	disk.most_bytes = 50001;
	ok(zero_save(model.job, dir, NULL));
	ok(zero_export(model.job, in_dir("model.safetensors")));
	disk.most_bytes = 0;
	check_checkpoint(&model, dir, &then, NULL);
	for (int i = 0; i < 2; i++) {
		load_model(&model, seed + 1);
		disk.most_bytes = 50001;
		ok(i ? zero_restore(model.job, dir, NULL)
		     : zero_load_model(model.job, in_dir("model.safetensors"), NULL, NULL));
		disk.most_bytes = 0;
		remember(&model, &now);
		check_same(&model);
	}
	close_model(&model);
}

int main(void)
{
	static const struct {
		const char *settings;
		enum change change;
	} cases[] = {{"stage=0", STEPS},
		     {"stage=1 allgather=single", LOADS_WITHOUT_MEMORY},
		     {"stage=2 stream_chunk=100000", UPDATES},
		     {"stage=3", RESTORES},
		     {"stage=3 offload=optimizer stream_chunk=64K", STEPS},
		     {"stage=1 offload=optimizer", LOADS},
		     {"stage=3", LOADS_MODEL},
		     {"stage=3", WRITES},
		     {"stage=3", STEPS_SLOWLY}};
	uint64_t seed = test_seed();
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	ok(zero_close(job));
	nothing();
	skipped(seed);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (i < 6)
			foreground(cases[i].settings, seed + i);
		background(cases[i].settings, cases[i].change, seed + i);
	}
	dropped(seed);
	few_bytes(seed);
	large = false;
	retention(seed);
	by_steps(seed);
	by_close(seed);
	if (world > 1)
		by_failure(seed);
	refused(seed);
	broken_disks(seed);
	return 0;
}
