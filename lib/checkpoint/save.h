/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of zero_save share. */
#ifndef ZERO_SAVE_H
#define ZERO_SAVE_H

#include "checkpoint/write.h"

/* Bytes that are summed and written at once, still in the cache: whole blocks of checksums. */
#define ZERO_SAVE_PIECE ((size_t)4 * ZERO_CHECKSUM_BLOCK)

/* A copy of slices that are still to be written. */
struct zero_save_copy {
	void *data;
	size_t slices; /* not written yet */
	struct zero_save_copy *next;
};

/* A tensor of the file: this rank's part of a parameter or of a state. */
struct zero_save_slice {
	const zero_param *param;
	enum zero_saved_kind kind;
	bool device;      /* its memory is not the host's */
	const char *data; /* byte `from` of it */
	size_t from;      /* 0, unless the begin was written before the rest was copied */
	size_t bytes, written;
	size_t sum; /* index of its first checksum */
	uint64_t at;
	struct zero_save_copy *copy; /* that `data` is in; NULL: none */
};

enum zero_save_state {
	ZERO_SAVE_WRITING,
	ZERO_SAVE_PUBLISHING, /* all ranks have written: rank 0 gives it its name */
	ZERO_SAVE_ENDED,      /* as `status` says, which all ranks know */
};

/* What ranks tell rank 0 of their files. */
struct zero_save_told {
	uint64_t bytes, header, checksums;
};

struct zero_save {
	zero_job *job;
	const struct zero_files_ops *files;
	enum zero_save_state state;
	double began;               /* seconds of the machine's clock */
	char *dir, *path, *partial; /* of checkpoints, of this one, where it is written first */
	int keep;
	uint64_t step;
	bool has_states, has_adamw, has_user;
	zero_adamw adamw;
	uint64_t user_bytes, user_checksum;

	/* This rank's file. */
	struct zero_out out;
	char *file, *header;
	size_t header_bytes;
	struct zero_save_slice *slices;
	size_t slice_count;
	size_t *begin; /* [kinds * groups + 1] index of a kind's and group's first slice */
	uint64_t *sums;
	size_t sum_count;
	uint64_t sums_at;
	struct zero_save_told *told; /* of all ranks, once all have written */

	/* In the background: a thread that writes, and at rank 0 one that publishes. */
	pthread_t thread;
	bool has_thread;
	zero_status status;
	char *error; /* the sentence; NULL: none */
	int error_rank;

	/* Guarded by the lock while the thread runs; nobody else has it otherwise. */
	pthread_mutex_t lock;
	pthread_cond_t wrote;
	size_t next;                     /* slices before it are written */
	struct zero_save_slice *busy;    /* a piece of it is being written */
	size_t wanted_first, wanted_end; /* slices that somebody waits for */
	uint64_t pieces;                 /* written so far */
	struct zero_save_copy *copies;
	bool cancelled;
	_Atomic bool written; /* this rank has nothing left to write */
};

/* ---- save_shard.c ---------------------------------------------------------------------------- */

/* Lists the slices and makes the header; nothing is written yet. */
zero_status zero_save_plan(struct zero_save *save);
/* One piece of what is in host memory, at `data`, from byte `at` of the slice on. */
zero_status zero_save_piece(const struct zero_save *save, const struct zero_save_slice *slice,
			    const void *data, size_t at, size_t bytes);
/* All of a slice, by staging where it is on a device. */
zero_status zero_save_slice(struct zero_save *save, struct zero_save_slice *slice);
/* The file, empty. */
zero_status zero_save_create(struct zero_save *save);
/* Room for all of it, and the header. */
zero_status zero_save_room(struct zero_save *save);
/* The checksums, and all to disk. Closes the file in any case. */
zero_status zero_save_close(struct zero_save *save, zero_status status);

/* ---- save_thread.c --------------------------------------------------------------------------- */

/* Writes while the caller goes on; what cannot be is written before it returns. */
void zero_save_start(struct zero_save *save);
/* Waits for the thread. Its error becomes the calling thread's last one. */
zero_status zero_save_join(struct zero_save *save);
/* Runs `work` in a thread of its own, or here if there is none to be had. */
void zero_save_run(struct zero_save *save, void *(*work)(void *));
/* Keeps the calling thread's last error as that of the save. */
void zero_save_error(struct zero_save *save, zero_status status);
void zero_save_copies_free(struct zero_save *save);

/* ---- save_folder.c: what rank 0 does with names ---------------------------------------------- */

/* The folder that all ranks write to; what killed jobs left in `dir` is deleted. */
zero_status zero_save_folder(struct zero_save *save);
/* The program's own bytes. */
zero_status zero_save_user(struct zero_save *save, const void *user, size_t bytes);
/* The manifest; then all gets its name, `latest` and older ones follow. */
zero_status zero_save_publish(struct zero_save *save);
/* After an error. */
void zero_save_discard(const struct zero_save *save);

/* ---- save_manifest.c ------------------------------------------------------------------------- */

/* The text of the manifest, malloc'ed. */
zero_status zero_save_manifest(const struct zero_save *save, char **text, size_t *bytes);

#endif
