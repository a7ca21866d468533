/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Manifests of checkpoints: a written manifest is read back, and wrong members are refused with a
 * message that names them. The seal is computed again after each change, so that the members are
 * checked and not the damage. Without a new seal, any changed bit is refused.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "files/manifest.h"
#include "files_core.h"
#include "unit.h"

static uint64_t state;

/* ---- a manifest ------------------------------------------------------------------------------ */

static int all_ranks[] = {0, 2}, odd_ranks[] = {1};
static struct zero_manifest_team teams[] = {{all_ranks, 2}, {odd_ranks, 1}};
static struct zero_manifest_state states[] = {
	{"a\"\xc3\xa4", ZERO_BF16, 1}, {"n", ZERO_I64, ZERO_BLOCK_WHOLE}, {"scale", ZERO_F32, 256}};
static struct zero_manifest_tensor tensors[] = {
	{.name = "h.0.w",
	 .group = "h.0",
	 .states = states,
	 .state_count = 3,
	 .dtype = ZERO_F32,
	 .ndim = 2,
	 .shape = {4, 100},
	 .trainable = true,
	 .team = -1,
	 .first = 128,
	 .shard = 192},
	{.name = "b\"\\\xc3\xa9",
	 .group = "g",
	 .dtype = ZERO_BF16,
	 .ndim = 1,
	 .shape = {65},
	 .trainable = true,
	 .team = 0,
	 .first = 64,
	 .shard = 128},
	{.name = "n",
	 .group = "g",
	 .states = states + 1,
	 .state_count = 2,
	 .dtype = ZERO_I64,
	 .ndim = 0,
	 .team = 1,
	 .shard = 64},
	{.name = "empty",
	 .group = "g",
	 .states = states,
	 .state_count = 2,
	 .dtype = ZERO_F16,
	 .ndim = 2,
	 .shape = {3, 0},
	 .team = -1},
};
static struct zero_manifest_file files[] = {
	{"rank-00000-of-00003.safetensors", 12345, 1, 2},
	{"rank-00001-of-00003.safetensors", 0, UINT64_MAX, 3},
	{"rank-00002-of-00003.safetensors", INT64_MAX, 4, 0x0123456789abcdef}};
static struct zero_manifest sample = {
	.library = "0.1",
	.allgather = "auto",
	.step = 120,
	.bucket = 1 << 30,
	.teams = teams,
	.tensors = tensors,
	.files = files,
	.team_count = 2,
	.tensor_count = 4,
	.user_bytes = 17,
	.user_checksum = 99,
	.lr = 1e-3,
	.beta1 = 0.9,
	.beta2 = 0.999,
	.eps = 1e-8,
	.weight_decay = 0,
	.clip = 1,
	.world = 3,
	.stage = 2,
	.has_adamw = true,
	.has_user = true,
	.states = true,
};

static char *written(const struct zero_manifest *manifest, size_t *bytes)
{
	static char *text;

	ck_assert_msg(ops->manifest_format(manifest, &text, bytes) == ZERO_OK, "%s", sentence);
	return text;
}

/* It is written as the same text, whose members test_refused finds. */
static void expect_text(const struct zero_manifest *manifest, const char *text)
{
	size_t bytes;
	char *again = written(manifest, &bytes);

	ck_assert_str_eq(again, text);
	free(again);
}

START_TEST(test_round_trip)
{
	struct zero_manifest other = sample, *read;
	size_t bytes;
	char *text;

	for (int i = 0; i < 5; i++) {
		if (i == 1)
			other.has_adamw = other.has_user = other.states = false;
		if (i == 2)
			other.tensor_count = 0;
		if (i == 3) {
			other = sample;
			other.clip = 0x1.fffffep127;
			other.lr = (double)0.1F;
		}
		/* Without named states, libraries that know none can read it. */
		if (i == 4) {
			other.tensors = tensors + 1;
			other.tensor_count = 1;
		}
		text = written(&other, &bytes);
		ck_assert_ptr_nonnull(
			strstr(text, i == 2 || i == 4 ? "\"version\": 1," : "\"version\": 2,"));
		ck_assert_msg(!manifest_parse("m", text, bytes, &read), "%s\n%s", sentence, text);
		expect_text(read, text);
		ops->manifest_free(read);
		free(text);
	}
	ops->manifest_free(NULL);
}
END_TEST

