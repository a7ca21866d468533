#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zerorun where Slurm's plugin is installed, with a stand-in for srun; and --plan: what the nodes of
# an allocation say, and the memory that a rank needs for a model, compared with that of real ranks.
# shellcheck source=tests/launcher/run.sh
. "${top_srcdir:?run me by make check}/tests/launcher/run.sh"
real_path=$PATH

# line TEXT: $out has this line, however many spaces are between its words
line() {
	grep -qxF -- "$1" <(tr -s ' ' <"$scratch/out") ||
		fail "line ${BASH_LINENO[0]}: there is no line '$1'; $(shown)"
}

# ---- srun with the plugin, as a stand-in

# It runs a task for each line of $scratch/nodes, which is "node ZERO_RESOLVED", if it is to run
# zerorun itself; else it prints its arguments and what is in its environment.
mkdir "$scratch/bin"
cat >"$scratch/bin/srun" <<EOF
#!/bin/bash
[[ \$* == --help ]] && { echo '      --zero-stage=0|1|2|3    what is sharded'; exit; }
if [[ \${*: -1} == --node-report ]]; then
	printf '%s\n' "\$@" >'$scratch/probe'
	[[ -e '$scratch/broken' ]] && { echo 'srun: error: n2: no zero.yaml' >&2; exit 7; }
	echo 'a line of some prolog'
	while read -r node resolved; do
		SLURMD_NODENAME=\$node ZERO_RESOLVED=\$resolved "\${@: -2}" || exit
	done <'$scratch/nodes'
	exit
fi
printf '%s\n' "\$@"
env | grep -E '^(ZERO|OMP|LD)_' | grep -vE '^ZERO_(HAVE|REQUIRE)=' | sort |
	sed -E 's/^(ZERO_RUN)=[0-9a-f]{32}\$/\1=KEY/'
exit 33
EOF
chmod +x "$scratch/bin/srun"
PATH=$scratch/bin:$real_path

SLURM_JOB_ID=7 ZERO_BUCKET=2M LD_PRELOAD=libm.so.6 run "$ZERORUN" -n 6 -N3 --label --zero-stage=2 \
	--zero-stream-chunk 3M --zero-config=x.yaml --launcher-arg=--exclusive program 'x y'
is "$status" 33
is "$out" "--zero
--zero-stage=2
--zero-config=x.yaml
--zero-stream-chunk=3145728
--ntasks=6
--nodes=3
--label
--exclusive
program
x y
LD_PRELOAD=libm.so.6
OMP_NUM_THREADS=1
ZERO_BUCKET=2M
ZERO_RUN=KEY"
SLURM_JOB_ID=7 run "$ZERORUN" program
is "${out%%$'\nOMP'*}" $'--zero\nprogram'
# outside an allocation nobody is asked
run "$ZERORUN" --slurm -N 2 --zero-stage=1 --plan program
is "$status" 0
is "${out##*$'\n'}" "$scratch/bin/srun --zero --zero-stage=1 --nodes=2 program"
has_not "$out" ZERO_RESOLVED
[[ ! -e $scratch/probe ]] || fail "--plan asked Slurm outside an allocation"

# ---- what the nodes say

