#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the tasks of a zero job get from the plugin, in steps of every kind, in a nested srun, under
# mpirun and in containers; what batch scripts and shells do not get; and that srun stays srun.
# shellcheck source=tests/slurm/given.sh
. "${top_srcdir:?run me by make check}/tests/slurm/given.sh"
need_command python3 slurm
cp "$top_builddir/tests/double/.libs/container.so" "$scratch" || fail "container.so is not built"
cluster_start
plugin_on
report_task=$top_builddir/tests/slurm/report_task
# A library that is there on every machine, for what a user may preload.
libc=$(ldd "$BASH" | sed -n 's/.*=> \(.*\/libc\.so[^ ]*\) .*/\1/p')
[[ -e $libc ]] || fail "$BASH has no libc.so"

# ---- a step's tasks ------------------------------------------------------------------------------

write_yaml <<YAML
defaults: {preload_path: $libzero}
env: {ZZ_EXTRA: "from the site", ZZ_KEPT: "from the site"}
YAML
ZZ_KEPT=mine LD_PRELOAD=$libc ran "six tasks" srun --zero-stage=1 -N3 -n6 "$given" a
numbered "six tasks" 6
expect "LD_PRELOAD" "$libzero:$libc " "$(field preload)"
expect "the library in the process" "mapped " "$(field library)"
expect "ZERO_RESOLVED" "stage=1 " "$(field zero)"
expect "MASTER_ADDR" "n1 " "$(field addr)"
expect "a variable of the site" "from " "$(field extra)"
expect "a variable that the user set as well" "mine " "$(field kept)"
port=$(field port)
[[ $port =~ ^[1-9][0-9]+\ $ ]] || fail "MASTER_PORT is not one number: $port"
expect "the nodes" "n1 n2 n3 " "$(field node)"

ran "a step without the first node" srun --zero -w 'n[2-3]' -N2 -n3 "$given" a
numbered "a step without the first node" 3
expect "MASTER_ADDR of n2 and n3" "n2 " "$(field addr)"

# Rank 0 may be on any node of the sorted list.
printf 'n3\nn1\nn1\nn2\n' >"$scratch/hosts"
SLURM_HOSTFILE=$scratch/hosts ran "--distribution=arbitrary" \
	srun --zero --distribution=arbitrary -n4 "$given" a
numbered "--distribution=arbitrary" 4
expect "MASTER_ADDR under --distribution=arbitrary" "n3 " "$(field addr)"
for layout in cyclic plane=2; do
	ran "--distribution=$layout" srun --zero --distribution="$layout" -w 'n[2-3]' -N2 -n5 \
		"$given" a
	expect "MASTER_ADDR under --distribution=$layout" "$(first_node) " "$(field addr)"
done

MASTER_ADDR=here MASTER_PORT=7 ran "the user's MASTER_*" srun --zero -n2 "$given" a
expect "the user's MASTER_ADDR" "here " "$(field addr)"
expect "the user's MASTER_PORT" "7 " "$(field port)"
plugin_on

ran "two steps" salloc --zero -N2 -n2 bash -c "srun '$given' a; srun '$given' b"
expect "the MASTER_PORT of two steps, two ranks each" 2 "$(field port | wc -w)"
has_lines "two steps" 4 "addr=n[1-3] port=[1-9][0-9]* preload=$libzero library=mapped"

ran "--zero-preload=no" srun --zero-preload=no -n2 "$given" a
numbered "--zero-preload=no" 2
expect "LD_PRELOAD under --zero-preload=no" "none " "$(field preload)"

# What torch.distributed does with init_method="env://", in short. These nodes' names are Slurm's
# alone and all of them are this machine, so that it stands in for a name that cannot be resolved.
cat >"$scratch/train.py" <<'PYTHON'
import ctypes
import os
import socket
import struct
import sys
import time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
try:
    address = socket.gethostbyname(os.environ["MASTER_ADDR"])
except OSError:
    address = "127.0.0.1"
place = (address, int(os.environ["MASTER_PORT"]))


