/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the room share. A protection is what a save writes, of one step: each rank's
 * shard, and a record that describes it. Both are files of a private folder in the node's memory,
 * and again, as copies, in that of the rank's partner. Two slots take turns.
 */
#ifndef ZERO_PROTECT_INTERNAL_H
#define ZERO_PROTECT_INTERNAL_H

#include "checkpoint/save.h"
#include "job/job.h"
#include "net/dial.h"

/* ---- records.c: names and records of files --------------------------------------------------- */

/* Which file of a folder. */
struct zero_protect_name {
	uint64_t token; /* of the attempt that made it */
	int32_t rank;
	uint32_t slot; /* 0 or 1 */
	uint32_t copy; /* it is a partner's */
	uint32_t record;
};

enum { ZERO_PROTECT_NAME_BYTES = 48 };
#define ZERO_PROTECT_RECORD_MAX ((uint64_t)1 << 32)

void zero_protect_format(const struct zero_protect_name *name, char text[ZERO_PROTECT_NAME_BYTES]);
bool zero_protect_parse(const char *text, struct zero_protect_name *name);

/* What a record's file begins with; the program's bytes, the rank's and the manifest follow. */
struct zero_protect_record {
	char magic[8];
	uint64_t token, step;
	struct zero_save_summary shard;
	uint64_t user_bytes, own_bytes, manifest_bytes;
	int32_t rank, world;
	uint32_t attempt, turn; /* zerorun's number of the attempt, and which of its protections */
	uint64_t seal;          /* the checksum of all of it, with a seal of 0 */
};

/* The bytes of a record with all that follows it. */
uint64_t zero_protect_record_bytes(const struct zero_protect_record *record);
void zero_protect_seal(const struct zero_files_ops *files, struct zero_protect_record *record);
/* Whether these are the bytes of a complete record. */
bool zero_protect_is_whole(const struct zero_files_ops *files, void *data, size_t bytes);

/* ---- folder.c -------------------------------------------------------------------------------- */

struct zero_protect_folder {
	int fd;     /* -1: not open */
	char *path; /* DIR/zero-UID/JOB/RUN */
};

/* Opens the folder of this run and of this model, whose hash is `model`, and makes it. Each of its
   three levels is the user's own, closed to others, and no link. */
zero_status zero_protect_folder_open(struct zero_protect_folder *folder, const char *dir,
				     uint64_t model);
void zero_protect_folder_close(struct zero_protect_folder *folder);
/* Opens a file, to be read, or else to be written, and then made. It is the user's own, and no
   link. The caller closes it. */
zero_status zero_protect_file_open(const struct zero_protect_folder *folder,
				   const struct zero_protect_name *name, bool write, int *fd);
/* Reads bytes at `at`. */
zero_status zero_protect_file_read(const struct zero_protect_folder *folder,
				   const struct zero_protect_name *name, uint64_t at, void *to,
				   size_t bytes);
/* The bytes of all files. */
uint64_t zero_protect_folder_bytes(const struct zero_protect_folder *folder);
/* Makes a file that has these bytes when it appears. */
zero_status zero_protect_file_put(const struct zero_protect_folder *folder,
				  const struct zero_protect_name *name, const void *data,
				  size_t bytes);
void zero_protect_file_remove(const struct zero_protect_folder *folder,
			      const struct zero_protect_name *name);
/* Removes all files that `stays` does not keep. */
void zero_protect_folder_clean(const struct zero_protect_folder *folder,
			       bool (*stays)(const void *context,
					     const struct zero_protect_name *name),
			       const void *context);
/* Calls `each` for the names of all records. */
void zero_protect_folder_list(const struct zero_protect_folder *folder,
			      void (*each)(void *context, const struct zero_protect_name *name),
			      void *context);
/* When the process ends with status 0: removes all files, the folder, and the two above it in `dir`
   if they are empty. A job that ends otherwise may be started again. */
void zero_protect_folder_remove(const struct zero_protect_folder *folder, const char *dir);

/* ---- serve.c: what a rank does for others ---------------------------------------------------- */

enum zero_protect_request_kind { ZERO_PROTECT_PUT = 1, ZERO_PROTECT_GET };

/* PUT: `record` and `bytes` of a shard follow, and become copies. GET: the answer has `bytes` of
   the file from byte `at`. */
struct zero_protect_request {
	uint32_t kind;
	struct zero_protect_name name;
	uint64_t at, bytes, record;
};

/* The answer: an errno, 0 for none; what was asked for follows. */
struct zero_protect_answer {
	uint64_t error;
};

