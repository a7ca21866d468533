#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zerorun --check-config and --show-config: a file is valid or refused with its line, and each
# option is shown with where its value came from.
# shellcheck source=tests/launcher/run.sh
. "${top_srcdir:?run me by make check}/tests/launcher/run.sh"

# refused STATUS WORDS ARGUMENT...: one line on stderr that has the words, and nothing on stdout
refused() {
	local want=$1 words=$2
	shift 2
	run "$ZERORUN" "$@"
	is "$status" "$want"
	is "$out" ""
	has "$err" "$words"
	[[ $err == zerorun:* && $err != *$'\n'* ]] || fail "not one line of zerorun's: $(shown)"
}

# row NAME VALUE FROM: that line of the table
row() {
	local line
	line=$(grep "^$1 " <<<"$out") || fail "line ${BASH_LINENO[0]}: no row $1; $(shown)"
	read -r _ value from <<<"$line"
	[[ $value == "$2" && $from == "$3" ]] ||
		fail "line ${BASH_LINENO[0]}: $1 is '$value' from '$from', not '$2' from '$3'"
}

# ---- usage

yaml=$scratch/zero.yaml
refused 2 '--check-config needs a value' --check-config
refused 2 "--check-config runs no program: 'true' is one argument too many" --check-config "$yaml" \
	true
refused 2 "--show-config runs no program: 'true'" --show-config "$yaml" --node n1 true
refused 2 '--node needs a value' --show-config --node
refused 2 'can be given with --show-config alone' --node n1 true
refused 2 '--check-config and --show-config cannot be given together' --check-config "$yaml" \
	--show-config

if ! have yaml; then
	refused 1 'built without libyaml' --check-config "$yaml"
	refused 1 'built without libyaml' --show-config "$yaml"
	exit 0
fi

# ---- a valid file

cat >"$yaml" <<END
version: 1
enabled: opt-in
defaults:
  stage: 2
  stream_chunk: 8M
limits:
  stream_chunk: {min: 1M, max: 64M}
locked: [backend]
env:
  NCCL_SOCKET_IFNAME: ib0
  NCCL_DEBUG: WARN
gpus:
  "NVIDIA A100*":
    defaults:
      flatten: host
partitions:
  debug:
    limits:
      stream_chunk: {max: 4M}
nodes:
  "n[1-3]":
    defaults:
      vram_reserve: 10%
    env:
      NCCL_SOCKET_IFNAME: eth0
END
run "$ZERORUN" --check-config "$yaml"
is "$status" 0
is "$out" "$yaml: valid
zero is opt-in; for all nodes: stage, stream_chunk"
is "$err" ""
printf 'version: 1\nenabled: off\n' >"$scratch/plain.yaml"
run "$ZERORUN" --check-config "$scratch/plain.yaml"
is "$out" "$scratch/plain.yaml: valid
zero is off; for all nodes: the compiled defaults"
ZERO_STAGE=9 run "$ZERORUN" "--check-config=$yaml"
is "$status" 0

run "$ZERORUN" --show-config "$yaml"
is "$status" 0
is "$err" ""
row stage 2 "$yaml:4"
row stream_chunk 8388608 "$yaml:5"
row flatten auto default
row vram_reserve 5% default
row preload_path - default
row python yes default
has "$out" "
enabled: opt-in, from $yaml:2"
has "$out" 'NCCL_SOCKET_IFNAME=ib0'
has "$out" 'NCCL_DEBUG=WARN'
# all options, and no facts, which nobody has found out yet
facts=$(grep -c '\.where = ZERO_IN_RESOLVED,' "$top_srcdir/lib/core/options_table.h")
is "$(sed '1d; /^$/,$d' <<<"$out" | wc -l)" \
	$(($(grep -c '\.name = ' "$top_srcdir/lib/core/options_table.h") - facts))
row gather_limit auto default
row share 0 default

# ---- sections, and the user's own words

