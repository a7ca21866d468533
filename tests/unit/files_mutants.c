/* SPDX-License-Identifier: Apache-2.0 */
/* Random damage is refused, or what was accepted is consistent. */
#include "files_test.h"

#include <fcntl.h>

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
		     4000);
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
	open_mutants("s/i.json", path, index, strlen(index), 0, 1000);
}
END_TEST

TCase *mutant_cases(void)
{
	TCase *cases = tcase_create("mutants");

	tcase_set_timeout(cases, 300);
	tcase_add_test(cases, test_mutants);
	tcase_add_test(cases, test_index_mutants);
	return cases;
}
