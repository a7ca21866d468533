#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What admins have: sections of zero.yaml by account and QOS, a rollout in stages, the line of srun
# -v, telemetry, prolog and epilog, and the example of a job_submit.lua.
# shellcheck source=tests/slurm/given.sh
. "${top_srcdir:?run me by make check}/tests/slurm/given.sh"

# Slurm's plugin for job_submit.lua is where its own library is, if this Slurm was built with it.
lua=
plugins=$(ldd "$(command -v scontrol)" | sed -n 's/.*=> \(.*\)\/libslurmfull.*/\1/p')
[[ -e $plugins/job_submit_lua.so ]] && lua=yes

cat >"$scratch/prolog" <<SCRIPT
#!/bin/sh
echo "\$1 \$SLURM_JOB_ID zero=\${SPANK_ZERO-none}" \
	"\${SPANK_ZERO_OPTIONS-none}" >>"$scratch/\${0##*/}.said"
SCRIPT
chmod +x "$scratch/prolog"
cp "$scratch/prolog" "$scratch/epilog"
cluster_adjust() {
	local node
	for node in "" "${nodes[@]}"; do
		cat >>"$scratch${node:+/$node}/slurm.conf" <<CONF
Prolog=$scratch/prolog
Epilog=$scratch/epilog
PrologFlags=Alloc
${lua:+JobSubmitPlugins=lua}
CONF
	done
}
cp "$top_srcdir/examples/job_submit.lua" "$scratch/job_submit.lua"
cluster_start
plugin_on

# yaml <YAML: the file of all, with the library of this build
yaml() {
	{ echo "defaults: {preload_path: $libzero}" && cat; } | write_yaml
}

# stage_is WHAT STAGE: of every task in the output, "none" for tasks without zero
stage_is() {
	expect "$1" "$2 " "$(field zero | sed 's/stage=//')"
}

# refused WHAT WORDS COMMAND...
refused() {
	local what=$1 words=$2
	run "${@:3}"
	((status)) || fail "$what: was not refused: $(<"$scratch/out")"
	grep -qF "$words" "$scratch/err" || fail "$what: expected '$words', got: $(<"$scratch/err")"
}

# ---- by account and QOS

yaml <<YAML
accounts:
  physics: {defaults: {stage: 1}, limits: {stream_chunk: {max: 8M}}}
qos:
  high: {defaults: {stage: 2}}
YAML
ran "an account" srun --zero -A physics "$given"
stage_is "an account" 1
ran "another account" srun --zero -A chemistry "$given"
stage_is "another account" 3
# Slurm has QOS only beside a data base, so that the job's variable is set here
ran "a QOS" env SLURM_JOB_QOS=high srun --zero -A physics "$given"
stage_is "a QOS" 2
refused "the node by account" "must be at most 8M by $scratch/n1/zero.yaml" \
	srun -w n1 -A physics --zero-stream-chunk=9M true
echo "#!/bin/bash
$(command -v srun) $given step" >"$scratch/job.sh"
ran_batch "an account of sbatch" -A physics --zero -N 1 "$scratch/job.sh"
stage_is "an account of sbatch" 1
# in a job it is srun that refuses, before a step starts
refused "srun in a job by account" "must be at most 8M by $scratch/zero.yaml" \
	salloc -A physics srun --zero-stream-chunk=9M true

# ---- a rollout in stages

yaml <<YAML
enabled: off
partitions:
  small: {enabled: opt-in}
nodes:
  n3: {enabled: opt-in}
YAML
ran "where it is on offer" srun -p small --zero "$given"
stage_is "where it is on offer" 3
ran "on a node where it is on offer" srun -w n3 --zero "$given"
stage_is "on a node where it is on offer" 3
refused "where it is off" "node n1: zero is switched off on this node ($scratch/n1/zero.yaml:3)" \
	srun -p test -w n1 --zero true
ran "a job without zero" srun -p test -w n1 "$given"
stage_is "a job without zero" none

yaml <<YAML
partitions:
  small: {enabled: on}
  test: {enabled: off}
YAML
ran "on for jobs in a partition" salloc -p small srun "$given"
stage_is "on for jobs in a partition" 3
ran "off in a partition" salloc -p test srun "$given"
stage_is "off in a partition" none
refused "srun in a job where it is off" "zero is switched off" salloc -p test srun --zero true
refused "a variable of salloc where it is off" "zero is switched off" \
	env ZERO_ENABLED=yes salloc -p test srun true
yaml <<YAML
enabled: on
partitions:
  test: {enabled: opt-in}
YAML
ran "on for all but a partition" salloc -p test srun "$given"
stage_is "on for all but a partition" none
ran "on for all but a partition, by srun alone" srun -p test "$given"
stage_is "on for all but a partition, by srun alone" none
ran_batch "on for all but a partition, by sbatch" -p small -N 1 "$scratch/job.sh"
stage_is "on for all but a partition, by sbatch" 3

