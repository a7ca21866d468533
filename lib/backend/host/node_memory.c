/* SPDX-License-Identifier: Apache-2.0 */
#include "node_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mpi_comm.h"

/* The upper bits of a zero_address are the number of the arena, counted from 1. */
enum { ARENA_SHIFT = 48 };

/* The first page of an arena. */
struct arena_head {
	uint64_t cookie;  /* random: proves that a mapped file is this arena */
	const void *here; /* its address in its own process */
};

/* Two halves: a fast rank fills in the next submission while a slow one still reads this one. No
   rank is two submissions ahead, since all agree on each. */
struct node_table {
	struct zero_published published[2][ZERO_NODE_OPERATIONS];
};

struct node_barrier {
	_Alignas(64) _Atomic uint32_t arrived;
	_Alignas(64) _Atomic uint32_t round; /* futex: those who wait spin at it */
	_Alignas(64) _Atomic uint32_t asleep;
};

struct zero_peers {
	char **bases; /* [count]: where their arenas are mapped */
	pid_t *processes;
	bool can_read; /* each can read the others' memory */
	size_t bytes;  /* of each */
	int count, self;
	bool oversubscribed; /* spinning in the barrier would take cores from ranks that compute */
};

/* ---- mapping each other's arenas ------------------------------------------------------------- */

/*
 * Twice the machine's memory, so that gaps between blocks do no harm. But all arenas of a node must
 * fit into one process's address space.
 */
static size_t arena_bytes(int ranks)
{
	const size_t huge = (size_t)1 << 30, most = (size_t)32 << 40;
	size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
	size_t bytes = 2 * memory / huge * huge + huge;

	return bytes < most / (size_t)ranks ? bytes : most / (size_t)ranks / huge * huge;
}

struct peer_info {
	int64_t process;
	int64_t file; /* -1: this rank has no arena */
	uint64_t cookie;
	uint64_t bytes;
	cpu_set_t cores; /* that the process may run on */
};

static char *map_peer(const struct peer_info *peer)
{
	struct arena_head *head;
	struct stat info;
	char path[64];
	int file;

	snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", (long long)peer->process,
		 (long long)peer->file);
	file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (file < 0)
		return NULL;
	/* In another PID namespace the same numbers may name another file. */
	head = fstat(file, &info) || (uint64_t)info.st_size != peer->bytes
		       ? NULL
		       : zero_arena_map(file, peer->bytes);
	close(file);
	if (!head)
		return NULL;
	if (head->cookie != peer->cookie) {
		munmap(head, peer->bytes);
		return NULL;
	}
	return (char *)head;
}

static void free_peers(struct zero_peers *peers)
{
	if (!peers)
		return;
	for (int i = 0; peers->bases && i < peers->count; i++)
		if (i != peers->self && peers->bases[i])
			munmap(peers->bases[i], peers->bytes);
	free(peers->bases);
	free(peers->processes);
	free(peers);
}

/* Makes this rank's arena; NULL if it cannot. */
static struct zero_arena *make_arena(int ranks, struct peer_info *mine)
{
	struct zero_arena *arena;
	char *head;

	*mine = (struct peer_info){.process = getpid(), .file = -1, .bytes = arena_bytes(ranks)};
	sched_getaffinity(0, sizeof(mine->cores), &mine->cores);
	if (getrandom(&mine->cookie, sizeof(mine->cookie), 0) != (ssize_t)sizeof(mine->cookie))
		return NULL;
	arena = zero_arena_new(mine->bytes);
	if (!arena)
		return NULL;
	head = zero_arena_alloc(arena, ZERO_ARENA_PAGE);
	if (head != zero_arena_base(arena)) {
		zero_arena_delete(arena);
		return NULL;
	}
	*(struct arena_head *)(void *)head =
		(struct arena_head){.cookie = mine->cookie, .here = head};
	mine->file = zero_arena_file(arena);
	return arena;
}

static bool map_peers(struct zero_peers *peers, const struct peer_info *all,
		      struct zero_arena *arena)
{
	cpu_set_t cores;

	CPU_ZERO(&cores);
	for (int i = 0; i < peers->count; i++) {
		if (all[i].file < 0 || all[i].bytes != peers->bytes)
			return false;
		CPU_OR(&cores, &cores, &all[i].cores);
	}
	/* Each rank has a thread that computes beside the one that waits here. */
	peers->oversubscribed = CPU_COUNT(&cores) < 2 * peers->count;
	for (int i = 0; i < peers->count; i++) {
		peers->bases[i] = i == peers->self ? zero_arena_base(arena) : map_peer(&all[i]);
		if (!peers->bases[i])
			return false;
		peers->processes[i] = (pid_t)all[i].process;
	}
	return true;
}

static ssize_t read_some(pid_t process, void *to, const void *from, size_t bytes)
{
	struct iovec mine = {.iov_base = to, .iov_len = bytes};
	struct iovec theirs = {.iov_base = (void *)(uintptr_t)from, .iov_len = bytes};

	return process_vm_readv(process, &mine, 1, &theirs, 1, 0);
}

