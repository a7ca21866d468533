/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's kernels by themselves: right for every kind of value, size and alignment, and as
 * fast as memory is.
 *
 *	kernels check [MOST]
 *	                    against the host's kernels, bit for bit, and references in f64; arrays
 *	                    of MOST elements at most
 *	kernels large       beyond 2^32 elements
 *	kernels bandwidth [SCALE]
 *	                    against the copy of the same bytes, 1 GB times SCALE; prints records
 *
 * They are those that the library embeds. Exit status 77: there is no GPU.
 */
#include "kernels.h"

int main(int argc, char **argv)
{
	const char *why;
	char device[256];

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: kernels check [MOST]|large|bandwidth [SCALE]\n");
		return 2;
	}
	why = device_open();
	if (why) {
		printf("no GPU: %s\n", why);
		return 77;
	}
	kernels_load(zero_device_image);
	host = zero_kernels_choose("auto");
	device_describe(device, sizeof(device));
	printf("kernels: %s\n", device);
	start_drawing();
	if (argc > 2)
		longest = strtoull(argv[2], NULL, 0);
	if (!strcmp(argv[1], "check"))
		check_all();
	else if (!strcmp(argv[1], "large"))
		check_large();
	else if (!strcmp(argv[1], "bandwidth"))
		bandwidths(argc > 2 ? atof(argv[2]) : 1);
	else
		return 2;
	return 0;
}