write_yaml "" <<'YAML'
partitions:
  small:
    enabled: on
    defaults: {stage: 9}
YAML
ran "a broken file that has zero on in a partition" srun "$given"
has_lines "a broken file that has zero on in a partition" 1 \
	"error: spank_zero: zero is not on, since .*zero.yaml:5:23: stage: '9'"

# ---- the line of srun -v

yaml <<YAML
nodes:
  n2: {defaults: {vram_reserve: 8%}}
YAML
echo 'gpu GPU-1 60G 80G Test Big 80GB' >"$scratch/n1.gpus"
ran "srun -v" srun -v -N 2 -n 4 -w n1,n2 --gres=gpu:1 --zero-stage=2 "$given"
rest="other options have their defaults"
has_lines "srun -v" 1 \
	"spank_zero: node n1: stage=2 from --zero-stage; $rest; NVML took [0-9]+ ms\$"
has_lines "srun -v" 1 \
	"spank_zero: node n2: stage=2 from --zero-stage, vram_reserve=8% from [^ ]*/n2/zero.yaml:4;"
ran "srun without -v" srun -N 2 -n 4 -w n1,n2 --zero-stage=2 "$given"
has_lines "srun without -v" 0 "spank_zero: node"

# ---- telemetry

said=$scratch/telemetry.json
yaml <<YAML
telemetry: $said
nodes:
  n1: {defaults: {vram_reserve: 8%}}
YAML
# shellcheck disable=SC1003,SC2016 # a backslash, and for the task's shell
run srun -N 2 -n 4 -w n1,n2 -A physics --gres=gpu:1 --zero-stage=2 --zero-report='a "b" \' \
	bash -c 'exit $((SLURM_PROCID == 0 ? 3 : 0))'
wait_for test -s "$said"
ran "a job without zero" srun -w n1 "$given"
ran "the step after that" srun --zero -w n3 "$given"
two_lines() {
	[[ $(wc -l <"$said") == 2 ]]
}
wait_for two_lines
perl -0777 -e '
	use JSON::PP;
	my ($first, $second) = map { decode_json($_) } split(/\n/, <STDIN>);
	my $said = sub { die "telemetry: $_[0]\n" };
	my %wanted = (step => 0, uid => 0, node => "n1", partition => "test", account => "physics",
		nodes => 2, tasks => 4, by => "user");
	$first->{$_} eq $wanted{$_} or $said->("$_ is $first->{$_}") for keys %wanted;
	$first->{time} =~ /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/ or $said->("time $first->{time}");
	$first->{failed} >= 1 && $first->{seconds} >= 0 or $said->("failed or seconds");
	exists $first->{nvml_ms} or $said->("no nvml_ms");
	my %options = (stage => 2, report => q(a "b" \\), vram_reserve => "8%");
	$first->{options}{$_} eq $options{$_} or $said->("$_ is $first->{options}{$_}")
		for keys %options;
	$first->{from}{stage} eq "--zero-stage" or $said->("stage from $first->{from}{stage}");
	$second->{node} eq "n3" && $second->{failed} == 0 or $said->("the second line");
	exists $second->{options}{stage} and $said->("an option at its default");
' <"$said" || fail "telemetry: $(<"$said")"
expect "the mode of telemetry" 600 "$(stat -c %a "$said")"

# long texts of users do not fill root's disk
long=$(printf '%02000d' 1)
ran "telemetry of a long text" srun -w n1 --zero-report="/$long" "$given"
three_lines() {
	[[ $(wc -l <"$said") == 3 ]]
}
wait_for three_lines
grep -q '"report":"/0*\.\.\."' <(tail -n 1 "$said") || fail "a long text: $(tail -n 1 "$said")"
(($(tail -n 1 "$said" | wc -c) < 1500)) || fail "a long text makes a line of $(wc -c <"$said")"

# what another user may have put in its place is left alone
rm "$said" && ln -s "$scratch/elsewhere" "$said"
ran "telemetry into a link" srun -w n1 --zero "$given"
tried() {
	grep -q "telemetry: $said cannot be opened" "$scratch/slurmd-n1.log" ||
		[[ -e $scratch/elsewhere ]]
}
wait_for tried
[[ ! -e $scratch/elsewhere ]] || fail "telemetry follows a link"
rm "$said" && : >"$scratch/elsewhere" && ln "$scratch/elsewhere" "$said"
ran "telemetry into a hard link" srun -w n1 --zero "$given"
tried_again() {
	grep -q "telemetry: $said is not a regular file of user 0 with one name" \
		"$scratch/slurmd-n1.log" ||
		[[ -s $said ]]
}
wait_for tried_again
[[ ! -s $said ]] || fail "telemetry writes to a file that has another name"

