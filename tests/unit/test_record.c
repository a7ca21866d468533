/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank records for its report, by a clock that the test makes up, against plain sums; and
   the folder that reports are written to. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "backend/meter.h"
#include "report/folder.h"
#include "report/record.h"
#include "unit.h"

#define SECOND UINT64_C(1000000000)

static struct zero_record *record;
static struct zero_report_rank rank;
static struct zero_report_op ops[ZERO_REPORT_OPS];
static uint64_t now;

static void begin(void)
{
	record = zero_record_new();
	ck_assert(record != NULL);
	now = record->opened;
}

/* The rank does nothing for `own`, is ready at once, waits, and runs. */
static void submit(enum zero_work_kind kind, const char *group, const char *label, uint64_t own,
		   uint64_t wait, uint64_t run)
{
	struct zero_metered one = {.kind = kind,
				   .group = group,
				   .label = label,
				   .begun = now + own,
				   .bytes = 10,
				   .failed = run % 2};

	one.ready = one.begun + 3;
	one.agreed = one.ready + wait;
	now = one.done = one.agreed + run;
	record->meter.add(record->meter.context, &one);
}

static void step(uint64_t time, size_t high)
{
	size_t kinds[ZERO_MEM_KINDS] = {high, high / 2};

	now += time;
	zero_record_step(record, now, kinds, high / 4);
}

static size_t read_record(void)
{
	static const size_t nothing[ZERO_MEM_KINDS];

	return zero_record_read(record, now, nothing, 0, &rank, ops);
}

static void expect_sum(const struct zero_report_sum *sum, uint64_t count, uint64_t own,
		       uint64_t wait, uint64_t run)
{
	ck_assert_uint_eq(sum->count, count);
	ck_assert_uint_eq(sum->bytes, 10 * count);
	ck_assert_uint_eq(sum->own, own);
	ck_assert_uint_eq(sum->wait, wait);
	ck_assert_uint_eq(sum->run, run);
}

START_TEST(submissions)
{
	begin();
	/* Before the first step the program may read files. */
	submit(ZERO_WORK_GATHER, "a", "gather of group 'a'", 50 * SECOND, 100, 1000);
	step(0, 0);
	submit(ZERO_WORK_GATHER, "a", "gather of group 'a'", 7 * SECOND, 200, 2001);
	submit(ZERO_WORK_REDUCE, "a", "reduce of group 'a'", 2 * SECOND, 400, 4000);
	submit(ZERO_WORK_GATHER, "'a', 'c'", "gather of groups 'a', 'c'", 0, 1, 2);
	submit(ZERO_WORK_PROGRAM, "", "zero_mean", 9 * SECOND, 5, 6);
	ck_assert_uint_eq(read_record(), 4);
	expect_sum(&rank.kinds[ZERO_WORK_GATHER], 3, 57 * SECOND, 301, 3012);
	expect_sum(&rank.kinds[ZERO_WORK_REDUCE], 1, 2 * SECOND, 400, 4003);
	expect_sum(&rank.kinds[ZERO_WORK_PROGRAM], 1, 9 * SECOND, 5, 9);
	ck_assert_uint_eq(rank.kinds[ZERO_WORK_GATHER].failed, 1);
	ck_assert_str_eq(ops[0].group, "a");
	expect_sum(&ops[0].sum, 2, 57 * SECOND, 300, 3007);
	ck_assert_str_eq(ops[2].group, "'a', 'c'");
	/* The longest time is one within steps. */
	ck_assert_uint_eq(rank.longest, 7 * SECOND);
	ck_assert_str_eq(rank.longest_before, "gather of group 'a'");
	zero_record_free(record);
}
END_TEST

/* Each group has a row for each kind; the last ones share one. */
START_TEST(many_groups)
{
	uint64_t shared = 0;
	char group[16];

	begin();
	for (int turn = 0; turn < 2; turn++)
		for (int g = 0; g < 150; g++)
			for (int kind = 0; kind < 3; kind++) {
				snprintf(group, sizeof(group), "g%d", g);
				submit((enum zero_work_kind)kind, group, "", 0,
				       (uint64_t)(3 * g + kind), 2);
			}
	for (size_t i = 0, count = read_record(); i < count; i++) {
		int g = atoi(ops[i].group + 1);

		if (!strcmp(ops[i].group, "...")) {
			shared += ops[i].sum.count;
			continue;
		}
		expect_sum(&ops[i].sum, 2, 0, 2 * (uint64_t)(3 * g + (int)ops[i].kind), 10);
	}
	ck_assert_uint_eq(shared, 2 * (450 - (ZERO_REPORT_OPS - ZERO_WORK_KINDS)));
	for (int kind = 0; kind < 3; kind++)
		ck_assert_uint_eq(rank.kinds[kind].count, 300);
	zero_record_free(record);
}
END_TEST

