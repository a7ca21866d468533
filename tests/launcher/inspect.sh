#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zerorun --inspect: a checkpoint is shown and found whole; each damaged file and tensor is named.
# shellcheck source=tests/launcher/run.sh
. "${top_srcdir:?run me by make check}/tests/launcher/run.sh"

run "$ZERORUN" --inspect
is "$status" 2
has "$err" '--inspect needs a value'
run "$ZERORUN" --inspect "$scratch" true
is "$status" 2
has "$err" "'true' is one argument too many"
if ! have files; then
	run "$ZERORUN" --inspect "$scratch"
	is "$status" 1
	has "$err" 'built without'
	exit 0
fi
run "$ZERORUN" --inspect "$scratch/none"
is "$status" 1
has "$err" 'there is no checkpoint'
mkdir "$scratch/empty"
run "$ZERORUN" --inspect "$scratch/empty"
is "$status" 1
has "$err" 'there is no checkpoint'

need mpi
program=${top_builddir:?}/tests/ranks/restore.ranks
dir=$scratch/dir
export ZERO_TEST_SEED=$RANDOM ASAN_OPTIONS=${ASAN_OPTIONS-detect_leaks=0}
ZERO_BACKEND=host run "$ZERORUN" --zero-preload=no -n 2 "$program" save "$dir"
is "$status" 0
one=$dir/step-000000003

# ---- whole

run "$ZERORUN" --inspect "$one"
is "$status" 0
is "$err" ""
has "$out" "  step        3"
has "$out" "  ranks       2, stage "
has "$out" "  parameters  13 of "
has "$out" " of moments, "
has "$out" " states of the program, "
has "$out" "  optimizer   lr 0.01, beta1 0.9, beta2 0.95, eps 1e-08, weight_decay 0.1, clip 0"
has "$out" "  user        "
has "$out" "  rank-00001-of-00002.safetensors  "
has "$out" "  not damaged: "
has_not "$out" DAMAGED
mkdir "$dir/step-000000004.partial-0123456789abcdef" "$dir"/step-{999999999,1000000000}
run "$ZERORUN" --inspect="$dir"
is "$status" 0
is "$err" ""
has "$out" "step-000000003  complete: 2 ranks"
has "$out" "step-000000004.partial-0123456789abcdef  partial"
has "$out" "step-999999999  partial: has no manifest
  step-1000000000  partial: has no manifest"
has "$out" "latest -> step-000000003"
has "$out" "  not damaged: "

# ---- damaged

# damage FILE AT: changes a byte
damage() {
	local byte
	byte=$(od -An -tu1 -j "$2" -N 1 "$1")
	printf '%b' "$(printf '\\x%02x' $(((byte + 1) % 256)))" |
		dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

first=$one/rank-00000-of-00002.safetensors second=$one/rank-00001-of-00002.safetensors
cp -r "$dir" "$scratch/good"
bytes=$(stat -c %s "$first")
damage "$first" 20
damage "$first" $((bytes - 1))
damage "$second" $(($(od -An -tu8 -N 8 "$second") + 8))
damage "$one/user" 0
run "$ZERORUN" --inspect "$one"
is "$status" 1
has "$err" "rank-00000-of-00002.safetensors: the header is damaged"
has "$err" 'rank-00000-of-00002.safetensors: tensor "checksums" is damaged'
has "$err" 'rank-00001-of-00002.safetensors: tensor "param/'
has "$err" "user: the program's own bytes are damaged"
has "$out" "DAMAGED: 4 errors"
is "$(grep -c 'safetensors.*DAMAGED' <<<"$out")" 2
rm -r "$dir" && cp -r "$scratch/good" "$dir"

rm "$second"
truncate -s -1 "$first"
run "$ZERORUN" --inspect "$one"
is "$status" 1
has "$err" "rank-00001-of-00002.safetensors: is missing"
has "$err" "rank-00000-of-00002.safetensors: has $((bytes - 1)) bytes, but the manifest says $bytes"
rm -r "$dir" && cp -r "$scratch/good" "$dir"

damage "$one/manifest.json" 100
run "$ZERORUN" --inspect "$dir"
is "$status" 1
has "$out" "step-000000003  DAMAGED"
has "$err" "the manifest is damaged"
rm -r "$dir" && cp -r "$scratch/good" "$dir"

ln -sfn step-000000009 "$dir/latest"
run "$ZERORUN" --inspect "$dir"
is "$status" 1
has "$err" "is a link to 'step-000000009', where there is no checkpoint"
ln -sfn $'x\e[31m\nzerorun: forged' "$dir/latest"
run "$ZERORUN" --inspect "$dir"
has "$err" "is a link to 'x?[31m?zerorun: forged', where there is no checkpoint"
has "$out" "  not damaged: "