def join():
    for _ in range(600):
        try:
            return socket.create_connection(place)
        except OSError:
            time.sleep(0.1)
    sys.exit("rank 0 does not listen on %s:%d" % place)


if rank == 0:
    with socket.create_server(place) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
    total = sum(struct.unpack("i", peer.recv(4, socket.MSG_WAITALL))[0] for peer in peers)
    for peer in peers:
        peer.sendall(struct.pack("i", total))
else:
    peer = join()
    peer.sendall(struct.pack("i", rank))
    (total,) = struct.unpack("i", peer.recv(4, socket.MSG_WAITALL))
library = ctypes.CDLL(None)
print(f"rank {rank} of {world}: {total}, {'zero' if hasattr(library, 'zero_open') else 'bare'}")
PYTHON
ran "a script that knows nothing of Slurm" srun --zero -N3 -n6 python3 "$scratch/train.py"
has_lines "a script that knows nothing of Slurm" 6 '^rank [0-5] of 6: 15, zero$'

# What torchrun does, in short: several processes that each inherit the task.
cat >"$scratch/torchrun" <<TASK
#!/bin/bash
for rank in 0 1; do
	env RANK=\$rank WORLD_SIZE=2 LOCAL_RANK=\$rank LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none \
		"$report_task" stage &
done
wait %1
wait %2
TASK
chmod +x "$scratch/torchrun"
run_all srun --zero -N1 -n1 "$scratch/torchrun"
((status)) || fail "two ranks in one task: it ended well"
has_lines "two ranks in one task" 2 \
	'torchrun, or accelerate launch, has started .* start each rank, with --ntasks-per-node=2'

# ---- steps in steps ------------------------------------------------------------------------------

# Rank 1 of three starts steps of other sizes; in the last two it has changed LD_PRELOAD before.
cat >"$scratch/nest" <<TASK
#!/bin/bash
"$given" outer
((RANK == 1)) || exit 0
srun --overlap -N2 -n2 "$given" inner
srun --overlap -N1 -n1 "$report_task" stage
srun --overlap -N1 -n1 --no-zero "$given" clean
export LD_PRELOAD=$libc:\$LD_PRELOAD
srun --overlap -N1 -n1 "$given" again
srun --overlap -N1 -n1 --no-zero "$given" bare
TASK
chmod +x "$scratch/nest"
LD_PRELOAD=$libc ran "a nested srun" salloc -Q --zero-stage=1 -N2 -n3 srun "$scratch/nest"
cp "$scratch/out" "$scratch/nested"
# step NAME: the lines of one of the steps whose output is in $scratch/nested.
step() {
	grep "step=$1\$" "$scratch/nested" >"$scratch/out"
}
step outer
numbered "the outer step" 3
port=$(field port)
step inner
numbered "a nested srun" 2
expect "a nested srun's LD_PRELOAD" "$libzero:$libc " "$(field preload)"
expect "a nested srun's MASTER_ADDR" "$(first_node) " "$(field addr)"
expect "a nested srun's MASTER_PORT, one" 1 "$(field port | wc -w)"
[[ $(field port) != "$port" ]] || fail "a nested srun has the outer MASTER_PORT $port"
step clean
has_lines "a nested srun with --no-zero" 1 \
	"rank=none .*world=none .*local_rank=none .*local_world=none \
addr=none port=none preload=$libc library=none zero=none"
step again
expect "LD_PRELOAD, with something put before it" "$libzero:$libc:$libc " "$(field preload)"
step bare
has_lines "--no-zero, with something put before the library" 1 \
	"rank=none .*preload=$libc:$libc library=none zero=none"
cp "$scratch/nested" "$scratch/out"
has_lines "a program in a nested srun" 1 \
	'^rank=0 world=1 local_rank=0 local_world=1 node=n. stage=1$'

# What a user of --no-zero has set is not the plugin's.
WORLD_SIZE=5 RANK=3 MASTER_PORT=7 ran "--no-zero alone" srun --no-zero -n1 "$given" a
has_lines "--no-zero alone" 1 'rank=3 .*world=5 .*port=7 preload=none library=none zero=none'

# ---- MPI -----------------------------------------------------------------------------------------

