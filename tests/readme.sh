#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The README's programs and commands work as they stand there, in a folder that has of the tree what
# they name. Those of "My cluster" and "My PyTorch program" are tried by tests/slurm/readme.sh, and
# what takes long by the tests that are named here.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need mpi && need cblas && need files
need_command cc gcc
scratch
build=$(cd "$top_builddir" && pwd) source=$(cd "$top_srcdir" && pwd)
mkdir -p "$scratch/work/launcher" "$scratch/work/examples" "$scratch/bin"
ln -s "$ZERORUN" "$scratch/work/launcher/zerorun"
ln -s "$ZERORUN" "$scratch/bin/zerorun"
ln -s "$build/examples/gpt" "$source/examples/quick.c" "$scratch/work/examples/"
ln -s "$source/README.md" "$scratch/work/"
# of what is not installed
cat >"$scratch/bin/pkg-config" <<END
#!/bin/sh
test "\$*" = "--cflags --libs zero" &&
	echo "-std=c11 -Wall -Wextra -Werror -I$source/lib -L$build/lib/.libs -lzero" \
		"-Wl,-rpath,$build/lib/.libs"
END
chmod +x "$scratch/bin/pkg-config"
PATH=$scratch/bin:$PATH
cd "$scratch/work" || fail "no folder"

# runs COMMAND: it succeeds; what it prints goes to ../out
runs() {
	timeout 300 bash -c "$1" >../out 2>&1 </dev/null ||
		fail "README: '$1' ends with status $?: $(<../out)"
}

# printed COUNT PATTERN: so many lines of the last output match
printed() {
	[[ $(grep -cE "$2" ../out) == "$1" ]] ||
		fail "README: '$line': not $1 lines of '$2': $(<../out)"
}

# falling COUNT WHAT: the numbers after this word are so many, each smaller than the one before
falling() {
	local numbers
	numbers=$(sed -n "s/.*$2 //p" ../out)
	[[ $(wc -l <<<"$numbers") == "$1" && $numbers == "$(sort -gr <<<"$numbers")" ]] ||
		fail "README: '$line': $1 falling numbers were expected: $(<../out)"
}

# tried_by TEST TEXT: this test of make check runs it, and has this text
tried_by() {
	grep -qF -- "$2" "$source/$1" || fail "README: '$line' is not tried by $1"
	grep -qF -- "$1" "$source"/tests/local.mk "$source"/tests/slurm/local.mk \
		"$source"/python/local.mk || fail "$1 is no test"
}

torch=no
if [[ ${TORCH_PYTHON-} ]]; then
	torch=yes
	need_torch
	ZERO_FSDP=auto
	. "$source/python/tests/torch.sh"
	sed -n '/^```python$/,/^```$/p' README.md | sed '1d;/^```$/,$d' >train.py
fi

while read -r line; do
	case $line in
	'srun -N 2 -n 4 --zero python train.py')
		readme_commands "My PyTorch program" | grep -qxF -- "$line" ||
			fail "README: '$line' is not a command of My PyTorch program"
		;;
	'./bootstrap && make demo')
		tried_by tests/slurm/demo.sh examples/demo_slurm.sh
		;;
	'./bootstrap && make -j2 check') ;; # this is a part of it
	'./bootstrap --torch=../torch && make demo-torch TORCH_PYTHON=../torch/bin/python')
		tried_by python/tests/demo.sh examples/demo_torch.sh
		;;
	'make demo-stream TORCH_PYTHON=../torch/bin/python')
		tried_by python/tests/cases.sh examples/demo_stream.sh
		;;
	'launcher/zerorun -n 2 ../torch/bin/python train.py')
		if [[ $torch == yes ]]; then
			runs "${line/..\/torch\/bin\/python/$TORCH_PYTHON}"
			falling 5 loss
			[[ -e saved/step-000000005 ]] || fail "README: no checkpoint: $(ls)"
			rm -r saved
		fi
		;;
	'launcher/zerorun --help')
		runs "$line"
		printed 1 '^ +--zero-stage='
		;;
	"cc examples/quick.c \$(pkg-config --cflags --libs zero) -o quick && zerorun -n 2 ./quick")
		runs "$line"
		falling 3 norm
		;;
	'launcher/zerorun -n 2 --plan examples/gpt')
		runs "$line"
		printed 1 '^export ZERO_RESOLVED='
		;;
	'launcher/zerorun -n 2 --zero-stage=3 --zero-stream-chunk=40M examples/gpt '*)
		runs "$line"
		printed 1 'step 20/20 '
		;;
	'launcher/zerorun -n 2 --max-restarts 3 examples/gpt '*)
		runs "$line"
		printed 1 'step 50/50 '
		;;
	'launcher/zerorun --inspect saved')
		runs "$line"
		printed 1 'step-000000040'
		;;
	'launcher/zerorun -n 2 --zero-report=report examples/gpt '*)
		runs "$line"
		compgen -G 'report/*.html' >/dev/null || fail "README: no page: $(ls report)"
		;;
	'sbatch -N 2 -n 8 examples/requeue.sbatch examples/gpt '*)
		tried_by tests/slurm/requeue.sh examples/requeue.sbatch
		;;
	*) fail "README: this test does not know '$line'" ;;
	esac
done < <(readme_commands "" && readme_commands "My machine" && readme_commands "My C program")

others=$(grep '^## ' README.md | grep -vxE '## My (PyTorch program|machine|cluster|C program)')
while read -r heading; do
	[[ ! $(readme_commands "${heading#\#\# }") ]] || fail "README: nothing tries '$heading'"
done <<<"$others"
[[ $torch == yes ]] || need_torch