run "$ZERORUN" "--show-config=$yaml" --node n2 --gpu 'NVIDIA A100-SXM4-40GB'
is "$status" 0
row vram_reserve 10% "$yaml:23"
row flatten host "$yaml:15"
has "$out" 'NCCL_SOCKET_IFNAME=eth0'
[[ $out != *ib0* ]] || fail "a variable occurs twice: $(shown)"
run "$ZERORUN" --show-config "$yaml" --node=n4 --gpu='NVIDIA H100 80GB HBM3'
row vram_reserve 5% default
row flatten auto default

# held to a limit, since no user said it
run "$ZERORUN" --show-config "$yaml" --partition=debug
is "$status" 0
is "$(grep -c '^stream_chunk  *4194304 ' <<<"$out")" 1
has "$out" "$yaml:19"

ZERO_STAGE=1 ZERO_BUCKET=2M run "$ZERORUN" --show-config "$yaml" --zero-bucket 4M
is "$status" 0
row stage 1 ZERO_STAGE
row bucket 4194304 --zero-bucket
ZERO_SHARE=2 ZERO_CHECK=1 ZERO_OFFLOAD=optimizer run "$ZERORUN" --show-config "$yaml" \
	--zero-gather-limit=3M --zero-gather-dtype=bf16
is "$status" 0
row share 2 ZERO_SHARE
row check 1 ZERO_CHECK
row offload optimizer ZERO_OFFLOAD
row gather_limit 3145728 --zero-gather-limit
row gather_dtype bf16 --zero-gather-dtype

printf 'version: 1\ndefaults:\n  stage: 0\n  flatten: host\n' >"$scratch/own.yaml"
ZERO_STAGE=1 run "$ZERORUN" --show-config "$yaml" "--zero-config=$scratch/own.yaml"
is "$status" 0
row stage 1 ZERO_STAGE
row flatten host "$scratch/own.yaml:4"
row config "$scratch/own.yaml" --zero-config

# ---- refused, as the plugin would

refused 1 "--zero-stream-chunk" --show-config "$yaml" --zero-stream-chunk=128M
has "$err" "$yaml:7"
run "$ZERORUN" --show-config "$yaml" --zero-stream-chunk=8M
is "$status" 0
refused 1 "$yaml:19" --show-config "$yaml" --partition debug --zero-stream-chunk=8M
refused 1 "$yaml:8" --show-config "$yaml" --zero-backend=host
ZERO_BACKEND=host refused 1 ZERO_BACKEND --show-config "$yaml"
refused 2 "--zero-stage: '7'" --show-config "$yaml" --zero-stage=7
ZERO_STAGE=7 refused 2 "ZERO_STAGE: '7'" --show-config "$yaml"
printf 'version: 1\nlocked: [stage]\n' >"$scratch/own.yaml"
refused 1 "$scratch/own.yaml:2:1: " --show-config "$yaml" "--zero-config=$scratch/own.yaml"

# ---- wrong files

refused 1 "$scratch/none.yaml: " --check-config "$scratch/none.yaml"
printf 'version: 1\ndefaults:\n  stge: 1\n' >"$scratch/bad.yaml"
refused 1 "$scratch/bad.yaml:3:3: there is no option 'stge': did you mean stage?" \
	--check-config "$scratch/bad.yaml"
refused 1 "$scratch/bad.yaml:3:3: " --show-config "$scratch/bad.yaml"
printf 'version: 1\ndefaults:\n  share: 1\n' >"$scratch/bad.yaml"
refused 1 "$scratch/bad.yaml:3:3: share cannot be set in a file: use ZERO_SHARE" \
	--check-config "$scratch/bad.yaml"
printf 'version: 1\nenabled: maybe\n' >"$scratch/bad.yaml"
refused 1 "$scratch/bad.yaml:2:10: " --check-config "$scratch/bad.yaml"
chmod 666 "$yaml"
refused 1 "$yaml: " --check-config "$yaml"
exit 0