for level in 0 1 2 3; do
	ran "MPI_Init at level $level before zero_open" \
		srun --zero-stage=2 -N2 -n3 "$report_task" --own-mpi "$level" stage
	has_lines "MPI_Init at level $level before zero_open" 3 '^rank=[0-2] world=3 .* stage=2$'
done

# ---- shared memory -------------------------------------------------------------------------------

# shares WHAT SIZES ARGUMENT...: with so many of its node's ranks each rank shares memory; that the
# other nodes are on this machine too is no reason to.
shares() {
	local what="shared memory, $1" sizes=$2
	shift 2
	ran "$what" srun --zero "$@" "$report_task" share
	expect "$what" "$sizes" \
		"$(sort "$scratch/out" | sed -n 's/^rank=.* share=//p' | tr '\n' ' ')"
}

shares "three nodes" "2 2 2 2 2 2 " -N3 -n6 --ntasks-per-node=2
expect "the ranks of a node" 6 "$(grep -c ' local_world=2 ' "$scratch/out")"
shares "one rank on each" "1 1 1 " -N3 -n3
shares "one node" "3 3 3 " -N1 -n3
shares "nodes with two ranks and one" "2 2 1 " -N2 -n3 --distribution=block:block
ZERO_SHARE=2 shares "two at a time" "2 2 1 " -N1 -n3
ZERO_SHARE=1 shares "none" "1 1 1 " -N1 -n3

run_all srun --zero --mpi=none -n2 "$report_task" stage
((status)) || fail "--mpi=none ended well"
has_lines "--mpi=none" 2 \
	'the launcher started 2 ranks, but MPI sees this one alone.*srun --mpi=pmix'

# ---- batch scripts and shells --------------------------------------------------------------------

# mpirun starts its proxies by srun, and they the ranks.
cat >"$scratch/rank" <<'TASK'
#!/bin/bash
parent=plain
if tr '\0' '\n' <"/proc/$PPID/environ" | grep -qE '^(RANK|LD_PRELOAD|MASTER_ADDR)=' ||
	grep -q '/libzero\.so' "/proc/$PPID/maps"; then
	parent=touched
fi
echo "by mpirun: parent=$parent preload=${LD_PRELOAD-none}"
TASK
cat >"$scratch/job" <<TASK
#!/bin/bash
"$given" script
mpirun -n 3 "$report_task" stage stream_chunk
mpirun -n 3 "$scratch/rank"
# a job's own, which is no srun's to take away
export WORLD_SIZE=5 RANK=3 LOCAL_RANK=1 LD_PRELOAD=$libc
srun -N1 -n1 --no-zero "$given" clean
srun -n3 "$given" step
TASK
chmod +x "$scratch/rank" "$scratch/job"
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
	batch batch --zero-stage=2 --zero-stream-chunk=7M -N3 -n3 "$scratch/job"
batch_job=$job

ran "salloc" salloc --zero-stage=1 -N2 -n3 bash -c \
	"'$given' shell; srun '$given' step
	srun --interactive --overlap -N1 -n1 '$given' interactive"
cp "$scratch/out" "$scratch/nested"
step shell
has_lines "the shell of salloc" 1 \
	'rank=none .*local_world=none addr=none port=none preload=none library=none zero=none'
step step
numbered "srun in salloc" 3
has_lines "srun in salloc" 3 "preload=$libzero library=mapped zero=stage=1"
step interactive
has_lines "an interactive step" 1 \
	'rank=none .*local_world=none addr=none port=none preload=none library=none zero=stage=1'

wait_for are_over "$batch_job"
mv "$scratch/batch" "$scratch/nested"
step script
has_lines "a batch script" 1 \
	'rank=none .*local_world=none addr=none port=none preload=none library=none zero=stage=2'
step clean
has_lines "--no-zero in a zero job" 1 \
	"rank=3 .*world=5 .*local_rank=1 .*preload=$libc library=none zero=none"
step step
numbered "srun in a batch script" 3
expect "the LD_PRELOAD of a batch script" "$libzero:$libc " "$(field preload)"
cp "$scratch/nested" "$scratch/out"
has_lines "mpirun" 3 '^rank=[0-2] world=3 .* stage=2 stream_chunk=7340032$'
has_lines "what mpirun and its proxies got" 3 'by mpirun: parent=plain preload=none'

