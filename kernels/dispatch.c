/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the table of kernels for the processor that the program runs on. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <string.h>

#include "kernels.h"

#ifdef HAVE_X86
#include <cpuid.h>
#endif
#ifdef HAVE_NEON
#include <sys/auxv.h>
#endif

#ifdef HAVE_X86

extern const struct zero_kernels zero_kernels_avx2, zero_kernels_avx512;

/* __builtin_cpu_supports also checks that the system saves the registers. */
static bool runs_avx2(void)
{
	unsigned int a, b, c, d;

	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
	       __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool runs_avx512(void)
{
	return runs_avx2() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512dq");
}

#endif

#ifdef HAVE_NEON

extern const struct zero_kernels zero_kernels_neon;

static bool runs_neon(void)
{
	return getauxval(AT_HWCAP) & HWCAP_ASIMD;
}

#endif

static bool runs_scalar(void)
{
	return true;
}

/* Best first. */
static const struct {
	const struct zero_kernels *kernels;
	bool (*runs)(void);
} sets[] = {
#ifdef HAVE_X86
	{&zero_kernels_avx512, runs_avx512},
	{&zero_kernels_avx2, runs_avx2},
#endif
#ifdef HAVE_NEON
	{&zero_kernels_neon, runs_neon},
#endif
	{&zero_kernels_scalar, runs_scalar},
};

const struct zero_kernels *zero_kernels_choose(const char *isa)
{
	for (size_t k = 0; k < sizeof(sets) / sizeof(*sets); k++)
		if (sets[k].runs() && (!strcmp(isa, "auto") || !strcmp(isa, sets[k].kernels->isa)))
			return sets[k].kernels;
	return NULL;
}

const char *zero_kernels_isa(size_t i)
{
	for (size_t k = 0; k < sizeof(sets) / sizeof(*sets); k++)
		if (sets[k].runs() && i-- == 0)
			return sets[k].kernels->isa;
	return NULL;
}