gib=$((1 << 30))
# resolved STAGE FREE BUDGET THRESHOLD [MORE [GATHER_LIMIT]]: a ZERO_RESOLVED
resolved() {
	echo "stage=$1 stream_chunk=41943040 stream_threshold=$4 stream=no flatten=auto" \
		"allgather=auto bucket=1073741824 vram_free=$2 vram_source=nvml budget=$3 tasks=5" \
		"gather_limit=${6-auto} ${5-}"
}
h100='gpus=2 gpu=NVIDIA%20H100 master=n1:12345'
{
	echo "n10 $(resolved 2 $((80 * gib)) $((76 * gib)) auto "$h100")"
	echo "n1 $(resolved 2 $((80 * gib)) $((76 * gib)) auto "$h100")"
	echo "n2 $(resolved 2 $((8 * gib)) $((6 * gib)) auto gpus=1)"
	echo "n2 $(resolved 2 $((7 * gib)) $((5 * gib)) auto gpus=1)"
	echo "n1 $(resolved 2 $((80 * gib)) $((76 * gib)) auto "$h100")"
} >"$scratch/nodes"
SLURM_JOB_ID=7 run "$ZERORUN" -n 5 --label --zero-allgather=auto --launcher-arg=-O --plan program
is "$status" 0
is "$err" ""
is "$(<"$scratch/probe")" "--zero
--zero-allgather=auto
--ntasks=5
--label
-O
--overlap
--output=all
$(realpath "$ZERORUN")
--node-report"
line '# node tasks free budget from threshold flatten GPUs of a task'
line '# n1 2 80.0G 76.0G nvml 1.2G auto 2 x NVIDIA H100'
line '# n2 2 7.0G 5.0G nvml 80.0M auto 1'
line '# n10 1 80.0G 76.0G nvml 1.2G auto 2 x NVIDIA H100'
sizes="stream_threshold $((5 * gib / 64)), gather_limit $((5 * gib / 4))"
line "# all 5 ranks: budget $((5 * gib)), $sizes, flatten auto"
# two nodes have two tasks, the third has one
line '# shared memory: none' # they have GPUs
# what the nodes decided, and where that was
line '# stage 2 ZERO_RESOLVED of n1'
line '# allgather auto --zero-allgather'
line "# stream_threshold $((5 * gib / 64)) ZERO_RESOLVED of n2"
line "# gather_limit $((5 * gib / 4)) ZERO_RESOLVED of n2"
line "# budget $((5 * gib)) ZERO_RESOLVED of n2"
line '# stream_chunk 41943040 default'
line '# tasks 5 -n'
has_not "$out" 12345
[[ $(sed -n 's/^# \(n[0-9]*\) .*/\1/p' "$scratch/out" | tr '\n' ' ') == 'n1 n2 n10 ' ]] ||
	fail "the nodes are not in their order: $out"
sh -n "$scratch/out" || fail "the plan is no script"

cp "$scratch/nodes" "$scratch/whole"
# a threshold that is said counts if it is the least
sed -i "s/^n10 .*/n10 $(resolved 2 $gib $((70 * gib)) 50000000 "" 123)/" "$scratch/nodes"
SLURM_JOB_ID=7 run "$ZERORUN" --plan program
line "# all 5 ranks: budget $((5 * gib)), stream_threshold 50000000, gather_limit 123, flatten auto"
line '# n10 1 1.0G 70.0G nvml 47.7M auto 0'
sed -i "s/^n10 .*/n10 $(resolved 3 $gib $((70 * gib)) 50000000)/" "$scratch/nodes"
SLURM_JOB_ID=7 run "$ZERORUN" --plan program
line '# stage is 2 on n1, but 3 on n10: the job will be refused'

# how many ranks share memory: of each node as many as ZERO_RESOLVED says
cp "$scratch/nodes" "$scratch/kept"
# shared SETTING WORDS: with that ZERO_SHARE on all nodes
shared() {
	# of ranks without GPUs, which share nothing
	sed "s/\$/ share=$1/; s/vram_source=nvml/vram_source=step_memory/" "$scratch/kept" \
		>"$scratch/nodes"
	SLURM_JOB_ID=7 run "$ZERORUN" --plan program
	line "# shared memory: $2"
}
fewest='at a time; bytes are those where fewest share'
shared 1 none
shared 2 "by 1 to 2 ranks $fewest"
line '# share 2 ZERO_RESOLVED of n1'
sed -i '/^n10/d' "$scratch/kept"
shared 0 'by 2 ranks at a time'
shared 7 'by 2 ranks at a time'
sed -i 's/^n1 /n2 /' "$scratch/kept"
shared 0 'by all 4 ranks'
shared 3 "by 1 to 3 ranks $fewest"
shared 2 'by 2 ranks at a time'
sed -i '1s/share=2/share=1/' "$scratch/nodes"
sed -i '1s/^n2 /n1 /' "$scratch/nodes"
SLURM_JOB_ID=7 run "$ZERORUN" --plan program
line '# share is 1 on n1, but 2 on n2: the job will be refused'
cp "$scratch/whole" "$scratch/nodes"

