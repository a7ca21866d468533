/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_protect_find: what earlier attempts have left in the memory of the nodes that are still
 * there. Each rank reads the records of its share of its node's files, all ranks then know of all,
 * and choose the newest step of which each shard is somewhere, after each byte of it was verified.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protect/protect_internal.h"

/* ---- this rank's share of its node's files --------------------------------------------------- */

struct listing {
	struct zero_protect_name *names;
	size_t count;
	bool full;
};

static void add_name(void *context, const struct zero_protect_name *name)
{
	struct listing *listing = context;
	struct zero_protect_name *names =
		realloc(listing->names, (listing->count + 1) * sizeof(*names));

	if (!names) {
		listing->full = true;
		return;
	}
	listing->names = names;
	names[listing->count++] = *name;
}

static int by_name(const void *a, const void *b)
{
	char x[ZERO_PROTECT_NAME_BYTES], y[ZERO_PROTECT_NAME_BYTES];

	zero_protect_format(a, x);
	zero_protect_format(b, y);
	return strcmp(x, y);
}

/* The record with all that follows it; NULL: it is not whole, and so none. */
static struct zero_protect_record *read_record(const struct zero_protect *protect,
					       const struct zero_protect_name *name)
{
	struct zero_protect_record head, *record;
	uint64_t bytes;

	if (zero_protect_file_read(&protect->folder, name, 0, &head, sizeof(head)))
		return NULL;
	bytes = zero_protect_record_bytes(&head);
	if (bytes < sizeof(head) || bytes > ZERO_PROTECT_RECORD_MAX)
		return NULL;
	record = malloc(bytes);
	if (record && !zero_protect_file_read(&protect->folder, name, 0, record, bytes) &&
	    zero_protect_is_whole(protect->files, record, bytes) && record->rank == name->rank &&
	    record->token == name->token)
		return record;
	free(record);
	return NULL;
}

/* Which of the ranks of its node a rank is. */
static size_t index_on_node(const struct zero_protect *protect, int rank)
{
	size_t index = 0;

	for (int other = 0; other < rank; other++)
		index += protect->nodes.of[other] == protect->nodes.of[rank];
	return index;
}

/* Lists the records of the ranks of this node turn by turn, so that each reads as many. */
static zero_status list_own(const struct zero_protect *protect, struct zero_protect_entry **entries,
			    size_t *count)
{
	struct listing listing = {NULL, 0, false};
	int rank = protect->job->place.rank;
	size_t ranks;

	*count = 0;
	if (protect->off)
		return ZERO_OK;
	ranks = protect->nodes.ranks[protect->nodes.of[rank]];
	zero_protect_folder_list(&protect->folder, add_name, &listing);
	*entries = calloc(listing.count + 1, sizeof(**entries));
	if (!*entries || listing.full) {
		free(listing.names);
		return zero_fail(ZERO_E_MEMORY, "no memory to list what is protected");
	}
	if (listing.count)
		qsort(listing.names, listing.count, sizeof(*listing.names), by_name);
	for (size_t i = index_on_node(protect, rank); i < listing.count; i += ranks) {
		struct zero_protect_record *record = read_record(protect, &listing.names[i]);

		if (!record)
			continue;
		(*entries)[(*count)++] = (struct zero_protect_entry){
			.name = listing.names[i],
			.holder = rank,
			.world = record->world,
			.attempt = record->attempt,
			.turn = record->turn,
			.step = record->step,
			.record_bytes = zero_protect_record_bytes(record),
			.shard = record->shard,
		};
		free(record);
	}
	free(listing.names);
	return ZERO_OK;
}

/* ---- what all ranks have --------------------------------------------------------------------- */

/* What a rank says before it sends its entries; rank 0 also says what it found on disk. */
struct outline {
	uint64_t count;
	uint64_t checkpoint, step; /* whether there is one, and of which step */
};

/* Called on rank 0. */
static zero_status find_checkpoint(const struct zero_protect *protect, const char *path,
				   struct outline *outline)
{
	const struct zero_files_ops *files = protect->files;
	struct zero_manifest *manifest = NULL;
	char *folder = NULL, *file = NULL;
	zero_status status = ZERO_OK;

