/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library does on a device, against the bare operations: each subject prints records on
 * rank 0.
 *
 *	transfers stream|downcast|step|calls|engines|connect [SCALE]
 *	transfers about                     the device, how many there are, and NCCL
 *
 * Exit status 77: there is no GPU. NCCL and cuBLAS are opened by those that need them.
 */
#include "../../kernels/kernels.h"
#include "transfers.h"

int world, rank;
double scale = 1;

zero_job *open_cuda(const char *format, ...)
{
	char settings[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(settings, sizeof(settings), format, arguments);
	va_end(arguments);
	return open_job("backend=cuda %s", settings);
}

double agreed(zero_job *job, double mine)
{
	double all[1024] = {0}, most = 0;

	check(world <= 1024, "%d ranks", world);
	all_values(job, mine, all);
	for (int i = 0; i < world; i++)
		most = all[i] > most ? all[i] : most;
	return most;
}

double timed(zero_job *job, void (*work)(void *context), void *context)
{
	double begin;

	synchronise();
	ok(zero_agree(job, NULL));
	begin = wall_ms();
	work(context);
	synchronise();
	return agreed(job, wall_ms() - begin);
}

double timed_often(zero_job *job, size_t times, void (*work)(void *context), void *context)
{
	double ms[MOST_TIMES];

	check(times <= MOST_TIMES, "%zu times", times);
	for (size_t i = 0; i < times + 2; i++) {
		double one = timed(job, work, context);

		if (i >= 2)
			ms[i - 2] = one;
	}
	return median(ms, times);
}

size_t scaled(size_t bytes)
{
	size_t mib = (size_t)((double)(bytes >> 20) * scale);

	return (mib ? mib : 1) << 20;
}

void random_on_device(zero_dtype dtype, void *data, size_t count)
{
	/* f32, f16 and bf16 have 0.5 and what lies before 1 */
	struct zero_device_random args = {.out = data,
					  .count = count,
					  .seed = test_seed(),
					  .stream = (uint64_t)rank,
					  .a = 0.5,
					  .b = 1,
					  .first_value = 0.5,
					  .last_value = 0.99609375,
					  .cut = 8,
					  .dtype = dtype};

	kernels_launch("zero_device_uniform", &args, kernels_blocks(count), ZERO_DEVICE_THREADS);
}

static void about(void)
{
	char device[256];
	int version = nccl_open() ? 0 : nccl_version();

	device_describe(device, sizeof(device));
	printf("device %s\ndevices %d\n", device, device_count());
	if (version)
		printf("nccl %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*measure)(void);
	} subjects[] = {{"stream", measure_stream},
			{"downcast", measure_downcast},
			{"step", measure_step},
			{"calls", measure_calls},
			{"engines", measure_engines},
			{"connect", measure_connect},
			{"about", about}};
	const char *why = argc < 2 ? NULL : device_open();

	if (why) {
		printf("no GPU: %s\n", why);
		return 77;
	}
	scale = argc > 2 ? atof(argv[2]) : 1;
	for (size_t i = 0; argc > 1 && i < sizeof(subjects) / sizeof(subjects[0]); i++) {
		if (strcmp(argv[1], subjects[i].name))
			continue;
		kernels_load(zero_device_image);
		subjects[i].measure();
		return 0;
	}
	fprintf(stderr,
		"usage: transfers stream|downcast|step|calls|engines|connect|about [SCALE]\n");
	return 2;
}
