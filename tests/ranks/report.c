/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of a job beside what the ranks know themselves: bytes, memory, collectives and steps;
 * names that are markup; folders that cannot be written; jobs that end badly. report.py reads it.
 */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "ranks.h"

#define STRANGE "<b>&\"' \\ \xff\x01</svg>\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"

enum { GROUPS = 3 };

/* As the report has it: what is no UTF-8 cannot be saved. */
#define SAVED "<b>&\"' \\ ?\077</svg>\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"

static const char *strange = STRANGE;
static size_t slices; /* bytes of those of the first and the last group */
static zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[GROUPS];
	bool steps_itself;
	int saved, failed; /* checkpoints */
	int least, most;   /* submissions for such and exports */
};

static struct model new_model(const char *folder, int stage)
{
	const char *const names[GROUPS] = {"plain", strange, "half"};
	zero_source source = zero_from_normal(0, 1, test_seed());
	uint64_t state = test_seed() + (uint64_t)stage;
	struct model m = {
		.job = open_job("report=%s stage=%d%s", folder, stage, slices ? " share=1" : "")};
	char name[32];

	for (int g = 0; g < GROUPS; g++) {
		snprintf(name, sizeof(name), "p%d", g);
		m.groups[g] = new_group(m.job, names[g]);
		m.params[g] = new_param(m.groups[g], name, g == 2 ? ZERO_BF16 : ZERO_F32,
					1 + below(&state, 20000) + (slices && !g) * 20000, true);
		ok(zero_group_set_slices(m.groups[g], g == 1 ? 0 : slices));
	}
	ok(zero_layout(m.job));
	for (int g = 0; g < GROUPS; g++)
		ok(zero_load(m.params[g], &source));
	return m;
}

static void train(struct model *m, int steps)
{
	float *gradient;

	for (int step = 0; step < steps; step++) {
		for (int g = 0; g < GROUPS; g++) {
			ok(zero_gather(m->groups[g], ZERO_F32));
			gradient = zero_gradient(m->params[g]);
			check(gradient, "%s", zero_last_error());
			ok(zero_reduce(m->groups[g]));
			ok(zero_release(m->groups[g]));
		}
		if (m->steps_itself) {
			ok(zero_step_begin(m->job, m->groups, GROUPS));
			ok(zero_step_end(m->job, NULL));
		} else {
			ok(zero_step(m->job, &adamw, NULL));
		}
	}
}

static void write_bytes(FILE *out, const char *name, zero_bytes bytes)
{
	fprintf(out, "\"%s\":{\"now\":%zu,\"peak\":%zu}%s", name, bytes.now, bytes.peak,
		strcmp(name, "total") ? "," : "}}\n");
}

/* What this rank knows by itself. */
static void write_known(struct model *m, const char *folder, int steps, bool together)
{
	zero_traffic traffic;
	zero_memory memory;
	char path[1100];
	FILE *out;

	/* What a step still sends is before it in the queue. */
	ok(zero_agree(m->job, NULL));
	ok(zero_traffic_now(m->job, &traffic));
	ok(zero_memory_now(m->job, &memory));
	snprintf(path, sizeof(path), "%s/known.%d", folder, zero_rank(m->job));
	out = fopen(path, "w");
	check(out, "no file");
	fprintf(out,
		"{\"world\":%d,\"steps\":%d,\"agreements\":%d,\"together\":%s,\"stage\":%s,"
		"\"groups\":%d,"
		"\"bytes_sent\":%llu,\"collectives\":%llu,\"bytes_read\":%llu,"
		"\"stream_chunk\":%s,\"saved\":%d,\"failed\":%d,\"least\":%d,\"most\":%d,"
		"\"slices\":%zu,\"large\":%zu,\"memory\":{",
		zero_world(m->job), steps, m->steps_itself ? 2 * steps : steps,
		together ? "true" : "false", zero_setting(m->job, "stage"), GROUPS,
		(unsigned long long)traffic.bytes_sent, (unsigned long long)traffic.collectives,
		(unsigned long long)traffic.bytes_read, zero_setting(m->job, "stream_chunk"),
		m->saved, m->failed, m->least, m->most, zero_group_slice_count(m->groups[0]),
		4 * zero_param_numel(m->params[0]));
	write_bytes(out, "shards", memory.shards);
	write_bytes(out, "gathered", memory.gathered);
	write_bytes(out, "gradients", memory.gradients);
	write_bytes(out, "optimizer", memory.optimizer);
	write_bytes(out, "staging", memory.staging);
	write_bytes(out, "total", memory.total);
	check(!fclose(out), "no file");
}

