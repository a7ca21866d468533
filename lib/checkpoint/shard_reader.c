/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads bytes of a checkpoint and verifies them block by block. Complete blocks are read straight
 * to their destination and verified there while they are in the cache. A block of which only a
 * part is needed is read into a buffer first.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "load/load.h"
#include "train/train.h"

enum {
	PIECE_BLOCKS = 8, /* blocks that are read at once, then verified */
	HEADER_MAX = 100000000 + 8,
};

/* ---- files ----------------------------------------------------------------------------------- */

/* Opens a regular file of this size that is not a link. */
static zero_status open_file(const char *path, uint64_t bytes, int *fd)
{
	zero_status status = ZERO_OK;
	struct stat info;

	/* Without O_NONBLOCK, opening a FIFO waits for a writer that may never come. */
	do {
		*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
	} while (*fd < 0 && errno == EINTR);
	if (*fd < 0 && errno == ELOOP)
		return zero_fail(ZERO_E_FORMAT,
				 "%s: is a symbolic link; a checkpoint has regular files only",
				 path);
	if (*fd < 0 && errno == ENOENT)
		return zero_fail(ZERO_E_FORMAT, "%s: is missing, but the manifest names it", path);
	if (*fd < 0)
		return zero_fail(ZERO_E_FILE, "%s: cannot be opened: %s", path, strerror(errno));
	if (fstat(*fd, &info) != 0)
		status =
			zero_fail(ZERO_E_FILE, "%s: cannot be examined: %s", path, strerror(errno));
	else if (!S_ISREG(info.st_mode))
		status = zero_fail(ZERO_E_FORMAT, "%s: is not a regular file", path);
	else if ((uint64_t)info.st_size != bytes)
		status = zero_fail(ZERO_E_FORMAT,
				   "%s: has %lld bytes, but the manifest says %llu; it may be cut "
				   "short, or belong to another checkpoint",
				   path, (long long)info.st_size, (unsigned long long)bytes);
	if (status) {
		close(*fd);
		*fd = -1;
	}
	return status;
}

