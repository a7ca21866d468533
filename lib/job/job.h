/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job: its ranks, its settings, and how work is submitted to the backend. What a job trains, and
 * how, is the business of the rooms above; each keeps its state behind a pointer here.
 */
#ifndef ZERO_JOB_H
#define ZERO_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "backend/workers.h"
#include "core/error.h"
#include "core/options.h"
#include "hooks.h"

/* Ranks that a group is sharded over. */
struct zero_team {
	zero_job *job;
	struct zero_team_comm *team_comm; /* NULL: all ranks */
	struct zero_rank_info place;      /* its rank is -1 where this rank is not in the team */
	int *ranks;                       /* [place.world], of the job, ascending; NULL: all */
	atomic_uint wait_count;           /* submissions that its ranks waited for */
	struct zero_team *next;           /* in the order in which they were made */
};

/* See replicas.c. */
struct zero_grid {
	zero_team *shard_team;   /* its ranks store a copy between them */
	zero_team *replica_team; /* the ranks that store what this one does */
	int *owners;             /* [world]: the rank that owns shard i */
	int *teams;              /* [world]: the ranks of the teams, one team behind the other */
	size_t own_shard;
};

/* The nodes of the ranks, numbered in the order of their first ranks. */
struct zero_nodes {
	size_t count;
	size_t *ranks; /* [count], how many it has */
	size_t *of;    /* [world], a rank's node */
};

struct zero_job {
	const struct zero_backend_ops *ops;
	struct zero_backend *backend;
	struct zero_comm *comm;   /* of all ranks */
	struct zero_queue *queue; /* of submissions; NULL until the backend is open on all ranks */
	struct zero_cpu cpu;      /* what works on host memory; has no kernels in a job without */
	struct zero_rank_info place;
	struct zero_settings settings;
	char *setting_text[ZERO_OPTIONS];
	const char *flatten_tier; /* a static string; NULL until zero_layout has chosen it */
	char shard_ranks[24];     /* "" until zero_layout has chosen it */
	pthread_mutex_t lock;
	zero_team all;                      /* every rank */
	zero_team *teams;                   /* owned */
	struct zero_grid *grid;             /* owned; NULL: all ranks store one copy between them */
	pid_t process;                      /* that opened it; a forked child cannot use it */
	_Atomic(const char *) current_call; /* see zero_set_current_call; NULL: none */
	bool finished;                      /* see zero_finish */
	_Atomic(const char *) waits_in;     /* by zero_set_wait_label; NULL: it does not wait */
	_Atomic double waits_since;
	_Atomic(zero_loss_callback) on_loss; /* NULL: none */
	void *on_loss_context;               /* set before it */
	bool joined;                         /* the backend is open on all ranks */
	bool laid_out;                       /* by zero_layout, once or more */
	bool program_steps;                  /* see zero_options */
	int stage;
	size_t stream_chunk, stream_threshold;
	uint64_t memory_free; /* on this rank when the job was opened, with what the program held */
	size_t held;          /* see zero_program_holds */
	size_t gather_limit;  /* bytes of a team's live gather buffers, for what is prefetched */
	uint64_t bytes_read;  /* of tensors and checkpoints, from files */

	/* The state of the rooms above, each defined in its room's header. */
	struct zero_model *model;
	struct zero_loader *loader;
	struct zero_trainer *trainer;
	struct zero_net *net;                   /* connections between ranks, beside MPI or NCCL */
	struct zero_ring *ring;                 /* of the watch; NULL: no rank is watched */
	struct zero_open_timeout *open_timeout; /* of the watch, during zero_open */
	struct zero_slow *slow;                 /* NULL: slow ranks are not looked for */
	struct zero_job_report *report;         /* NULL: the job writes no report */
	struct zero_save *save;                 /* in the background; NULL: none */
	struct zero_shard_source *source;       /* what is protected, to be restored; or NULL */
	struct zero_protect *protect;           /* NULL: nothing is protected */
	const struct zero_hooks *const *hooks;
	size_t hook_count;
};

/* Sets the call that the caller is in, a static string that peers are shown if this rank is lost.
   Returns the one before. */
static inline const char *zero_set_current_call(zero_job *job, const char *call)
{
	return atomic_exchange(&job->current_call, call);
}

static inline bool zero_check_enabled(const zero_job *job)
{
	return job->settings.value[ZERO_OPT_CHECK].number;
}

/* ---- job.c ----------------------------------------------------------------------------------- */

/* One job is open in a process. False: one is. */
bool zero_job_claim(void);
void zero_job_unclaim(void);
/* Because of a rank the job has ended, as the sentence says. This process opens no more jobs, since
   none could have all of its ranks. */
void zero_job_set_lost(int rank, const char *text);
zero_status zero_job_check_lost(void);
/* Refuses a call that needs memory in a job whose backend has none. */
zero_status zero_job_check_memory(const zero_job *job, const char *call);

/* ---- submit.c -------------------------------------------------------------------------------- */

/*
 * COLLECTIVE over the team. Submits `ops` with this rank's status, whose sentence is the thread's
 * last error. If ranks agree on the work (see zero_submission) and the status is an error on any
 * rank, nothing runs, and the work ends with it on all ranks; else such an error ends
 * communication. `agreed`: ranks agree on it also on a device, as what may fail on one rank alone
 * needs. `waited`: the caller waits for the work before it submits anything else. The label, the
 * same on all ranks, names the work in messages; `kind` and `group`, NULL for none, are what the
 * report adds it up by.
 */
zero_status zero_submit(zero_team *team, zero_status status, struct zero_op *ops, size_t count,
			bool agreed, bool waited, struct zero_work **work, enum zero_work_kind kind,
			const char *group, const char *label, ...)
	__attribute__((format(printf, 10, 11)));
