/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job that runs out of memory anywhere: each allocation that the library makes, from zero_open to
 * zero_close, fails once on one rank. The call fails with a sentence, on all ranks
 * if it is collective, and succeeds when it is repeated; values and files are then those of a job
 * that was not disturbed. Nothing stays allocated or open.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <ftw.h>
#include <glob.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ranks.h"

enum { VALUES = 3000, MOST = 4096, LIVE = 1 << 14, SKIPPED = 8, WITHOUT_SUMS = 1000 };

static const zero_adamw plain = {
	.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F, .weight_decay = 0.1F};

static int world, rank;

/* ---- the library's allocations --------------------------------------------------------------- */

struct life;
typedef zero_status job_part(struct life *);

/* A place that allocates, in a part of the job; NULL: zero_close. */
struct site {
	void *caller;
	job_part *in;
	bool for_tensors;
};

/* Those of a job that is not disturbed, from zero_open to zero_close, but for what the test does in
   between. */
static struct site sites[MOST];
static atomic_int site_count;
static atomic_bool counts;
static bool records;
static job_part *current;
/* At this place the allocation after this many fails. */
static struct site refused;
static atomic_int refused_after;

/* What the library has allocated, and who has asked for it. */
static struct {
	void *address, *caller;
} live[LIVE];
static atomic_int live_count;
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;
static void *refused_caller;

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
enum { CAN_REFUSE = true };

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *data, size_t size);
void __libc_free(void *data);

static const char *object_of(void *address)
{
	Dl_info info;

	return dladdr(address, &info) && info.dli_fname ? info.dli_fname : "";
}

/* The place in the library that allocates, itself or through a function of the C library; NULL. */
static void *library_caller(void *caller)
{
	static __thread bool inside;
	void *frames[16];
	int count, i;

	if (inside)
		return NULL;
	inside = true;
	if (strstr(object_of(caller), "/libc.so")) {
		count = backtrace(frames, 16);
		for (i = 0; i < count && frames[i] != caller; i++)
			continue;
		while (i < count && strstr(object_of(frames[i]), "/libc.so"))
			i++;
		caller = i < count ? frames[i] : NULL;
	}
	inside = false;
	if (!caller || !strstr(object_of(caller), "/lib/.libs/"))
		return NULL;
	return caller;
}

/* Whether this allocation of the library is the one that fails. */
static bool is_refused(void *caller, bool for_tensors)
{
	if (!caller || !counts)
		return false;
	if (records) {
		int number = ++site_count;

		if (number < MOST)
			sites[number] = (struct site){caller, current, for_tensors};
		return false;
	}
	if (caller != refused.caller || current != refused.in || refused_after--)
		return false;
	refused_caller = caller;
	errno = ENOMEM;
	return true;
}

static size_t slot_of(const void *address)
{
	return (size_t)mixed((uintptr_t)address) % LIVE;
}

static void *note(void *address, void *caller)
{
	size_t at = slot_of(address);

	if (!address || !caller)
		return address;
	pthread_mutex_lock(&live_lock);
	while (live[at].address && live[at].address != (void *)live)
		at = (at + 1) % LIVE;
	live[at].address = address;
	live[at].caller = caller;
	live_count++;
	pthread_mutex_unlock(&live_lock);
	return address;
}

/* Returns who had allocated it, if the library had. */
static void *forget(const void *address)
{
	size_t at = slot_of(address);
	void *caller = NULL;

	pthread_mutex_lock(&live_lock);
	while (live[at].address && live[at].address != address)
		at = (at + 1) % LIVE;
	if (live[at].address) {
		caller = live[at].caller;
		live[at].address = (void *)live; /* the search goes on beyond it */
		live_count--;
	}
	pthread_mutex_unlock(&live_lock);
	return caller;
}

void *malloc(size_t size)
{
	void *caller = library_caller(__builtin_return_address(0));

	return is_refused(caller, false) ? NULL : note(__libc_malloc(size), caller);
}

void *calloc(size_t count, size_t size)
{
	void *caller = library_caller(__builtin_return_address(0));

	return is_refused(caller, false) ? NULL : note(__libc_calloc(count, size), caller);
}

