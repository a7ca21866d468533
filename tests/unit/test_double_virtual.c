/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for CUDA's memory that is mapped at addresses of the program's choice. */
#define LEAVES_FILES 1
#include "double_cuda.h"

enum { GRAIN = 64 << 10 };

static __typeof__(&cuMemGetAllocationGranularity) granularity;
static __typeof__(&cuMemAddressReserve) reserve;
static __typeof__(&cuMemAddressFree) unreserve;
static __typeof__(&cuMemCreate) create;
static __typeof__(&cuMemRelease) drop;
static __typeof__(&cuMemMap) map;
static __typeof__(&cuMemUnmap) unmap;
static __typeof__(&cuMemSetAccess) set_access;
static __typeof__(&cuMemRetainAllocationHandle) retain;
static __typeof__(&cuMemGetAddressRange) range_of;
static __typeof__(&cuPointerGetAttribute) attribute;
static __typeof__(&cuMemFree) plain_free;

static const CUmemAllocationProp properties = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};

static void open_virtual(void)
{
	static const struct {
		void *function;
		const char *name;
	} more[] = {
		{&granularity, "cuMemGetAllocationGranularity"},
		{&reserve, "cuMemAddressReserve"},
		{&unreserve, "cuMemAddressFree"},
		{&create, "cuMemCreate"},
		{&drop, "cuMemRelease"},
		{&map, "cuMemMap"},
		{&unmap, "cuMemUnmap"},
		{&set_access, "cuMemSetAccess"},
		{&retain, "cuMemRetainAllocationHandle"},
		{&range_of, "cuMemGetAddressRange_v2"},
		{&attribute, "cuPointerGetAttribute"},
		{&plain_free, "cuMemFree_v2"},
	};

	setenv("DOUBLE_CUDA_GRAIN", "64K", 1);
	setenv("DOUBLE_CUDA_MEMORY", "1M", 1);
	open_device();
	for (size_t i = 0; i < COUNT_OF(more); i++) {
		void *symbol = dlsym(RTLD_DEFAULT, more[i].name);

		ck_assert_msg(symbol != NULL, "there is no %s", more[i].name);
		memcpy(more[i].function, &symbol, sizeof(symbol));
	}
}

static CUmemGenericAllocationHandle new_memory(size_t grains)
{
	CUmemGenericAllocationHandle handle;

	GOOD(create(&handle, grains * GRAIN, &properties, 0));
	return handle;
}

static CUdeviceptr new_range(size_t grains)
{
	CUdeviceptr at;

	GOOD(reserve(&at, grains * GRAIN, 0, 0, 0));
	ck_assert_uint_eq(at % GRAIN, 0);
	return at;
}

static CUresult allow(CUdeviceptr at, size_t grains, CUmemAccess_flags flags)
{
	const CUmemAccessDesc access = {.location = properties.location, .flags = flags};

	return set_access(at, grains * GRAIN, &access, 1);
}