# ---- srun stays srun -----------------------------------------------------------------------------

seq 30000 | ran "standard input" srun --zero cat
expect "standard input" "$(seq 30000 | md5sum)" "$(md5sum <"$scratch/out")"

run_all srun --zero -n1 bash -c 'exit 7'
expect "the exit status" 7 "$status"

# srun passes on the second of two within a second.
cat >"$scratch/terminal.py" <<'PYTHON'
import os
import pty
import select
import sys
import time

pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
output, pressed = b"", False
while True:
    if select.select([terminal], [], [], 5 if pressed else 0.1)[0]:
        try:
            more = os.read(terminal, 4096)
        except OSError:
            break
        if not more:
            break
        output += more
    elif b"ready" in output and b"sending Ctrl-C" not in output:
        for _ in range(2):
            os.write(terminal, b"\x03")
            time.sleep(0.2)
        pressed = True
os.waitpid(pid, 0)
sys.stdout.buffer.write(output)
PYTHON
ran "Ctrl-C" python3 "$scratch/terminal.py" srun --zero -n1 bash -c 'echo ready; exec sleep 600'
has_lines "Ctrl-C" 1 "sending Ctrl-C to StepId="
wait_for no_steps

# ---- where the library is ------------------------------------------------------------------------

# $LIB is the loader's word for the folder of a program's kind, so that others find another library.
# shellcheck disable=SC2016
mkdir -p "$scratch/usr/lib64" "$scratch/usr/lib/x86_64-linux-gnu" \
	"$scratch/usr/lib/aarch64-linux-gnu"
