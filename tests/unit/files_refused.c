/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged files, wrong paths, and models in several files that do not match their index. */
#include <sys/resource.h>

#include "files_test.h"

/* ---- one file that is damaged ---------------------------------------------------------------- */

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
	{"{\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
	 "tensor \"a\"|F8_E8M0|does not store|F32, F16"},
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

void put_shards(void)
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

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
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

TCase *refused_cases(void)
{
	TCase *cases = tcase_create("refusals");

	tcase_add_loop_test(cases, test_damaged, 0, COUNT_OF(damaged));
	tcase_add_test(cases, test_length);
	tcase_add_test(cases, test_words);
	tcase_add_test(cases, test_bombs);
	tcase_add_test(cases, test_special);
	tcase_add_test(cases, test_folder);
	tcase_add_loop_test(cases, test_bad_index, 0, COUNT_OF(bad_indexes));
	tcase_add_test(cases, test_bad_header);
	tcase_add_test(cases, test_sharded);
	return cases;
}