/* The same, agreed, waited for and of no group. With a count of 0 the ranks agree on `status`. */
zero_status zero_submit_wait(zero_team *team, zero_status status, struct zero_op *ops, size_t count,
			     enum zero_work_kind kind, const char *label, ...)
	__attribute__((format(printf, 6, 7)));
/* The last submission of zero_close, to all ranks and to those of all teams. Returns once each of
   them has submitted something: ZERO_OK if all are closing the job. */
zero_status zero_leave(zero_job *job);
/* Waits for *work, drops the reference and sets *work to NULL; NULL counts as done. Called
   with the job's lock held, unless *work is the caller's own. */
zero_status zero_work_wait(zero_job *job, struct zero_work **work);
/* ---- compute.c ------------------------------------------------------------------------------- */

/*
 * Runs a kernel of kernels.h on the memory of the backend: on the CPU before it returns, or by the
 * device, in the order of the calls and after each submission that was waited for. An error of the
 * device comes with the next submission or zero_event_wait. For memory of the host beside a device
 * use zero_cpu_run(&job->cpu, ...); what earlier calls write there must have been waited for.
 */
void zero_compute(zero_job *job, enum zero_kernel kernel, const void *arguments);
/* Likewise. out[count] of type `to` = in[count] of `from`: f32, f16 and bf16, or equal types. */
void zero_cast(zero_job *job, zero_dtype to, void *out, zero_dtype from, const void *in,
	       size_t count);
/* Likewise. out[count] = value, converted to the type's nearest one; see zero_fill_constant. */
void zero_fill(zero_job *job, zero_dtype dtype, void *out, size_t count, double value);
/* See event_record and event_wait in backend.h; without a device there is nothing to wait for. */
uint64_t zero_event_record(zero_job *job);
zero_status zero_event_wait(zero_job *job, uint64_t event);
/* Waits until the device has done all work that was submitted to it. */
zero_status zero_device_sync(zero_job *job);
/* Fills *memory, and at_peak unless it is NULL; see memory in backend.h. */
void zero_job_memory(zero_job *job, zero_memory *memory, size_t at_peak[ZERO_MEM_KINDS]);

/* ---- settings.c ------------------------------------------------------------------------------ */

/* How the ranks come to one value: all must be equal, or the least one counts. Other values are
   each rank's own. */
enum zero_agreement { ZERO_AGREE_OWN, ZERO_AGREE_EQUAL, ZERO_AGREE_LEAST };
enum zero_agreement zero_option_agreement(enum zero_option_id id);
/* Reads the options from the environment, ZERO_RESOLVED and the caller. Local. */
zero_status zero_job_read_settings(zero_job *job, const zero_options *options);
/* Refuses a process that another launcher has started within a task of Slurm. */
zero_status zero_job_check_launcher(const zero_job *job);
/* Computes the sizes that are `auto`, from the memory of this rank alone. Local. */
zero_status zero_job_resolve_sizes(zero_job *job);
/* COLLECTIVE. Sends this rank's values and the status of reading them, and takes the minimum where
   ranks need not be equal. `*unequal` is the error of a value that had to be equal, on all
   ranks. */
zero_status zero_job_exchange_settings(zero_job *job, zero_status status, zero_status *unequal);
/* Copies settings to the fields of the job that the hot paths read. */
void zero_job_apply_settings(zero_job *job);

/* ---- stop.c ---------------------------------------------------------------------------------- */

/* Whether a signal of zero_stop_on came to this rank. */
bool zero_stop_requested(void);
/* For zero_close: restores the signals' handlers. */
void zero_stop_close(zero_job *job);

/* ---- team.c ---------------------------------------------------------------------------------- */

/* COLLECTIVE over all ranks. Makes a team of `count` ranks, in which each of the job's ranks names
   its own, number `index`; or with -1 one that all of them name, members or not. *team, of which
   the caller is the owner, is not set after an error. */
zero_status zero_team_make(zero_job *job, zero_status status, const int *ranks, size_t count,
			   int index, zero_team **team);
void zero_team_free(zero_team *team);
void zero_teams_free(zero_job *job);

/* ---- replicas.c ------------------------------------------------------------------------------ */

/* What a rank says of its node: a hash of its name, and which of its ranks it is. */
struct zero_rank_node {
	uint64_t name, local_rank;
};
/* Numbers the nodes of ranks[world]. Containers may give several nodes one name: the second rank 0
   of a name is on another node; such nodes are told apart only if each has as many ranks. To be
   freed, also after an error. */
zero_status zero_nodes_number(const struct zero_rank_node *ranks, size_t world,
			      struct zero_nodes *nodes);
/* COLLECTIVE over all ranks. The same for those of the job. */
zero_status zero_nodes_find(zero_job *job, struct zero_nodes *nodes);
void zero_nodes_free(struct zero_nodes *nodes);
/* COLLECTIVE over all ranks. Makes job->grid, with teams of `size` ranks, which divides the
   world. */
zero_status zero_grid_new(zero_job *job, const struct zero_nodes *nodes, size_t size);
void zero_grid_free(zero_job *job);
/* The rank that stores what this one does in the team of `rank`. */
int zero_grid_replica(const struct zero_grid *grid, int rank);

/* A rank of the job as one of the team; -1 if it is not in it. */
static inline int zero_team_rank_of(const zero_team *team, int rank)
{
	if (!team->ranks)
		return rank >= 0 && rank < team->place.world ? rank : -1;
	for (int i = 0; i < team->place.world; i++)
		if (team->ranks[i] == rank)
			return i;
	return -1;
}

/* A rank of the team as one of the job. */
static inline int zero_team_job_rank(const zero_team *team, int rank)
{
	return team->ranks ? team->ranks[rank] : rank;
}

#endif