/* One grain of the memory, at an address of its own. */
static CUdeviceptr new_mapping(CUmemGenericAllocationHandle handle)
{
	CUdeviceptr at = new_range(1);

	GOOD(map(at, GRAIN, 0, handle, 0));
	GOOD(allow(at, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	return at;
}

static size_t unused(void)
{
	size_t is, total;

	GOOD(cu.memory_info(&is, &total));
	return is;
}

START_TEST(one_memory_at_two_addresses)
{
	CUmemGenericAllocationHandle memory = new_memory(1), same;
	CUdeviceptr a = new_mapping(memory), b = new_mapping(memory), base;
	CUstream first = new_stream(), second = new_stream();
	CUevent event = new_event();
	float is[2] = {1, 2};
	unsigned type = 0;
	size_t bytes;

	GOOD(cu.copy(a, (CUdeviceptr)is, sizeof(is), first));
	GOOD(cu.event_record(event, first));
	GOOD(cu.stream_wait(second, event, 0));
	GOOD(twice(b, 2, second));
	GOOD(cu.stream_finish(second));
	GOOD(cu.copy((CUdeviceptr)is, a, sizeof(is), first));
	ck_assert(is[0] == 2 && is[1] == 4);
	ck_assert(*(float *)a == 2 && *(float *)b == 2);
	GOOD(attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, b + 8));
	ck_assert_uint_eq(type, CU_MEMORYTYPE_DEVICE);
	GOOD(range_of(&base, &bytes, b + 8));
	ck_assert(base == b && bytes == GRAIN);
	GOOD(retain(&same, (void *)a));
	ck_assert(same == memory);
	GOOD(unmap(a, GRAIN));
	GOOD(drop(memory));
	GOOD(drop(same));
	GIVES(drop(memory), CUDA_ERROR_INVALID_VALUE);
	GIVES(retain(&same, (void *)a), CUDA_ERROR_INVALID_VALUE);
	ck_assert(*(float *)b == 2); /* the mapping keeps it */
	GOOD(unmap(b, GRAIN));
}
END_TEST

START_TEST(memory_is_held_by_handles_and_mappings)
{
	CUmemGenericAllocationHandle memory, another;
	CUdeviceptr a;

	ck_assert_uint_eq(unused(), 1 << 20);
	memory = new_memory(15);
	GIVES(create(&another, 2 * GRAIN, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
	a = new_range(15);
	GOOD(map(a, 15 * GRAIN, 0, memory, 0));
	ck_assert_uint_eq(unused(), GRAIN);
	GOOD(drop(memory));
	ck_assert_uint_eq(unused(), GRAIN);
	GOOD(unmap(a, 15 * GRAIN));
	ck_assert_uint_eq(unused(), 1 << 20);
	GOOD(drop(new_memory(16)));
}
END_TEST

START_TEST(what_the_driver_refuses)
{
	CUmemGenericAllocationHandle memory = new_memory(2), small = new_memory(1);
	const CUmemAllocationProp nowhere = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
	const CUmemAccessDesc other = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
	CUdeviceptr a = new_range(4), b;
	size_t bytes;

	GOOD(granularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	ck_assert_uint_eq(bytes, GRAIN);
	GIVES(granularity(&bytes, &nowhere, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(create(&small, GRAIN + 1, &properties, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(create(&small, GRAIN, &nowhere, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(reserve(&b, GRAIN + 1, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(reserve(&b, GRAIN, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(map(a, 2 * GRAIN, 0, small, 0), CUDA_ERROR_INVALID_VALUE);    /* smaller */
	GIVES(map(a + 512, GRAIN, 0, memory, 0), CUDA_ERROR_INVALID_VALUE); /* no whole grain */
	GIVES(map(a, GRAIN, GRAIN, memory, 0), CUDA_ERROR_INVALID_VALUE);   /* not from its start */
	GIVES(map(a + 3 * GRAIN, 2 * GRAIN, 0, memory, 0), CUDA_ERROR_INVALID_VALUE); /* beyond */
	GIVES(map(4096 * GRAIN, GRAIN, 0, memory, 0), CUDA_ERROR_INVALID_VALUE);
	GOOD(map(a + GRAIN, 2 * GRAIN, 0, memory, 0));
	GIVES(map(a, 2 * GRAIN, 0, memory, 0), CUDA_ERROR_INVALID_VALUE); /* it is mapped */
	GIVES(map(a + 2 * GRAIN, GRAIN, 0, small, 0), CUDA_ERROR_INVALID_VALUE);
	GIVES(allow(a + GRAIN, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_VALUE);
	GIVES(allow(a, 3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_VALUE);
	GIVES(set_access(a + GRAIN, 2 * GRAIN, &other, 1), CUDA_ERROR_INVALID_DEVICE);
	GIVES(unmap(a + GRAIN, GRAIN), CUDA_ERROR_INVALID_VALUE);
	GIVES(unmap(a, 4 * GRAIN), CUDA_ERROR_INVALID_VALUE);
	GIVES(plain_free(a + GRAIN), CUDA_ERROR_INVALID_VALUE);
	GIVES(unreserve(a, 4 * GRAIN), CUDA_ERROR_INVALID_VALUE); /* something is mapped */
	GOOD(map(a, GRAIN, 0, small, 0));
	GOOD(unmap(a, 3 * GRAIN)); /* two whole mappings */
	GIVES(unmap(a, GRAIN), CUDA_ERROR_INVALID_VALUE);
	GIVES(unreserve(a, GRAIN), CUDA_ERROR_INVALID_VALUE);
	GOOD(unreserve(a, 4 * GRAIN));
	GIVES(unreserve(a, 4 * GRAIN), CUDA_ERROR_INVALID_VALUE);
	GIVES(map(a, GRAIN, 0, memory, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* ---- what ends the process ------------------------------------------------------------------- */

static void races_by_two_addresses(void)
{
	CUmemGenericAllocationHandle memory;

	open_virtual();
	memory = new_memory(1);
	GOOD(cu.set(new_mapping(memory), 1, 8, new_stream()));
	GOOD(cu.set(new_mapping(memory) + 4, 1, 8, new_stream()));
	cu.stream_finish(NULL);
	pause();
}

static void uses_addresses_alone(void)
{
	open_virtual();
	cu.set(new_range(1), 1, 8, NULL);
}

static void launches_on_unmapped(void)
{
	CUdeviceptr a;

	open_virtual();
	a = new_mapping(new_memory(1));
	GOOD(unmap(a, GRAIN));
	GOOD(unreserve(a, GRAIN));
	twice(a, 1, NULL);
}

static void uses_without_access(void)
{
	CUdeviceptr a;

	open_virtual();
	a = new_range(1);
	GOOD(map(a, GRAIN, 0, new_memory(1), 0));
	cu.set(a, 1, 8, NULL);
	pause();
}

static void writes_what_is_to_be_read(void)
{
	CUdeviceptr a;
	int is;

	open_virtual();
	a = new_mapping(new_memory(1));
	GOOD(allow(a, 1, CU_MEM_ACCESS_FLAGS_PROT_READ));
	GOOD(cu.copy((CUdeviceptr)&is, a, 4, NULL));
	cu.set(a, 1, 8, NULL);
	pause();
}

static void unmaps_in_use(void)
{
	CUdeviceptr a;

	open_virtual();
	a = new_mapping(new_memory(1));
	hold(true);
	GOOD(cu.set(a, 1, 8, NULL));
	unmap(a, GRAIN);
}

START_TEST(misuse_ends_the_process)
{
	dies(races_by_two_addresses, "nothing puts it after");
	dies(uses_addresses_alone, "is reserved, and no memory is mapped there");
	dies(launches_on_unmapped, "is freed, and no memory is mapped there");
	dies(uses_without_access, "the device may not write there");
	dies(writes_what_is_to_be_read, "the device may not write there");
	dies(unmaps_in_use, "is still used by 1 operations");
}
END_TEST

static void leaves_all_behind(void)
{
	setenv("DOUBLE_CUDA_LEAKS", "1", 1);
	open_virtual();
	new_mapping(new_memory(1));
}

START_TEST(leaks_are_told)
{
	static const char *const words[] = {"physical memory", "reserved addresses",
					    "mapped memory"};
	char text[4096];
	int status = in_child(leaves_all_behind, text, sizeof(text));

	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 97, "%d: %s", status, text);
	for (size_t i = 0; i < COUNT_OF(words); i++)
		ck_assert_msg(strstr(text, words[i]), "no \"%s\" in: %s", words[i], text);
}
END_TEST

int main(void)
{
	TCase *test = tcase_create("device"), *own = tcase_create("own");

	tcase_set_timeout(own, 60);
	tcase_add_checked_fixture(test, open_virtual, NULL);
	tcase_add_test(test, one_memory_at_two_addresses);
	tcase_add_test(test, memory_is_held_by_handles_and_mappings);
	tcase_add_test(test, what_the_driver_refuses);
	tcase_add_test(own, misuse_ends_the_process);
	tcase_add_test(own, leaks_are_told);
	return run_cases(test, own, NULL);
}
