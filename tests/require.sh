#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ZERO_REQUIRE=mpi,check,... : what configure decided. Each missing part is named.
. "${top_srcdir:?run me by make check}/tests/common.sh"

missing=0
for name in ${ZERO_REQUIRE//,/ }; do
	case $name in
	aarch64 | clang | clang-format | cppcheck | debian | fuzzer | gcc | interop | large | \
		make | man | nm | python3 | readelf | rpm | torch | valgrind)
		# no matter of configure: the tests that need them say so
		;;
	cuda-build)
		for part in cuda nccl pmix; do
			have $part || {
				echo "FAIL: ZERO_REQUIRE names cuda-build," \
					"and this build has no $part"
				missing=1
			}
		done
		;;
	mpi | pmix | yaml | slurm | cuda | nccl | jansson | xxhash | files | cblas | check | cxx)
		have "$name" || {
			echo "FAIL: ZERO_REQUIRE names $name," \
				"and this build was configured without it"
			missing=1
		}
		;;
	*)
		echo "FAIL: ZERO_REQUIRE names $name, which no test knows"
		missing=1
		;;
	esac
done
exit $missing
