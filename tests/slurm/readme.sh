#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The README's commands under "My cluster" and "My PyTorch program" work as they stand there, on a
# cluster that was without the plugin before. Changed here: what is built is this build folder,
# `make install` goes below $scratch, and so do the paths in /etc/slurm.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
need files
need_command make
need_command python3
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
build=$(cd "${top_builddir:?}" && pwd)
root=$scratch/root

variable() {
	make -s --no-print-directory -C "$build" -f - print-variable <<END
include Makefile
print-variable:
	@echo "\$($1)"
END
}

# succeeds COMMAND [WITHIN...]: the README's command, in a shell within WITHIN
succeeds() {
	local command=$1
	shift
	(cd "$scratch/work" && timeout 120 "$@" bash -c "$command") >"$scratch/out" 2>&1 </dev/null
	check "README: $command" $?
}

# printed COUNT PATTERN: checks that so many lines of the last output match
printed() {
	[[ $(grep -cE "$2" "$scratch/out") == "$1" ]] ||
		fail "README: $line: not $1 lines of '$2': $(<"$scratch/out")"
}

conf=$root$(variable slurmconfdir) lib=$root$(variable libdir) bin=$root$(variable bindir)
man=$root$(variable mandir) plugin=$(variable libdir)/slurm/spank_zero.so
mkdir -p "$scratch/bin" "$scratch/work/FOLDER" "$conf"

# ---- stand-ins for the commands' files and programs

# The tree is built already.
cat >"$scratch/work/bootstrap" <<END
#!/bin/sh
touch "$scratch/booted"
END
cat >"$scratch/bin/make" <<END
#!/bin/sh
case \$* in
"") test -e "$scratch/booted" && touch "$scratch/made" ;;
install) test -e "$scratch/made" && exec "$(command -v make)" -C "$build" install DESTDIR="$root" ;;
*) echo "make \$*?"; exit 2 ;;
esac
END
cat >"$scratch/bin/ldconfig" <<END
#!/bin/sh
test -e "$lib/libzero.so"
END
# The library is not where this build would be installed, so that an admin sets its path.
cat >"$scratch/bin/editor" <<END
#!/bin/sh
sed -i -e 's|^#  preload_path: .*|  preload_path: $lib/libzero.so|' \
	-e '/^#  debug:/,/limits:/s/^#//' "\$1"