void *realloc(void *data, size_t size)
{
	void *caller = library_caller(__builtin_return_address(0)), *was;

	if (is_refused(caller, false))
		return NULL;
	was = data ? forget(data) : NULL;
	return note(__libc_realloc(data, size), was ? was : caller);
}

void free(void *data)
{
	if (data)
		forget(data);
	__libc_free(data);
}

/* It takes long, and tests/ranks/atomic.c looks at it. */
int fsync(int file)
{
	(void)file;
	return 0;
}

/* The memory of tensors. */
void *mmap(void *address, size_t size, int protection, int flags, int file, off_t at)
{
	if ((flags & MAP_ANONYMOUS) &&
	    is_refused(library_caller(__builtin_return_address(0)), true))
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, address, size, protection, flags, file, at);
}
#else
enum { CAN_REFUSE = false };
static const char *object_of(void *address)
{
	(void)address;
	return "";
}
#endif

static const char *name_of(void *caller)
{
	static char text[300];
	Dl_info info = {0};

	dladdr(caller, &info);
	snprintf(text, sizeof(text), "%s+0x%zx", strrchr(object_of(caller), '/'),
		 (size_t)((char *)caller - (char *)info.dli_fbase));
	return text;
}

static int open_files(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	check(folder, "no /proc/self/fd");
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/* ---- a job ----------------------------------------------------------------------------------- */

struct life {
	const char *settings;
	char folder[1024];
	zero_job *job;
	zero_team *team;
	zero_group *groups[2], *sliced;
	zero_param *params[2], *oversized;
	float mine[VALUES];              /* a state of the program's */
	int steps, number, at;           /* the group */
	bool own;                        /* the program's own steps */
	bool failed, torn, without_sums; /* the last step */
};

static zero_status open_it(struct life *life)
{
	char settings[1200];

	snprintf(settings, sizeof(settings), "%s report=%s", life->settings, life->folder);
	return zero_open(&(zero_options){.settings = settings}, &life->job);
}

static zero_status make_team(struct life *life)
{
	int members[16];

	if (life->team)
		return ZERO_OK;
	for (int i = 0; i < world; i++)
		members[i] = i;
	return zero_team_new(life->job, members, (size_t)world, &life->team);
}

/* What was made before stays. */
static zero_status declare(struct life *life)
{
	static const size_t count = VALUES, slices = 1200;
	zero_status status = ZERO_OK;

	for (int g = 0; !status && g < 2; g++) {
		zero_param_spec spec = {.name = g ? "q" : "p",
					.dtype = g ? ZERO_BF16 : ZERO_F32,
					.ndim = 1,
					.shape = &count,
					.trainable = true};

		if (!life->groups[g])
			status = zero_group_new(life->job, g ? "h" : "g", g ? life->team : NULL,
						&life->groups[g]);
		if (!status && !life->params[g])
			status = zero_param_new(life->groups[g], &spec, &life->params[g]);
	}
	if (!status && !life->sliced)
		status = zero_group_new(life->job, "s", NULL, &life->sliced);
	if (!status && !life->oversized) {
		zero_param_spec spec = {.name = "s",
					.dtype = ZERO_F32,
					.ndim = 1,
					.shape = &slices,
					.trainable = true};

		status = zero_param_new(life->sliced, &spec, &life->oversized);
	}
	return status ? status : zero_group_set_slices(life->sliced, 1);
}

static zero_status lay_out(struct life *life)
{
	return zero_layout(life->job);
}

static zero_status load(struct life *life)
{
	static float values[VALUES];
	zero_source from_rank = zero_from_rank(0, rank ? NULL : values);
	zero_source normal = zero_from_normal(0, 1, 7);
	zero_status status;

	for (int i = 0; i < VALUES; i++)
		values[i] = (float)i;
	status = zero_load(life->params[0], &from_rank);
	return status ? status : zero_load(life->params[1], &normal);
}

static zero_status gather(struct life *life)
{
	return zero_gather(life->groups[life->at], ZERO_F32);
}

static zero_status gradient(struct life *life)
{
	float *sums = zero_gradient(life->params[life->at]);

	for (size_t i = 0; sums && i < VALUES; i++)
		sums[i] = signed_unit(mixed(i * 8 + (size_t)(life->steps * 2 + life->at)));
	return sums ? zero_release(life->groups[life->at]) : ZERO_E_MEMORY;
}

/* A call that succeeds leaves the last error alone. */
static void leave_error(void)
{
	zero_job *other;

	fails(zero_open(NULL, &other), ZERO_E_STATE, "a job is open");
}

static void fill_again(struct life *life)
{
	ok(gather(life));
	ok(gradient(life));
}

/* The program's own step of the first parameter. */
static void step_first(struct life *life)
{
	size_t first, count, stored_first, stored_count;
	void *stored;
	float *sums;

	ok(zero_gradient_shard(life->params[0], &sums, &first, &count));
	ok(zero_shard(life->params[0], &stored, &stored_first, &stored_count));
	for (size_t i = 0; i < count; i++)
		((float *)stored)[first - stored_first + i] -= sums[i];
	ok(zero_step_end(life->job, NULL));
}

static zero_status step(struct life *life)
{
	zero_status status, lost = ZERO_OK;

	for (life->at = 0; life->at < 2; life->at++) {
		if (life->failed)
			fill_again(life);
		status = zero_reduce(life->groups[life->at]);
		if (status && world == 1) {
			fill_again(life);
			ok(zero_reduce(life->groups[life->at]));
			leave_error();
		} else if (status) {
			lost = status;
		}
	}
	/* Of several ranks all fail here, unless one could not even begin its reduce. */
	status = life->own ? zero_step_begin(life->job, life->groups, 2)
			   : zero_step(life->job, &plain, NULL);
	if (life->own) /* what was begun cannot be repeated */
		counts = false;
	if (!status && life->own)
		step_first(life);
	life->torn = status && strstr(zero_last_error(), "the step had begun");
	life->failed = status;
	life->steps += !status;
	life->without_sums = lost && !status;
	return status;
}

static zero_status save(struct life *life)
{
	zero_save_options options = {.user = "position", .user_bytes = 8, .keep_last = 2};

	return zero_save(life->job, life->folder, &options);
}

static zero_status save_beside(struct life *life)
{
	zero_status status =
		zero_save(life->job, life->folder, &(zero_save_options){.background = true});

	return status ? status : zero_save_wait(life->job);
}

static zero_status restore(struct life *life)
{
	zero_checkpoint_info info = {NULL};
	bool asks = rank || life->number % 2; /* or rank 0 alone does not */
	zero_status status = zero_restore(life->job, life->folder, asks ? &info : NULL);

	if (!status && asks)
		check(info.step == (uint64_t)life->steps && info.path && !info.user_bytes,
		      "step %d, %s, %zu bytes", (int)info.step, info.path, info.user_bytes);
	zero_checkpoint_info_free(&info);
	return status;
}

static zero_status export(struct life *life)
{
	char path[1100];

	snprintf(path, sizeof(path), "%s/whole.safetensors", life->folder);
	return zero_export(life->job, path);
}

static zero_status mean(struct life *life)
{
	double value = rank;
	zero_status status = zero_mean(life->job, &value, 1, 1);

	check(status || value * 2 == world - 1, "a mean of %g", value);
	return status;
}

/* ---- failures -------------------------------------------------------------------------------- */

static zero_status uncounted(zero_status status)
{
	counts = false;
	return status;
}

static void check_sentence(const struct life *life, const char *part, zero_status status)
{
	const char *text = zero_last_error();
	bool named = strstr(text, "memory");

	/* A rank that cannot even begin an operation goes on to another one than its peers. */
	check(named || (world > 1 && strstr(text, "rank ")), "%s, allocation %d of %s: %s: %s",
	      part, life->number, name_of(refused_caller), zero_strerror(status), text);
	/* An option that cannot be read is not valid; an operation that has begun has failed. */
	check(world > 1 || status == ZERO_E_MEMORY || status == ZERO_E_INVALID ||
		      status == ZERO_E_COMM || status == ZERO_E_FILE,
	      "%s, allocation %d of %s: %s: %s", part, life->number, name_of(refused_caller),
	      zero_strerror(status), text);
}

/* Tells all ranks this one's status; false: the job has failed. */
static bool exchange(struct life *life, double mine, double *all)
{
	memset(all, 0, (size_t)world * sizeof(*all));
	all[rank] = mine * world;
	return !zero_mean(life->job, all, (size_t)world, 1);
}

/* Takes a part of the job, and once more if it failed. Returns whether the job can go on. */
static bool take(struct life *life, job_part *part, const char *name)
{
	bool collective = part != declare && part != gradient, had_job;
	zero_status status;
	double all[16];

	had_job = life->job;
	if (had_job)
		leave_error();
	current = part;
	counts = true;
	status = uncounted(part(life));
	check(!had_job || status || strstr(zero_last_error(), "a job is open"),
	      "%s, allocation %d of %s: no error, but '%s'", name, life->number,
	      name_of(refused_caller), zero_last_error());
	if (status && (collective || refused_caller))
		check_sentence(life, name, status);
	if (!life->job) {
		check(status, "there is no job and no error");
		ok(part(life));
		return true;
	}
	if (!exchange(life, life->without_sums ? WITHOUT_SUMS : (double)status, all))
		return false;
	for (int r = 0; r < world; r++)
		if (all[r] == WITHOUT_SUMS)
			return false;
	for (int r = 0; collective && r < world; r++)
		check(all[r] == all[rank], "%s, allocation %d of %s: status %g on rank %d, here %d",
		      name, life->number, name_of(refused_caller), all[r], r, (int)status);
	if (life->torn) {
		fails(step(life), ZERO_E_STATE, "until zero_restore");
		fails(save(life), ZERO_E_STATE, "zero_save is refused");
		fails(export(life), ZERO_E_STATE, "zero_export is refused");
		ok(restore(life));
	}
	if (status)
		ok(part(life));
	return true;
}

#define take(life, part) (take)(life, part, #part)

static bool train(struct life *life)
{
	for (life->at = 0; life->at < 2; life->at++)
		if (!take(life, gather) || !take(life, gradient))
			return false;
	return take(life, step);
}

/* The report is there, or the rank that did not write it knows why. */
static void check_report(const struct life *life, const char *error)
{
	char pattern[1200];
	glob_t found = {0};

	snprintf(pattern, sizeof(pattern), "%s/zero-*.html", life->folder);
	check(rank || strstr(error, "memory") || !glob(pattern, 0, NULL, &found),
	      "allocation %d of %s: no report, but '%s'", life->number, name_of(refused_caller),
	      error);
	globfree(&found);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
	(void)info;
	(void)kind;
	(void)at;
	return remove(path);
}

/* How many allocations before this one were made at the same place. */
static int same_before(int number)
{
	int count = 0;

	for (int i = 1; i < number; i++)
		count += sites[i].caller == sites[number].caller && sites[i].in == sites[number].in;
	return count;
}

/* Allocation `number` fails, if there is one. */
static void live_once(const char *settings, int number, bool fails_here, float want[2][VALUES])
{
	static float values[2][VALUES];
	struct life life = {.settings = settings, .number = number};
	char name[32], error[1024];
	bool well;

	snprintf(name, sizeof(name), "life-%d", number);
	snprintf(life.folder, sizeof(life.folder), "%s", file_path(name));
	refused_caller = NULL;
	records = !number;
	if (records)
		site_count = 0;
	refused = fails_here ? sites[number] : (struct site){NULL};
	refused_after = same_before(number);
	well = take(&life, open_it) && take(&life, make_team) && take(&life, declare) &&
	       take(&life, lay_out) && take(&life, load) && take(&life, save) && train(&life) &&
	       take(&life, save) && train(&life) && take(&life, save_beside) &&
	       take(&life, restore) && take(&life, export) && take(&life, mean);
	life.own = true;
	well = well && train(&life);
	for (int g = 0; well && g < 2; g++) {
		ok(zero_gather(life.groups[g], ZERO_F32));
		memcpy(values[g], zero_data(life.params[g]), sizeof(values[g]));
		ok(zero_release(life.groups[g]));
	}
	current = NULL;
	counts = true;
	ok(uncounted(zero_close(life.job)));
	snprintf(error, sizeof(error), "%s", zero_last_error());
	check_report(&life, error);
	check(rank || !nftw(life.folder, remove_one, 16, FTW_DEPTH | FTW_PHYS), "%s stays",
	      life.folder);
	if (!number)
		memcpy(want, values, sizeof(values));
	check(number || well, "nothing was refused");
	check(!well || !memcmp(want, values, sizeof(values)),
	      "other values after allocation %d of %s", number, name_of(refused_caller));
}

static void check_nothing_left(const char *settings, int number, int allocations, int files)
{
	for (int i = 0; live_count > allocations && i < LIVE; i++)
		if (live[i].address && live[i].address != (void *)live)
			fprintf(stderr, "not freed: what %s has allocated\n",
				name_of(live[i].caller));
	check(live_count <= allocations, "%s, allocation %d of %s: %d are left, not %d", settings,
	      number, name_of(refused_caller), live_count, allocations);
	check(open_files() <= files, "%s, allocation %d of %s: %d files are open, not %d", settings,
	      number, name_of(refused_caller), open_files(), files);
}

/* Whether nearly all parts allocate there: it is how operations are begun. */
static bool is_everywhere(const void *caller)
{
	job_part *seen[32] = {NULL};
	int parts = 0;

	for (int i = 1; i <= site_count && i < MOST; i++) {
		int at = 0;

		while (at < parts && seen[at] != sites[i].in)
			at++;
		if (sites[i].caller == caller && at == parts && parts < 32)
			seen[parts++] = sites[i].in;
	}
	return parts > 6;
}

/* Whether the others learn it, when a rank has no memory here. They do not in zero_open, before the
   ranks have met, nor where an operation cannot begin, nor when MPI moves data: such a job is ended
   by ZERO_OPEN_SECONDS, by the order of operations, or by the scheduler. */
static bool is_agreed(const struct site *site)
{
	return site->in != open_it && !is_everywhere(site->caller) &&
	       (site->for_tensors || !strstr(object_of(site->caller), "zero_host"));
}

/* The next allocation after this one, but a place that makes several in a part is taken twice. */
static int next_site(int number, int most)
{
	for (number++; number <= most; number++)
		if (same_before(number) < 2 && (world == 1 || is_agreed(&sites[number])))
			break;
	return number;
}

static void live_all(const char *settings, bool all_of_them)
{
	static float want[2][VALUES];
	int number = 0, most, lives = 0, allocations, files;
	uint64_t state = test_seed();
	double all[16];
	zero_job *job;

	live_once(settings, 0, false, want);
	live_once(settings, 0, false, want);
	allocations = live_count;
	files = open_files();
	most = site_count;
	check(most > 200 && most < MOST, "%d allocations", most);
	for (;;) {
		int failing = (int)below(&state, (size_t)world);

		for (int skip = all_of_them ? 0 : (int)below(&state, SKIPPED); skip >= 0; skip--)
			number = next_site(number, most);
		/* the ranks make unlike numbers of them */
		job = open_job("stage=3");
		all_values(job, number <= most ? number : 0, all);
		ok(zero_close(job));
		if (!all[failing])
			break;
		live_once(settings, (int)all[failing], rank == failing, want);
		check_nothing_left(settings, (int)all[failing], allocations, files);
		lives++;
	}
	if (!rank)
		printf("%s: %d of %d allocations\n", settings, lives, most);
}

int main(void)
{
	static const char *const settings[] = {"stage=3", "stage=1 share=1",
					       "stage=0 allgather=single"};
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	fails(zero_agree(job, "a sentence"), ZERO_E_APPLICATION, "a sentence");
	ok(zero_close(job));
	if (!CAN_REFUSE)
		return 0;
	backtrace(&(void *){NULL}, 1);
	for (size_t s = 0; s < sizeof(settings) / sizeof(settings[0]); s++)
		live_all(settings[s], world == 1 && s == 0);
	return 0;
}