/* Tries process_vm_readv on the head of each peer's arena, whose content is known. */
static bool can_read_peers(const struct zero_peers *peers)
{
	uint64_t cookie;

	for (int i = 0; i < peers->count; i++) {
		const struct arena_head *head = (const void *)peers->bases[i];

		if (i != peers->self && (read_some(peers->processes[i], &cookie, head->here,
						   sizeof(cookie)) != (ssize_t)sizeof(cookie) ||
					 cookie != head->cookie))
			return false;
	}
	return true;
}

/* COLLECTIVE. can_read is true if all ranks can read all others. */
static zero_status agree_on_reading(struct zero_peers *peers, MPI_Comm ranks)
{
	int can_read = can_read_peers(peers), error;

	error = MPI_Allreduce(MPI_IN_PLACE, &can_read, 1, MPI_INT, MPI_MIN, ranks);
	peers->can_read = can_read;
	return zero_mpi_status(error, "MPI_Allreduce");
}

/* ---- a node ---------------------------------------------------------------------------------- */

/* COLLECTIVE. Allocates the barrier, of which the first rank's is used, and each rank's table.
   *allocated: all ranks had room. */
static int place_tables(struct zero_node *node, struct zero_arena *arena, MPI_Comm ranks,
			bool *allocated)
{
	zero_address mine[2] = {0}, *all = calloc((size_t)node->world, sizeof(mine));
	int error, room = all != NULL;

	mine[0] = zero_node_address(node, zero_arena_alloc(arena, ZERO_ARENA_PAGE));
	mine[1] = zero_node_address(node, zero_arena_alloc(arena, sizeof(struct node_table)));
	error = MPI_Allreduce(MPI_IN_PLACE, &room, 1, MPI_INT, MPI_MIN, ranks);
	if (!error && room)
		error = MPI_Allgather(mine, 2, MPI_UINT64_T, all, 2, MPI_UINT64_T, ranks);
	*allocated = !error && room;
	for (int rank = 0; *allocated && rank < node->world; rank++)
		*allocated = all[2 * rank] && all[2 * rank + 1];
	for (int rank = 0; *allocated && rank < node->world; rank++) {
		node->tables[rank] = zero_node_data(node, all[2 * rank + 1]);
		node->indices[rank] = (int)(all[2 * rank + 1] >> ARENA_SHIFT) - 1;
	}
	if (*allocated)
		node->barrier = zero_node_data(node, all[0]);
	free(all);
	return error;
}

/* A node of this rank alone. */
static struct zero_node *new_single_node(void)
{
	struct zero_node *node = calloc(1, sizeof(*node));

	if (node)
		node->world = 1;
	return node;
}

static struct zero_node *new_node(struct zero_peers *peers, int rank, int world)
{
	struct zero_node *node = new_single_node();

	if (!node)
		return NULL;
	node->peers = peers;
	node->rank = rank;
	node->world = world;
	node->indices = calloc((size_t)world, sizeof(*node->indices));
	node->tables = calloc((size_t)world, sizeof(*node->tables));
	if (node->tables && node->indices)
		return node;
	zero_node_close(node, false);
	return NULL;
}

static struct zero_peers *new_peers(int rank, int world, size_t bytes)
{
	struct zero_peers *peers = calloc(1, sizeof(*peers));
	char **bases = calloc((size_t)world, sizeof(*bases));
	pid_t *processes = calloc((size_t)world, sizeof(*processes));

	if (!peers || !bases || !processes) {
		free(peers);
		free(bases);
		free(processes);
		return NULL;
	}
	*peers = (struct zero_peers){.bases = bases,
				     .processes = processes,
				     .bytes = bytes,
				     .count = world,
				     .self = rank};
	return peers;
}

zero_status zero_node_open(MPI_Comm ranks, struct zero_arena **arena, struct zero_node **node)
{
	struct peer_info mine, *all;
	struct zero_peers *peers = NULL;
	int rank = 0, world = 1, error, shares;
	bool allocated = false;

	*arena = NULL;
	*node = NULL;
	MPI_Comm_rank(ranks, &rank);
	MPI_Comm_size(ranks, &world);
	all = calloc((size_t)world, sizeof(*all));
	if (!all)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for %d ranks", world);
	if (world > 1)
		*arena = make_arena(world, &mine);
	if (world == 1)
		goto single;
	error = MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all, sizeof(mine), MPI_BYTE, ranks);
	if (*arena)
		peers = new_peers(rank, world, mine.bytes);
	if (peers)
		*node = new_node(peers, rank, world);
	shares = !error && *node && map_peers(peers, all, *arena);
	if (!error)
		error = MPI_Allreduce(MPI_IN_PLACE, &shares, 1, MPI_INT, MPI_MIN, ranks);
	if (!error && shares) {
		error = place_tables(*node, *arena, ranks, &allocated);
		shares = allocated;
	}
	free(all);
	if (!error && shares)
		return agree_on_reading(peers, ranks);
	zero_node_close(*node, false);
	free_peers(peers);
	zero_arena_delete(*arena);
	*arena = NULL;
	*node = error ? NULL : new_single_node();
	if (error)
		return zero_mpi_status(error, "finding shared memory");
	return *node ? ZERO_OK : zero_core->fail(ZERO_E_MEMORY, "no memory for a node");
