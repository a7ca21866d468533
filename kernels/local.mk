# SPDX-License-Identifier: Apache-2.0
# Kernels on a rank's own data: the same sources, compiled once for each instruction set.
KERNEL_SOURCES = \
	kernels/adamw.c \
	kernels/cast.c \
	kernels/isa_table.c \
	kernels/muon.c \
	kernels/norm2.c \
	kernels/philox.c \
	kernels/quantize.c \
	kernels/sum.c
# philox.c is plain loops, which some compilers do not vectorise at -O2.
KERNEL_CFLAGS = $(AM_CFLAGS) -ftree-vectorize

noinst_HEADERS += \
	kernels/device.cuh \
	kernels/dynamic_map.h \
	kernels/kernels.h \
	kernels/philox.h \
	kernels/simd.h
noinst_LTLIBRARIES += kernels/libscalar.la kernels/libkernels.la
kernels_libkernels_la_SOURCES = \
	kernels/convert.c \
	kernels/f8.c \
	kernels/dispatch.c \
	kernels/dynamic_map.c \
	kernels/fill.c \
	kernels/transpose.c
kernels_libkernels_la_LIBADD = kernels/libscalar.la

kernels_libscalar_la_SOURCES = $(KERNEL_SOURCES)
kernels_libscalar_la_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_ISA=scalar
kernels_libscalar_la_CFLAGS = $(KERNEL_CFLAGS)

if HAVE_X86
noinst_LTLIBRARIES += kernels/libavx2.la kernels/libavx512.la
kernels_libkernels_la_LIBADD += kernels/libavx2.la kernels/libavx512.la

kernels_libavx2_la_SOURCES = $(KERNEL_SOURCES)
kernels_libavx2_la_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_ISA=avx2
kernels_libavx2_la_CFLAGS = $(KERNEL_CFLAGS) -mavx2 -mfma -mf16c

kernels_libavx512_la_SOURCES = $(KERNEL_SOURCES)
kernels_libavx512_la_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_ISA=avx512
kernels_libavx512_la_CFLAGS = $(KERNEL_CFLAGS) \
	-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl
endif

if HAVE_NEON
noinst_LTLIBRARIES += kernels/libneon.la
kernels_libkernels_la_LIBADD += kernels/libneon.la

kernels_libneon_la_SOURCES = $(KERNEL_SOURCES)
kernels_libneon_la_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_ISA=neon -DZERO_NEON
kernels_libneon_la_CFLAGS = $(KERNEL_CFLAGS)
endif

# The device's kernels: one fat binary for several generations of GPUs, which the library embeds.
# With -fmad=false nvcc fuses no multiplication and addition, so that the bits are the host's.
DEVICE_KERNELS = \
	kernels/adamw.cu \
	kernels/adamw_8bit.cu \
	kernels/cast.cu \
	kernels/copy_many.cu \
	kernels/fill.cu \
	kernels/muon.cu \
	kernels/norm2.cu \
	kernels/philox.cu \
	kernels/step_rule.cu \
	kernels/sum.cu
EXTRA_DIST += $(DEVICE_KERNELS)

# All of them, for one image.
kernels/device.cu: kernels/local.mk
	$(AM_V_GEN)$(MKDIR_P) kernels && printf '#include "%s"\n' $(DEVICE_KERNELS) >$@.new && mv $@.new $@
CLEANFILES += kernels/device.cu

if HAVE_CUDA
kernels/device.fatbin: kernels/device.cu $(DEVICE_KERNELS) kernels/device.cuh kernels/philox.h \
		kernels/kernels.h kernels/dynamic_map.h \
		lib/backend/backend.h lib/backend/step_rule.h lib/core/module.h lib/zero.h
	$(AM_V_GEN)$(MKDIR_P) kernels && $(NVCC) -fatbin -std=c++17 -O3 -fmad=false $(NVCC_ARCH) \
		-I$(top_srcdir) -I$(top_srcdir)/lib -I$(top_srcdir)/kernels $(NVCCFLAGS) \
		-o $@.new $(NVCC_FROM)kernels/device.cu && mv $@.new $@
CLEANFILES += kernels/device.fatbin

noinst_LTLIBRARIES += kernels/libdevice.la
kernels_libdevice_la_SOURCES = kernels/device_image.c
kernels_libdevice_la_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_DEVICE_FATBIN='"kernels/device.fatbin"'
$(kernels_libdevice_la_OBJECTS): kernels/device.fatbin
endif