# Who listens to syslog here is the test; in a name space of its own it takes the place of another.
if [[ -n ${CLUSTER_ALONE-} ]]; then
	perl -MIO::Socket::UNIX -e '
		my $log = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => $ARGV[0]) or die;
		while (defined $log->recv(my $line, 65536)) { syswrite(STDOUT, "$line\n"); }
	' "$scratch/log" >"$scratch/syslog" &
	listener=$!
	wait_for test -S "$scratch/log"
	if [[ -e /dev/log ]]; then
		mount --bind "$scratch/log" /dev/log || fail "mount --bind over /dev/log"
	else
		ln -s "$scratch/log" /dev/log
		trap 'rm -f /dev/log; cluster_stop' EXIT
	fi
	yaml <<<"telemetry: syslog"
	ran "telemetry to syslog" srun -w n1 --zero-stage=1 "$given"
	# facility daemon, priority info
	wait_for grep -q '^<30>.*spank_zero: {"time":.*"node":"n1",.*"stage":"1".*}$' \
		"$scratch/syslog"
	kill "$listener"
fi

# ---- prolog and epilog

# said FILE JOB: what its script said of the job
said() {
	sed -n "s/^ *$2 //p" "$scratch/$1.said" | sort -u
}
: >"$scratch/prolog.said" && : >"$scratch/epilog.said"
yaml </dev/null
batch zero --zero-stage=2 -N 1 "$scratch/job.sh"
zero=$job
batch plain -N 1 "$scratch/job.sh"
plain=$job
wait_for are_over "$zero" "$plain"
for script in prolog epilog; do
	wait_for grep -q "^ *$zero " "$scratch/$script.said"
	wait_for grep -q "^ *$plain " "$scratch/$script.said"
	expect "$script of a zero job" "zero=user stage=2 origins=stage:--zero-stage" \
		"$(said "$script" "$zero")"
	expect "$script of another job" "zero=none none" "$(said "$script" "$plain")"
done

# ---- the options in the job's comment

if [[ $lua ]]; then
	comment() {
		scontrol show job "$1" | sed -n 's/^ *Comment=\(.*[^ ]\) *$/\1/p'
	}
	ZERO_OFFLOAD=optimizer batch comment --comment="first run" --zero-stage=2 -N 1 \
		"$scratch/job.sh"
	expect "the comment" "first run; zero by user: stage=2 offload=optimizer" \
		"$(comment "$job")"
	batch comment2 --zero -N 1 "$scratch/job.sh"
	expect "the comment of --zero" "zero by user: defaults" "$(comment "$job")"
	expect "the comment of a job without zero" "" "$(comment "$plain")"
	wait_for are_over "$job"
fi

# What a client of its own may send: the controller does not wait for long.
if [[ $lua ]] && command -v cc >/dev/null; then
	mkdir "$scratch/forged"
	cat >"$scratch/forged/forge.c" <<'C'
#include <stdlib.h>
#include <string.h>
#include <slurm/spank.h>

SPANK_PLUGIN(forge, 1)

int slurm_spank_init_post_opt(spank_t spank, int count, char **argument)
{
	enum { BYTES = 1 << 20 };
	char *text = malloc(BYTES);

	(void)count;
	(void)argument;
	memset(text, ' ', BYTES);
	memcpy(text, "one\n\033[31m", 9);
	text[BYTES - 1] = '\0';
	spank_job_control_setenv(spank, "ZERO", "user", 1);
	spank_job_control_setenv(spank, "ZERO_OPTIONS", text, 1);
	return ESPANK_SUCCESS;
}
C
	# shellcheck disable=SC2086 # several flags
	cc ${ZERO_COMPILE_FLAGS-} -w -shared -fPIC -o "$scratch/forged/forge.so" \
		"$scratch/forged/forge.c" || fail "cc failed"
	echo "required $scratch/forged/forge.so" >"$scratch/forged/plugstack.conf"
	sed "s|^PlugStackConfig=.*|PlugStackConfig=$scratch/forged/plugstack.conf|" \
		"$SLURM_CONF" >"$scratch/forged/slurm.conf"
	job=$(SLURM_CONF=$scratch/forged/slurm.conf timeout 50 sbatch --parsable -N 1 \
		-o /dev/null "$scratch/job.sh") || fail "sbatch with forged options does not end"
	said=$(comment "$job")
	[[ $said == "zero by user: one??[31m"* ]] || fail "the comment of forged options: $said"
	((${#said} < 600)) || fail "forged options make a comment of ${#said} bytes"
	wait_for are_over "$job"
fi
