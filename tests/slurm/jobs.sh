#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Jobs of every kind get what an ordinary one does: heterogeneous ones and arrays, steps side by
# side, a job that is put back into the queue, one of zerorun's, and those that keep their
# environment.
# shellcheck source=tests/slurm/given.sh
. "${top_srcdir:?run me by make check}/tests/slurm/given.sh"
: "${ZERORUN:?}"
cluster_start
plugin_on
report_task=$top_builddir/tests/slurm/report_task
# Jobs share the nodes.
export SLURM_MEM_PER_NODE=100 SBATCH_MEM_PER_NODE=100 SALLOC_MEM_PER_NODE=100

# srun may wait for ever at the end of a heterogeneous step with PMIx, whatever the plugin: a thread
# of each component joins the same agent (pmixp_abort_agent_stop, seen in Slurm 22.05), mostly if
# they end at once. So the last component stays a while, and a srun that has ended all but itself is
# killed.
cat >"$scratch/apart" <<'TASK'
#!/bin/bash
"$@" || exit
((SLURM_PROCID < 2)) || sleep 1
TASK
chmod +x "$scratch/apart"
apart=$scratch/apart

# ---- submitted first, looked at last -------------------------------------------------------------

batch het -n2 --zero-stage=1 : -n1 <<JOB
#!/bin/bash
timeout -s KILL 60 srun --het-group=0,1 "$apart" "$report_task" stage
timeout -s KILL 60 srun --het-group=0,1 "$apart" "$given" a
JOB
het=$job

batch array-%a --array=0-2 --zero-stage=2 -n2 <<JOB
#!/bin/bash
srun "$given" a
JOB
array=$job

# Its first run stays until it is stopped.
batch requeue --requeue --open-mode=append --zero-stage=1 --zero-stream-chunk=7M -n2 <<JOB
#!/bin/bash
srun "$given" "run\${SLURM_RESTART_COUNT-0}"
srun "$report_task" stage stream_chunk
((\${SLURM_RESTART_COUNT-0})) && exit
: >"$scratch/first"
sleep 600
JOB
requeue=$job

batch zerorun -N2 -n3 <<JOB
#!/bin/bash
srun --zero-stage=1 --zero-stream-chunk=7M bash -c 'echo "srun: \$ZERO_RESOLVED"'
"$ZERORUN" --zero-stage=1 --zero-stream-chunk=7M bash -c 'echo "zerorun: \$ZERO_RESOLVED"'
"$ZERORUN" --zero-stage=1 "$given" a
JOB
zerorun=$job

ZZ_KEPT=mine batch none --export=NONE --zero-stage=1 -n2 <<JOB
#!/bin/bash
srun "$given" a
srun "$report_task" stage
JOB
none=$job

# ---- steps ---------------------------------------------------------------------------------------

# hetero WHAT FIRST SECOND COMMAND...: two components on these nodes, with one set of options, which
# either may give. The library finds the others by PMIx, which srun has to know before its options.
hetero() {
	begin "$1" timeout -s KILL 60 "${@:4}" -w "$2" -n2 --zero-stage=1 "$apart" "$given" a : \
		-w "$3" -n1 "$apart" "$given" a
	begin "$1, with the library" timeout -s KILL 60 "${@:4}" -w "$2" -n2 "$apart" \
		"$report_task" stage : -w "$3" -n1 --zero-stage=2 "$apart" "$report_task" stage
}

was_hetero() {
	ended "$1"
	numbered "$1" 3
	expect "$1: options" "stage=1 " "$(field zero)"
	expect "$1: one MASTER_ADDR" 1 "$(field addr | wc -w)"
	expect "$1: one MASTER_PORT" 1 "$(field port | wc -w)"
	expect "$1: MASTER_ADDR" "$(first_node) " "$(field addr)"
	ended "$1, with the library"
	has_lines "$1, with the library" 3 '^rank=[0-2] world=3 .* stage=2$'
}
hetero "a heterogeneous job" n3 n1 srun
hetero "heterogeneous steps of a job" n3 n1 salloc -N3 -n6 --ntasks-per-node=2 srun

ran "several tasks a node" srun --zero-stage=1 -N1 -n4 "$given" a
numbered "several tasks a node" 4

