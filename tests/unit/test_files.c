/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_files: damaged safetensors files are refused with the right message, valid ones are read, and
 * a header that header() makes is read back. The files are in a temporary folder.
 */
#include "files/files.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/zero-files-XXXXXX";
static char sentence[4096];
static const struct zero_files_ops *ops;

static zero_status fake_fail(zero_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static zero_status fake_fail(zero_status status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(sentence, sizeof(sentence), format, args);
	va_end(args);
	return status;
}

/* The module uses no other function of the library. */
static const struct zero_core fake_core = {.fail = fake_fail};

/* ---- files to read --------------------------------------------------------------------------- */

/* A path in the test's folder; valid until the fourth call after it. */
static const char *in_folder(const char *name)
{
	static char paths[4][512];
	static size_t turn;
	char *path = paths[turn++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static void remove_all(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	char inner[1024];

	while (dir && (entry = readdir(dir))) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		snprintf(inner, sizeof(inner), "%s/%s", path, entry->d_name);
		if (unlink(inner) != 0)
			remove_all(inner);
	}
	if (dir)
		closedir(dir);
	rmdir(path);
}

static void put_bytes(const char *name, const void *bytes, size_t count)
{
	FILE *file = fopen(in_folder(name), "wb");

	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
	ck_assert_int_eq(fclose(file), 0);
}

static void put_text(const char *name, const char *text)
{
	put_bytes(name, text, strlen(text));
}

/* A safetensors file: length, header, then `data` bytes, which are a hole. */
static void put_tensors_n(const char *name, const char *header, size_t length, off_t data)
{
	char *bytes = malloc(8 + length);

	ck_assert_ptr_nonnull(bytes);
	for (size_t i = 0; i < 8; i++)
		bytes[i] = (char)((uint64_t)length >> 8 * i & 0xff);
	memcpy(bytes + 8, header, length);
	put_bytes(name, bytes, 8 + length);
	free(bytes);
	ck_assert_int_eq(truncate(in_folder(name), (off_t)(8 + length) + data), 0);
}

static void put_tensors(const char *name, const char *header, off_t data)
{
	put_tensors_n(name, header, strlen(header), data);
}

/* A folder within the test's folder. */
static void make_folder(const char *name)
{
	remove_all(in_folder(name));
	ck_assert_int_eq(mkdir(in_folder(name), 0700), 0);
}

static struct zero_file *open_good(const char *path)
{
	struct zero_file *file;
	zero_status status;

	strcpy(sentence, "");
	status = ops->open(path, &file);
	ck_assert_msg(status == ZERO_OK, "%s", sentence);
	ck_assert_ptr_nonnull(file);
	return file;
}

/* The path is refused, and the message has all of the words, which '|' separates. */
static void refused(const char *path, zero_status expected, const char *words)
{
	struct zero_file *file = (struct zero_file *)folder;
	char list[512], *save = NULL;
	zero_status status;

	strcpy(sentence, "");
	status = ops->open(path, &file);
	ck_assert_msg(status == expected, "%s: status %d, expected %d: %s", words, (int)status,
		      (int)expected, sentence);
	ck_assert_ptr_null(file);
	snprintf(list, sizeof(list), "%s", words);
	for (char *word = strtok_r(list, "|", &save); word; word = strtok_r(NULL, "|", &save))
		ck_assert_msg(strstr(sentence, word), "no '%s' in: %s", word, sentence);
}

/* ---- one file that is damaged ---------------------------------------------------------------- */

#define A_F32(shape, offsets) \
	"{\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define ONE(name, shape, offsets) \
	"\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* Each is refused as ZERO_E_FORMAT, and the message has the words, which '|' separates. */
static const struct {
	const char *header;
	int data;
	const char *words;
} damaged[] = {
	/* JSON */
	{"", 0, "byte 8|'{'"},
	{" {}", 0, "byte 8|does not begin with '{'"},
	{"[]", 0, "byte 8|does not begin with '{'"},
	{"{", 0, "byte 9|ends where '\"' is expected"},
	{"{\"a\"", 0, "byte 12|ends where ':' is expected"},
	{"{\"a\":", 0, "byte 13|not valid JSON"},
	{"{\"a", 0, "not valid JSON"},
	{"{\"a\" 1}", 0, "byte 13|'1' where ':' is expected"},
	{"{\"a\":{}", 0, "tensor \"a\"|has no dtype"},
	{"{" ONE("a", "[]", "[0,4]"), 4, "ends where ',' is expected"},
	{"{" ONE("a", "[]", "[0,4]") ",}", 4, "'}' where '\"' is expected"},
	{"{" ONE("a", "[]", "[0,4]") " " ONE("b", "[]", "[4,8]") "}", 8, "'\"' where ',' is"},
	{"{,}", 0, "byte 9|',' where '\"' is expected"},
	{"{\001}", 0, "byte 9|byte 0x01"},
	{"{} {}", 0, "byte 11|follows the end"},
	{"{\n\n \"a\" 1}", 0, "line 3, column 6"},
	{A_F32("[]", "[0,4}"), 4, "not valid JSON|byte 5"},
	{A_F32("[]", "[0,04]"), 4, "not valid JSON"},
	{"{\"a\xff\":{}}", 0, "not valid JSON|0xff"},
	{"{\"a\":{\"\xc3(\":1}}", 0, "not valid JSON|0xc3"},
	{"{\"a\\u0000b\":{}}", 0, "byte|\\u0000"},
	{"{\"a\":{\"dtype\\u0000\":1}}", 0, "byte|\\u0000"},
	{"{\"a\nb\":{}}", 0, "byte 11|not valid JSON|newline"},
	{A_F32("[]", "[0,9223372036854775808]"), 4, "too big integer"},
	{A_F32("[99999999999999999999]", "[0,4]"), 4, "too big integer"},
	{A_F32("[1e999]", "[0,4]"), 4, "number overflow"},
	{"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "duplicate object key|dtype"},
	{"{" ONE("a", "[]", "[0,4]") "," ONE("b", "[]", "[4,8]") "," ONE("a", "[]", "[8,12]") "}",
	 12, "byte|\"a\"|second time"},
	{"{\"\\u0061\":"
	 "{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}," ONE("a", "[]", "[4,8]") "}",
	 8, "\"a\"|second time"},
	/* names and metadata */
	{"{" ONE("", "[]", "[0,4]") "}", 4, "byte 9|empty name"},
	{"{\"__metadata__\":[]}", 0, "'[' where '{' is expected"},
	{"{\"__metadata__\":{\"k\":1}}", 0, "\"k\" in __metadata__ is not a string"},
	{"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "\"k\"|second time"},
	{"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "\"__metadata__\"|second time"},
	/* an entry's keys */
	{"{\"a\":1}", 0, "tensor \"a\"|byte 9|is 1"},
	{"{\"a\":null}", 0, "tensor \"a\"|is null"},
	{"{\"a\":[]}", 0, "tensor \"a\"|is []"},
	{"{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "tensor \"a\"|no dtype"},
	{"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor \"a\"|no shape"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "tensor \"a\"|no data_offsets"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"more\":0}}", 4,
	 "tensor \"a\"|unknown key \"more\"|allowed are dtype"},
	/* dtype */
	{"{\"a\":{\"dtype\":3,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "\"a\"|dtype 3|F32, F16"},
	{"{\"a\":{\"dtype\":\"f32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
	 "\"a\"|unknown dtype \"f32\"|F32, F16, BF16, F64, I64, I32, U8, BOOL"},
	{"{\"a\":{\"dtype\":\"\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, "unknown dtype \"\""},
	{"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
	 "tensor \"a\"|F8_E4M3|does not store|F32, F16"},
	{"{\"a\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "I16|does not st"},
	{"{\"a\":{\"dtype\":\"U64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8, "U64|does not st"},
	/* shape */
	{A_F32("4", "[0,4]"), 4, "tensor \"a\"|shape 4"},
	{A_F32("{}", "[0,4]"), 4, "tensor \"a\"|shape {}"},
	{A_F32("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "tensor \"a\"|9 dimensions|at most 8"},
	{A_F32("[1,-1]", "[0,4]"), 4, "tensor \"a\"|-1 as dimension 1|from 0 to 2^63-1"},
	{A_F32("[1.0]", "[0,4]"), 4, "tensor \"a\"|1.0 as dimension 0"},
	{A_F32("[\"1\"]", "[0,4]"), 4, "tensor \"a\"|\"1\" as dimension 0"},
	{A_F32("[true]", "[0,4]"), 4, "tensor \"a\"|true as dimension 0"},
	{A_F32("[4294967296,4294967296]", "[0,4]"), 4, "\"a\"|[4294967296,4294967296]|2^63"},
	{A_F32("[2305843009213693952]", "[0,4]"), 4, "\"a\"|2305843009213693952|2^63"},
	{A_F32("[4611686018427387904,4,1]", "[0,0]"), 0, "\"a\"|2^63"},
	{A_F32("[0,4611686018427387904,8]", "[0,0]"), 0, "\"a\"|2^63"},
	{A_F32("[4611686018427387904,8,0]", "[0,0]"), 0, "\"a\"|2^63"},
	/* data_offsets */
	{A_F32("[]", "4"), 4, "tensor \"a\"|data_offsets 4|[begin, end]"},
	{A_F32("[]", "[0]"), 4, "tensor \"a\"|data_offsets [0]"},
	{A_F32("[]", "[0,4,8]"), 8, "tensor \"a\"|data_offsets [0,4,8]"},
	{A_F32("[]", "[-4,0]"), 4, "tensor \"a\"|[-4,0]|0 to the 4 bytes"},
	{A_F32("[]", "[0,4.0]"), 4, "tensor \"a\"|[0,4.0]"},
	{A_F32("[]", "[\"0\",4]"), 4, "tensor \"a\"|[\"0\",4]"},
	{A_F32("[]", "[4,0]"), 4, "tensor \"a\"|end before they begin: [4,0]"},
	{A_F32("[2]", "[0,8]"), 4, "tensor \"a\"|[0,8]|beyond the end|4 bytes"},
	{A_F32("[2]", "[0,9223372036854775807]"), 4, "\"a\"|9223372036854775807|beyond the end"},
	{A_F32("[]", "[8,8]"), 4, "tensor \"a\"|[8,8]|beyond the end"},
	{A_F32("[2]", "[0,4]"), 4, "tensor \"a\"|[0,4], 4 bytes|[2] of F32 takes 8 bytes"},
	{A_F32("[0]", "[0,4]"), 4, "tensor \"a\"|[0] of F32 takes 0 bytes"},
	{A_F32("[]", "[0,0]"), 0, "tensor \"a\"|[] of F32 takes 4 bytes"},
	/* two tensors */
	{"{" ONE("a", "[2]", "[0,8]") "," ONE("b", "[2]", "[4,12]") "}", 12,
	 "tensor \"b\"|[4,12]|overlap [0,8] of \"a\""},
	{"{" ONE("a", "[2]", "[0,8]") "," ONE("b", "[2]", "[0,8]") "}", 8, "overlap"},
	{"{" ONE("a", "[2]", "[0,8]") "," ONE("b", "[0]", "[4,4]") "}", 8, "\"b\"|overlap"},
	{"{" ONE("a", "[1]", "[0,4]") "," ONE("b", "[1]", "[8,12]") "}", 12,
	 "tensor \"b\"|[8,12]|end at 4|no holes"},
	{A_F32("[1]", "[4,8]"), 8, "tensor \"a\"|[4,8]|end at 0|no holes"},
	{A_F32("[1]", "[0,4]"), 7, "3 bytes from byte 66 |no tensor"},
	{"{}", 1, "1 bytes from byte 10 |no tensor"},
};

START_TEST(test_damaged)
{
	const char *name = "bad.safetensors";

	put_tensors(name, damaged[_i].header, damaged[_i].data);
	refused(in_folder(name), ZERO_E_FORMAT, damaged[_i].words);
	/* Every message begins with the file. */
	ck_assert_int_eq(strncmp(sentence, in_folder(name), strlen(in_folder(name))), 0);
}
END_TEST

START_TEST(test_length)
{
	const char *name = "length.safetensors";
	const char *path = in_folder(name);
	unsigned char bytes[8] = {2};

	put_bytes(name, bytes, 0);
	refused(path, ZERO_E_FORMAT, "length.safetensors|has 0 bytes|8 bytes");
	put_bytes(name, bytes, 7);
	refused(path, ZERO_E_FORMAT, "has 7 bytes");
	put_bytes(name, bytes, 8);
	refused(path, ZERO_E_FORMAT, "header of 2 bytes|only 0 follow");
	memset(bytes, 0xff, 8);
	put_bytes(name, bytes, 8);
	refused(path, ZERO_E_FORMAT, "header of 18446744073709551615 bytes|only 0 follow");
	/* The bound of the format holds even if the file is long enough. */
	memcpy(bytes, "\x01\xe1\xf5\x05\0\0\0\0", 8);
	put_bytes(name, bytes, 8);
	ck_assert_int_eq(truncate(path, 200000000), 0);
	refused(path, ZERO_E_FORMAT, "header of 100000001 bytes|at most 100000000");
	memcpy(bytes, "\0\0\0\0\0\0\0\0", 8);
	put_bytes(name, bytes, 8);
	refused(path, ZERO_E_FORMAT, "byte 8|'{'");
}
END_TEST

/* Messages have names without control characters, cut to a bounded length. */
START_TEST(test_words)
{
	char header[4096], name[1500];

	put_tensors("words.safetensors", "{\"a\\u001b[31m\\n\":1}", 0);
	refused(in_folder("words.safetensors"), ZERO_E_FORMAT, "tensor \"a?[31m?\"");
	memset(name, 'x', sizeof(name));
	memcpy(name + 94, "\xc3\xa9\xc3\xa9\xc3\xa9", 6); /* the cut falls into one of these */
	name[sizeof(name) - 1] = '\0';
	snprintf(header, sizeof(header), "{\"%s\":1}", name);
	put_tensors("words.safetensors", header, 0);
	refused(in_folder("words.safetensors"), ZERO_E_FORMAT, "xxx\xc3\xa9...\" (named");
	ck_assert_uint_lt(strlen(sentence), 400);
	/* A percent sign is not a format. */
	put_tensors("words.safetensors", "{\"%s%n\":{\"dtype\":\"%s%n\"}}", 0);
	refused(in_folder("words.safetensors"), ZERO_E_FORMAT, "tensor \"%s%n\"");
}
END_TEST

/* Large or deep trees of JSON are refused before they are built. */
START_TEST(test_bombs)
{
	const size_t length = 20000000;
	char *header = malloc(length);
	struct rusage before, after;

	ck_assert_ptr_nonnull(header);
	memset(header, '[', length);
	memcpy(header, "{\"a\":", 5);
	put_tensors_n("bomb.safetensors", header, length, 0);
	refused(in_folder("bomb.safetensors"), ZERO_E_FORMAT, "bomb.safetensors|depth");
	for (size_t i = 5; i + 3 <= length; i += 3)
		memcpy(header + i, i == 5 ? "[[]" : ",[]", 3);
	put_tensors_n("bomb.safetensors", header, length, 0);
	getrusage(RUSAGE_SELF, &before);
	refused(in_folder("bomb.safetensors"), ZERO_E_FORMAT, "bomb.safetensors|byte 13|1048576");
	getrusage(RUSAGE_SELF, &after);
	/* The complete tree would take about 1 GB; ru_maxrss is in KB. */
	ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 400000);
	put_bytes("bomb.json", header, length);
	free(header);
	refused(in_folder("bomb.json"), ZERO_E_FORMAT, "bomb.json|byte 5|1048576");
}
END_TEST

/* ---- paths that are not regular files -------------------------------------------------------- */

START_TEST(test_special)
{
	struct zero_file *file;

	refused(in_folder("absent.safetensors"), ZERO_E_FILE, "absent.safetensors|No such file");
	refused("", ZERO_E_INVALID, "empty");
	ck_assert_int_eq(ops->open(NULL, &file), ZERO_E_INVALID);
	ck_assert_int_eq(mkfifo(in_folder("fifo.safetensors"), 0600), 0);
	refused(in_folder("fifo.safetensors"), ZERO_E_FILE, "fifo.safetensors|FIFO|regular");
	ck_assert_int_eq(mkfifo(in_folder("fifo.index.json"), 0600), 0);
	refused(in_folder("fifo.index.json"), ZERO_E_FILE, "fifo.index.json|FIFO|regular");
	refused("/dev/zero", ZERO_E_FILE, "/dev/zero|device|regular");
	ck_assert_int_eq(symlink("nowhere", in_folder("dangling.safetensors")), 0);
	refused(in_folder("dangling.safetensors"), ZERO_E_FILE, "dangling|No such file");
	put_tensors("target.safetensors", "{}", 0);
	ck_assert_int_eq(symlink("target.safetensors", in_folder("link.safetensors")), 0);
	ops->close(open_good(in_folder("link.safetensors")));
	ops->close(NULL);
}
END_TEST

START_TEST(test_folder)
{
	struct zero_file *file;

	make_folder("f");
	refused(in_folder("f"), ZERO_E_FILE,
		"no model.safetensors.index.json, no model.safetensors and no other .safetensors");
	put_tensors("f/.hidden.safetensors", "{}", 0);
	put_text("f/config.json", "{}");
	refused(in_folder("f"), ZERO_E_FILE, "no model.safetensors.index.json");
	ck_assert_int_eq(mkdir(in_folder("f/x.safetensors"), 0700), 0);
	refused(in_folder("f"), ZERO_E_FILE, "f/x.safetensors: is a folder|regular");
	ck_assert_int_eq(rmdir(in_folder("f/x.safetensors")), 0);

	put_tensors("f/one.safetensors", "{" ONE("one", "[]", "[0,4]") "}", 4);
	file = open_good(in_folder("f/"));
	ck_assert_ptr_nonnull(ops->find(file, "one"));
	ops->close(file);
	put_tensors("f/two.safetensors", "{}", 0);
	refused(in_folder("f"), ZERO_E_FILE, "several|one.safetensors|two.safetensors");

	put_tensors("f/model.safetensors", "{" ONE("single", "[]", "[0,4]") "}", 4);
	file = open_good(in_folder("f"));
	ck_assert_ptr_nonnull(ops->find(file, "single"));
	ck_assert_str_eq(ops->tensor(file, 0)->path, in_folder("f/model.safetensors"));
	ops->close(file);

	put_text("f/model.safetensors.index.json",
		 "{\"weight_map\":{\"one\":\"one.safetensors\"}}");
	file = open_good(in_folder("f"));
	ck_assert_ptr_nonnull(ops->find(file, "one"));
	ck_assert_uint_eq(ops->count(file), 1);
	ops->close(file);

	/* A broken index is an error, although other files could be read. */
	ck_assert_int_eq(unlink(in_folder("f/model.safetensors.index.json")), 0);
	ck_assert_int_eq(symlink("gone", in_folder("f/model.safetensors.index.json")), 0);
	refused(in_folder("f"), ZERO_E_FILE, "model.safetensors.index.json|No such file");
}
END_TEST

/* ---- a model in several files ---------------------------------------------------------------- */

#define MAP(pairs) "{\"metadata\":{\"total_size\":16},\"weight_map\":{" pairs "}}"
#define A_IN_1     "\"a\":\"m-1.safetensors\""
#define B_IN_1     "\"b\":\"m-1.safetensors\""
#define C_IN_2     "\"c\":\"m-2.safetensors\""

static void put_shards(void)
{
	make_folder("s");
	put_tensors("s/m-1.safetensors",
		    "{" ONE("b", "[]", "[0,4]") "," ONE("a", "[]", "[4,8]") "}", 8);
	put_tensors("s/m-2.safetensors", "{" ONE("c", "[2]", "[0,8]") "}", 8);
	put_tensors("s/m-3.safetensors", "{" ONE("a", "[]", "[0,4]") "}", 4);
}

static const struct {
	const char *index;
	zero_status status;
	const char *words;
} bad_indexes[] = {
	{"", ZERO_E_FORMAT, "byte 0|'{' is expected"},
	{"[]", ZERO_E_FORMAT, "byte 0|'{' is expected"},
	{"{}", ZERO_E_FORMAT, "no weight_map"},
	{"{\"weight_map\":1}", ZERO_E_FORMAT, "byte 14|'{' is expected"},
	{"{\"weight_map\":{}}", ZERO_E_FORMAT, "an empty weight_map"},
	{"{\"metadata\":{},\n\"weight_map\":[]}", ZERO_E_FORMAT, "line 2, column 14"},
	{MAP(A_IN_1 "," B_IN_1 "," C_IN_2) "x", ZERO_E_FORMAT, "follows the end"},
	{MAP(A_IN_1 "," A_IN_1), ZERO_E_FORMAT, "\"a\"|second time"},
	{"{\"weight_map\":{" A_IN_1 "},\"weight_map\":{" A_IN_1 "}}", ZERO_E_FORMAT,
	 "\"weight_map\"|second time"},
	{MAP("\"\":\"m-1.safetensors\""), ZERO_E_FORMAT, "empty name"},
	{MAP("\"a\":1"), ZERO_E_FORMAT, "\"a\"|not a string"},
	{MAP("\"a\":\"/etc/x.safetensors\""), ZERO_E_FORMAT, "/etc/x.safetensors|\"a\"|'/'|plain"},
	{MAP("\"a\":\"../m-1.safetensors\""), ZERO_E_FORMAT, "../m-1.safetensors|\"a\"|'/'"},
	{MAP("\"a\":\"d/m-1.safetensors\""), ZERO_E_FORMAT, "d/m-1.safetensors|\"a\"|'/'"},
	{MAP("\"a\":\"..\""), ZERO_E_FORMAT, "\"..\"|\"a\"|end in .safetensors"},
	{MAP("\"a\":\"\""), ZERO_E_FORMAT, "\"a\"|end in .safetensors"},
	{MAP("\"a\":\".safetensors\""), ZERO_E_FORMAT, "\"a\"|end in .safetensors"},
	{MAP("\"a\":\"m.bin\""), ZERO_E_FORMAT, "\"m.bin\"|\"a\"|end in .safetensors"},
	{MAP("\"a\":\"m\\n.safetensors\""), ZERO_E_FORMAT, "m?.safetensors|\"a\"|control"},
	{MAP("\"a\":\"m\\u0000.safetensors\""), ZERO_E_FORMAT, "\\u0000"},
	{MAP("\"a\":\"absent.safetensors\""), ZERO_E_FILE, "\"a\"|absent.safetensors|No such file"},
	{MAP("\"a\":\"dir.safetensors\""), ZERO_E_FILE, "dir.safetensors: is a folder"},
	{MAP("\"a\":\"cut.safetensors\""), ZERO_E_FORMAT, "cut.safetensors|header of"},
	{MAP(A_IN_1 "," C_IN_2), ZERO_E_FORMAT, "\"b\"|m-1.safetensors|not in the weight_map"},
	{MAP(A_IN_1 "," B_IN_1 "," C_IN_2 ",\"d\":\"m-2.safetensors\""), ZERO_E_FORMAT,
	 "\"d\"|m-2.safetensors|no file"},
	{MAP("\"a\":\"m-2.safetensors\"," B_IN_1 "," C_IN_2), ZERO_E_FORMAT,
	 "\"a\" is in m-2.safetensors, but it is in m-1.safetensors"},
	{MAP(A_IN_1 "," B_IN_1 ",\"x\":\"m-3.safetensors\""), ZERO_E_FORMAT,
	 "\"a\"|two files|m-1.safetensors|m-3.safetensors"},
};

START_TEST(test_bad_index)
{
	put_shards();
	put_text("s/cut.safetensors", "12345678{");
	ck_assert_int_eq(mkdir(in_folder("s/dir.safetensors"), 0700), 0);
	put_text("s/i.json", bad_indexes[_i].index);
	refused(in_folder("s/i.json"), bad_indexes[_i].status, bad_indexes[_i].words);
	/* The message names the index or the damaged file. */
	ck_assert_ptr_nonnull(strstr(sentence, in_folder("s/")));
}
END_TEST

START_TEST(test_sharded)
{
	static const char *const order[] = {"b", "a", "c"};
	struct zero_file *file;
	char before[512];

	put_shards();
	put_text("s/i.json", MAP(C_IN_2 "," A_IN_1 "," B_IN_1) "\n");
	file = open_good(in_folder("s/i.json"));
	ck_assert_uint_eq(ops->count(file), 3);
	for (size_t i = 0; i < 3; i++) {
		ck_assert_str_eq(ops->tensor(file, i)->name, order[i]);
		ck_assert_ptr_eq(ops->find(file, order[i]), ops->tensor(file, i));
	}
	ck_assert_ptr_null(ops->tensor(file, 3));
	ck_assert_ptr_null(ops->find(file, "d"));
	ck_assert_ptr_null(ops->find(file, ""));
	ck_assert_str_eq(ops->find(file, "a")->path, in_folder("s/m-1.safetensors"));
	ck_assert_str_eq(ops->find(file, "c")->path, in_folder("s/m-2.safetensors"));
	ck_assert_uint_eq(ops->find(file, "a")->offset, ops->find(file, "b")->offset + 4);
	ops->close(file);
	/* A name without a folder is in the current folder. */
	ck_assert_ptr_nonnull(getcwd(before, sizeof(before)));
	ck_assert_int_eq(chdir(in_folder("s")), 0);
	file = open_good("i.json");
	ck_assert_str_eq(ops->find(file, "c")->path, "./m-2.safetensors");
	ops->close(file);
	ck_assert_int_eq(chdir(before), 0);
}
END_TEST

/* ---- writing and reading ---------------------------------------------------------------------- */

/* Writes the header of these tensors and `data` bytes, reads the file, and compares. */
static void round_trip(zero_tensor *tensors, size_t count, off_t data)
{
	struct zero_file *file;
	char *header = NULL;
	size_t bytes = 0;
	zero_status status;

	status = ops->header(tensors, count, &header, &bytes);
	ck_assert_msg(status == ZERO_OK, "%s", sentence);
	ck_assert_uint_eq(bytes % 64, 0);
	put_bytes("trip.safetensors", header, bytes);
	free(header);
	ck_assert_int_eq(truncate(in_folder("trip.safetensors"), (off_t)bytes + data), 0);
	file = open_good(in_folder("trip.safetensors"));
	ck_assert_uint_eq(ops->count(file), count);
	for (size_t i = 0; i < count; i++) {
		const zero_tensor *read = ops->tensor(file, i), *made = &tensors[i];

		ck_assert_str_eq(read->name, made->name);
		ck_assert_int_eq(read->dtype, made->dtype);
		ck_assert_int_eq(read->ndim, made->ndim);
		for (int d = 0; d < made->ndim; d++)
			ck_assert_uint_eq(read->shape[d], made->shape[d]);
		ck_assert_uint_eq(read->offset, made->offset);
		ck_assert_str_eq(read->path, in_folder("trip.safetensors"));
		ck_assert_ptr_eq(ops->find(file, made->name), read);
	}
	ops->close(file);
}

START_TEST(test_dtypes_and_shapes)
{
	static const size_t sizes[] = {0, 4, 2, 2, 8, 8, 4, 1, 1};
	zero_tensor tensors[ZERO_BOOL * (ZERO_MAX_DIMS + 1)] = {0};
	char names[ZERO_BOOL * (ZERO_MAX_DIMS + 1)][32];
	size_t count = 0, data = 0;

	for (int dtype = ZERO_F32; dtype <= ZERO_BOOL; dtype++) {
		for (int ndim = 0; ndim <= ZERO_MAX_DIMS; ndim++) {
			zero_tensor *tensor = &tensors[count];
			size_t elements = 1;

			snprintf(names[count], sizeof(names[count]), "t%zu", count);
			tensor->name = names[count++];
			tensor->dtype = (zero_dtype)dtype;
			tensor->ndim = ndim;
			for (int d = 0; d < ndim; d++) {
				tensor->shape[d] = (size_t)(d + dtype) % 3 + 1;
				elements *= tensor->shape[d];
			}
			data += elements * sizes[dtype];
		}
	}
	round_trip(tensors, count, (off_t)data);
	for (size_t i = 1; i < count; i++)
		ck_assert_uint_gt(tensors[i].offset, tensors[i - 1].offset);
}
END_TEST

START_TEST(test_empty)
{
	zero_tensor tensors[] = {
		{.name = "e1", .dtype = ZERO_F32, .ndim = 1, .shape = {0}},
		{.name = "x", .dtype = ZERO_BF16, .ndim = 2, .shape = {3, 1}},
		{.name = "e3", .dtype = ZERO_I64, .ndim = 3, .shape = {5, 0, 7}},
		{.name = "e2", .dtype = ZERO_U8, .ndim = 2, .shape = {0, 0}},
		{.name = "y", .dtype = ZERO_F64, .ndim = 0},
		{.name = "e4", .dtype = ZERO_BOOL, .ndim = 1, .shape = {0}},
	};

	round_trip(tensors, 6, 14);
	round_trip(NULL, 0, 0);
	round_trip(tensors, 1, 0);
}
END_TEST

/* Names that JSON must escape, and names that differ in one byte. */
START_TEST(test_names)
{
	zero_tensor tensors[] = {
		{.name = "\"quote\\back\"", .dtype = ZERO_U8},
		{.name = "line\nfeed\ttab\x01\x7f", .dtype = ZERO_U8},
		{.name = "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", .dtype = ZERO_U8},
		{.name = "dtype", .dtype = ZERO_U8},
		{.name = "a", .dtype = ZERO_U8},
		{.name = "a ", .dtype = ZERO_U8},
		{.name = "A", .dtype = ZERO_U8},
		{.name = "__metadata", .dtype = ZERO_U8},
	};

	round_trip(tensors, 8, 8);
}
END_TEST

/* A tensor of more than 2^31 elements, in a file that is one large hole. */
START_TEST(test_large)
{
	zero_tensor tensors[] = {
		{.name = "first", .dtype = ZERO_U8, .ndim = 1, .shape = {3}},
		{.name = "huge", .dtype = ZERO_F32, .ndim = 2, .shape = {70000, 70001}},
		{.name = "last", .dtype = ZERO_F64, .ndim = 0},
	};

	round_trip(tensors, 3, 3 + (off_t)4 * 70000 * 70001 + 8);
	ck_assert_uint_eq(tensors[2].offset - tensors[1].offset, (uint64_t)4 * 70000 * 70001);
}
END_TEST

START_TEST(test_many)
{
	enum { COUNT = 5000 };
	zero_tensor *tensors = calloc(COUNT, sizeof(*tensors));
	char(*names)[64] = calloc(COUNT, sizeof(*names));
	size_t data = 0;

	ck_assert_ptr_nonnull(tensors);
	ck_assert_ptr_nonnull(names);
	for (size_t i = 0; i < COUNT; i++) {
		/* The order differs from that of the names. */
		snprintf(names[i], sizeof(names[i]), "layers.%zu.weight", i * 1237 % COUNT);
		tensors[i] = (zero_tensor){
			.name = names[i], .dtype = ZERO_BF16, .ndim = 2, .shape = {i % 7, 2}};
		data += i % 7 * 2 * 2;
	}
	round_trip(tensors, COUNT, (off_t)data);
	free(names);
	free(tensors);
}
END_TEST

/* Other programs write metadata, white space, keys and tensors in any order, and no padding. */
START_TEST(test_liberties)
{
	struct zero_file *file;

	put_tensors("free.safetensors",
		    "{ \"z\" : {\"data_offsets\" : [4,8],\t\"shape\":[ 1 ],\"dtype\":\"F32\"},\r\n"
		    "\"__metadata__\":{\"format\":\"pt\",\"\":\"\",\"long\":\"{[,]}\"}, "
		    "\"a\":{\"dtype\":\"I32\",\"shape\":[],\"data_offsets\":[0,4]} }   ",
		    8);
	file = open_good(in_folder("free.safetensors"));
	ck_assert_uint_eq(ops->count(file), 2);
	ck_assert_str_eq(ops->tensor(file, 0)->name, "a");
	ck_assert_str_eq(ops->tensor(file, 1)->name, "z");
	ck_assert_ptr_null(ops->find(file, "__metadata__"));
	ops->close(file);
	put_tensors("free.safetensors", "{}", 0);
	file = open_good(in_folder("free.safetensors"));
	ck_assert_uint_eq(ops->count(file), 0);
	ck_assert_ptr_null(ops->tensor(file, 0));
	ck_assert_ptr_null(ops->find(file, "a"));
	ops->close(file);
}
END_TEST

/* One string of metadata may have a megabyte. */
START_TEST(test_long_metadata)
{
	const size_t length = 3000000;
	char *header = malloc(length);
	struct zero_file *file;

	ck_assert_ptr_nonnull(header);
	memset(header, 'x', length);
	memcpy(header, "{\"__metadata__\":{\"k\":\"", 22);
	memcpy(header + length - 3, "\"}}", 3);
	put_tensors_n("long.safetensors", header, length, 0);
	free(header);
	file = open_good(in_folder("long.safetensors"));
	ck_assert_uint_eq(ops->count(file), 0);
	ops->close(file);
}
END_TEST

START_TEST(test_bad_header)
{
	const zero_tensor good = {.name = "a", .dtype = ZERO_F32, .offset = 77};
	const size_t big = (size_t)1 << 62;
	const struct {
		zero_tensor tensor;
		const char *word;
	} cases[] = {
		{{.name = NULL, .dtype = ZERO_F32}, "tensor 1 has no name"},
		{{.name = "", .dtype = ZERO_F32}, "tensor 1 has no name"},
		{{.name = "a", .dtype = ZERO_F32}, "two tensors are named \"a\""},
		{{.name = "__metadata__", .dtype = ZERO_F32}, "__metadata__"},
		{{.name = "b\xff", .dtype = ZERO_F32}, "UTF-8"},
		{{.name = "b", .dtype = ZERO_DTYPE_PARAM}, "\"b\" has 0 for its type"},
		{{.name = "b", .dtype = (zero_dtype)99}, "\"b\" has 99 for its type"},
		{{.name = "b", .dtype = ZERO_F32, .ndim = 9}, "\"b\" has 9 dimensions"},
		{{.name = "b", .dtype = ZERO_F32, .ndim = -1}, "\"b\" has -1 dimensions"},
		{{.name = "b", .dtype = ZERO_F32, .ndim = 1, .shape = {big}}, "\"b\" does not fit"},
		{{.name = "b", .dtype = ZERO_U8, .ndim = 1, .shape = {2 * big - 1}}, "byte 4"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		zero_tensor tensors[] = {good, cases[i].tensor};
		char *header = sentence;
		size_t bytes = 1;

		strcpy(sentence, "");
		ck_assert_int_eq(ops->header(tensors, 2, &header, &bytes), ZERO_E_INVALID);
		ck_assert_msg(strstr(sentence, cases[i].word), "no '%s' in: %s", cases[i].word,
			      sentence);
		ck_assert_ptr_null(header);
		ck_assert_uint_eq(bytes, 0);
		ck_assert_uint_eq(tensors[0].offset, 77); /* an error changes nothing */
	}
}
END_TEST

/* ---- random damage --------------------------------------------------------------------------- */

static uint64_t random_state;

/* xorshift64* (Vigna 2016): the same cases everywhere for one seed. */
static size_t random_below(size_t bound)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return (size_t)((random_state * 0x2545f4914f6cdd1dull >> 33) % bound);
}

static void seed(void)
{
	const char *given = getenv("ZERO_TEST_SEED");

	random_state = given ? strtoull(given, NULL, 0) : 20200505;
	printf("ZERO_TEST_SEED=%" PRIu64 "\n", random_state);
	fflush(stdout);
	random_state += !random_state;
}

static void mutate(char *bytes, size_t count)
{
	static const char json[] = "{}[]\",:0123456789-.eEtfn\\u \n";
	size_t at = random_below(count), other = random_below(count);
	size_t length = random_below(8) + 1;

	switch (random_below(6)) {
	case 0:
		bytes[at] = (char)random_below(256);
		break;
	case 1:
		bytes[at] ^= (char)(1 << random_below(8));
		break;
	case 2:
	case 3:
		bytes[at] = json[random_below(sizeof(json) - 1)];
		break;
	case 4: /* copies one piece over another */
		if (at + length <= count && other + length <= count)
			memmove(bytes + at, bytes + other, length);
		break;
	default: /* replaces a digit */
		for (size_t i = at; i < count; i++) {
			if (bytes[i] >= '0' && bytes[i] <= '9') {
				bytes[i] = (char)('0' + random_below(10));
				break;
			}
		}
	}
}

/* Accepted tensors are within their file, and are found by their names. */
static void check_accepted(const struct zero_file *file)
{
	static const size_t sizes[] = {0, 4, 2, 2, 8, 8, 4, 1, 1};

	for (size_t i = 0; i < ops->count(file); i++) {
		const zero_tensor *tensor = ops->tensor(file, i);
		uint64_t bytes;
		struct stat st;

		ck_assert_int_ge(tensor->dtype, ZERO_F32);
		ck_assert_int_le(tensor->dtype, ZERO_BOOL);
		ck_assert_int_ge(tensor->ndim, 0);
		ck_assert_int_le(tensor->ndim, ZERO_MAX_DIMS);
		bytes = sizes[tensor->dtype];
		for (int d = 0; d < tensor->ndim; d++)
			ck_assert(!__builtin_mul_overflow(bytes, tensor->shape[d], &bytes));
		ck_assert_int_eq(stat(tensor->path, &st), 0);
		ck_assert_uint_le(tensor->offset, (uint64_t)st.st_size);
		ck_assert_uint_le(bytes, (uint64_t)st.st_size - tensor->offset);
		ck_assert_ptr_eq(ops->find(file, tensor->name), tensor);
	}
}

/* Opens `cases` damaged copies of a file. Some of them must be accepted, and some refused. */
static void open_mutants(const char *name, const char *opened, const char *bytes, size_t count,
			 size_t data, int cases)
{
	char *copy = malloc(count);
	int accepted = 0, fd;

	ck_assert_ptr_nonnull(copy);
	put_bytes(name, bytes, count);
	fd = open(in_folder(name), O_WRONLY);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)(count + data)), 0);
	for (int i = 0; i < cases; i++) {
		struct zero_file *file;
		zero_status status;

		memcpy(copy, bytes, count);
		for (size_t n = random_below(3) + 1; n; n--)
			mutate(copy, count);
		ck_assert_int_eq(pwrite(fd, copy, count, 0), (ssize_t)count);
		strcpy(sentence, "");
		status = ops->open(opened, &file);
		if (status == ZERO_OK) {
			check_accepted(file);
			ops->close(file);
			accepted++;
			continue;
		}
		ck_assert(status == ZERO_E_FORMAT || status == ZERO_E_FILE);
		ck_assert_ptr_nonnull(strstr(sentence, folder));
	}
	printf("%s: %d of %d mutants accepted\n", name, accepted, cases);
	ck_assert_int_gt(accepted, 0);
	ck_assert_int_lt(accepted, cases);
	close(fd);
	free(copy);
}

START_TEST(test_mutants)
{
	zero_tensor tensors[] = {
		{.name = "wte", .dtype = ZERO_F32, .ndim = 2, .shape = {3, 5}},
		{.name = "e", .dtype = ZERO_I32, .ndim = 1, .shape = {0}},
		{.name = "h.0.w", .dtype = ZERO_BF16, .ndim = 2, .shape = {4, 4}},
		{.name = "h.0.b", .dtype = ZERO_F64, .ndim = 1, .shape = {4}},
		{.name = "mask", .dtype = ZERO_BOOL, .ndim = 3, .shape = {2, 2, 2}},
	};
	const size_t data = 60 + 32 + 32 + 8;
	char *header;
	size_t bytes;

	seed();
	ck_assert_int_eq(ops->header(tensors, 5, &header, &bytes), ZERO_OK);
	open_mutants("mutant.safetensors", in_folder("mutant.safetensors"), header, bytes, data,
		     20000);
	free(header);
}
END_TEST

START_TEST(test_index_mutants)
{
	static const char index[] = MAP(C_IN_2 ",\n" A_IN_1 ",\n" B_IN_1);
	char path[512];

	seed();
	put_shards();
	snprintf(path, sizeof(path), "%s/s/i.json", folder);
	open_mutants("s/i.json", path, index, strlen(index), 0, 4000);
}
END_TEST

/* ---------------------------------------------------------------------------------------------- */

static Suite *files_suite(void)
{
	Suite *suite = suite_create("files");
	TCase *refusals = tcase_create("refusals");
	TCase *good = tcase_create("good");
	TCase *mutants = tcase_create("mutants");

	tcase_set_timeout(refusals, 60);
	tcase_add_loop_test(refusals, test_damaged, 0, sizeof(damaged) / sizeof(*damaged));
	tcase_add_test(refusals, test_length);
	tcase_add_test(refusals, test_words);
	tcase_add_test(refusals, test_bombs);
	tcase_add_test(refusals, test_special);
	tcase_add_test(refusals, test_folder);
	tcase_add_loop_test(refusals, test_bad_index, 0,
			    sizeof(bad_indexes) / sizeof(*bad_indexes));
	tcase_add_test(refusals, test_bad_header);
	suite_add_tcase(suite, refusals);

	tcase_set_timeout(good, 60);
	tcase_add_test(good, test_sharded);
	tcase_add_test(good, test_dtypes_and_shapes);
	tcase_add_test(good, test_empty);
	tcase_add_test(good, test_names);
	tcase_add_test(good, test_large);
	tcase_add_test(good, test_many);
	tcase_add_test(good, test_liberties);
	tcase_add_test(good, test_long_metadata);
	suite_add_tcase(suite, good);

	tcase_set_timeout(mutants, 300);
	tcase_add_test(mutants, test_mutants);
	tcase_add_test(mutants, test_index_mutants);
	suite_add_tcase(suite, mutants);
	return suite;
}

int main(void)
{
	SRunner *runner = srunner_create(files_suite());
	int failed;

	ops = zero_module_files(&fake_core);
	if (!mkdtemp(folder)) {
		perror(folder);
		return EXIT_FAILURE;
	}
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	remove_all(folder);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
