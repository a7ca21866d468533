/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the ranks of a communicator share: a file without a name, which its maker holds
 * open until all have it, so that nothing is ever left behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

enum { WORLD_MAX = 4096 };

_Static_assert(sizeof(struct segment_id) <= sizeof(ncclUniqueId), "an id holds it");

static const char magic[8] = "dblNCCL";

static size_t messages_at(int world)
{
	return sizeof(struct segment) + (size_t)world * sizeof(struct member);
}

static size_t segment_bytes(int world)
{
	return messages_at(world) + (size_t)world * (size_t)world * sizeof(struct message);
}

struct message *message_of(const struct ncclComm *comm, int from, int to)
{
	char *shared = (char *)atomic_load(&comm->shared);
	struct message *all = (struct message *)(shared + messages_at(comm->world));

	return &all[(size_t)from * (size_t)comm->world + (size_t)to];
}

bool segment_new(ncclUniqueId *id)
{
	struct segment_id made = {.pid = getpid()};

	memset(id, 0, sizeof *id);
	memcpy(made.magic, magic, sizeof magic);
	if (getrandom(made.nonce, sizeof made.nonce, 0) != sizeof made.nonce)
		return false;
	made.fd = memfd_create("double NCCL", MFD_CLOEXEC);
	if (made.fd < 0)
		return false;
	if (ftruncate(made.fd, sizeof(struct segment)) ||
	    pwrite(made.fd, &made, sizeof made, offsetof(struct segment, id)) != sizeof made) {
		close(made.fd);
		return false;
	}
	memcpy(id, &made, sizeof made);
	return true;
}

/* Returns a descriptor of the shared memory, or -1. */
static int segment_open(const ncclUniqueId *id)
{
	struct segment_id wanted, found;
	char path[64];
	int file;

	memcpy(&wanted, id, sizeof wanted);
	if (memcmp(wanted.magic, magic, sizeof magic) != 0)
		return -1;
	snprintf(path, sizeof path, "/proc/%d/fd/%d", wanted.pid, wanted.fd);
	file = open(path, O_RDWR | O_CLOEXEC);
	if (file < 0)
		return -1;
	/* the creator may have ended, and another process may have its pid */
	if (pread(file, &found, sizeof found, offsetof(struct segment, id)) == sizeof found &&
	    memcmp(&wanted, &found, sizeof found) == 0)
		return file;
	close(file);
	return -1;
}

bool segment_is_there(const ncclUniqueId *id)
{
	int file = segment_open(id);

	if (file >= 0)
		close(file);
	return file >= 0;
}

void segment_close(const ncclUniqueId *id)
{
	struct segment_id made, found;

	memcpy(&made, id, sizeof made);
	if (made.pid == getpid() &&
	    pread(made.fd, &found, sizeof found, offsetof(struct segment, id)) == sizeof found &&
	    memcmp(&made, &found, sizeof found) == 0)
		close(made.fd);
}

/* Claims this rank's entry among the members. */
static void join(struct ncclComm *comm, struct segment *shared, uint64_t ids)
{
	struct member *me = &shared->member[comm->rank];
	int32_t process = 0;

	if (!atomic_compare_exchange_strong(&me->pid, &process, getpid()))
		mismatch(comm, "processes %d and %d both are rank %d of %d", (int)getpid(),
			 (int)process, comm->rank, comm->world);
	me->ids = ids;
	me->own = setting_rank();
	atomic_store(&me->state, ATTACHED);
}

bool segment_attach(struct ncclComm *comm, const ncclUniqueId *id, uint64_t ids)
{
	size_t bytes = segment_bytes(comm->world);
	struct segment *shared;
	int file = segment_open(id), world = 0;

	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	if (file < 0 || comm->world > WORLD_MAX)
		return false;
	/* the first rank to come decides the world size */
	if (ftruncate(file, (off_t)bytes) == 0)
		shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	else
		shared = MAP_FAILED;
	close(file);
	if (shared == MAP_FAILED)
		return false;
	comm->bytes = bytes;
	atomic_store(&comm->shared, shared);
	if (!atomic_compare_exchange_strong(&shared->world, &world, comm->world) &&
	    world != comm->world)
		mismatch(comm, "rank %d of %d has the id of a communicator of %d ranks", comm->rank,
			 comm->world, world);
	join(comm, shared, ids);
	return true;
}

void segment_detach(struct ncclComm *comm)
{
	struct segment *shared = atomic_exchange(&comm->shared, NULL);

	if (shared)
		munmap(shared, comm->bytes);
}

static void wake_some(_Atomic uint32_t *word, uint32_t bits)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, bits);
}

/* Ranks that share a bit wake together, which is harmless. */
static uint32_t bit_of(const struct ncclComm *comm)
{
	return UINT32_C(1) << comm->rank % 32;
}

void wake(_Atomic uint32_t *word)
{
	wake_some(word, UINT32_MAX);
}

void wait_word(const struct ncclComm *comm, _Atomic uint32_t *word, uint32_t seen)
{
	struct timespec limit;

	/* Every change wakes; the timeout is for a peer that was killed. */
	clock_gettime(CLOCK_MONOTONIC, &limit);
	limit.tv_nsec += 500000000;
	if (limit.tv_nsec >= 1000000000) {
		limit.tv_nsec -= 1000000000;
		limit.tv_sec++;
	}
	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, seen, &limit, NULL, bit_of(comm));
}

void wake_own(struct ncclComm *comm)
{
	struct segment *shared = comm->shared;

	if (!shared)
		return;
	for (int i = 0; i < LANES; i++)
		wake_some(&shared->lane[i].word, bit_of(comm));
	wake(&shared->member[comm->rank].bell);
}

void set_state(struct ncclComm *comm, enum member_state state)
{
	struct segment *shared = comm->shared;
	unsigned before = ATTACHED;

	if (!shared)
		return;
	/* an abort after a finalize does not count the rank again */
	if (!atomic_compare_exchange_strong(&shared->member[comm->rank].state, &before, state))
		return;
	if (atomic_fetch_add(&shared->ended, 1) + 1 == (unsigned)comm->world)
		wake(&shared->lane[LANE_CALLS].word);
}
