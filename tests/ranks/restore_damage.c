/* SPDX-License-Identifier: Apache-2.0 */
/* A damaged checkpoint is refused on all ranks, with an error that names the file and the
   tensor. */
#include <fcntl.h>
#include <sys/stat.h>

#include "restore.h"

/* A file of the checkpoint: a shard, "manifest.json", or "user". */
static void name_file(int file, int world, char *name, size_t size)
{
	if (file < world)
		snprintf(name, size, "rank-%05d-of-%05d.safetensors", file, world);
	else
		snprintf(name, size, "%s", file == world ? "manifest.json" : "user");
}

char *read_all(const char *path, size_t *bytes)
{
	FILE *file = fopen(path, "rb");
	struct stat info;
	char *data;

	check(file && !fstat(fileno(file), &info), "%s", path);
	*bytes = (size_t)info.st_size;
	data = malloc(*bytes + 1);
	check(data && fread(data, 1, *bytes, file) == *bytes, "%s", path);
	data[*bytes] = '\0';
	fclose(file);
	return data;
}

/* Finds the tensor that has byte `at` of a shard's file: the start of its name, up to a character
   that JSON escapes; "header" for bytes before the data. */
static void find_tensor(const char *file, size_t at, char *name, size_t size)
{
	unsigned long long begin, end, header = 0;
	const char *open = NULL, *p;

	memcpy(&header, file, 8);
	snprintf(name, size, "header");
	if (at < header + 8)
		return;
	at -= header + 8;
	for (p = strstr(file + 8, "\":{\"dtype\""); p; p = strstr(p + 1, "\":{\"dtype\"")) {
		const char *offsets = strstr(p, "\"data_offsets\":[");

		check(offsets && sscanf(offsets, "\"data_offsets\":[%llu,%llu]", &begin, &end) == 2,
		      "no offsets");
		for (open = p; open[-1] != '"' || open[-2] == '\\';)
			open--;
		if (at >= begin && at < end)
			break;
	}
	check(p && open, "byte %zu is of no tensor", at);
	snprintf(name, size, "tensor \"%.*s", (int)strcspn(open, "\\\""), open);
}

static void flip(const char *path, size_t at, int bit)
{
	int fd = open(path, O_RDWR);
	unsigned char byte;

	check(fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1, "%s", path);
	byte ^= (unsigned char)(1 << bit);
	check(pwrite(fd, &byte, 1, (off_t)at) == 1, "%s", path);
	close(fd);
}