/* Rank 0 has the files read by a program that knows nothing of the library. */
static void compare(const char *folder)
{
	const char *source = getenv("top_srcdir");
	char command[2400];

	check(source, "run me by tests/ranks/run.sh");
	if (system("python3 -c '' 2>/dev/null"))
		return;
	snprintf(command, sizeof(command), "python3 '%s/tests/ranks/report.py' '%s'", source,
		 folder);
	fflush(NULL);
	check(!system(command), "the report in %s is wrong", folder);
}

/* A folder of that name in the one that is shared, which need not be there. */
static char *folder_of(const char *name)
{
	char *path = strdup(file_path(name));

	check(path, "no memory");
	return path;
}

static void reports(const char *name, int stage, int steps, bool steps_itself)
{
	char *folder = folder_of(name);
	struct model m = new_model(folder, stage);
	int rank = zero_rank(m.job);

	m.steps_itself = steps_itself;
	train(&m, steps);
	write_known(&m, folder, steps, true);
	ok(zero_close(m.job));
	if (rank == 0)
		compare(folder);
	free(folder);
}

static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
	check(!setrlimit(RLIMIT_FSIZE, &limit), "no limit");
}

/* A job like another, but that each save takes 6 submissions, and an export 4. */
static void saves(const char *name, int stage, int steps)
{
	char *folder = folder_of(name), *checkpoints = folder_of("checkpoints");
	char *whole = folder_of("whole.safetensors");
	struct model m = new_model(folder, stage);
	int rank = zero_rank(m.job);

	ok(zero_save(m.job, checkpoints, &(zero_save_options){.background = true}));
	train(&m, steps);
	ok(zero_save_wait(m.job));
	ok(zero_save(m.job, checkpoints, NULL));
	ok(zero_export(m.job, whole));
	limit_files(100);
	ok(zero_save(m.job, checkpoints, &(zero_save_options){.background = true}));
	fails(zero_save_wait(m.job), ZERO_E_FILE, "File too large");
	limit_files(RLIM_INFINITY);
	m.saved = 2;
	m.failed = 1;
	m.least = 2 * 6 + 4 + 1;
	m.most = m.least + 6;
	write_known(&m, folder, steps, true);
	ok(zero_close(m.job));
	if (rank == 0)
		compare(folder);
	free(whole);
	free(checkpoints);
	free(folder);
}

/* One that begins with what that one began with. */
static void restores(const char *name, int stage, int steps)
{
	char *folder = folder_of(name), *first = folder_of("checkpoints/step-000000000");
	struct model m = new_model(folder, stage);
	int rank = zero_rank(m.job);

	ok(zero_restore(m.job, first, NULL));
	train(&m, steps);
	/* However many it takes, all ranks agree several times. */
	m.least = 2;
	m.most = 1000;
	write_known(&m, folder, steps, true);
	ok(zero_close(m.job));
	if (rank == 0)
		compare(folder);
	free(first);
	free(folder);
}

/* One rank has gone while the others are at something else. */
static void ends_badly(void)
{
	char *folder = folder_of("bad");
	struct model m = new_model(folder, 3);
	int rank = zero_rank(m.job), world = zero_world(m.job);

	train(&m, 2);
	write_known(&m, folder, 2, world == 1);
	if (rank != world - 1)
		fails(zero_agree(m.job, NULL), ZERO_E_ORDER, "zero_close");
	ok(zero_close(m.job));
	if (rank == 0)
		compare(folder);
	free(folder);
}