	if (!path)
		return ZERO_OK;
	status = zero_checkpoint_find(path, &folder);
	if (!status && !files)
		status = zero_files_open(&files);
	if (!status && folder) {
		file = zero_checkpoint_path(folder, "manifest.json");
		status = file ? files->manifest_read(file, &manifest)
			      : zero_fail(ZERO_E_MEMORY, "no memory to look for %s", path);
	}
	if (manifest) {
		*outline = (struct outline){outline->count, 1, manifest->step};
		files->manifest_free(manifest);
	}
	free(file);
	free(folder);
	return status;
}

/* COLLECTIVE. Sends the entries of each rank to all; protect->entries are then the same on all. */
static zero_status exchange(struct zero_protect *protect, zero_status status,
			    const struct zero_protect_entry *mine, struct outline *outline)
{
	zero_job *job = protect->job;
	size_t world = (size_t)job->place.world, most = 0;
	struct outline *all = calloc(world, sizeof(*all));
	struct zero_protect_entry *padded = NULL, *every = NULL;

	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to look for what is protected");
	status = zero_submit_wait(&job->all, status,
				  &(struct zero_op){.kind = ZERO_OP_ALLGATHER_BYTES,
						    .send = outline,
						    .recv = all,
						    .count = sizeof(*outline)},
				  1, ZERO_WORK_CHECKPOINT, "what ranks have of protections");
	for (size_t rank = 0; !status && rank < world; rank++)
		most = all[rank].count > most ? all[rank].count : most;
	if (!status) {
		padded = calloc(most + 1, sizeof(*padded));
		every = calloc(most * world + 1, sizeof(*every));
		if (!padded || !every)
			status =
				zero_fail(ZERO_E_MEMORY, "no memory for %zu records", most * world);
		else if (outline->count)
			memcpy(padded, mine, outline->count * sizeof(*mine));
	}
	if (most || status)
		status = zero_submit_wait(&job->all, status,
					  &(struct zero_op){.kind = ZERO_OP_ALLGATHER_BYTES,
							    .send = padded,
							    .recv = every,
							    .count = most * sizeof(*every)},
					  1, ZERO_WORK_CHECKPOINT, "records of protections");
	for (size_t rank = 0; !status && rank < world; rank++) {
		memmove(every + protect->entry_count, every + rank * most,
			all[rank].count * sizeof(*every));
		if (rank == (size_t)job->place.rank)
			protect->own_first = protect->entry_count;
		protect->entry_count += all[rank].count;
	}
	protect->own_count = outline->count;
	protect->most = most;
	if (!status)
		*outline = all[0];
	protect->entries = every;
	free(padded);
	free(all);
	return status;
}

/* ---- reading it ------------------------------------------------------------------------------ */

static zero_status read_file(struct zero_protect *protect, const struct zero_protect_entry *entry,
			     bool record, uint64_t at, void *to, size_t bytes)
{
	struct zero_protect_name name = entry->name;
	size_t mine = protect->nodes.of[protect->job->place.rank];

	name.record = record;
	if (protect->nodes.of[entry->holder] == mine)
		return zero_protect_file_read(&protect->folder, &name, at, to, bytes);
	return zero_protect_get(&protect->ask, entry->holder, &name, at, to, bytes);
}

static zero_status read_shard(void *context, int rank, uint64_t at, void *to, size_t bytes)
{
	struct zero_protect *protect = context;

	return read_file(protect, protect->of_rank[rank], false, at, to, bytes);
}

static zero_status fetch_record(struct zero_protect *protect, int rank,
				struct zero_protect_record **record)
{
	const struct zero_protect_entry *entry = protect->of_rank[rank];
	zero_status status;

	*record = malloc(entry->record_bytes);
	if (!*record)
		return zero_fail(ZERO_E_MEMORY, "no memory for the record of rank %d", rank);
	status = read_file(protect, entry, true, 0, *record, entry->record_bytes);
	if (!status && !(zero_protect_is_whole(protect->files, *record, entry->record_bytes) &&
			 (*record)->token == entry->name.token && (*record)->step == entry->step &&
			 (*record)->rank == rank && (*record)->world == entry->world))
		status = zero_fail(ZERO_E_FORMAT, "%s: the record of rank %d is damaged",
				   protect->source.path, rank);
	return status;
}