touch "$scratch/broken"
SLURM_JOB_ID=7 run "$ZERORUN" --plan program
is "$status" 7
is "$out" ""
is "$err" "srun: error: n2: no zero.yaml
zerorun: no plan: the step that asks the nodes for their options ended with status 7"
rm "$scratch/broken"
cp "$scratch/nodes" "$scratch/kept"
: >"$scratch/nodes"
SLURM_JOB_ID=7 run "$ZERORUN" --plan program
is "$status" 1
is "$err" 'zerorun: no node has reported its options'
echo 'n3 stage=7' >"$scratch/nodes"
SLURM_JOB_ID=7 run "$ZERORUN" --plan program
is "$status" 1
has "$err" "zerorun: node n3: ZERO_RESOLVED: stage: '7' is out of range: 0 to 3 is allowed"
SLURMD_NODENAME=n3 run "$ZERORUN" --node-report
is "$status" 1
is "$err" "zerorun: node n3: ZERO_RESOLVED is not set: Slurm's plugin did not run for this task"

# ---- a model

run "$ZERORUN" --model=x true
is "$status" 2
is "$err" \
	'zerorun: --model can be given with --plan alone, which prints the memory that a rank needs'
run "$ZERORUN" --model
is "$status" 2
PATH=$real_path
need_command mpirun mpi
if ! have jansson; then
	run "$ZERORUN" --plan --model=x true
	is "$status" 1
	has "$err" 'zerorun: --model: x cannot be read: zerorun was built without Jansson'
	skip jansson "this build reads no safetensors"
fi
run "$ZERORUN" --plan --model="$scratch/none" true
is "$status" 1
is "$out" ""
is "$err" "zerorun: --model: $scratch/none: cannot be opened: No such file or directory"

# What the plan says is what ranks of that model have held, to the byte, at the moment of the most.
ranks=${top_builddir:?}/tests/ranks/sizing.ranks
model=$scratch/model.safetensors
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
# compare WORLD OPTIONS...: one run of the ranks for all of these options of a job, and a plan for
# each
compare() {
	local world=$1 words options word share
	shift
	timeout 120 "$ZERORUN" --zero-preload=no -n "$world" "$ranks" "$model" "$@" \
		>"$scratch/held" ||
		fail "the ranks failed with $world $*"
	for options; do
		words=() share=0
		for word in $options; do
			case $word in share=*) share=${word#*=} ;; *)
				words+=("--zero-$word") ;; esac
		done
		ZERO_SHARE=$share run "$ZERORUN" --plan --model="$model" -n "$world" "${words[@]}" \
			true
		is "$status" 0
		diff <(sed -n "/^job $options\$/,/^stream_threshold/p" "$scratch/held" |
			sed '1d; $d' | sort) <(
			sed -nE 's/^# (shards|gathered|gradients|optimizer|staging|total) .* /\1 /p
				s/^# all .*, flatten /flatten /p' "$scratch/out" | sort
		) >&2 || fail "ranks and plan differ with $world ranks, $options"
	done
}
all=()
for stage in 0 1 2 3; do
	all+=("stage=$stage" "stage=$stage allgather=single" "stage=$stage bucket=100K"
		"stage=$stage offload=optimizer")
done
compare 1 "${all[@]}"
if have mpi; then
	compare 2 "${all[@]}" "stage=3 allgather=single share=1"
	# as if the ranks were on two nodes, or each on its own
	compare 4 stage={0,1,2,3}\ share={1,2} stage=3\ shard={1,2}\ share={0,1,2}
	compare 3 "${all[@]}"
fi
line '# shared memory: by all 3 ranks'
grep -qE '^# host memory +[0-9.]+[KM]  [1-9][0-9]+$' "$scratch/out" || fail "no host memory: $out"
run "$ZERORUN" --plan --model="$model" -n 2 --zero-gather-dtype=bf16 true
line '# gathered is for parameters as they are stored, not as bf16'
run "$ZERORUN" --plan --model="$model" -n 3 true
has_not "$out" 'gathered is for'
line '# the model: 10 tensors in 6 groups, 201323 elements, 742.9K'
has "$out" 'less than the budget of this machine'

