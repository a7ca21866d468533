/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint is there as a whole or not at all. What a power failure leaves follows from the
 * order in which files are written, synced and renamed, which tests/double/disk.c logs. What a kill
 * leaves is seen: a process alone is killed at each of these calls, and the next one goes on from
 * there.
 */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "double/disk.h"
#include "ranks.h"

enum { COUNT = 70000, LINES = 2000 };

static char dir[1024], log_path[1024];

struct model {
	zero_job *job;
	zero_param *params[2];
};

static struct model open_model(const char *settings)
{
	struct model model = {.job = open_job("%s", settings)};
	zero_group *group = new_group(model.job, "layer");

	model.params[0] = new_param(group, "w", ZERO_F32, COUNT, true);
	model.params[1] = new_param(group, "h", ZERO_BF16, COUNT, true);
	ok(zero_layout(model.job));
	return model;
}

static void set_values(struct model *model, uint64_t value)
{
	zero_source source = zero_from_constant((double)value);

	for (int i = 0; i < 2; i++)
		ok(zero_load(model->params[i], &source));
}

/* A step that changes nothing but their number. */
static void step(struct model *model)
{
	ok(zero_step(model->job, &(zero_adamw){.lr = 0, .eps = 1}, NULL));
}

static void save(struct model *model, const char *user, bool background)
{
	zero_save_options options = {
		.user = user, .user_bytes = strlen(user), .keep_last = 1, .background = background};

	ok(zero_save(model->job, dir, &options));
	ok(zero_save_wait(model->job));
}

/* ---- the log --------------------------------------------------------------------------------- */

struct line {
	int process;
	char call[16], path[1300], other[1300];
};

static struct line lines[LINES];
static int line_count;

static void read_log(void)
{
	FILE *file = fopen(log_path, "r");
	struct line *line = lines;

	line_count = 0;
	while (file && fscanf(file, "%d %15s %1299s %1299s", &line->process, line->call, line->path,
			      line->other) == 4) {
		check(++line_count < LINES, "more than %d lines", LINES);
		line++;
	}
	if (file)
		fclose(file);
}

static bool is_call(int i, const char *call, const char *path)
{
	return !strcmp(lines[i].call, call) && !strcmp(lines[i].path, path);
}

/* Whether one process has synced the path between two lines; 0: any process. */
static bool is_synced(const char *path, int process, int after, int before)
{
	for (int i = after + 1; i < before; i++)
		if (is_call(i, "sync", path) && (!process || lines[i].process == process))
			return true;
	return false;
}

static bool is_below(const char *path, const char *folder)
{
	size_t length = strlen(folder);

	return !strncmp(path, folder, length) && path[length] == '/';
}

static bool is_renamed(int i)
{
	return !strcmp(lines[i].call, "rename") || !strcmp(lines[i].call, "exchange");
}

/* All that was written of a file, or of a folder's files, is on the disk before line `end`. */
static void check_on_disk(const char *path, int end)
{
	int files = 0;

	for (int i = 0; i < end; i++) {
		bool below = is_below(lines[i].path, path);

		if (strcmp(lines[i].call, "write") != 0 || (!below && strcmp(lines[i].path, path)))
			continue;
		files++;
		check(is_synced(lines[i].path, lines[i].process, i, end),
		      "line %d: %s is renamed before process %d has synced it", end, lines[i].path,
		      lines[i].process);
		check(!below || is_synced(path, 0, i, end),
		      "line %d: %s is renamed before it was synced with its new files", end, path);
	}
	check(files, "line %d: nothing was written to %s", end, path);
}

/* The line after `after` by which a path gets the name `to`. */
static int find_rename(const char *to, int after)
{
	for (int i = after + 1; i < line_count; i++)
		if (is_renamed(i) && !strcmp(lines[i].other, to))
			return i;
	return line_count;
}

