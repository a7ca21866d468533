/* SPDX-License-Identifier: Apache-2.0 */
/* sgemm by the machine's cblas, which is opened when the first one is needed: whatever
   the process has loaded already, or else the first library that is found. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/newton_schulz.h"
#include "host.h"

/* Of cblas.h, whose integers are int in the libraries that are tried. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

static const char *const libraries[] = {
	"libopenblas.so.0", "libmkl_rt.so.2",   "libmkl_rt.so.1", "libblis.so.4",
	"libblis.so.3",     "libarmpl_lp64.so", "libcblas.so.3",  "libblas.so.3",
};
enum { LIBRARIES = sizeof(libraries) / sizeof(*libraries) };

static void *find(void)
{
	void *found = dlsym(RTLD_DEFAULT, "cblas_sgemm");

	for (size_t i = 0; !found && i < LIBRARIES; i++) {
		void *library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);

		if (!library)
			continue;
		/* It stays open: its threads may outlive the job. */
		found = dlsym(library, "cblas_sgemm");
		if (!found)
			dlclose(library);
	}
	return found;
}

zero_status zero_cblas_open(struct zero_cblas *cblas)
{
	char names[256] = "";

	if (!cblas->sgemm)
		*(void **)&cblas->sgemm = find();
	if (cblas->sgemm)
		return ZERO_OK;
	for (size_t i = 0, at = 0; i < LIBRARIES; i++)
		at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "",
				       libraries[i]);
	return zero_core->fail(ZERO_E_UNSUPPORTED,
			       "a step of Muon needs cblas_sgemm on the host, and none of %s has "
			       "it: install OpenBLAS (libopenblas0, or openblas), or link the "
			       "program with a cblas",
			       names);
}

static void gemm(void *context, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
		 float alpha, const float *a, const float *b, float beta, float *c)
{
	const struct zero_cblas *cblas = context;

	cblas->sgemm(ROW_MAJOR, transpose_a ? TRANS : NO_TRANS, transpose_b ? TRANS : NO_TRANS,
		     (int)m, (int)n, (int)k, alpha, a, (int)(transpose_a ? m : k), b,
		     (int)(transpose_b ? k : n), beta, c, (int)n);
}

static void copy(void *context, float *to, const float *from, size_t count)
{
	(void)context;
	memcpy(to, from, count * sizeof(float));
}

static void normalise(void *context, float *x, size_t count, float eps)
{
	const struct zero_cblas *cblas = context;
	double norm = sqrt(cblas->kernels->norm2(x, count));
	float factor = (float)(1 / (norm > (double)eps ? norm : (double)eps));

	for (size_t i = 0; i < count; i++)
		x[i] *= factor;
}

void zero_cblas_orthogonalise(struct zero_cblas *cblas, const struct zero_newton_schulz *rule,
			      float *x, size_t rows, size_t columns, float *scratch)
{
	static const struct zero_gemm_ops table = {gemm, copy, normalise};

	zero_newton_schulz(&table, cblas, rule, x, rows, columns, scratch);
}