for folder in "$scratch"/usr/lib64 "$scratch"/usr/lib/*; do
	cp -L "$libzero" "$folder/libzero.so"
done
write_yaml <<YAML
defaults: {preload_path: "$scratch/usr/\$LIB/libzero.so"}
YAML
# shellcheck disable=SC2016 # the loader expands it
ran '$LIB in preload_path' srun --zero --export=ALL -n1 "$given" a
has_lines "\$LIB in preload_path" 1 "preload=$scratch/usr/[$]LIB/libzero.so library=mapped"
plugin_on

# The package slurm_zero of the preloaded library comes before the user's folders, and only in zero
# steps.
package=$scratch/usr/lib64/slurm-zero/python
mkdir -p "$package/slurm_zero"
touch "$package/slurm_zero/__init__.py"
write_yaml <<<"defaults: {preload_path: $scratch/usr/lib64/libzero.so}"
cat >"$scratch/nest" <<TASK
#!/bin/bash
"$given" outer
srun --overlap -n1 "$given" inner
srun --overlap -n1 --no-zero "$given" clean
srun --overlap -n1 --zero-python=no "$given" without
TASK
PYTHONPATH=/a:/b ran "PYTHONPATH" salloc -Q --zero -N1 -n1 srun "$scratch/nest"
has_lines "PYTHONPATH of zero steps" 2 "python=$package:/a:/b step=(outer|inner)$"
has_lines "PYTHONPATH without the package" 2 'python=/a:/b step=(clean|without)$'
PYTHONPATH='' ran "an empty PYTHONPATH" srun --zero -n1 "$given" a
has_lines "an empty PYTHONPATH" 1 "python=$package step=a"
ran "no PYTHONPATH" srun --zero -n1 "$given" a
has_lines "no PYTHONPATH" 1 "python=$package step=a"
mkdir -p "$scratch/bundle/rootfs$scratch/usr/lib64"
cp -L "$libzero" "$scratch/bundle/rootfs$scratch/usr/lib64/libzero.so"
ran "a bundle without the package" srun --zero --export=ALL,SLURM_CONTAINER="$scratch/bundle" -n1 \
	"$given" a
has_lines "a bundle without the package" 1 \
	"preload=$scratch/usr/lib64/libzero.so .* python=none step=a"
plugin_on

# What srun --container makes of a step: the runtime enters the bundle's root only later.
mkdir -p "$scratch/bundle/rootfs${libzero%/*}"
ran "a bundle without the library" srun --zero-stage=1 \
	--export=ALL,SLURM_CONTAINER="$scratch/bundle" \
	-n1 "$given" a
has_lines "a bundle without the library" 1 'preload=none library=none zero=stage=1'
has_lines "a bundle without the library" 1 \
	"nothing is preloaded, since the container has no $libzero"
cp -L "$libzero" "$scratch/bundle/rootfs$libzero"
ran "a bundle with the library" srun --zero-stage=1 --export=ALL,SLURM_CONTAINER="$scratch/bundle" \
	-n1 "$given" a
has_lines "a bundle with the library" 1 "preload=$libzero library=mapped zero=stage=1"

# ---- containers ----------------------------------------------------------------------------------

box=$scratch/box
# copy FILE...: into the box, at the same path, with the libraries it needs.
copy() {
	local file
	for file; do
		mkdir -p "$box${file%/*}"
		cp -L "$file" "$box$file"
		ldd "$file" | grep -o '/[^ )]*' | while read -r file; do
			mkdir -p "$box${file%/*}"
			cp -L "$file" "$box$file"
		done
	done
}
copy /bin/bash /bin/true
for node in "" "${nodes[@]}"; do
	file=$scratch${node:+/$node}/plugstack.conf
	printf 'required %s\n%s\n' "$scratch/container.so" "$(<"$file")" >"$file"
done

# boxed WHAT ARGUMENT...: two tasks on each of two nodes. Each tells whether it is in the box, what
# it was given, and of what libraries the loader tells in a program of its own. What each task says
# on standard error is put behind that, since srun would mix them.
boxed() {
	local what=$1
	shift
	rm -f "$scratch"/complaints.*
	# shellcheck disable=SC2016 # the task's shell expands it
	ZERO_TEST_ROOT=$box ran "$what" srun "$@" -e "$scratch/complaints.%t" -N2 -n4 \
		--ntasks-per-node=2 /bin/bash -c '
		[[ -e /proc ]] && echo "not in the box"
		libraries=$(LD_DEBUG=libs /bin/true 2>&1)
		[[ $libraries =~ calling\ init:\ ([^[:space:]]*libzero[^[:space:]]*) ]]
		echo "rank=$RANK library=${BASH_REMATCH[1]-} preload=$LD_PRELOAD" \
			"zero=${ZERO_RESOLVED%% *}"'
	cat "$scratch"/complaints.* >>"$scratch/out"
	has_lines "$what: tasks out of the box" 0 'not in the box'
	has_lines "$what: the loader's complaints" 0 'ERROR: ld\.so|cannot be preloaded'
}

boxed "a container" --zero-stage=1
has_lines "a container" 4 '^rank=[0-3] library= preload= zero=stage=1$'
has_lines "a container: one sentence a node" 2 \
	"spank_zero: node n[1-3]: nothing is preloaded, since the container has no $libzero: "

boxed "a container and --zero-preload=no" --zero-stage=1 --zero-preload=no
has_lines "a container and --zero-preload=no" 4 '^rank=[0-3] library= preload= zero=stage=1$'
expect "a container and --zero-preload=no: lines" 4 "$(wc -l <"$scratch/out")"

mkdir -p "$box/opt/site"
cp -L "$libzero" "$box/opt/site/libzero.so"
write_yaml <<<"defaults: {preload_path: /opt/site/libzero.so}"
boxed "preload_path in a container" --zero-stage=1
has_lines "preload_path in a container" 4 \
	'^rank=[0-3] library=/opt/site/libzero.so preload=/opt/site/libzero.so zero=stage=1$'
expect "preload_path in a container: lines" 4 "$(wc -l <"$scratch/out")"

write_yaml <<<"defaults: {preload_path: $libzero}"
copy "$libzero"
boxed "a container with the library" --zero-stage=1
has_lines "a container with the library" 4 \
	"^rank=[0-3] library=$libzero preload=$libzero zero=stage=1\$"
expect "a container with the library: lines" 4 "$(wc -l <"$scratch/out")"
