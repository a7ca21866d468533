#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a job has protected in the memory of its nodes is gone once it has ended, however it ended.
# The plugin's epilog removes it as the user: nothing of others, nothing behind a link, nothing that
# the user could not reach, and no node is drained.
# shellcheck source=tests/slurm/cluster.sh
. "${top_srcdir:?run me by make check}/tests/slurm/cluster.sh"
plugin_mode=required # where an error that is returned drains the node
# slurmd asks once, as it starts, whether a plugin has an epilog
cluster_adjust() {
	plugin_on
}
cluster_start
user=nobody uid=$(id -u nobody) other=daemon
chmod 755 "$scratch"
as_user=(runuser -u "$user" -- env -C "$scratch")
"${as_user[@]}" test -r "$SLURM_CONF" || skip slurm "$user cannot reach $scratch"
# A folder of each node, one that only a section names, and one that the user cannot reach.
memory=$scratch/memory
mkdir "$memory"
mkdir -m 1777 "$memory"/{n1,n2,n3,small}
mkdir -m 700 "$memory/closed"
for node in "${nodes[@]}"; do
	write_yaml "$node" <<YAML
defaults: {preload_path: $libzero, protect_dir: $memory/$node}
partitions: {small: {defaults: {protect_dir: $memory/small}}}
accounts: {closed: {defaults: {protect_dir: $memory/closed}}}
YAML
done

# ---- a job that is killed

records() {
	[[ $(find "$memory/n1" -name '*.record') && $(find "$memory/n2" -name '*.record') ]]
}
# the name is what zerorun gives to its ranks
begin protects env ZERO_RUN=0123456789abcdef0123456789abcdef \
	salloc -Q -N 2 -n 2 -w n1,n2 srun --zero --mpi=pmix \
	"$top_builddir/tests/ranks/protect" 1000000 1
wait_for records
job=$(squeue -h -o %i)
scancel "$job"
ended protects
wait_for are_over "$job"
left=$(find "$memory" -mindepth 2)
[[ ! $left ]] || fail "a job that was killed leaves $left"

# ---- what a user may have put in its place

# fill OWNER FOLDER: one of a job, with a run that has a file
fill() {
	mkdir -p "$2/run"
	echo precious >"$2/run/file"
	chmod -R go-rwx "$2"
	chown -R "$1" "$2"
}

# leave OWNER DIR: the folder of the job, in that of the user
leave() {
	mkdir -p "$2/zero-$uid"
	chmod 700 "$2/zero-$uid"
	chown "$user" "$2/zero-$uid"
	fill "$1" "$2/zero-$uid/$job"
}

# A job of the user's on n3 waits until the test has prepared what it leaves. What it has in the
# section's folder shows that the epilog has come.
cat >"$scratch/job.sh" <<JOB
#!/bin/bash
until [[ -e $scratch/go.\$SLURM_JOB_ID ]]; do sleep 0.02; done
JOB
begin_job() {
	job=$("${as_user[@]}" sbatch --parsable -w n3 -o /dev/null "$scratch/job.sh") ||
		fail "sbatch failed"
	leave "$user" "$memory/small"
}

end_job() {
	touch "$scratch/go.$job"
	wait_for are_over "$job"
	[[ ! -e $memory/small/zero-$uid ]] || fail "$1: the epilog has not come"
}

# stays WHAT FILE: of the job that ends
stays() {
	end_job "$1"
	[[ $(<"$2") == precious ]] || fail "$1: $2 is gone"
	rm -rf "${memory:?}"/{n3,closed}/* "${elsewhere:?}"
}

mine=$memory/n3/zero-$uid elsewhere=$scratch/elsewhere
begin_job
leave "$user" "$memory/n3"
fill "$user" "$mine/1"
stays "the folder of another job" "$mine/1/run/file"

begin_job
leave "$user" "$memory/n3"
mkdir "$mine/$job/another"
touch "$mine/$job/another/file" "$mine/$job/file"
chown -R "$user" "$mine"
end_job "two runs"
[[ ! -e $mine ]] || fail "two runs: $(find "$mine") is left"

begin_job
fill "$user" "$elsewhere"
leave "$user" "$memory/n3"
rm -r "${mine:?}/$job"
ln -s "$elsewhere" "$mine/$job"
chown -h "$user" "$mine/$job"
stays "a link for the job's folder" "$elsewhere/run/file"

begin_job
fill "$user" "$elsewhere"
leave "$user" "$memory/n3"
ln -s "$elsewhere/run" "$mine/$job/link"
ln -s "$elsewhere/run/file" "$mine/$job/run/link"
chown -h "$user" "$mine/$job/link" "$mine/$job/run/link"
stays "links within it" "$elsewhere/run/file"

begin_job
fill "$user" "$elsewhere/$job"
ln -s "$elsewhere" "$mine"
chown -h "$user" "$elsewhere" "$mine"
stays "a link for the user's folder" "$elsewhere/$job/run/file"

begin_job
leave "$user" "$memory/n3"
chown "$other" "$mine"
chmod 777 "$mine"
stays "a user's folder that is another's" "$mine/$job/run/file"

begin_job
leave "$other" "$memory/n3"
chmod -R a+rwx "$mine/$job"
stays "a job's folder that is another's" "$mine/$job/run/file"

begin_job
leave "$user" "$memory/n3"
chown -R "$other" "$mine/$job/run"
chmod -R a+rwx "$mine/$job/run"
stays "a run's folder that is another's" "$mine/$job/run/file"

begin_job
leave "$user" "$memory/closed"
stays "a folder that only root reaches" "$memory/closed/zero-$uid/$job/run/file"

# ---- a file that cannot be used

job=$("${as_user[@]}" sbatch --parsable -w n3 -o /dev/null "$scratch/job.sh") ||
	fail "sbatch failed"
echo "no: [yaml" >"$scratch/n3/zero.yaml"
leave "$user" /dev/shm
touch "$scratch/go.$job"
wait_for are_over "$job"
[[ ! -e /dev/shm/zero-$uid/$job ]] || fail "a broken zero.yaml: what is in /dev/shm is left"

wait_for all_idle
run_all sinfo -h -R
[[ ! -s $scratch/out ]] || fail "nodes are down for a reason: $(<"$scratch/out")"
