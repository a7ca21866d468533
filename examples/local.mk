# SPDX-License-Identifier: Apache-2.0
EXTRA_DIST += examples/demo.sh examples/demo_slurm.sh examples/demo_stream.sh \
	examples/demo_torch.sh examples/finetune.py examples/quick.c examples/stream.py \
	examples/stream_plot.py examples/requeue.sbatch $(GPT_DEVICE)
CLEANFILES += stream.svg

if HAVE_CBLAS
noinst_PROGRAMS += examples/gpt
endif
gpt_sources = examples/gpt.c examples/gpt_input.h examples/gpt_log.h examples/gpt_resume.h
examples_gpt_SOURCES = $(gpt_sources) examples/gpt_math.h
examples_gpt_CFLAGS = $(OUTER_CFLAGS) $(CBLAS_CFLAGS) $(JANSSON_CFLAGS)
examples_gpt_LDADD = lib/libzero.la $(CBLAS_LIBS) $(JANSSON_LIBS) -lm
# A real program rather than libtool's script around one: a launcher starts it as it is.
examples_gpt_LDFLAGS = $(AM_LDFLAGS) -no-install

# The same program on GPUs.
if HAVE_CUBLAS
noinst_PROGRAMS += examples/gpt_cuda
endif
GPT_DEVICE = examples/gpt_device.cu examples/gpt_cuda.cuh
examples_gpt_cuda_SOURCES = $(gpt_sources) examples/gpt_device.h
examples_gpt_cuda_CPPFLAGS = $(AM_CPPFLAGS) -DGPT_DEVICE
examples_gpt_cuda_CFLAGS = $(OUTER_CFLAGS) $(JANSSON_CFLAGS)
examples_gpt_cuda_LDADD = examples/gpt_device.o lib/libzero.la $(CUBLAS_LIBS) $(JANSSON_LIBS) -lm
examples_gpt_cuda_LDFLAGS = $(examples_gpt_LDFLAGS)

# No exceptions and no guards, so that a C compiler links it.
examples/gpt_device.o: $(GPT_DEVICE) examples/gpt_device.h lib/zero.h
	$(AM_V_GEN)$(MKDIR_P) examples && $(NVCC) -std=c++17 -O3 $(NVCC_ARCH) \
		-Xcompiler=-fno-exceptions,-fno-threadsafe-statics -I$(top_srcdir)/lib \
		-c -o $@ $(top_srcdir)/examples/gpt_device.cu

# SLURM=no: without a Slurm of its own.
demo: all tests/double/nvml.la
	@$(TEST_ENVIRONMENT) SLURM='$(SLURM)' bash $(top_srcdir)/examples/demo.sh

# TORCH_PYTHON=venv/bin/python names a Python that has torch and transformers.
demo-torch: all
	@$(TEST_ENVIRONMENT) bash $(top_srcdir)/examples/demo_torch.sh

# What streamed parameters save, on two ranks that share no memory.
demo-stream: all
	@$(TEST_ENVIRONMENT) bash $(top_srcdir)/examples/demo_stream.sh

.PHONY: demo demo-torch demo-stream