# what streams is planned by slices: matrices above the threshold, if they are asked for; a name of
# one is printed without what a terminal obeys
header='{"h.0.w":{"dtype":"F32","shape":[1024,256],"data_offsets":[0,1048576]},
"he\u001bad":{"dtype":"F32","shape":[4096,256],"data_offsets":[1048576,5242880]},
"long":{"dtype":"F32","shape":[786432],"data_offsets":[5242880,8388608]}}'
printf '%b\0\0\0\0\0\0%s' "$(printf '\\x%02x' $((${#header} % 256)) $((${#header} / 256)))" \
	"$header" >"$scratch/large.safetensors"
truncate -s +8388608 "$scratch/large.safetensors"
# streams OPTION...: into $gathered, what is gathered
streams() {
	ZERO_SHARE=1 run "$ZERORUN" --plan --model="$scratch/large.safetensors" -n 2 \
		--zero-stream-chunk=1M "$@" true
	is "$status" 0
	gathered=$(tr -s ' ' <"$scratch/out" | sed -n 's/^# gathered [^ ]* //p')
}
streams
has_not "$out" streamed
is "$gathered" $((7 << 20)) # head and long
# two protections of two ranks, of 12 bytes an element
line "# protected 48.0M $((2 * 12 * 2 << 20))"
streams --zero-stream=auto --zero-stream-threshold=2M
line '# streamed parameters: 1, the largest he?ad of 4.0M in 4 slices of 1.0M'
is "$gathered" $((4 << 20)) # long and h.0. or a slice
streams --zero-stream=auto --zero-stream-threshold=512K
line '# streamed parameters: 2, the largest he?ad of 4.0M in 4 slices of 1.0M'
streams --zero-stream=auto --zero-stream-threshold=4M --zero-protect=no
has_not "$out" protected
has_not "$out" streamed
streams --zero-stream=auto --zero-stream-threshold=2M --zero-stage=2
has_not "$out" streamed

if have mpi; then
	ZERO_SHARE=1 run "$ZERORUN" --plan --model="$model" -n 4 true
	line '# shared memory: none'
	held=$(grep -E '^# (shards|gathered|staging|total) ' "$scratch/out")
	ZERO_SHARE=3 run "$ZERORUN" --plan --model="$model" -n 4 true
	line "# shared memory: by 1 to 3 ranks $fewest"
	is "$(grep -E '^# (shards|gathered|staging|total) ' "$scratch/out")" "$held"
fi

# Under a srun that has no plugin nobody is asked: it may put as many ranks on each node.
mkdir "$scratch/plain"
printf '#!/bin/bash\n' >"$scratch/plain/srun"
chmod +x "$scratch/plain/srun"
# placed WORDS ARGUMENT...
placed() {
	local words=$1
	shift
	PATH=$scratch/plain:$real_path run "$ZERORUN" --slurm --plan --model="$model" "$@" true
	is "$status" 0
	line "# shared memory: $words"
}
unknown='assumed to be none, since the number of tasks of each node is not known'
placed 'by 2 ranks at a time, if each of 3 nodes has as many' -N 3 -n 6
placed "$unknown" -N 3 -n 7
placed "$unknown" -n 7
has_not "$out" protected
placed "$unknown" -n 7 --zero-shard=auto
has "$out" '# shard auto: what is taken is not known'
PATH=$scratch/plain:$real_path run "$ZERORUN" --slurm --plan \
	--model="$scratch/large.safetensors" -N 4 -n 8 true
# and two of their partners
line "# protected 24.0M $((4 * 2 * 3 << 20))"
placed 'by all 7 ranks' -N 1 -n 7
has_not "$out" 'shard auto'
placed none -N 3 -n 3
placed none -n 1 -N 4
SLURM_JOB_ID=7 SLURM_NNODES=2 SLURM_NTASKS=6 placed \
	'by 3 ranks at a time, if each of 2 nodes has as many'
ZERO_SHARE=2 SLURM_JOB_ID=7 SLURM_NNODES=2 SLURM_NTASKS=6 placed \
	"by 1 to 2 ranks $fewest, if each of 2 nodes has as many"
