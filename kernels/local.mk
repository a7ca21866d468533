# SPDX-License-Identifier: Apache-2.0
# Kernels on a rank's own data: the same sources, compiled once for each instruction set.
KERNEL_SOURCES = \
	kernels/adamw.c \
	kernels/cast.c \
	kernels/finite.c \
	kernels/norm2.c \
	kernels/philox.c \
	kernels/scale.c \
	kernels/sum.c \
	kernels/table.c
# philox.c is plain loops, and a CFLAGS of -O2 would leave them to some compilers as they are.
KERNEL_CFLAGS = $(AM_CFLAGS) -ftree-vectorize

noinst_HEADERS += kernels/kernels.h kernels/vec.h kernels/emulate.h
noinst_LTLIBRARIES += kernels/libscalar.la kernels/libkernels.la
kernels_libkernels_la_SOURCES = kernels/choose.c kernels/convert.c kernels/transpose.c
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

# AVX-512 without the hardware, for the unit test alone: emulated with AVX2.
KERNELS_EMULATED =
if HAVE_X86
if HAVE_SIMDE
KERNELS_EMULATED += kernels/libemulated.la
check_LTLIBRARIES += kernels/libemulated.la
kernels_libemulated_la_SOURCES = $(KERNEL_SOURCES)
kernels_libemulated_la_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_ISA=avx512_emulated -DZERO_EMULATE
kernels_libemulated_la_CFLAGS = $(KERNEL_CFLAGS) $(SIMDE_CFLAGS) -mavx2 -mfma -mf16c -Wno-psabi
endif
endif