static int compare(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Any number of steps: samples of several have their sums, the worst step and the most memory. */
START_TEST(steps)
{
	static const int counts[] = {1, 2, 128, 129, 200, 257, 1000};
	static double times[1000];
	int count = counts[_i];
	double total = 0, worst = 0;
	float most = 0, highest = 0, sampled = 0, longest = 0;
	uint32_t measured = 0;

	begin();
	for (int i = 0; i < count; i++) {
		uint64_t time = 1000 * (uint64_t)(1 + rand() % (i % 10 ? 1000000 : 20));
		size_t high = (size_t)(rand() % 100000) * 8;

		step(time, high);
		most = (float)high > most ? (float)high : most;
		if (i) {
			times[i - 1] = 1e-9 * (double)time;
			total += times[i - 1];
			worst = times[i - 1] > worst ? times[i - 1] : worst;
		}
	}
	read_record();
	ck_assert_uint_eq(rank.steps.count, (unsigned)count - 1);
	ck_assert_double_eq_tol(rank.steps.total, total, 1e-9 * total + 1e-12);
	ck_assert_double_eq_tol(rank.steps.worst, worst, 1e-9);
	ck_assert_uint_le(rank.sample_count, ZERO_REPORT_SAMPLES);
	/* Samples become one in pairs. */
	ck_assert_uint_eq(rank.every & (rank.every - 1), 0);
	ck_assert_uint_ge(rank.sample_count * 2, count < 128 ? (unsigned)count : 128);
	for (uint32_t i = 0; i < rank.sample_count; i++) {
		const struct zero_report_sample *one = &rank.samples[i];
		float peak = one->peak[0] + one->peak[1];

		measured += one->steps;
		sampled += one->step;
		longest = one->worst > longest ? one->worst : longest;
		highest = peak > highest ? peak : highest;
		ck_assert(!i || one->seconds >= one[-1].seconds);
	}
	ck_assert_float_eq_tol(highest, 1.5F * most, 1e-6F * most + 1);
	ck_assert_uint_eq(measured, (unsigned)count - 1);
	ck_assert_double_eq_tol(sampled, total, 1e-4 * total + 1e-12);
	ck_assert_double_eq_tol(longest, worst, 1e-6 * worst + 1e-12);
	if (count == 1)
		return;
	qsort(times, (size_t)count - 1, sizeof(*times), compare);
	/* Parts of an octave are about 2 % of the time. */
	total = times[(count - 2) / 2];
	ck_assert_double_eq_tol(rank.steps.median, total, 0.03 * total + 1e-6);
	total = times[(int)ceil(0.95 * (count - 1)) - 1];
	ck_assert_double_eq_tol(rank.steps.p95, total, 0.03 * total + 1e-6);
	zero_record_free(record);
}
END_TEST

static int count_files(const char *path)
{
	DIR *folder = opendir(path);
	int count = -2;

	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static void read_file(int folder, const char *name, char *text, size_t size)
{
	int file = openat(folder, name, O_RDONLY);
	ssize_t bytes = read(file, text, size - 1);

	ck_assert_int_gt(bytes, 0);
	text[bytes] = '\0';
	close(file);
}

/* A report appears when it is complete, or nothing does. */
START_TEST(files)
{
	static char text[65536];
	char path[] = "/tmp/zero-test.XXXXXX", below[64];
	int folder;

	ck_assert(mkdtemp(path) != NULL);
	snprintf(below, sizeof(below), "%s/a//b/", path);
	ck_assert_int_eq(zero_report_folder(below, "test", &folder), ZERO_OK);
	ck_assert_int_eq(count_files(below), 0);
	ck_assert_int_eq(zero_report_put(folder, below, "one", "first"), ZERO_OK);
	ck_assert_int_eq(zero_report_put(folder, below, "one", "a<gain"), ZERO_OK);
	read_file(folder, "zero-one.json", text, sizeof(text));
	ck_assert_str_eq(text, "a<gain");
	read_file(folder, "zero-one.html", text, sizeof(text));
	ck_assert_ptr_nonnull(strstr(text, "id=\"report\">a\\u003cgain</script>"));
	ck_assert(!mkdirat(folder, "zero-two.json", 0700));
	ck_assert_int_eq(zero_report_put(folder, below, "two", "text"), ZERO_E_FILE);
	ck_assert_int_eq(count_files(below), 3);
	unlinkat(folder, "zero-one.json", 0);
	unlinkat(folder, "zero-one.html", 0);
	unlinkat(folder, "zero-two.json", AT_REMOVEDIR);
	close(folder);
	rmdir(below);
	snprintf(below, sizeof(below), "%s/a", path);
	rmdir(below);
	ck_assert(!rmdir(path));
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("record");

	srand((unsigned)seed_of_test());
	tcase_add_test(tcase, submissions);
	tcase_add_test(tcase, many_groups);
	tcase_add_loop_test(tcase, steps, 0, 7);
	tcase_add_test(tcase, files);
	return run_cases(tcase, NULL);
}