static zero_status read_all(int fd, const char *path, uint64_t offset, void *to, size_t bytes)
{
	char *at = to;

	while (bytes) {
		/* Linux reads less than 2 GiB at once. */
		ssize_t got = pread(fd, at, bytes, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return zero_fail(ZERO_E_FILE, "%s: cannot be read at byte %llu: %s", path,
					 (unsigned long long)offset, strerror(errno));
		if (!got)
			return zero_fail(
				ZERO_E_FORMAT,
				"%s: ends at byte %llu, but was longer when it was opened; is "
				"another program writing to it?",
				path, (unsigned long long)offset);
		at += got;
		offset += (uint64_t)got;
		bytes -= (size_t)got;
	}
	return ZERO_OK;
}

/* ---- a shard --------------------------------------------------------------------------------- */

static zero_status no_memory(const struct zero_shard_reader *reader)
{
	return zero_fail(ZERO_E_MEMORY, "no memory to read %s",
			 reader->manifest->files[reader->rank].name);
}

static zero_status read_bytes(struct zero_shard_reader *reader, uint64_t offset, void *to,
			      size_t bytes)
{
	reader->read += bytes;
	if (reader->source)
		return reader->source->read(reader->source->context, reader->rank, offset, to,
					    bytes);
	return read_all(reader->fd, reader->path, offset, to, bytes);
}

zero_status zero_shard_plan(struct zero_shard_reader *reader, const struct zero_files_ops *files,
			    const struct zero_manifest *manifest, const char *folder, int rank)
{
	*reader = (struct zero_shard_reader){
		.files = files, .manifest = manifest, .rank = rank, .fd = -1};
	reader->path = zero_checkpoint_path(folder, manifest->files[rank].name);
	if (!reader->path)
		return no_memory(reader);
	return files->manifest_shard(manifest, rank, &reader->layout);
}

zero_status zero_shard_open_file(struct zero_shard_reader *reader)
{
	const struct zero_manifest_file *file = &reader->manifest->files[reader->rank];
	/* This cannot overflow: the layout has less than 2^62 bytes, with one checksum for each
	   block. */
	uint64_t rest = reader->layout.bytes + reader->layout.checksums * sizeof(uint64_t);
	zero_status status =
		reader->source ? ZERO_OK : open_file(reader->path, file->bytes, &reader->fd);

	if (status)
		return status;
	if (file->bytes < rest + 8 || file->bytes - rest > HEADER_MAX)
		return zero_fail(
			ZERO_E_FORMAT,
			"%s: has %llu bytes, but its tensors take %llu and the header at most "
			"%d; the manifest and the file do not match",
			reader->path, (unsigned long long)file->bytes, (unsigned long long)rest,
			HEADER_MAX);
	reader->data = file->bytes - rest;
	reader->block = malloc(PIECE_BLOCKS * ZERO_CHECKSUM_BLOCK);
	return reader->block ? ZERO_OK : no_memory(reader);
}

/* Verifies all bytes before the data. They need no parsing: their content follows from the
   manifest. */
zero_status zero_shard_check_header(struct zero_shard_reader *reader)
{
	const struct zero_manifest_file *file = &reader->manifest->files[reader->rank];
	char *header = malloc(reader->data);
	zero_status status;
	uint64_t sum;

	if (!header)
		return no_memory(reader);
	status = read_bytes(reader, 0, header, reader->data);
	sum = status ? 0 : reader->files->checksum(header, reader->data);
	if (!status && sum != file->header)
		status = zero_fail(ZERO_E_FORMAT,
				   "%s: the header is damaged: the checksum of its %llu bytes is "
				   "%016llx, the manifest has %016llx",
				   reader->path, (unsigned long long)reader->data,
				   (unsigned long long)sum, (unsigned long long)file->header);
	free(header);
	return status;
}

zero_status zero_shard_check_checksums(struct zero_shard_reader *reader)
{
	const struct zero_manifest_file *file = &reader->manifest->files[reader->rank];
	size_t bytes = reader->layout.checksums * sizeof(uint64_t);
	zero_status status;
	uint64_t sum;

	reader->checksums = malloc(bytes ? bytes : 1);
	if (!reader->checksums)
		return no_memory(reader);
	status = read_bytes(reader, reader->data + reader->layout.bytes, reader->checksums, bytes);
	if (status)
		return status;
	sum = reader->files->checksum(reader->checksums, bytes);
	if (sum == file->checksums)
		return ZERO_OK;
	return zero_fail(ZERO_E_FORMAT,
			 "%s: tensor \"checksums\" is damaged: the checksum of its %zu bytes is "
			 "%016llx, the manifest has %016llx",
			 reader->path, bytes, (unsigned long long)sum,
			 (unsigned long long)file->checksums);
}

zero_status zero_shard_open(struct zero_shard_reader *reader)
{
	zero_status status = zero_shard_open_file(reader);

	if (!status)
		status = zero_shard_check_header(reader);
	return status ? status : zero_shard_check_checksums(reader);
}

void zero_shard_close(struct zero_shard_reader *reader)
{
	if (reader->path && reader->fd >= 0)
		close(reader->fd);
	free(reader->layout.slices);
	free(reader->path);
	free(reader->checksums);
	free(reader->block);
	*reader = (struct zero_shard_reader){.fd = -1};
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static zero_status damaged(const struct zero_shard_reader *reader,
			   const struct zero_shard_slice *slice, uint64_t block, size_t bytes,
			   uint64_t sum)
{
	uint64_t begin = reader->data + slice->at + block * ZERO_CHECKSUM_BLOCK;
	char name[300];

	zero_saved_name(name, sizeof(name), slice->kind, zero_slice_state(reader->manifest, slice),
			reader->manifest->tensors[slice->tensor].name);
	return zero_fail(ZERO_E_FORMAT,
			 "%s: tensor \"%s\" is damaged: the checksum of bytes %llu to %llu of "
			 "the file is %016llx, the file's list of checksums has %016llx",
			 reader->path, name, (unsigned long long)begin,
			 (unsigned long long)(begin + bytes), (unsigned long long)sum,
			 (unsigned long long)reader->checksums[slice->first_checksum + block]);
}

/* Reads complete blocks from block number `block`, PIECE_BLOCKS at most. The slice's last block may
   be short. */
static zero_status read_blocks(struct zero_shard_reader *reader,
			       const struct zero_shard_slice *slice, uint64_t block, char *to,
			       size_t bytes)
{
	uint64_t sums[PIECE_BLOCKS];
	size_t count = (bytes + ZERO_CHECKSUM_BLOCK - 1) / ZERO_CHECKSUM_BLOCK;
	zero_status status = read_bytes(
		reader, reader->data + slice->at + block * ZERO_CHECKSUM_BLOCK, to, bytes);

	if (status)
		return status;
	reader->files->checksum_blocks(to, bytes, sums);
	for (size_t i = 0; i < count; i++)
		if (sums[i] != reader->checksums[slice->first_checksum + block + i])
			return damaged(reader, slice, block + i,
				       bytes - i * ZERO_CHECKSUM_BLOCK < ZERO_CHECKSUM_BLOCK
					       ? bytes - i * ZERO_CHECKSUM_BLOCK
					       : ZERO_CHECKSUM_BLOCK,
				       sums[i]);
	return ZERO_OK;
}

/* Reads a part of one block, by way of the buffer. */
static zero_status read_part(struct zero_shard_reader *reader, const struct zero_shard_slice *slice,
			     uint64_t at, char *to, size_t bytes)
{
	uint64_t block = at / ZERO_CHECKSUM_BLOCK, begin = block * ZERO_CHECKSUM_BLOCK;
	uint64_t rest = slice->bytes - begin;
	zero_status status;

	if (reader->block_of != slice || reader->block_index != block) {
		reader->block_of = NULL;
		status = read_blocks(reader, slice, block, reader->block,
				     rest < ZERO_CHECKSUM_BLOCK ? (size_t)rest
								: ZERO_CHECKSUM_BLOCK);
		if (status)
			return status;
		reader->block_of = slice;
		reader->block_index = block;
	}
	memcpy(to, reader->block + (at - begin), bytes);
	return ZERO_OK;
}

/* The number of bytes from `at` that can be read at once: a part of one block, or several complete
   blocks. */
static size_t next_bytes(const struct zero_shard_slice *slice, uint64_t at, uint64_t bytes,
			 bool *complete)
{
	uint64_t in_block = at % ZERO_CHECKSUM_BLOCK,
		 block_end = at - in_block + ZERO_CHECKSUM_BLOCK;
	uint64_t most = (uint64_t)PIECE_BLOCKS * ZERO_CHECKSUM_BLOCK;

	*complete = !in_block && (bytes >= ZERO_CHECKSUM_BLOCK || at + bytes == slice->bytes);
	if (!*complete)
		return (size_t)(bytes < block_end - at ? bytes : block_end - at);
	if (bytes > most)
		return (size_t)most;
	return (size_t)(at + bytes == slice->bytes ? bytes : bytes - bytes % ZERO_CHECKSUM_BLOCK);
}

zero_status zero_shard_read(struct zero_shard_reader *reader, const struct zero_shard_slice *slice,
			    uint64_t at, void *to, size_t bytes)
{
	zero_status status = ZERO_OK;
	char *out = to;
	bool complete;

	if (!out)
		reader->block_of = NULL;
	for (size_t done = 0, now; !status && done < bytes; done += now) {
		now = next_bytes(slice, at + done, bytes - done, &complete);
		if (complete)
			status = read_blocks(reader, slice, (at + done) / ZERO_CHECKSUM_BLOCK,
					     out ? out + done : reader->block, now);
		else
			status = read_part(reader, slice, at + done, out + done, now);
	}
	return status;
}

/* ---- the program's own bytes ----------------------------------------------------------------- */

zero_status zero_checkpoint_user(const struct zero_files_ops *files,
				 const struct zero_manifest *manifest, const char *folder,
				 void **user)
{
	char *path = zero_checkpoint_path(folder, "user");
	uint64_t sum;
	zero_status status;
	int fd = -1;

	*user = NULL;
	if (!path)
		return zero_fail(ZERO_E_MEMORY, "no memory to read from %s", folder);
	status = open_file(path, manifest->user_bytes, &fd);
	if (status)
		goto out;
	*user = malloc(manifest->user_bytes ? manifest->user_bytes : 1);
	if (!*user)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the %llu bytes of %s",
				   (unsigned long long)manifest->user_bytes, path);
	if (!status)
		status = read_all(fd, path, 0, *user, manifest->user_bytes);
	close(fd);
	if (status)
		goto out;
	sum = files->checksum(*user, manifest->user_bytes);
	if (sum != manifest->user_checksum)
		status = zero_fail(ZERO_E_FORMAT,
				   "%s: the program's own bytes are damaged: their checksum is "
				   "%016llx, the manifest has %016llx",
				   path, (unsigned long long)sum,
				   (unsigned long long)manifest->user_checksum);
out:
	if (status) {
		free(*user);
		*user = NULL;
	}
	free(path);
	return status;
}