single:
	free(all);
	*node = new_single_node();
	return *node ? ZERO_OK : zero_core->fail(ZERO_E_MEMORY, "no memory for a node");
}

zero_status zero_node_split(const struct zero_node *parent, struct zero_arena *arena,
			    MPI_Comm ranks, struct zero_node **node)
{
	int rank = 0, world = 1, error = MPI_SUCCESS;
	bool allocated = false;

	MPI_Comm_rank(ranks, &rank);
	MPI_Comm_size(ranks, &world);
	*node = world == 1 ? new_single_node() : new_node(parent->peers, rank, world);
	if (*node && world > 1)
		error = place_tables(*node, arena, ranks, &allocated);
	if (*node && world > 1 && !allocated) {
		/* The team works without shared memory on this node. */
		zero_node_close(*node, false);
		*node = new_single_node();
	}
	if (!*node)
		return zero_core->fail(ZERO_E_COMM, "no memory for a team");
	return zero_mpi_status(error, "sharing memory in a team");
}

void zero_node_close(struct zero_node *node, bool owner)
{
	if (!node)
		return;
	if (owner)
		free_peers(node->peers);
	free(node->tables);
	free(node->indices);
	free(node);
}

/* ---- addresses ------------------------------------------------------------------------------- */

zero_address zero_node_address(const struct zero_node *node, const void *data)
{
	const char *at = data;

	for (int i = 0; at && node->peers && i < node->peers->count; i++)
		if (at >= node->peers->bases[i] && at < node->peers->bases[i] + node->peers->bytes)
			return ((uint64_t)i + 1) << ARENA_SHIFT |
			       (uint64_t)(at - node->peers->bases[i]);
	return 0;
}

void *zero_node_data(const struct zero_node *node, zero_address address)
{
	return node->peers->bases[(address >> ARENA_SHIFT) - 1] +
	       (address & (((uint64_t)1 << ARENA_SHIFT) - 1));
}

void zero_node_next_table(struct zero_node *node)
{
	node->table ^= 1;
}

struct zero_published *zero_node_publish(const struct zero_node *node, size_t index)
{
	return &node->tables[node->rank]->published[node->table][index];
}

const struct zero_published *zero_node_published(const struct zero_node *node, int rank,
						 size_t index)
{
	return &node->tables[rank]->published[node->table][index];
}

/* ---- reading --------------------------------------------------------------------------------- */

bool zero_node_can_read(const struct zero_node *node)
{
	return node->world > 1 && node->peers->can_read;
}

zero_status zero_node_read(const struct zero_node *node, int rank, void *to, const void *from,
			   size_t bytes)
{
	/* The system copies at most 2 GiB less a page at once. */
	const size_t most = (size_t)1 << 30;
	pid_t process = node->peers->processes[node->indices[rank]];

	for (size_t at = 0; at < bytes;) {
		size_t now = bytes - at < most ? bytes - at : most;
		ssize_t got = read_some(process, (char *)to + at, (const char *)from + at, now);

		if (got <= 0)
			return zero_core->fail(ZERO_E_COMM,
					       "cannot read %zu bytes of process %ld: %s", now,
					       (long)process, strerror(got ? errno : EFAULT));
		at += (size_t)got;
	}
	return ZERO_OK;
}

/* ---- barrier --------------------------------------------------------------------------------- */

static inline void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb"); /* yield does nothing on most processors */
#endif
}

static void wait_round(struct node_barrier *barrier, uint32_t round, bool oversubscribed)
{
	for (int spin = oversubscribed ? 4000 : 0; spin < 4000; spin++) {
		if (atomic_load_explicit(&barrier->round, memory_order_acquire) != round)
			return;
		cpu_pause();
	}
	atomic_fetch_add(&barrier->asleep, 1);
	while (atomic_load(&barrier->round) == round)
		syscall(SYS_futex, &barrier->round, FUTEX_WAIT, round, NULL, NULL, 0);
	atomic_fetch_sub(&barrier->asleep, 1);
}

void zero_node_barrier(struct zero_node *node)
{
	struct node_barrier *barrier = node->barrier;
	uint32_t round;

	if (node->world == 1)
		return;
	round = atomic_load(&barrier->round);
	if (atomic_fetch_add(&barrier->arrived, 1) + 1 < (uint32_t)node->world) {
		wait_round(barrier, round, node->peers->oversubscribed);
		return;
	}
	atomic_store(&barrier->arrived, 0);
	atomic_fetch_add(&barrier->round, 1);
	if (atomic_load(&barrier->asleep))
		syscall(SYS_futex, &barrier->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