/* Line i makes a checkpoint complete. `latest` follows, and then old ones go. */
static void check_published(int i, const char *latest)
{
	int linked = find_rename(latest, i);

	check_on_disk(lines[i].path, i);
	check(linked < line_count, "line %d: %s does not follow", i, latest);
	check(is_synced(dir, 0, i, linked), "line %d: %s is linked before %s is synced", linked,
	      latest, dir);
	for (int k = i + 1; k < line_count && k < find_rename(latest, linked); k++) {
		bool old = is_renamed(k) && strstr(lines[k].other, ".partial-");

		old = old || !strcmp(lines[k].call, "remove");
		if (!old || is_below(lines[k].path, lines[i].path))
			continue;
		check(!strcmp(lines[i].call, "exchange")
			      ? is_synced(dir, 0, i, k)
			      : k > linked && is_synced(dir, 0, linked, k),
		      "line %d: %s goes before the new checkpoint and its link are on the disk", k,
		      lines[k].path);
		check(is_renamed(k) || strstr(lines[k].path, ".partial-"),
		      "line %d: %s goes under its own name", k, lines[k].path);
	}
}

static int count_published(void)
{
	char latest[1100];
	int count = 0;

	snprintf(latest, sizeof(latest), "%s/latest", dir);
	for (int i = 0; i < line_count; i++) {
		const char *name = strrchr(lines[i].other, '/');

		if (!is_renamed(i) || !name || strncmp(name, "/step-", 6) != 0 ||
		    strstr(name, ".partial-"))
			continue;
		check_published(i, latest);
		count++;
	}
	return count;
}

/* ---- order ----------------------------------------------------------------------------------- */

static void order(const char *settings, int turn)
{
	char exported[1100], folder[1000];
	struct model model;
	int i;

	snprintf(folder, sizeof(folder), "%s", file_path(""));
	snprintf(dir, sizeof(dir), "%sorder-%d", folder, turn);
	snprintf(log_path, sizeof(log_path), "%slog-%d", folder, turn);
	snprintf(exported, sizeof(exported), "%s/model.safetensors", dir);
	disk_watch(log_path, dir);
	model = open_model(settings);
	set_values(&model, 1);
	save(&model, "first", false);
	step(&model);
	save(&model, "second", true);
	step(&model);
	save(&model, "third", false);
	save(&model, "again", turn % 2);
	ok(zero_export(model.job, exported));
	ok(zero_agree(model.job, NULL));
	if (zero_rank(model.job) == 0) {
		read_log();
		check(count_published() == 4, "%d checkpoints", count_published());
		i = find_rename(exported, -1);
		check(i < line_count, "no %s", exported);
		check_on_disk(lines[i].path, i);
		check(is_synced(dir, 0, i, line_count), "the name of %s is not synced", exported);
	}
	ok(zero_close(model.job));
}

/* ---- kills ----------------------------------------------------------------------------------- */

/* What the checkpoint must have: the step that is its values, and the program's bytes. */
struct state {
	uint64_t step;
	char user[24];
};

/* Restores the last checkpoint, which must be this one, and saves one step later, or at the same
   step with other bytes. */
static void go_on(const struct state *was, const struct state *next, int killed_at)
{
	struct model model = open_model("stage=3");
	zero_checkpoint_info info;

	ok(zero_restore(model.job, dir, &info));
	check(info.step == was->step && info.user_bytes == strlen(was->user) &&
		      !memcmp(info.user, was->user, info.user_bytes),
	      "step %d with '%.*s', not %d with '%s'", (int)info.step, (int)info.user_bytes,
	      (char *)info.user, (int)was->step, was->user);
	zero_checkpoint_info_free(&info);
	for (int p = 0; p < 2; p++) {
		size_t first, count;
		void *data;

		ok(zero_shard(model.params[p], &data, &first, &count));
		check(count == COUNT, "%zu elements", count);
		for (size_t i = 0; i < count; i++) {
			uint32_t bits =
				p ? (uint32_t)((uint16_t *)data)[i] << 16 : ((uint32_t *)data)[i];
			float value;

			memcpy(&value, &bits, sizeof(value));
			check((uint64_t)value == was->step, "element %zu of %d", i, p);
		}
	}
	if (next->step > was->step)
		step(&model);
	set_values(&model, next->step);
	disk_watch(log_path, dir);
	disk.killed_at = killed_at;
	save(&model, next->user, false);
	ok(zero_close(model.job));
}

/* Whether the process was killed. */
static bool go_on_apart(const struct state *was, const struct state *next, int killed_at)
{
	int status;
	pid_t child;

	unlink(log_path);
	fflush(NULL);
	child = fork();
	check(child >= 0, "no process");
	if (!child) {
		go_on(was, next, killed_at);
		_exit(0);
	}
	check(waitpid(child, &status, 0) == child, "no child");
	check((WIFEXITED(status) && !WEXITSTATUS(status)) ||
		      (killed_at && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL),
	      "status %d at call %d", status, killed_at);
	return WIFSIGNALED(status);
}

