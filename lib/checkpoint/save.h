/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of zero_save share. */
#ifndef ZERO_SAVE_H
#define ZERO_SAVE_H

#include "checkpoint/write.h"

/* Bytes that are checksummed and then written while they are still in the cache. */
#define ZERO_SAVE_PIECE ((size_t)4 * ZERO_CHECKSUM_BLOCK)

/* A copy of slices that are still to be written. */
struct zero_save_copy {
	void *data;
	size_t slices; /* slices in it that are not written yet */
	struct zero_save_copy *next;
};

/* This rank's part of a parameter or of one of its states: one tensor of its file. */
struct zero_save_slice {
	const zero_param *param;
	enum zero_saved_kind kind;
	const struct zero_named_state *state; /* of ZERO_SAVED_NAMED; valid within zero_save */
	bool device;                          /* its memory is, or may be, a device's */
	const char *data;                     /* points to byte `from` of the slice */
	size_t from; /* more than 0 if a part was written before the rest was copied */
	size_t bytes, written;
	size_t first_checksum;       /* index */
	uint64_t at;                 /* byte of the file */
	struct zero_save_copy *copy; /* that has `data`; NULL: none */
};

enum zero_save_state {
	ZERO_SAVE_WRITING,
	ZERO_SAVE_PUBLISHING, /* all ranks have written, and rank 0 renames the checkpoint */
	ZERO_SAVE_ENDED,      /* with `status`, which all ranks know */
};

/* A rank's file, as the manifest describes it. */
struct zero_save_summary {
	uint64_t bytes, header, checksums;
};

struct zero_save {
	zero_job *job;
	const struct zero_files_ops *files;
	enum zero_save_state state;
	double start_time; /* zero_seconds() */
	char *dir, *path,
		*partial; /* folder of checkpoints, this checkpoint, its name until then */
	int keep_last;
	uint64_t step;
	bool has_states;
	bool has_user;
	uint64_t user_bytes, user_checksum;
	size_t group_count; /* the groups that the job has later are not saved */
	struct zero_manifest_state *manifest_states;
	char *manifest_names;          /* of their own: a group may be dropped meanwhile */
	struct zero_manifest manifest; /* on rank 0; its files are missing until all have written */

	/* This rank's file. */
	struct zero_writer out;
	char *file, *header;
	size_t header_bytes;
	struct zero_save_slice *slices;
	size_t slice_count;
	size_t *first_slice; /* [kinds * groups + 1] index of the first slice of a kind and group */
	uint64_t *checksums;
	size_t checksum_count;
	uint64_t checksums_at;               /* byte of the file */
	struct zero_save_summary *summaries; /* of all ranks, once all have written */

	/* The background thread, which writes, and on rank 0 publishes later. */
	pthread_t thread;
	bool has_thread;
	zero_status status;
	char *error; /* the message; NULL: none */
	int error_rank;

	/* The lock guards these, and slices and copies, while the thread runs. */
	pthread_mutex_t lock;
	pthread_cond_t wrote;
	size_t next;                     /* all slices before this one are written */
	struct zero_save_slice *busy;    /* the thread writes a piece of this slice */
	size_t wanted_first, wanted_end; /* slices that the training thread waits for */
	uint64_t pieces;                 /* written so far */
	struct zero_save_copy *copies;
	bool cancelled;
	_Atomic bool written; /* this rank has nothing left to write */

	/* What the thread does once the file is written; NULL: nothing. */
	zero_status (*after_write)(struct zero_save *save);
	void *context; /* its own */
};

/* ---- save.c ---------------------------------------------------------------------------------- */

/* Refuses to save a job as it is. `call` is the function of zero.h. */
zero_status zero_save_check(zero_job *job, const char *call);
/* A save of which nothing is planned yet; `dir` is its folder, in messages too. *save is to be
   freed, also after an error. */
zero_status zero_save_new(zero_job *job, const char *dir, uint64_t step, struct zero_save **save);
/* NULL is a no-op. */
void zero_save_free(struct zero_save *save);
/* This rank's file, once it is written. */
struct zero_save_summary zero_save_summarize(const struct zero_save *save);

/* ---- save_shard.c: this rank's file ---------------------------------------------------------- */

/* Lists the slices and makes the header; nothing is written yet. */
zero_status zero_save_plan(struct zero_save *save);
/* Creates an empty file. */
zero_status zero_save_create(struct zero_save *save);
/* Reserves the file's space and writes the header. */
zero_status zero_save_reserve(struct zero_save *save);
/* Writes one piece in host memory, which is at byte `at` of the slice. */
zero_status zero_save_write_piece(const struct zero_save *save, const struct zero_save_slice *slice,
				  const void *data, size_t at, size_t bytes);
/* Writes a slice, with staging if it is in a device's memory. */
zero_status zero_save_write_slice(struct zero_save *save, struct zero_save_slice *slice);
/* If `status` is ZERO_OK, writes the checksums and syncs the file. Closes it in any case. */
zero_status zero_save_close(struct zero_save *save, zero_status status);

/* ---- save_thread.c: saving in the background ------------------------------------------------- */

/* Starts to write in the background. What cannot be copied is written before it returns. */
void zero_save_start(struct zero_save *save);
/* Has the thread end before all is written. */
void zero_save_cancel(struct zero_save *save);
/* Waits for the thread. Its error becomes the calling thread's last error. */
zero_status zero_save_join(struct zero_save *save);
/* Runs `work` in a new thread, or in the calling one if no thread can be started. */
void zero_save_start_thread(struct zero_save *save, void *(*work)(void *));
/* Stores the calling thread's last error as that of the save. */
void zero_save_set_error(struct zero_save *save, zero_status status);
void zero_save_free_copies(struct zero_save *save);

/* ---- save_folder.c: rank 0 creates, renames and deletes folders ------------------------------ */

/* Creates the folder that all ranks write to. Deletes what killed jobs left in `dir`. */
zero_status zero_save_make_folder(struct zero_save *save);
/* Writes the program's own bytes. */
zero_status zero_save_write_user(struct zero_save *save, const void *user, size_t bytes);
/* Writes the manifest, renames the checkpoint, updates `latest` and deletes old checkpoints. */
zero_status zero_save_publish(struct zero_save *save);
/* After an error: deletes the folder. */
void zero_save_discard(const struct zero_save *save);

/* ---- save_manifest.c ------------------------------------------------------------------------- */

/* Describes the job in save->manifest as it is now, since it may have changed when all ranks have
   written. Called on rank 0, after zero_save_write_user. */
zero_status zero_save_describe(struct zero_save *save);
/* Makes the text of the manifest, with the files of all ranks; malloc'ed. */
zero_status zero_save_make_manifest(struct zero_save *save, char **text, size_t *bytes);
void zero_save_free_manifest(struct zero_save *save);

/* Before values of the group change, NULL for every group: copies what the save in the background
   has not written yet of it. NULL is a no-op. */
void zero_save_snapshot(struct zero_save *save, zero_group *group, bool step);

#endif