static void refuses(int world)
{
	zero_options options = {0};
	char *file = folder_of("file"), *settings, text[64];
	zero_job *job = open_job("stage=3");
	int rank = zero_rank(job);
	FILE *made;

	if (rank == 0) {
		made = fopen(file, "w");
		check(made && !fclose(made), "no file");
	}
	ok(zero_agree(job, NULL));
	ok(zero_close(job));
	check(asprintf(&settings, "report=%s/below", file) > 0, "no memory");
	options.settings = settings;
	fails(zero_open(&options, &job), ZERO_E_FILE, "cannot be made: Not a directory");
	check(strstr(zero_last_error(), "(from zero_open)"), "%s", zero_last_error());
	check(zero_last_error_rank() == 0, "%d", zero_last_error_rank());
	free(settings);
	if (world > 1) {
		snprintf(text, sizeof(text), "report=%s", rank == 1 ? "" : "/tmp");
		options.settings = text;
		fails(zero_open(&options, &job), ZERO_E_INVALID, "report is not the same");
	}
	free(file);
}

/* The folder is gone when the report is to be written: the job ends well, and rank 0 knows. */
static void loses_folder(void)
{
	char *folder = folder_of("lost"), command[1200];
	struct model m = new_model(folder, 2);
	int rank = zero_rank(m.job);

	train(&m, 1);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ok(zero_agree(m.job, rank == 0 && system(command) ? "rm" : NULL));
	ok(zero_close(m.job));
	check(rank || strstr(zero_last_error(), "cannot be written: No such file"), "%s",
	      zero_last_error());
	free(folder);
}

/* What a job that is killed after its first steps has left. It is written once a minute, then as
   another file. A restarted job has a name of its own, whoever restarted it. */
static void is_partial(void)
{
	char *folder = folder_of("partial"), command[1200];
	time_t begun = time(NULL);
	struct model m;

	setenv("ZERO_RESTART", "1", 1);
	setenv("SLURM_RESTART_COUNT", "2", 1);
	m = new_model(folder, 3);
	unsetenv("ZERO_RESTART");
	unsetenv("SLURM_RESTART_COUNT");
	train(&m, 1);
	if (zero_rank(m.job) == 0) {
		snprintf(command, sizeof(command),
			 "cd '%s' && test $(ls -A | wc -l) = 2 && test -s zero-*-restart-3-*.html "
			 "&& "
			 "grep -q '\"complete\":false' zero-*-restart-3-*.json && "
			 "ls -i >../first",
			 folder);
		check(!system(command), "no report of a job that runs");
	}
	train(&m, 2);
	if (zero_rank(m.job) == 0 && time(NULL) < begun + 50) {
		snprintf(command, sizeof(command), "cd '%s' && ls -i | cmp - ../first", folder);
		check(!system(command), "a report was written twice in a minute");
	}
	ok(zero_close(m.job));
	free(folder);
}

/* A relative folder is below the one that the program is in when it opens the job. */
static void is_relative(void)
{
	char here[1024], *folder = folder_of("a");
	struct model m;
	int rank;

	check(getcwd(here, sizeof(here)), "no folder");
	check(!chdir(getenv("ZERO_TEST_FILES")), "no folder");
	m = new_model("a/b", 3);
	rank = zero_rank(m.job);
	check(!chdir("/"), "no folder");
	train(&m, 1);
	ok(zero_close(m.job));
	strcat(strcpy(here, folder), "/b");
	check(rank || !access(here, W_OK), "%s is not there", here);
	free(folder);
}

int main(void)
{
	zero_job *job = open_job("stage=3");
	int world = zero_world(job);

	ok(zero_close(job));
	for (int stage = 0; stage <= 3; stage++) {
		char name[16];

		snprintf(name, sizeof(name), "stage%d", stage);
		reports(name, stage, 3 + stage, false);
	}
	strange = SAVED;
	reports("like", 3, 4, false);
	saves("like-saves", 3, 4);
	restores("like-restores", 3, 4);
	strange = STRANGE;
	reports("none", 3, 0, false);
	slices = 4096;
	reports("sliced", 3, 0, false);
	slices = 0;
	reports("own", 3, 4, true);
	reports("own0", 0, 3, true);
	ends_badly();
	refuses(world);
	loses_folder();
	is_partial();
	is_relative();
	return 0;
}