/* The next state: one step later, or the same step with other bytes of the program. */
static struct state after(const struct state *was, bool same_step, const char *user, int number)
{
	struct state next = {.step = was->step + !same_step};

	snprintf(next.user, sizeof(next.user), "%s %d", user, number);
	return next;
}

/*
 * A kill at each call of a save. Once the link is renamed there is the new checkpoint, until then
 * the old one; if both have the same step, the folder's rename decides. The next save is complete.
 */
static void kills(bool same_step)
{
	struct state was = {.user = "old"}, next;
	bool killed = true;
	char name[1100];
	int calls, complete = 0;

	for (calls = 1; killed; calls++) {
		next = after(&was, same_step, "killed", calls);
		killed = go_on_apart(&was, &next, calls);
		snprintf(name, sizeof(name), "%s/%s", dir, same_step ? "step-000000000" : "latest");
		read_log();
		if (find_rename(name, -1) < line_count) {
			was = next;
			complete++;
		}
		next = after(&was, same_step, "whole", calls);
		check(!go_on_apart(&was, &next, 0), "it was killed");
		was = next;
	}
	check(complete > 3 && complete < calls - 10, "%d of %d calls", complete, calls);
	printf("%d kills, %d of them after the rename\n", calls - 2, complete - 1);
}

static void first_checkpoint(void)
{
	struct model model = open_model("stage=3");

	set_values(&model, 0);
	save(&model, "old", false);
	ok(zero_close(model.job));
}

/* A process replaces the checkpoint on a disk that cannot exchange two names, and is killed at a
   call, or a rename or sync fails. Returns whether it was killed or the save failed. */
static bool replace_apart(int killed_at, int rename_fails_at, int sync_fails_at)
{
	int status;
	pid_t child = fork();

	check(child >= 0, "no process");
	if (!child) {
		struct model model = open_model("stage=3");
		zero_status saved;

		disk_watch(log_path, dir);
		disk.no_exchange = true;
		disk.killed_at = killed_at;
		disk.rename_fails_at = rename_fails_at;
		disk.sync_fails_at = sync_fails_at;
		saved = zero_save(model.job, dir, NULL);
		ok(zero_close(model.job));
		_exit(saved ? 1 : 0);
	}
	check(waitpid(child, &status, 0) == child, "no child");
	return status;
}

static void restore_apart(const char *what, int number)
{
	zero_checkpoint_info info;
	int status;
	pid_t child = fork();

	check(child >= 0, "no process");
	if (!child) {
		struct model model = open_model("stage=3");

		ok(zero_restore(model.job, dir, &info));
		check(info.path, "nothing to restore");
		zero_checkpoint_info_free(&info);
		ok(zero_close(model.job));
		_exit(0);
	}
	check(waitpid(child, &status, 0) == child && !status,
	      "no restore after a %s of call %d: status %d", what, number, status);
}

static void check_kept(const char *what, int number)
{
	char name[1100];

	restore_apart(what, number);
	/* The next save, whether it comes to its end or not, has put back what was under way. */
	check(replace_apart(0, 0, 1), "a save whose sync fails did not fail");
	snprintf(name, sizeof(name), "%s/step-000000000/manifest.json", dir);
	check(!access(name, R_OK), "the checkpoint is lost by a %s of call %d", what, number);
}

static void without_exchange(void)
{
	for (int number = 1; number <= 2; number++) {
		check(replace_apart(0, number, 0), "rename %d did not fail the save", number);
		check_kept("failure", number);
	}
	for (int number = 1; replace_apart(number, 0, 0); number++)
		check_kept("kill", number);
}

int main(void)
{
	/* The library may not be open when the process forks. run.sh sets this for several
	   ranks. */
	if (!getenv("ZERO_SHARE")) {
		for (int same = 0; same < 2; same++) {
			snprintf(dir, sizeof(dir), "%s-%d", file_path("kills"), same);
			snprintf(log_path, sizeof(log_path), "%s", file_path("log"));
			first_checkpoint();
			kills(same);
		}
		without_exchange();
	}
	order("stage=3", 0);
	order("stage=1", 1);
	return 0;
}