static const char *manifest_of(const struct zero_protect_record *record)
{
	return (const char *)(record + 1) + record->user_bytes + record->own_bytes;
}

/* Rank 0's record has the manifest, but for the files, which all records describe. */
static zero_status read_manifest(struct zero_protect *protect)
{
	const struct zero_protect_entry *first = protect->of_rank[0];
	struct zero_manifest *manifest = NULL;
	zero_status status = fetch_record(protect, 0, &protect->first);

	if (!status)
		status = protect->files->manifest_parse(protect->source.path,
							manifest_of(protect->first),
							protect->first->manifest_bytes, &manifest);
	protect->source.manifest = manifest;
	if (!status && manifest->world != first->world)
		status = zero_fail(ZERO_E_FORMAT, "%s: the manifest is of %d ranks, not %d",
				   protect->source.path, manifest->world, first->world);
	for (int rank = 0; !status && rank < manifest->world; rank++) {
		const struct zero_save_summary *shard = &protect->of_rank[rank]->shard;

		manifest->files[rank].bytes = shard->bytes;
		manifest->files[rank].header = shard->header;
		manifest->files[rank].checksums = shard->checksums;
	}
	if (!status)
		protect->source.user = protect->first + 1;
	return status;
}

/* Whether each byte of a shard in this node's memory is as it was written. */
static bool verify(struct zero_protect *protect, const struct zero_protect_entry *entry)
{
	const struct zero_protect_entry **of_rank = &protect->of_rank[entry->name.rank], *before;
	struct zero_shard_reader reader;
	zero_status status = zero_shard_plan(&reader, protect->files, protect->source.manifest,
					     protect->source.path, entry->name.rank);

	before = *of_rank;
	*of_rank = entry;
	reader.source = &protect->source;
	if (!status)
		status = zero_shard_open(&reader);
	for (size_t i = 0; !status && i < reader.layout.count; i++)
		status = zero_shard_read(&reader, &reader.layout.slices[i], 0, NULL,
					 reader.layout.slices[i].bytes);
	zero_shard_close(&reader);
	*of_rank = before;
	return !status;
}

/* ---- the newest complete one ----------------------------------------------------------------- */

static bool same(const struct zero_protect_entry *a, const struct zero_protect_entry *b)
{
	return a->step == b->step && a->name.token == b->name.token && a->world == b->world &&
	       a->name.slot == b->name.slot;
}

/* Fills of_rank with those of a protection, of this node where it has them. False: it is not
   complete. `good` has whether each entry can be read; NULL: all can. */
static bool collect(struct zero_protect *protect, const struct zero_protect_entry *one,
		    const unsigned char *good)
{
	size_t mine = protect->nodes.of[protect->job->place.rank];

	for (int rank = 0; rank < one->world; rank++)
		protect->of_rank[rank] = NULL;
	for (size_t i = 0; i < protect->entry_count; i++) {
		const struct zero_protect_entry *entry = &protect->entries[i];

		if (same(entry, one) && entry->name.rank < one->world && (!good || good[i]) &&
		    (!protect->of_rank[entry->name.rank] ||
		     protect->nodes.of[entry->holder] == mine))
			protect->of_rank[entry->name.rank] = entry;
	}
	for (int rank = 0; rank < one->world; rank++)
		if (!protect->of_rank[rank])
			return false;
	return true;
}

static void forget_one(struct zero_protect *protect)
{
	if (protect->source.manifest)
		protect->files->manifest_free(protect->source.manifest);
	free(protect->of_rank);
	free(protect->first);
	free(protect->own);
	protect->source = (struct zero_shard_source){.context = NULL};
	protect->of_rank = NULL;
	protect->first = protect->own = NULL;
}

/* COLLECTIVE. Whether each file of the protection `one` that a rank holds is good: good[entries],
   the same on all ranks. */