END
command -v python >/dev/null || ln -s "$(command -v python3)" "$scratch/bin/python"
cat >"$scratch/work/job.sh" <<END
#!/bin/bash
srun ./train
echo "ended with status \$?"
END
cat >"$scratch/work/train" <<END
#!/bin/sh
exec "$build/tests/slurm/report_task" stage stream_chunk
END
# What init_process_group() reads, and the library in a process that was not linked with it.
cat >"$scratch/work/train.py" <<END
import ctypes, os
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
print("train.py", *(os.environ[name] for name in names), ctypes.CDLL(None).zero_open is not None)
END
weights='{"w":{"dtype":"F32","shape":[256,16],"data_offsets":[0,16384]}}'
{
	# its length as a number of 8 bytes
	printf '%b' "\\x$(printf %x ${#weights})"
	head -c 7 /dev/zero
	printf %s "$weights"
	head -c 16384 /dev/zero
} >"$scratch/work/FOLDER/model.safetensors"
chmod +x "$scratch"/bin/* "$scratch"/work/{bootstrap,train,job.sh}
for node in "${nodes[@]}"; do
	echo "gpu GPU-$node 40G 80G NVIDIA H100" >"$scratch/$node.gpus"
done

# ---- My cluster

PATH=$scratch/bin:$bin:$PATH
cluster_start
# on each host this folder stands for /etc/slurm
for node in "" "${nodes[@]}"; do
	ln -sf "$conf/plugstack.conf" "$scratch${node:+/$node}/plugstack.conf"
done
: >"$conf/plugstack.conf"

# Below $root the plugin finds neither itself nor its file by default.
adapt_plugin_line() {
	local file=$conf/plugstack.conf.d/zero.conf
	[[ $(<"$file") == "optional $plugin" ]] || fail "the plugin's line: $(<"$file")"
	echo "optional $root$plugin config=$conf/zero.yaml nvml=$scratch/nvml.so" >"$file"
}

found=0
while read -r line; do
	command=${line//\/etc\/slurm/$conf}
	# shellcheck disable=SC2016  # the README's own dollar sign
	case $line in
	'./bootstrap && make && make install && ldconfig')
		succeeds "$command"
		adapt_plugin_line
		;;
	"grep -qs '^include.*conf.d' /etc/slurm/plugstack.conf || echo \"include"*)
		[[ $line == *'" >>/etc/slurm/plugstack.conf' ]] ||
			fail "README: '$line' adds nothing"
		succeeds "$command"
		# twice would be one plugin that is loaded twice
		succeeds "$command"
		[[ $(<"$conf/plugstack.conf") == "include $conf/plugstack.conf.d/*.conf" ]] ||
			fail "README: plugstack.conf is now: $(<"$conf/plugstack.conf")"
		;;
	'${EDITOR:-vi} /etc/slurm/zero.yaml')
		EDITOR=editor succeeds "$command"
		;;
	'zerorun --check-config /etc/slurm/zero.yaml')
		succeeds "$command"
		;;
	'zerorun --show-config --node n1 --partition debug')
		# without a file it would show the one where this build would be installed
		succeeds "${command/--show-config/--show-config $conf/zero.yaml}"
		printed 1 "^preload_path +$lib/libzero.so +$conf/zero.yaml:[0-9]+"
		printed 1 '^stage +3 +default'
		;;
	*) fail "README, My cluster: this test does not know '$line'" ;;
	esac
	((++found))
done < <(readme_commands "My cluster")
((found == 5)) || fail "README, My cluster: $found commands, not 5"

# Without a restart of a daemon, each command has the options.
for command in sbatch salloc srun; do
	line="$command --help"
	succeeds "$line"
	printed 1 '^ +--zero-stage='
done
for page in man8/spank_zero.8 man5/zero.yaml.5; do
	[[ -s $man/$page ]] || fail "README: there is no $page"
done
[[ -d $lib/slurm-zero && -e $lib/libzero.so ]] ||
	fail "README: $lib has no slurm-zero and libzero.so"

# ---- My PyTorch program

# batch RANKS STAGE: the job of the last command had such tasks and ended well
batch() {
	local job
	job=$(sed -n 's/^Submitted batch job //p' "$scratch/out")
	wait_for grep -q '^ended ' "$scratch/work/slurm-$job.out"
	cp "$scratch/work/slurm-$job.out" "$scratch/out"
	printed 1 '^ended with status 0$'
	printed "$1" "^rank=[0-9] world=$1 .* stage=$2 stream_chunk=41943040$"
}

found=0
while read -r line; do
	case $line in
	'sbatch -N 3 -n 3 --zero-stage=3 --zero-stream-chunk=40M job.sh')
		succeeds "$line"
		batch 3 3
		;;
	'srun -N 2 -n 4 --zero python train.py')
		succeeds "$line"
		printed 1 '^train.py 0 4 0 [1-3] n1 [0-9]+ True$'
		printed 4 '^train.py [0-3] 4 [0-2] [1-3] n1 [0-9]+ True$'
		[[ $(grep '^train' "$scratch/out" | cut -d ' ' -f 7 | sort -u | wc -l) == 1 ]] ||
			fail "README: $line: ports differ: $(<"$scratch/out")"
		;;
	'srun --zero-stage=2 ./train')
		# another stage than that of the job
		succeeds "$line" salloc -Q -N 1 -n 1 --zero-stage=1
		printed 1 '^rank=0 world=1 .* stage=2 '
		succeeds "srun --no-zero env" salloc -Q -N 1 -n 1 --zero-stage=1
		printed 0 '^(ZERO_RESOLVED|LD_PRELOAD|RANK|MASTER_ADDR)='
		;;
	'ZERO_STAGE=2 sbatch --zero job.sh')
		succeeds "$line"
		batch 1 2
		;;
	'zerorun --plan --model FOLDER ./train')
		succeeds "$line" salloc -Q -N 3 -n 3 --gres=gpu:1
		for node in "${nodes[@]}"; do
			printed 1 "^# $node +1 +40.0G +36.0G +nvml .* 1 x NVIDIA H100$"
		done
		printed 1 '^# fits: '
		;;
	*) fail "README, My PyTorch program: this test does not know '$line'" ;;
	esac
	((++found))
done < <(readme_commands "My PyTorch program")
((found == 5)) || fail "README, My PyTorch program: $found commands, not 5"