ZERO_SHARE=1 placed none -n 7
has "$out" 'stream_threshold auto, gather_limit auto, flatten auto'

# In the allocation, at the stage that the nodes say, for as many ranks as they have tasks.
sed 's/stage=./stage=2/' "$scratch/kept" >"$scratch/nodes"
PATH=$scratch/bin:$real_path
# budget BYTES: the plan where one task of n2 has only so many
budget() {
	sed -i "/^n2 .*budget=$((6 * gib))/!s/^\(n2 .*budget=\)[0-9]*/\1$1/" "$scratch/nodes"
	SLURM_JOB_ID=7 run "$ZERORUN" --plan --model="$model" program
	is "$status" 0
}
# tier NODE: what the table says of it
tier() {
	tr -s ' ' <"$scratch/out" | sed -n "s/^# $1 .* nvml [^ ]* \([a-z]*\) .*/\1/p"
}
budget $((5 * gib))
line '# at stage 2 each of 5 ranks needs at most, without activations'
line '# n1 2 80.0G 76.0G nvml 1.2G device 2 x NVIDIA H100'
has "$out" 'less than the budget of n2'
total=$(sed -n 's/^# total .* //p' "$scratch/out")
# just enough, and a byte too little; the tier of the least node is that of all
budget "$total"
line '# fits: 0 less than the budget of n2'
is "$(tier n1) $(tier n2)" 'device host'
has "$out" ', flatten host'
budget $((total - 1))
line '# does not fit: 1 more than the budget of n2'
# beside all that, the largest group (124160 f32, in pages) has room, or a fifth of it
flat=499712
budget $((total + flat))
has "$out" ', flatten device'
budget $((total + flat - 1))
is "$(tier n1) $(tier n2)" 'device distributed'
has "$out" ', flatten distributed'
budget $((total + (flat + 4) / 5))
has "$out" ', flatten distributed'
budget $((total + flat / 5))
has "$out" ', flatten host'

# How many ranks store a copy: the fewest with whose part a rank's bytes fit, of 1, a node and all.
# copies BUDGET SIZE: with such a budget so many do
copies() {
	for node in n1 n1 n2 n2; do
		echo "$node $(resolved 3 $((80 * gib)) "$1" auto gpus=1)"
	done >"$scratch/nodes"
	SLURM_JOB_ID=7 run "$ZERORUN" --plan --model="$model" --zero-shard=auto program
	is "$status" 0
	is "$(tr -s ' ' <"$scratch/out" | sed -n 's/^# \([0-9]*\) .* <-$/\1/p')" "$2"
}
# needs SIZE: into $needs, the bytes of a rank then
needs() {
	needs=$(tr -s ' ' <"$scratch/out" | sed -nE "s/^# $1 [0-9.]+[KMG] ([0-9]+)( <-)?\$/\1/p")
	[[ $needs ]] || fail "no line of $1 ranks: $(shown)"
}
copies $((76 * gib)) 1
line '# at stage 3 each of 4 ranks needs at most, without activations'
line '# of which each 1 store a copy between them'
is "$(grep -cE '^# (1|2|4) .*[0-9]( *<-)?$' "$scratch/out")" 3
needs 1 && one=$needs
needs 2 && two=$needs
needs 4 && four=$needs
# a copy of each rank needs no memory for gathers, and that is more than half of this model
((two > one && one > four)) || fail "1, 2 and 4 ranks need $one, $two and $four bytes"
copies "$one" 1
is "$(tr -s ' ' <"$scratch/out" | sed -n 's/^# total .* //p')" "$one"
copies $((one - 1)) 4
has_not "$out" 'store a copy between them'
copies $((four - 1)) 4
has "$out" '# does not fit: 1 more than the budget of n1'
SLURM_JOB_ID=7 run "$ZERORUN" --plan --model="$model" --zero-shard=node program
line '# of which each 2 store a copy between them'
SLURM_JOB_ID=7 run "$ZERORUN" --plan --model="$model" --zero-shard=3 program
is "$status" 1
has "$err" 'shard is 3 (from --zero-shard), which does not divide the 4 ranks of the job'