START_TEST(test_not_finite)
{
	struct zero_manifest other = sample, *read;
	size_t bytes;
	char *text;

	other.clip = (double)INFINITY;
	text = written(&other, &bytes);
	ck_assert_msg(!manifest_parse("m", text, bytes, &read), "%s", sentence);
	ck_assert(isnan(read->clip));
	ops->manifest_free(read);
	free(text);
	tensors[0].name = "\xff";
	ck_assert_int_eq(ops->manifest_format(&sample, &text, &bytes), ZERO_E_INVALID);
	ck_assert_ptr_null(text);
	tensors[0].name = "h.0.w";
}
END_TEST

START_TEST(test_file)
{
	char path[] = "/tmp/zero-manifest-XXXXXX";
	struct zero_manifest *read;
	size_t bytes;
	char *text = written(&sample, &bytes);
	int fd = mkstemp(path);

	ck_assert(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
	ck_assert_msg(!ops->manifest_read(path, &read), "%s", sentence);
	expect_text(read, text);
	ops->manifest_free(read);
	ck_assert(!ftruncate(fd, (off_t)bytes - 1));
	ck_assert_int_eq(ops->manifest_read(path, &read), ZERO_E_FORMAT);
	ck_assert_ptr_nonnull(strstr(sentence, "do not end with a \"seal\""));
	ck_assert_ptr_nonnull(strstr(sentence, path));
	ck_assert_ptr_null(read);
	close(fd);
	unlink(path);
	ck_assert_int_eq(ops->manifest_read(path, &read), ZERO_E_FILE);
	ck_assert_int_eq(ops->manifest_read("/dev/null", &read), ZERO_E_FILE);
	free(text);
}
END_TEST

/* ---- checksums ------------------------------------------------------------------------------- */

START_TEST(test_sums)
{
	const size_t sizes[] = {0, 1, 65535, 65536, 65537, 3 * 65536, 200000};
	unsigned char *data = malloc(200000 + 64);
	uint64_t sums[8];

	ck_assert_ptr_nonnull(data);
	for (size_t i = 0; i < 200000 + 64; i++)
		data[i] = (unsigned char)next_random(&state);
	for (size_t s = 0; s < COUNT_OF(sizes); s++)
		for (size_t offset = 0; offset < 3; offset++) {
			const unsigned char *from = data + 7 * offset;
			size_t blocks = (sizes[s] + 65535) / 65536;

			memset(sums, 0xa5, sizeof(sums));
			ops->checksum_blocks(from, sizes[s], sums);
			for (size_t i = 0; i < blocks; i++) {
				size_t rest = sizes[s] - i * 65536;

				ck_assert(sums[i] == XXH3_64bits(from + i * 65536,
								 rest < 65536 ? rest : 65536));
			}
			ck_assert(sums[blocks] == 0xa5a5a5a5a5a5a5a5);
			ck_assert(ops->checksum(from, sizes[s]) == XXH3_64bits(from, sizes[s]));
		}
	free(data);
}
END_TEST

/* ---- slices ---------------------------------------------------------------------------------- */

static size_t state_size(const struct zero_shard_slice *slice)
{
	zero_dtype dtype = tensors[slice->tensor].states[slice->state].dtype;

	return dtype == ZERO_BF16 ? 2 : dtype == ZERO_I64 ? 8 : 4;
}

START_TEST(test_shard)
{
	/* rank, kind, tensor, first, count: 100 * 4 elements from 128 on in shards of 192; 65 from
	   64 on in two shards of 128 of ranks 0 and 2; one of rank 1. Then the named states: of the
	   first tensor block 0 of 256 elements is cut between ranks 0 and 1, and rank 0 saves it; a
	   value of a whole tensor is saved by the first rank of its team, also if that is empty. */
	static const struct {
		int rank, kind;
		size_t tensor, state;
		uint64_t first, count;
	} want[] = {
		{0, 0, 0, 0, 0, 64},    {0, 0, 1, 0, 0, 64},    {0, 1, 0, 0, 0, 64},
		{0, 1, 1, 0, 0, 64},    {0, 2, 0, 0, 0, 64},    {0, 2, 1, 0, 0, 64},
		{0, 3, 1, 0, 0, 64},    {0, 4, 0, 0, 0, 64},    {0, 4, 0, 1, 0, 1},
		{0, 4, 0, 2, 0, 1},     {0, 4, 3, 1, 0, 1},     {1, 0, 0, 0, 64, 192},
		{1, 0, 2, 0, 0, 1},     {1, 1, 0, 0, 64, 192},  {1, 2, 0, 0, 64, 192},
		{1, 4, 0, 0, 64, 192},  {1, 4, 2, 0, 0, 1},     {1, 4, 2, 1, 0, 1},
		{2, 0, 0, 0, 256, 144}, {2, 0, 1, 0, 64, 1},    {2, 1, 0, 0, 256, 144},
		{2, 1, 1, 0, 64, 1},    {2, 2, 0, 0, 256, 144}, {2, 2, 1, 0, 64, 1},
		{2, 3, 1, 0, 64, 1},    {2, 4, 0, 0, 256, 144}, {2, 4, 0, 2, 1, 1},
	};
	size_t next = 0;

	for (int rank = 0; rank < 3; rank++) {
		struct zero_shard_layout layout;
		uint64_t at = 0, sum = 0;

		ck_assert_msg(!ops->manifest_shard(&sample, rank, &layout), "%s", sentence);
		for (size_t i = 0; i < layout.count; i++, next++) {
			const struct zero_shard_slice *slice = &layout.slices[i];
			size_t size = slice->kind == ZERO_SAVED_NAMED ? state_size(slice)
				      : slice->kind || !slice->tensor ? 4
				      : slice->tensor == 1            ? 2
								      : 8;

			ck_assert_int_eq(want[next].rank, rank);
			ck_assert_int_eq(slice->kind, want[next].kind);
			ck_assert_uint_eq(slice->tensor, want[next].tensor);
			ck_assert_uint_eq(slice->state, want[next].state);
			ck_assert_uint_eq(slice->first, want[next].first);
			ck_assert_uint_eq(slice->count, want[next].count);
			ck_assert_uint_eq(slice->at, at);
			ck_assert_uint_eq(slice->first_checksum, sum);
			ck_assert_uint_eq(slice->bytes, slice->count * size);
			at += slice->bytes;
			sum++;
		}
		ck_assert_uint_eq(layout.bytes, at);
		ck_assert_uint_eq(layout.checksums, sum);
		free(layout.slices);
	}
	ck_assert_uint_eq(next, COUNT_OF(want));
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

/* The text with `to` instead of `from`, and a new seal. */
static char *changed(const char *from, const char *to, size_t *bytes)
{
	char *text = written(&sample, bytes), *made, *seal;
	const char *found = strstr(text, from);
	size_t capacity = *bytes + strlen(to) + 1, at = found ? (size_t)(found - text) : *bytes;

	ck_assert_msg(at < *bytes, "no '%s' in a manifest", from);
	made = malloc(capacity);
	snprintf(made, capacity, "%.*s%s%s", (int)at, text, to, text + at + strlen(from));
	free(text);
	seal = strstr(made, ",\n\"seal\"");
	ck_assert_ptr_nonnull(seal);
	snprintf(seal, capacity - (size_t)(seal - made), ",\n\"seal\": \"%016" PRIx64 "\"\n}\n",
		 (uint64_t)XXH3_64bits(made, (size_t)(seal - made)));
	*bytes = strlen(made);
	return made;
}

static const struct {
	const char *from, *to, *words;
} bad[] = {
	{"slurm-zero", "slurm zero", "\"format\" is"},
	{"\"version\": 2", "\"version\": 3", "version 3"},
	{"\"version\": 2", "\"version\": 0", "\"version\" is 0"},
	{"\"version\": 2", "\"version\": \"1\"", "\"version\" is \"1\""},
	{"\"library\": \"0.1\",\n", "", "not found: library"},
	{"\"step\": 120", "\"step\": -1", "\"step\" is -1"},
	{"\"step\": 120", "\"step\": 1.5", "Expected integer, got real"},
	{"\"step\": 120", "\"step\": 1e400", "not valid JSON"},
	{"\"step\": 120", "\"step\": 99999999999999999999", "not valid JSON"},
	{"\"step\": 120", "\"step\": 1, \"step\": 2", "second time"},
	{"\"step\": 120", "\"steps\": 1", "not found: step"},
	{"\"world\": 3", "\"world\": 0", "\"world\" is 0"},
	{"\"world\": 3", "\"world\": 4", "there are 3 \"files\""},
	{"\"world\": 3", "\"world\": 100000", "\"world\" is 100000"},
	{"\"stage\": 2", "\"stage\": 4", "\"stage\" is 4"},
	{"\"bucket\": 1073741824", "\"bucket\": null", "Expected integer, got null"},
	{"\"lr\": 0.001", "\"lr\": \"x\"", "\"adamw\" has \"x\" for \"lr\""},
	{"\"lr\"", "\"rate\"", "\"adamw\" has nothing for \"lr\""},
	{"\"lr\": 0.001, ", "", "\"adamw\" has nothing for \"lr\""},
	{"\"adamw\": {", "\"adamw\": [], \"x\": {", "left unpacked: x"},
	{"\"states\": true", "\"states\": 1", "Expected true or false"},
	{"\"states\": true", "\"states\": true, \"masters\": 1", "Expected true or false"},
	{"\"checksum\": \"xxh3-64\"", "\"checksum\": \"md5\"", "\"checksum\" is \"md5\""},
	{"\"block\": 65536", "\"block\": 4096", "\"block\" is 4096"},
	{"\"bytes\": 17", "\"bytes\": -17", "\"user\": \"bytes\" is -17"},
	{"0000000000000063", "000000000000063", "\"checksum\" is \"000000000000063\""},
	{"0000000000000063", "000000000000006G", "\"checksum\" is"},
	{"0000000000000063", "000000000000006A", "\"checksum\" is"},
	{"[0, 2]", "[0,3]", "less than \"world\""},
	{"[0, 2]", "[0,0]", "must be there once"},
	{"[0, 2]", "[]", "has 0 ranks"},
	{"[0, 2]", "[0,-2]", "-2 for a rank"},
	{"[0, 2]", "{}", "must be an array of ranks"},
	{"\"teams\": [", "\"teams\": {} , \"x\": [", "'{' where '[' is expected"},
	{"\"name\": \"h.0.w\"", "\"name\": \"n\"", "tensor \"n\" occurs for the second time"},
	{"\"name\": \"h.0.w\"", "\"name\": \"\"", "\"name\" is \"\""},
	{"\"name\": \"h.0.w\"", "\"name\": 7", "Expected string, got integer"},
	{"\"name\": \"h.0.w\"", "\"nom\": 7", "tensor 0 has other members"},
	{"\"name\": \"h.0.w\"", "\"name\": \"a\\u0000b\"", "not valid JSON"},
	{"\"dtype\": \"F32\"", "\"dtype\": \"F8\"", "tensor \"h.0.w\": \"dtype\" is \"F8\""},
	{"\"dtype\": \"F32\"", "\"dtype\": \"U8\"", "is trainable and U8"},
	{"[4, 100]", "[4,101,-1]", "\"shape\" is [4,101,-1]"},
	{"[4, 100]", "[4,100,1,1,1,1,1,1,1]", "\"shape\" is"},
	{"[4, 100]", "[4,1000]", "cannot hold them"},
	{"[4, 100]", "[4611686018427387904,4]", "2^63 bytes or more"},
	{"[4, 100]", "[9223372036854775807,9223372036854775807,0]", "2^63 bytes or more"},
	{"\"team\": 0", "\"team\": 2", "there are 2 teams"},
	{"\"team\": 0", "\"team\": -1", "\"team\" is -1"},
	{"\"first\": 128", "\"first\": 177", "cannot hold them"},
	{"\"first\": 128", "\"first\": 9223372036854775807", "cannot hold them"},
	{"\"shard\": 192", "\"shard\": 9223372036854775807", "cannot hold them"},
	{"\"shard\": 192", "\"shard\": 0", "cannot hold them"},
	{"\"name\": \"scale\"", "\"name\": \"m\"", "\"h.0.w\" has named state \"m\" in place 2"},
	{"\"name\": \"scale\"", "\"name\": \"n\"", "must ascend"},
	{"\"name\": \"scale\"", "\"name\": \"s/t\"", "named state 2 \"name\" is \"s/t\""},
	{"\"name\": \"scale\"", "\"name\": \"\"", "without a slash"},
	{"\"name\": \"scale\"",
	 "\"name\": \"sssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss\"",
	 "a string of 1 to 64 bytes"},
	{"\"name\": \"scale\", ", "", "named state 2 has other members"},
	{"\"dtype\": \"I64\", \"block\"", "\"dtype\": \"I8\", \"block\"",
	 "named state 1 \"dtype\" is"},
	{"\"block\": 256", "\"block\": 255", "named state 2 \"block\" is 255; it must be a power"},
	{"\"block\": 256", "\"block\": 0", "\"block\" is 0"},
	{"\"block\": 256", "\"blok\": 256", "not found: block"},
	{"\"named_states\": [", "\"named_states\": [7, ",
	 "named state 0 is 7; it must be an object"},
	{"\"named_states\": [", "\"named_states\": [], \"shard\": [", "not valid JSON"},
	{"\"first\": 128", "\"named_states\": 1, \"first\": 128", "not valid JSON"},
	{"rank-00000", "../rank-00000", "it must be \"rank-00000-of-00003.safetensors\""},
	{"rank-00001", "rank-00000", "it must be \"rank-00001"},
	{"\"bytes\": 12345", "\"bytes\": -1", "\"bytes\" is -1"},
	{"\"header\": \"0000", "\"header\": \"000", "\"header\" is"},
	{"\"checksums\": \"0000", "\"checksum\": \"0000", "not found: checksums"},
	{"\"files\": [\n", "\"files\": [],\n\"files\": [\n",
	 "\"files\" occurs for the second time"},
	{"\"files\": [", "\"files\": [1,", "file 0 is 1; it must be an object"},
	{"\"files\": [", "\"filed\": [", "not found: files"},
	{"{\n", "[\n", "'[' where '{' is expected"},
	{"{\n", "{\n\"seal\": 1,\n", "second time"},
};

START_TEST(test_refused)
{
	struct zero_manifest *read;
	size_t bytes;
	char *text = changed(bad[_i].from, bad[_i].to, &bytes);
	zero_status status = manifest_parse("m.json", text, bytes, &read);

	ck_assert_msg(status == ZERO_E_FORMAT || status == ZERO_E_UNSUPPORTED, "%d %s", status,
		      bad[_i].to);
	ck_assert_ptr_null(read);
	ck_assert_msg(strstr(sentence, bad[_i].words) && strstr(sentence, "m.json"), "'%s' for %s",
		      sentence, bad[_i].to);
	free(text);
}
END_TEST

/* Earlier releases wrote masters without moments. */
START_TEST(test_masters)
{
	struct zero_manifest *read;
	size_t bytes;
	char *text = changed("\"states\": true", "\"states\": false, \"masters\": true", &bytes);

	ck_assert_msg(!manifest_parse("m", text, bytes, &read), "%s", sentence);
	ck_assert(zero_tensor_has(read, &read->tensors[1], ZERO_SAVED_MASTER));
	ck_assert(!zero_tensor_has(read, &read->tensors[1], ZERO_SAVED_EXP_AVG));
	ops->manifest_free(read);
	free(text);
}
END_TEST

/* Every flipped bit is refused. */
START_TEST(test_bits)
{
	struct zero_manifest *read;
	size_t bytes;
	char *text = written(&sample, &bytes);

	for (size_t i = 0; i < bytes * 8; i++) {
		text[i / 8] = (char)(text[i / 8] ^ 1 << i % 8);
		ck_assert_msg(manifest_parse("m", text, bytes, &read) == ZERO_E_FORMAT, "bit %zu",
			      i);
		text[i / 8] = (char)(text[i / 8] ^ 1 << i % 8);
	}
	for (size_t i = 0; i < bytes; i++)
		ck_assert(manifest_parse("m", text, i, &read) == ZERO_E_FORMAT);
	ck_assert(!manifest_parse("m", text, bytes, &read));
	ops->manifest_free(read);
	free(text);
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("manifest");

	state = seed_of_test();
	ops = zero_module_files(&core);
	tcase_add_test(tests, test_round_trip);
	tcase_add_test(tests, test_not_finite);
	tcase_add_test(tests, test_file);
	tcase_add_test(tests, test_sums);
	tcase_add_test(tests, test_shard);
	tcase_add_loop_test(tests, test_refused, 0, COUNT_OF(bad));
	tcase_add_test(tests, test_masters);
	tcase_add_test(tests, test_bits);
	return run_cases(tests, NULL);
}
