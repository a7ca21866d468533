dnl SPDX-License-Identifier: Apache-2.0
dnl The CUDA toolkit makes the device module: nvcc for the kernels, cuda.h for the driver's calls.
dnl Nothing of it is linked: the driver is opened when a program runs.
dnl Sets NVCC, CUDA_HOME, NVCC_ARCH, the flags of nvcc that say for which devices, and NVCC_FROM, which
dnl goes before the name of a source.
AC_DEFUN([ZERO_PKG_CUDA], [
ZERO_PKG_WITH([cuda], [GPUs])
AC_ARG_WITH([cuda-arch],
	[AS_HELP_STRING([--with-cuda-arch="N N..."],
		[compute capabilities to compile kernels for; newer devices take the last one's PTX
		 @<:@those of 80 90 100 that nvcc knows@:>@])],
	[], [with_cuda_arch=auto])
AS_CASE([$with_cuda],
	[no], [NVCC=],
	[/*], [AC_PATH_PROG([NVCC], [nvcc], [], [$with_cuda/bin])],
	[AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin])])
AC_MSG_CHECKING([for cuda])
AS_IF([test -n "$NVCC"],
	[ZERO_CUDA_HEADER
	 AS_IF([test $zero_found = yes], [ZERO_CUDA_ARCH])])
AC_MSG_RESULT([$zero_found])
AC_SUBST([CUDA_HOME])
AC_SUBST([NVCC_ARCH])
AC_SUBST([NVCC_FROM])
ZERO_PKG_RESULT([cuda], [CUDA], [GPUs], [the CUDA toolkit])
zero_cuda=$zero_found
])

dnl ZERO_CUDA_HEADER: cuda.h lies beside nvcc, be that a link or not, or where the compiler looks.
AC_DEFUN([ZERO_CUDA_HEADER], [
CUDA_HOME=$(cd "$(dirname "$NVCC")/.." && pwd)
zero_real=$(cd "$(dirname "$(readlink -f "$NVCC")")/.." && pwd)
zero_cflags=
for zero_dir in "$CUDA_HOME" "$CUDA_HOME"/targets/* "$zero_real" "$zero_real"/targets/*; do
	AS_IF([test -f "$zero_dir/include/cuda.h"],
		[CUDA_HOME=$zero_dir
		 zero_cflags="-I$zero_dir/include"
		 break])
done
ZERO_PKG_LINK([CUDA], [$zero_cflags], [],
	[[#include <cuda.h>
	  #if CUDA_VERSION < 12000
	  #error CUDA 12 is needed
	  #endif]],
	[[CUmemPoolProps pool = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
	  return pool.location.id;]])
AS_IF([test $zero_found = no], [zero_reason="no cuda.h of CUDA 12 or later beside $NVCC"])
])

dnl ZERO_CUDA_ARCH: machine code for each capability, and PTX of the highest. What the user names is
dnl not held against nvcc's list, which leaves out such as 90a; it must compile.
AC_DEFUN([ZERO_CUDA_ARCH], [
zero_known=$($NVCC --list-gpu-arch 2>&AS_MESSAGE_LOG_FD | sed 's/^compute_//')
AS_CASE([$with_cuda_arch],
	[yes|no|auto], [zero_archs=$(for zero_arch in 80 90 100; do
		AS_ECHO(["$zero_known"]) | grep -x $zero_arch; done)],
	[zero_archs=$with_cuda_arch])
NVCC_ARCH=
zero_highest=
for zero_arch in $zero_archs; do
	NVCC_ARCH="$NVCC_ARCH -gencode arch=compute_$zero_arch,code=sm_$zero_arch"
	AS_IF([test -z "$zero_highest" ||
			test "${zero_arch%@<:@a-z@:>@}" -gt "${zero_highest%@<:@a-z@:>@}"],
		[zero_highest=$zero_arch])
done
NVCC_ARCH="$NVCC_ARCH -gencode arch=compute_$zero_highest,code=compute_$zero_highest"
AS_ECHO(['template <int N> __global__ void probe(float *x)
{
	if constexpr (N == 1)
		x@<:@threadIdx.x@:>@ = 0;
}
template __global__ void probe<1>(float *x);']) >conftest.cu
AS_IF([$NVCC -std=c++17 $NVCC_ARCH -fatbin conftest.cu -o conftest.fatbin >&AS_MESSAGE_LOG_FD 2>&1],
	[zero_version=$($NVCC --version | sed -n 's/.*release \(@<:@0-9.@:>@*\).*/\1/p')
	 for zero_arch in $zero_archs; do zero_version="$zero_version sm_$zero_arch"; done
	 zero_version="$zero_version PTX"
	 dnl It names things after the path of a source. What is piped has none, so that the same code
	 dnl comes out in any folder.
	 NVCC_FROM=
	 AS_IF([$NVCC -std=c++17 -ptx -x cu - <conftest.cu -o conftest.fatbin \
			>&AS_MESSAGE_LOG_FD 2>&1],
		[NVCC_FROM='-x cu - <'])],
	[test "$with_cuda_arch" != auto],
	[AC_MSG_ERROR(m4_normalize([--with-cuda-arch="$with_cuda_arch": $NVCC does not compile for it;
		it knows $(echo $zero_known). config.log has its words.]))],
	[zero_found=no
	 zero_reason="$NVCC does not compile C++17"])
rm -f conftest.cu conftest.fatbin
])