/* COLLECTIVE. */
static void refused(struct model *model, const char *path, const char *file, const char *what)
{
	zero_checkpoint_info checkpoint;
	zero_status status;

	meet(model->job);
	status = zero_restore(model->job, path, &checkpoint);
	check(status == ZERO_E_FORMAT || status == ZERO_E_FILE, "%s, %s: status %d, %s", file, what,
	      (int)status, status ? zero_last_error() : "restored");
	check(strstr(zero_last_error(), file), "%s, %s: no file in: %s", file, what,
	      zero_last_error());
	check(strstr(zero_last_error(), what), "%s: no '%s' in: %s", file, what, zero_last_error());
	zero_checkpoint_info_free(&checkpoint);
	meet(model->job);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void flip_one(struct model *model, const char *path, uint64_t *random)
{
	int world = zero_world(model->job), bit = (int)below(random, 8);
	int file = (int)below(random, 4) ? (int)below(random, (size_t)world)
					 : world + (int)below(random, 2);
	uint64_t place = draw(random);
	char name[64], what[128], full[1200], *data;
	size_t bytes, at;

	name_file(file, world, name, sizeof(name));
	snprintf(full, sizeof(full), "%s/%s", path, name);
	data = read_all(full, &bytes);
	/* Half of the flips are in the first part, where the header is. */
	at = (size_t)(place >> 1) % (place & 1 && file < world && bytes > 2000 ? 2000 : bytes);
	snprintf(what, sizeof(what), "damage");
	if (file < world)
		find_tensor(data, at, what, sizeof(what));
	else if (file == world)
		snprintf(what, sizeof(what), "%s", "seal");
	free(data);
	meet(model->job);
	if (!zero_rank(model->job))
		flip(full, at, bit);
	refused(model, path, name, what);
	if (!zero_rank(model->job))
		flip(full, at, bit);
	meet(model->job);
}

/* The bytes of the largest tensor of a file. */
static void find_largest(const char *file, size_t *begin, size_t *end)
{
	static const char key[] = "\"data_offsets\":[";
	unsigned long long header, from, to;

	memcpy(&header, file, 8);
	*begin = *end = 0;
	for (const char *p = strstr(file + 8, key); p; p = strstr(p + 1, key))
		if (sscanf(p + strlen(key), "%llu,%llu", &from, &to) == 2 &&
		    to - from > *end - *begin) {
			*begin = 8 + header + from;
			*end = 8 + header + to;
		}
}

/* The last byte of each block of the largest tensor of all files. */
static void flip_blocks(struct model *model, const char *path)
{
	enum { BLOCK = 65536 };
	size_t begin = 0, end = 0, bytes, from, to;
	char name[64] = "", one[64], full[1200];

	for (int file = 0; file < zero_world(model->job); file++) {
		char *data;

		name_file(file, zero_world(model->job), one, sizeof(one));
		snprintf(full, sizeof(full), "%s/%s", path, one);
		data = read_all(full, &bytes);
		find_largest(data, &from, &to);
		free(data);
		if (to - from <= end - begin)
			continue;
		begin = from;
		end = to;
		snprintf(name, sizeof(name), "%s", one);
	}
	check(end - begin > 8 * BLOCK, "%zu bytes", end - begin);
	snprintf(full, sizeof(full), "%s/%s", path, name);
	for (size_t at = begin; at < end; at += BLOCK) {
		size_t last = at + BLOCK < end ? at + BLOCK - 1 : end - 1;

		meet(model->job);
		if (!zero_rank(model->job))
			flip(full, last, 3);
		refused(model, path, name, "is damaged: the checksum of bytes");
		if (!zero_rank(model->job))
			flip(full, last, 3);
		meet(model->job);
	}
}

/* A byte of the first named state in a file. */
static void flip_state(struct model *model, const char *path)
{
	char name[64], full[1200], what[128], *data = NULL;
	const char *state = NULL, *offsets;
	unsigned long long header, from;
	size_t bytes;

	for (int file = 0; !state && file < zero_world(model->job); file++) {
		free(data);
		name_file(file, zero_world(model->job), name, sizeof(name));
		snprintf(full, sizeof(full), "%s/%s", path, name);
		data = read_all(full, &bytes);
		state = strstr(data + 8, "\"state/");
	}
	check(state, "no named state in %s", path);
	memcpy(&header, data, 8);
	offsets = strstr(state, "\"data_offsets\":[");
	check(offsets && sscanf(offsets, "\"data_offsets\":[%llu", &from) == 1, "no offsets");
	find_tensor(data, 8 + header + from, what, sizeof(what));
	check(strstr(what, "tensor \"state/"), "%s", what);
	meet(model->job);
	if (!zero_rank(model->job))
		flip(full, 8 + header + from, 5);
	refused(model, path, name, what);
	if (!zero_rank(model->job))
		flip(full, 8 + header + from, 5);
	meet(model->job);
	free(data);
}

/* ---- files ----------------------------------------------------------------------------------- */

enum wrong { SHORTER, LONGER, MISSING, FIFO, LINK, FOLDER, EMPTY, WRONGS };

static const char *const words[WRONGS] = {
	[SHORTER] = "manifest says",   [LONGER] = "manifest says", [MISSING] = "is missing",
	[FIFO] = "not a regular file", [LINK] = "symbolic link",   [FOLDER] = "not a regular file",
	[EMPTY] = "manifest says"};

static void do_wrong(enum wrong wrong, const char *full, const char *backup)
{
	struct stat info;

	check(!stat(full, &info), "%s", full);
	check(!rename(full, backup), "%s", full);
	switch (wrong) {
	case SHORTER:
	case LONGER:
	case EMPTY: {
		size_t bytes;
		char *data = read_all(backup, &bytes);
		FILE *file = fopen(full, "wb");

		check(file, "%s", full);
		bytes = wrong == EMPTY ? 0 : wrong == LONGER ? bytes + 1 : bytes - 1;
		check(fwrite(data, 1, bytes, file) == bytes, "%s", full);
		fclose(file);
		free(data);
		break;
	}
	case FIFO:
		check(!mkfifo(full, 0600), "%s", full);
		break;
	case LINK:
		check(!symlink(backup, full), "%s", full);
		break;
	case FOLDER:
		check(!mkdir(full, 0700), "%s", full);
		break;
	default:
		break;
	}
}

static void undo_wrong(const char *full, const char *backup)
{
	if (unlink(full))
		rmdir(full);
	check(!rename(backup, full), "%s", full);
}

static void wrong_file(struct model *model, const char *path, int file, enum wrong wrong)
{
	int world = zero_world(model->job);
	char name[64], full[1200], backup[1210];
	const char *what = words[wrong];

	name_file(file, world, name, sizeof(name));
	snprintf(full, sizeof(full), "%s/%s", path, name);
	snprintf(backup, sizeof(backup), "%s.backup", full);
	/* The error for a manifest has other words. */
	if (file == world)
		what = "";
	meet(model->job);
	if (!zero_rank(model->job))
		do_wrong(wrong, full, backup);
	meet(model->job);
	if (file == world && wrong == MISSING)
		fails(zero_restore(model->job, path, NULL), ZERO_E_FILE, "there is no checkpoint");
	else if (file != world || wrong != LINK)
		refused(model, path, name, what);
	meet(model->job);
	if (!zero_rank(model->job))
		undo_wrong(full, backup);
	meet(model->job);
}

/* Two shards exchange their names. */
static void swap_files(struct model *model, const char *path)
{
	char a[1200], b[1200], c[1200];
	int world = zero_world(model->job);

	if (world < 2)
		return;
	snprintf(a, sizeof(a), "%s/rank-%05d-of-%05d.safetensors", path, 0, world);
	snprintf(b, sizeof(b), "%s/rank-%05d-of-%05d.safetensors", path, world - 1, world);
	snprintf(c, sizeof(c), "%s/backup", path);
	for (int i = 0; i < 2; i++) {
		meet(model->job);
		if (!zero_rank(model->job))
			check(!rename(a, c) && !rename(b, a) && !rename(c, b), "%s", a);
		meet(model->job);
		if (!i)
			refused(model, path, ".safetensors", "manifest");
	}
}

void damage(struct model *model, const char *path, int flips)
{
	uint64_t random = model->seed ^ 77;
	int world = zero_world(model->job);

	for (int i = 0; i < flips; i++)
		flip_one(model, path, &random);
	flip_blocks(model, path);
	flip_state(model, path);
	for (int wrong = 0; wrong < WRONGS; wrong++) {
		wrong_file(model, path, (int)below(&random, (size_t)world), (enum wrong)wrong);
		wrong_file(model, path, world, (enum wrong)wrong);
		wrong_file(model, path, world + 1, (enum wrong)wrong);
	}
	swap_files(model, path);
}
