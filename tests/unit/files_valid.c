/* SPDX-License-Identifier: Apache-2.0 */
/* Headers that header() makes are read back, as are those of other programs. */
#include "files_test.h"

/* Writes the header of these tensors, and their bytes as a hole, reads the file, and compares. */
static void round_trip(zero_tensor *tensors, size_t count)
{
	static const size_t sizes[] = {0, 4, 2, 2, 8, 8, 4, 1, 1, 1, 1};
	struct zero_file *file;
	char *header = NULL;
	size_t bytes = 0;
	zero_status status;

	status = ops->header(tensors, count, &header, &bytes);
	ck_assert_msg(status == ZERO_OK, "%s", sentence);
	ck_assert_uint_eq(bytes % 64, 0);
	put_bytes("trip.safetensors", header, bytes);
	free(header);
	for (size_t i = 0; i < count; i++) {
		size_t size = sizes[tensors[i].dtype];

		ck_assert_uint_eq(tensors[i].offset, bytes);
		for (int d = 0; d < tensors[i].ndim; d++)
			size *= tensors[i].shape[d];
		bytes += size;
	}
	ck_assert_int_eq(truncate(in_folder("trip.safetensors"), (off_t)bytes), 0);
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
	zero_tensor tensors[ZERO_F8_E5M2 * (ZERO_MAX_DIMS + 1)] = {0};
	char names[ZERO_F8_E5M2 * (ZERO_MAX_DIMS + 1)][32];
	size_t count = 0;

	for (int dtype = ZERO_F32; dtype <= ZERO_F8_E5M2; dtype++) {
		for (int ndim = 0; ndim <= ZERO_MAX_DIMS; ndim++) {
			zero_tensor *tensor = &tensors[count];

			snprintf(names[count], sizeof(names[count]), "t%zu", count);
			tensor->name = names[count++];
			tensor->dtype = (zero_dtype)dtype;
			tensor->ndim = ndim;
			for (int d = 0; d < ndim; d++)
				tensor->shape[d] = (size_t)(d + dtype) % 3 + 1;
		}
	}
	round_trip(tensors, count);
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

	round_trip(tensors, 6);
	round_trip(NULL, 0);
	round_trip(tensors, 1);
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

	round_trip(tensors, 8);
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

	round_trip(tensors, 3);
}
END_TEST

START_TEST(test_many)
{
	enum { COUNT = 5000 };
	zero_tensor *tensors = calloc(COUNT, sizeof(*tensors));
	char(*names)[64] = calloc(COUNT, sizeof(*names));

	ck_assert_ptr_nonnull(tensors);
	ck_assert_ptr_nonnull(names);
	for (size_t i = 0; i < COUNT; i++) {
		/* The order differs from that of the names. */
		snprintf(names[i], sizeof(names[i]), "layers.%zu.weight", i * 1237 % COUNT);
		tensors[i] = (zero_tensor){
			.name = names[i], .dtype = ZERO_BF16, .ndim = 2, .shape = {i % 7, 2}};
	}
	round_trip(tensors, COUNT);
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

TCase *valid_cases(void)
{
	TCase *cases = tcase_create("valid");

	tcase_add_test(cases, test_dtypes_and_shapes);
	tcase_add_test(cases, test_empty);
	tcase_add_test(cases, test_names);
	tcase_add_test(cases, test_large);
	tcase_add_test(cases, test_many);
	tcase_add_test(cases, test_liberties);
	tcase_add_test(cases, test_long_metadata);
	return cases;
}
