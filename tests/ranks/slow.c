/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last rank, or its node, sleeps in each step until rank 0 has printed that it is slow, and
 * works as the others do until that has said that this ended: of steps of the library, and of the
 * program's own. Where slow ranks are not to be named nobody is. The report has what the lines say.
 * With GPUs it is the device that sleeps, while its host goes on.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "ranks.h"

enum { STEPS = 100 }; /* after so many, and one more, the first line may come */

static zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};

struct model {
	zero_job *job;
	zero_group *group;
	zero_param *param;
	bool steps_itself;
	int steps;
};

/* In one step: longer than what a busy machine takes from another rank, in the mean. */
static void sleep_now(void *unused)
{
	(void)unused;
	nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
}

static void *of_driver(const char *name)
{
	void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void *function = driver ? dlsym(driver, name) : NULL;

	check(function, "the driver has no %s", name);
	return function;
}

static struct {
	int (*retain)(void **context, int device), (*release)(int device);
	int (*push)(void *context), (*pop)(void **context);
	int (*launch)(void *stream, void (*function)(void *), void *user);
	int (*finish)(void *stream);
} driver;

static void find_driver(void)
{
	*(void **)&driver.retain = of_driver("cuDevicePrimaryCtxRetain");
	*(void **)&driver.release = of_driver("cuDevicePrimaryCtxRelease_v2");
	*(void **)&driver.push = of_driver("cuCtxPushCurrent_v2");
	*(void **)&driver.pop = of_driver("cuCtxPopCurrent_v2");
	*(void **)&driver.launch = of_driver("cuLaunchHostFunc");
	*(void **)&driver.finish = of_driver("cuStreamSynchronize");
}

/* What a step computes; the host waits for it after the step, as one does that shows its loss. */
static void compute(bool sleeps, bool finish)
{
	void *context;

	if (!on_gpu()) {
		if (sleeps)
			sleep_now(NULL);
		return;
	}
	if (!driver.launch)
		find_driver();
	check(!driver.retain(&context, 0) && !driver.push(context), "no context");
	check(!sleeps || !driver.launch(NULL, sleep_now, NULL), "nothing is launched");
	check(!finish || !driver.finish(NULL), "the device does not end it");
	check(!driver.pop(&context) && !driver.release(0), "no context");
}

static struct model new_model(const char *settings, bool steps_itself)
{
	zero_source source = zero_from_normal(0, 1, test_seed());
	struct model m = {.job = open_job("%s", settings), .steps_itself = steps_itself};

	m.group = new_group(m.job, "group");
	m.param = new_param(m.group, "p", ZERO_F32, 1000, true);
	ok(zero_layout(m.job));
	ok(zero_load(m.param, &source));
	return m;
}

static void step(struct model *m, bool sleeps)
{
	compute(sleeps, false);
	ok(zero_gather(m->group, ZERO_F32));
	check(zero_gradient(m->param), "%s", zero_last_error());
	ok(zero_reduce(m->group));
	ok(zero_release(m->group));
	if (m->steps_itself) {
		ok(zero_step_begin(m->job, &m->group, 1));
		ok(zero_step_end(m->job, NULL));
	} else {
		ok(zero_step(m->job, &adamw, NULL));
	}
	compute(false, true);
	m->steps++;
}

/* How often `words` are in what rank 0 has printed. The same on all ranks. */
static int printed(const struct model *m, const char *words)
{
	static char text[1 << 16];
	double found = 0;
	ssize_t length;
	int file;

	if (zero_rank(m->job) == 0) {
		file = open(file_path("printed"), O_RDONLY | O_CLOEXEC);
		length = read(file, text, sizeof(text) - 1);
		check(length >= 0, "nothing can be read");
		text[length] = '\0';
		close(file);
		for (const char *at = text; (at = strstr(at, words)); at++)
			found++;
	}
	ok(zero_mean(m->job, &found, 1, zero_rank(m->job) == 0));
	return (int)found;
}

/* Steps until rank 0 has printed the words. */
static void step_until(struct model *m, bool sleeps, const char *words)
{
	do {
		for (int i = 0; i < STEPS; i++)
			step(m, sleeps);
	} while (!printed(m, words));
}

static void check_report(const char *folder, const char *who)
{
	static char text[1 << 20];
	char path[1400], words[100];
	struct dirent *entry;
	DIR *all = opendir(folder);
	ssize_t length = 0;
	int file;

	check(all, "no folder %s", folder);
	while ((entry = readdir(all))) {
		if (!strstr(entry->d_name, ".json"))
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		file = open(path, O_RDONLY | O_CLOEXEC);
		length = read(file, text, sizeof(text) - 1);
		close(file);
	}
	closedir(all);
	check(length > 0, "no report in %s", folder);
	text[length] = '\0';
	snprintf(words, sizeof(words), "\"slow\":[{\"who\":\"%s", who);
	check(strstr(text, words), "no %s in the report", words);
}

/* From here on rank 0 prints to a new file; what a check says goes where it did before. */
static void print_to_file(void)
{
	int before = dup(STDERR_FILENO);
	int file = open(file_path("printed"), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);

	check(before >= 0 && file >= 0, "no file to print to");
	stderr = fdopen(before, "w");
	check(stderr, "no stream");
	dup2(file, STDERR_FILENO);
	close(file);
}

/* How many ranks are slow: the last one, or all of its node where run.sh has made several. */
static int slow_ranks(void)
{
	const char *ranks = getenv("DOUBLE_RANKS_OF_NODE");

	return ranks ? atoi(ranks) : 1;
}

static void is_named(bool steps_itself)
{
	char folder[1100], settings[1200], who[64], line[80];
	struct model m;
	int slow;

	snprintf(folder, sizeof(folder), "%s", file_path(steps_itself ? "own" : "library"));
	snprintf(settings, sizeof(settings), "slow=50 report=%s", folder);
	m = new_model(settings, steps_itself);
	slow = zero_world(m.job) - slow_ranks();
	if (slow_ranks() == 1)
		snprintf(who, sizeof(who), "rank %d on node ", slow);
	else
		snprintf(who, sizeof(who), "ranks %d to %d on node node1", slow,
			 zero_world(m.job) - 1);
	snprintf(line, sizeof(line), "zero: %s", who);
	if (zero_rank(m.job) == 0)
		check(!truncate(file_path("printed"), 0), "no file");
	if (slow) {
		step_until(&m, zero_rank(m.job) >= slow, line);
		/* While it lasts nothing else is printed. */
		for (int i = 0; i < 2 * STEPS; i++)
			step(&m, zero_rank(m.job) >= slow);
		check(printed(&m, "zero: ") == 1, "%d lines", printed(&m, "zero: "));
		step_until(&m, false, " no longer slow since step ");
	}
	ok(zero_close(m.job));
	if (slow && zero_rank(NULL) == 0)
		check_report(folder, who);
}

/* Without the option, and alone. */
static void nobody_is_named(const char *settings)
{
	struct model m = new_model(settings, false);
	bool sleeps = zero_rank(m.job) == zero_world(m.job) - 1 && zero_world(m.job) > 1;

	if (zero_rank(m.job) == 0)
		check(!truncate(file_path("printed"), 0), "no file");
	while (m.steps < 2 * STEPS + 1)
		step(&m, sleeps);
	check(!printed(&m, "slow"), "a rank is named");
	ok(zero_close(m.job));
}

int main(void)
{
	/* Each rank has the file open; rank 0 alone prints, and reads it. */
	print_to_file();
	is_named(false);
	is_named(true);
	nobody_is_named("slow=no");
	return 0;
}