struct zero_protect_server {
	const struct zero_protect_folder *folder;
	int rank, world;
	uint8_t cookie[16];
	int listening; /* -1: none */
	pthread_t thread;
	bool has_thread;
	struct zero_protect_connection *connections; /* its thread's */
	atomic_bool over;
};

zero_status zero_protect_serve(struct zero_protect_server *server);
void zero_protect_serve_end(struct zero_protect_server *server);

/* ---- ask.c: what it asks of others ----------------------------------------------------------- */

struct zero_protect_ask {
	int rank, world;
	const struct zero_address *addresses; /* [world] */
	uint8_t cookie[16];
	const char *node;
	_Atomic int *peers; /* [world]: connections; -1: none */
	atomic_bool over;
};

/* Reads bytes of a file of another rank's folder. */
zero_status zero_protect_get(struct zero_protect_ask *ask, int rank,
			     const struct zero_protect_name *name, uint64_t at, void *to,
			     size_t bytes);
/* Sends a record and the file of a shard, at most `rate` bytes a second (0: as fast as it goes).
   Returns once the other rank has both. */
zero_status zero_protect_put(struct zero_protect_ask *ask, int rank,
			     const struct zero_protect_name *name, const void *record,
			     size_t record_bytes, int shard, uint64_t bytes, uint64_t rate);
/* Lets what is sent to a rank go as fast as it can. From any thread. */
void zero_protect_hurry(struct zero_protect_ask *ask, int rank);
/* Ends what is under way, with an error, and all that comes. From any thread. */
void zero_protect_ask_cancel(struct zero_protect_ask *ask);
void zero_protect_ask_end(struct zero_protect_ask *ask);

/* ---- partner.c ------------------------------------------------------------------------------- */

/* The rank on another node that has the copies of each rank: partners[world]; -1: all ranks are on
   one node. `switches` has a hash of what is between the nodes and the rest, for each rank. */
zero_status zero_protect_partners(const struct zero_nodes *nodes, const uint64_t *switches,
				  size_t world, int *partners);

/* ---- protect.c ------------------------------------------------------------------------------- */

/* A file of a protection, as the rank that has it describes it to the others. */
struct zero_protect_entry {
	struct zero_protect_name name; /* of the record */
	int32_t holder, world;
	uint32_t attempt, turn;
	uint64_t step, record_bytes;
	struct zero_save_summary shard;
};

struct zero_protect {
	zero_job *job;
	const struct zero_files_ops *files;
	bool off;       /* nothing can be protected, or found */
	uint64_t token; /* of this attempt */
	uint32_t attempt;
	uint64_t memory; /* that the node has for it, with what is in the folder already */
	struct zero_protect_folder folder;
	struct zero_nodes nodes;
	struct zero_address *addresses; /* [world] */
	int *partners;                  /* [world] */
	struct zero_protect_server server;
	struct zero_protect_ask ask;

	/* The protection under way, which its thread writes. */
	struct zero_save *save;             /* NULL: none */
	struct zero_protect_record *record; /* with what follows it */
	struct zero_protect_name name;      /* of this rank's shard */
	uint64_t rate;                      /* bytes a second of its push */
	double begun;                       /* zero_seconds() of its begin; 0: there was none */
	uint64_t begun_seen;                /* what `seen` was then */
	double shortest;                    /* seconds of recent steps, the least */
	unsigned turn;                      /* protections that were complete */
	uint64_t seen;                      /* steps since it was opened */
	uint64_t failures,
		skip_until; /* in a row; which of `seen` has to come before another try */

	/* What zero_protect_find found. */
	struct zero_protect_entry *entries;        /* of all ranks */
	size_t entry_count, most;                  /* in all, and of one rank */
	size_t own_first, own_count;               /* this rank's */
	const struct zero_protect_entry **of_rank; /* [its world], whose file is read */
	struct zero_shard_source source;
	struct zero_protect_record *first; /* rank 0's record */
	struct zero_protect_record *own;   /* that of this rank's number; NULL: none */
	char *checkpoint;                  /* the path of a newer one; NULL: none */
};

/* COLLECTIVE. Makes job->protect. What is against it makes it `off`, and is said. */
zero_status zero_protect_open(zero_job *job);
/* `together`: what was protected is not needed any more. */
void zero_protect_close(zero_job *job, bool together);

/* ---- find.c ---------------------------------------------------------------------------------- */

/* Forgets what was found. */
void zero_protect_forget(struct zero_protect *protect);
/* Whether a file belongs to what was found. */
bool zero_protect_is_found(const struct zero_protect *protect,
			   const struct zero_protect_name *name);

#endif
