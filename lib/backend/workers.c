/* SPDX-License-Identifier: Apache-2.0 */
#include "workers.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/thread.h"

struct zero_workers {
	pthread_mutex_t run; /* held by the caller whose work it is */
	pthread_mutex_t lock;
	pthread_cond_t more, done;
	pthread_t *threads; /* [count - 1] */
	int count, started;
	pid_t process;
	bool open, ending;  /* open: a thread may still join in */
	atomic_int active;  /* threads that have joined in */
	atomic_uint number; /* of the call */
	void (*work)(void *context, size_t i);
	void *context;
	size_t items;
	atomic_size_t next;
};

/* ---- how many -------------------------------------------------------------------------------- */

static int limit_of_slurm(void)
{
	const char *text = getenv("SLURM_CPUS_PER_TASK");
	long cpus = text ? strtol(text, NULL, 10) : 0;

	return cpus > 0 && cpus < CPU_SETSIZE ? (int)cpus : CPU_SETSIZE;
}

static int cores_of(const struct zero_comm *comm, const struct zero_seat *mine,
		    const struct zero_seat *all)
{
	double cores = 0;

	for (int core = 0; core < CPU_SETSIZE; core++) {
		int ranks = 0;

		if (!CPU_ISSET((size_t)core, &mine->cores))
			continue;
		for (int rank = 0; rank < comm->place.world; rank++)
			ranks += all[rank].node == mine->node &&
				 CPU_ISSET((size_t)core, &all[rank].cores);
		cores += 1.0 / ranks;
	}
	return (int)(cores + 1e-6);
}

int zero_workers_budget(struct zero_comm *comm, int asked)
{
	struct zero_seat mine = {.node = zero_hash(comm->place.node, strlen(comm->place.node), 0)};
	struct zero_seat *all = calloc((size_t)comm->place.world, sizeof(*all));
	int cores = 1, limit = limit_of_slurm();

	/* A machine of more cores than the set holds fails here: then there is one thread. */
	sched_getaffinity(0, sizeof(mine.cores), &mine.cores);
	if (!comm->ops->allgather && all)
		*all = mine;
	if (all && (!comm->ops->allgather || !comm->ops->allgather(comm, &mine, all, sizeof(mine))))
		cores = cores_of(comm, &mine, all);
	free(all);
	if (asked)
		return asked;
	cores = cores < limit ? cores : limit;
	return cores > 1 ? cores : 1;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* A pause of the order of 10 ns. */
static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("isb" ::: "memory");
#endif
}

/* To wake a thread takes longer than most waits here, since a step is many calls, one soon after
   the other. */
enum { SPINS = 2000 };

static void spin_for_call(const struct zero_workers *workers, unsigned seen)
{
	for (int i = 0; i < SPINS && workers->number == seen; i++)
		relax();
}

static void spin_for_others(const struct zero_workers *workers)
{
	for (int i = 0; i < SPINS && workers->active; i++)
		relax();
}

static void take_items(struct zero_workers *workers)
{
	for (;;) {
		size_t i = atomic_fetch_add(&workers->next, 1);

		if (i >= workers->items)
			return;
		workers->work(workers->context, i);
	}
}

static void *worker(void *context)
{
	struct zero_workers *workers = context;
	unsigned seen = 0;

	pthread_mutex_lock(&workers->lock);
	while (!workers->ending) {
		if (!workers->open || seen == workers->number) {
			pthread_cond_wait(&workers->more, &workers->lock);
			continue;
		}
		seen = workers->number;
		workers->active++;
		pthread_mutex_unlock(&workers->lock);
		take_items(workers);
		pthread_mutex_lock(&workers->lock);
		if (!--workers->active)
			pthread_cond_signal(&workers->done);
		pthread_mutex_unlock(&workers->lock);
		spin_for_call(workers, seen);
		pthread_mutex_lock(&workers->lock);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

struct zero_workers *zero_workers_new(int threads)
{
	struct zero_workers *workers = calloc(1, sizeof(*workers));

	if (!workers)
		return NULL;
	workers->threads = calloc((size_t)threads, sizeof(*workers->threads));
	workers->count = workers->threads ? threads : 1;
	workers->process = getpid();
	pthread_mutex_init(&workers->run, NULL);
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->more, NULL);
	pthread_cond_init(&workers->done, NULL);
	return workers;
}

void zero_workers_delete(struct zero_workers *workers)
{
	if (!workers)
		return;
	pthread_mutex_lock(&workers->lock);
	workers->ending = true;
	atomic_fetch_add(&workers->number, 1);
	pthread_cond_broadcast(&workers->more);
	pthread_mutex_unlock(&workers->lock);
	for (int i = 0; i < workers->started; i++)
		pthread_join(workers->threads[i], NULL);
	pthread_cond_destroy(&workers->done);
	pthread_cond_destroy(&workers->more);
	pthread_mutex_destroy(&workers->lock);
	pthread_mutex_destroy(&workers->run);
	free(workers->threads);
	free(workers);
}

/* Without a thread the others do its part. */
static void start(struct zero_workers *workers)
{
	while (workers->started < workers->count - 1 &&
	       !zero_thread_start(&workers->threads[workers->started], "zero-step", worker,
				  workers))
		workers->started++;
	workers->count = workers->started + 1;
}

static void run_alone(void (*work)(void *context, size_t i), void *context, size_t count)
{
	for (size_t i = 0; i < count; i++)
		work(context, i);
}

/* Called by the caller whose turn it is. */
static void run_together(struct zero_workers *workers)
{
	pthread_mutex_lock(&workers->lock);
	workers->next = 0;
	workers->open = true;
	atomic_fetch_add(&workers->number, 1);
	pthread_cond_broadcast(&workers->more);
	pthread_mutex_unlock(&workers->lock);
	take_items(workers);
	/* A thread that has not woken up yet is not waited for. */
	pthread_mutex_lock(&workers->lock);
	workers->open = false;
	pthread_mutex_unlock(&workers->lock);
	spin_for_others(workers);
	pthread_mutex_lock(&workers->lock);
	while (workers->active)
		pthread_cond_wait(&workers->done, &workers->lock);
	pthread_mutex_unlock(&workers->lock);
}

void zero_workers_run(struct zero_workers *workers, void (*work)(void *context, size_t i),
		      void *context, size_t count)
{
	if (!workers || count < 2 || workers->process != getpid() ||
	    pthread_mutex_trylock(&workers->run)) {
		run_alone(work, context, count);
		return;
	}
	start(workers);
	workers->work = work;
	workers->context = context;
	workers->items = count;
	if (workers->started)
		run_together(workers);
	else
		run_alone(work, context, count);
	pthread_mutex_unlock(&workers->run);
}