static zero_status verify_all(struct zero_protect *protect, const struct zero_protect_entry *one,
			      zero_status status, unsigned char *good)
{
	zero_job *job = protect->job;
	unsigned char *mine = calloc(protect->most, 1);
	unsigned char *all = calloc((size_t)job->place.world, protect->most);
	size_t index = 0;

	if ((!mine || !all) && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to verify what is protected");
	for (size_t i = 0; !status && i < protect->own_count; i++)
		if (same(&protect->entries[protect->own_first + i], one))
			mine[i] = verify(protect, &protect->entries[protect->own_first + i]);
	status = zero_submit_wait(&job->all, status,
				  &(struct zero_op){.kind = ZERO_OP_ALLGATHER_BYTES,
						    .send = mine,
						    .recv = all,
						    .count = protect->most},
				  1, ZERO_WORK_CHECKPOINT, "verified parts of %s",
				  protect->source.path);
	for (size_t i = 0; !status && i < protect->entry_count; i++, index++) {
		const struct zero_protect_entry *entry = &protect->entries[i];

		/* those of a rank lie one behind the other */
		if (i && entry->holder != entry[-1].holder)
			index = 0;
		good[i] = all[(size_t)entry->holder * protect->most + index];
	}
	free(mine);
	free(all);
	return status;
}

/* COLLECTIVE. Whether a protection can be restored, which is then set as the source. An error of
   any rank is against this one alone. */
static bool try_one(struct zero_protect *protect, const struct zero_protect_entry *one)
{
	unsigned char *good = calloc(protect->entry_count, 1);
	zero_status status = ZERO_OK;
	bool complete;

	protect->of_rank = calloc((size_t)one->world, sizeof(*protect->of_rank));
	if (!good || !protect->of_rank)
		status = zero_fail(ZERO_E_MEMORY, "no memory to look at what is protected");
	complete = status || collect(protect, one, NULL);
	if (!complete)
		goto out;
	snprintf(protect->source.path, sizeof(protect->source.path),
		 "step %llu in the memory of the nodes", (unsigned long long)one->step);
	protect->source.read = read_shard;
	protect->source.context = protect;
	if (!status)
		status = read_manifest(protect);
	status = verify_all(protect, one, status, good);
	complete = !status && collect(protect, one, good);
	if (complete && one->world == protect->job->place.world)
		status = fetch_record(protect, protect->job->place.rank, &protect->own);
	if (complete) {
		status = zero_submit_wait(&protect->job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
					  "choice of %s", protect->source.path);
		complete = !status;
	}
	if (status && protect->job->place.rank == 0)
		fprintf(stderr, "zero: step %llu cannot be restored from memory: %s\n",
			(unsigned long long)one->step, zero_last_error());
out:
	free(good);
	if (!complete)
		forget_one(protect);
	return complete;
}

/* A program may go back to an earlier step, and what it protects then is newer. */
static int newest_first(const void *a, const void *b)
{
	const struct zero_protect_entry *x = *(const struct zero_protect_entry *const *)a,
					*y = *(const struct zero_protect_entry *const *)b;

	if (x->attempt != y->attempt)
		return x->attempt > y->attempt ? -1 : 1;
	if (x->turn != y->turn)
		return x->turn > y->turn ? -1 : 1;
	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	if (x->name.token != y->name.token)
		return x->name.token > y->name.token ? 1 : -1;
	return (int)x->name.slot - (int)y->name.slot;
}

/* COLLECTIVE. Chooses the newest complete one that no checkpoint is newer than. */
static zero_status choose(struct zero_protect *protect, const struct outline *outline)
{
	size_t count = protect->entry_count;
	const struct zero_protect_entry **sorted = calloc(count + 1, sizeof(*sorted));
	bool complete = false;

	zero_status status = zero_submit_wait(
		&protect->job->all,
		sorted ? ZERO_OK : zero_fail(ZERO_E_MEMORY, "no memory for %zu records", count),
		NULL, 0, ZERO_WORK_CHECKPOINT, "choice of a protection");

	for (size_t i = 0; !status && i < count; i++)
		sorted[i] = &protect->entries[i];
	if (!status && count)
		qsort(sorted, count, sizeof(*sorted), newest_first);
	for (size_t i = 0; !status && !complete && i < count; i++) {
		if (outline->checkpoint && outline->step > sorted[i]->step)
			continue;
		if (!i || !same(sorted[i], sorted[i - 1]))
			complete = try_one(protect, sorted[i]);
	}
	free(sorted);
	return status;
}

/* ---- zero_protect_find ----------------------------------------------------------------------- */

void zero_protect_forget(struct zero_protect *protect)
{
	forget_one(protect);
	free(protect->entries);
	free(protect->checkpoint);
	protect->entries = NULL;
	protect->checkpoint = NULL;
	protect->entry_count = protect->own_count = protect->most = 0;
	protect->job->source = NULL;
}

bool zero_protect_is_found(const struct zero_protect *protect, const struct zero_protect_name *name)
{
	return protect->first && name->token == protect->first->token &&
	       name->slot == protect->of_rank[0]->name.slot;
}

/* Whether what was expected is not there, which must not go unnoticed. */
static void tell(const struct zero_protect *protect, const struct outline *outline)
{
	const char *restart = getenv("ZERO_RESTART");
	bool again = restart && strcmp(restart, "0") != 0;

	if (protect->job->place.rank != 0 || protect->first || (!protect->entry_count && !again))
		return;
	fprintf(stderr, "zero: no step in the memory of the nodes is complete");
	if (outline->checkpoint)
		fprintf(stderr, ": the job goes on from the checkpoint of step %llu\n",
			(unsigned long long)outline->step);
	else
		fprintf(stderr, ", and there is no checkpoint: the job begins again\n");
}

static void describe(struct zero_protect *protect, const char *path, const struct outline *outline,
		     zero_protected *found)
{
	if (protect->first) {
		protect->job->source = &protect->source;
		*found = (zero_protected){
			.path = protect->source.path,
			.step = protect->first->step,
			.world = protect->first->world,
			.manifest = manifest_of(protect->first),
			.manifest_bytes = protect->first->manifest_bytes,
		};
		if (protect->own && protect->own->own_bytes) {
			found->own = (const char *)(protect->own + 1) + protect->own->user_bytes;
			found->own_bytes = protect->own->own_bytes;
		}
	} else if (outline->checkpoint) {
		protect->checkpoint = strdup(path);
		*found = (zero_protected){.path = protect->checkpoint, .step = outline->step};
	}
}

/* COLLECTIVE. */
static zero_status find(struct zero_protect *protect, const char *path, zero_protected *found)
{
	struct zero_protect_entry *mine = NULL;
	struct outline outline = {0};
	size_t count;
	zero_status status = list_own(protect, &mine, &count);

	outline.count = count;
	if (!status && protect->job->place.rank == 0)
		status = find_checkpoint(protect, path, &outline);
	status = exchange(protect, status, mine, &outline);
	free(mine);
	if (!status)
		status = choose(protect, &outline);
	if (status)
		return status;
	tell(protect, &outline);
	describe(protect, path, &outline, found);
	return zero_submit_wait(&protect->job->all,
				outline.checkpoint && !protect->first && !found->path
					? zero_fail(ZERO_E_MEMORY, "no memory for %s", path)
					: ZERO_OK,
				NULL, 0, ZERO_WORK_CHECKPOINT, "what is protected");
}

zero_status zero_protect_find(zero_job *job, const char *path, zero_protected *found)
{
	const char *before = zero_set_current_call(job, "zero_protect_find");
	zero_status status = ZERO_OK;

	*found = (zero_protected){0};
	if (!job->laid_out)
		status = zero_fail(ZERO_E_STATE,
				   "zero_protect_find must be called after zero_layout");
	else if (job->protect && (job->protect->save || job->protect->turn))
		status =
			zero_fail(ZERO_E_STATE,
				  "zero_protect_find must be called before the first zero_protect");
	if (!status && !job->protect)
		status = zero_protect_open(job);
	if (!status)
		zero_protect_forget(job->protect);
	if (!status)
		status = find(job->protect, path, found);
	zero_set_current_call(job, before);
	return status;
}

zero_status zero_protect_restore(zero_job *job, const char *path, zero_checkpoint_info *info)
{
	zero_protected found;
	zero_status status = zero_protect_find(job, path, &found);

	if (info)
		*info = (zero_checkpoint_info){0};
	return status || !found.path ? status : zero_restore(job, found.path, info);
}