# Each of two steps waits for the other one's tasks.
cat >"$scratch/beside" <<TASK
#!/bin/bash
$(declare -f within)
is_here() {
	[[ -e $scratch/here-\$1-0 && -e $scratch/here-\$1-1 ]]
}
: >"$scratch/here-\$1-\$RANK"
within 100 is_here "\$2" && exec "$given" "\$1"
echo "step \$1 waited in vain for \$2"
TASK
chmod +x "$scratch/beside"
ran "srun --overlap" salloc --zero-stage=1 -N2 -n2 bash -c "
	srun --overlap '$scratch/beside' a b &
	srun --overlap '$scratch/beside' b a & wait"
expect "srun --overlap: tasks" 4 "$(grep -c "library=mapped zero=stage=1" "$scratch/out")"
expect "srun --overlap: steps, ports" "2 2" "$(field step | wc -w) $(field port | wc -w)"
expect "srun --overlap: step and port" 2 \
	"$(sed -n 's/.* port=\([0-9]*\) .* step=\(.\)$/\1 \2/p' "$scratch/out" | sort -u | wc -l)"

ZZ_KEPT=mine ran "--export=NONE" srun --export=NONE --zero-stage=1 -n2 "$given" a
numbered "--export=NONE" 2
has_lines "--export=NONE" 2 \
	"addr=n[1-3] port=[1-9].* preload=$libzero library=mapped zero=stage=1 .*kept=none"
ran "--export=NONE, with the library" srun --export=NONE --zero-stage=1 -n2 "$report_task" stage
has_lines "--export=NONE, with the library" 2 '^rank=[01] world=2 .* stage=1$'
ZZ_KEPT=mine ran "--export=ALL,NAME=VALUE" srun --export=ALL,ZZ_EXTRA=1 --zero-stage=1 -n2 \
	"$given" a
numbered "--export=ALL,NAME=VALUE" 2
has_lines "--export=ALL,NAME=VALUE" 2 \
	"preload=$libzero library=mapped zero=stage=1 extra=1 kept=mine"

was_hetero "a heterogeneous job"
was_hetero "heterogeneous steps of a job"

# ---- what was submitted --------------------------------------------------------------------------

wait_for test -e "$scratch/first"
ran "scontrol requeue" scontrol requeue "$requeue"
wait_for takes_again "$requeue" # for which Slurm waits two minutes
ran "scontrol update" timeout 60 scontrol update "jobid=$requeue" StartTime=now
wait_for are_over "$het" "$array" "$requeue" "$zerorun" "$none"

cp "$scratch/het" "$scratch/out"
has_lines "sbatch of a heterogeneous job" 3 '^rank=[0-2] world=3 .* stage=1$'
numbered "sbatch of a heterogeneous job" 3
expect "sbatch of a heterogeneous job: MASTER_ADDR and MASTER_PORT" "1 1" \
	"$(field addr | wc -w) $(field port | wc -w)"

ports=
for element in 0 1 2; do
	cp "$scratch/array-$element" "$scratch/out"
	numbered "element $element" 2
	expect "element $element: options" "stage=2 " "$(field zero)"
	ports+=$(field port)
done
expect "MASTER_PORT of three elements" 3 "$(tr " " "\n" <<<"$ports" | sort -u | grep -c .)"

cp "$scratch/requeue" "$scratch/out"
for run in 0 1; do
	has_lines "run $run of a requeued job" 2 \
		"preload=$libzero library=mapped zero=stage=1 .*step=run$run"
done
has_lines "a requeued job, with the library" 4 '^rank=[01] world=2 .* stage=1 stream_chunk=7340032$'

cp "$scratch/zerorun" "$scratch/out"
numbered "zerorun" 3
expect "zerorun: LD_PRELOAD" "$libzero " "$(field preload)"
# Each step has a port of its own.
settings() {
	sed -n "s/^$1: stage=/stage=/p" "$scratch/out" |
		sed 's/ master=[^ ]*//; s/ origins=[^ ]*//' | sort
}
expect "srun: tasks" 3 "$(settings srun | grep -c '^stage=1 .* stream_chunk=7340032 ')"
expect "zerorun's settings, as srun's" "$(settings srun)" "$(settings zerorun)"

cp "$scratch/none" "$scratch/out"
numbered "sbatch --export=NONE" 2
has_lines "sbatch --export=NONE" 2 "preload=$libzero library=mapped zero=stage=1 .*kept=none"
has_lines "sbatch --export=NONE, with the library" 2 '^rank=[01] world=2 .* stage=1$'
