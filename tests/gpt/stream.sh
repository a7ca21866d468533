#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# With --zero-stream=auto the embedding and head is whole on no rank: the losses, samples and
# evaluations are those of the whole but for rounding, either takes up what the other has saved, and
# less is gathered.
# shellcheck source=tests/gpt/gpt.sh
. "${top_srcdir:?run me by make check}/tests/gpt/gpt.sh"

need mpi
need files
# Each rank is as if on a node of its own, else nothing is gathered. The embedding is larger than
# all else, and the slices leave a rest.
export ZERO_SHARE=1 ZERO_CHECK=1 OPENBLAS_NUM_THREADS=1
model=(--text "$text" --layers 2 --heads 3 --width 60 --context 48 --vocab 5003)
train=("${model[@]}" --warmup 4 --lr 2e-3 --sample 5)

# streamed ARGUMENT...: as trains, in slices of $chunk
streamed() {
	ZERO_STREAM=auto ZERO_STREAM_THRESHOLD=1000K ZERO_STREAM_CHUNK=${chunk-128K} trains "$@"
}

# close WHAT FILE1 FILE2: two logs have as many losses, 1e-5 apart at most
close() {
	local worst
	worst=$(paste <(sed 's/.*"loss": \([^,]*\),.*/\1/' "$2") \
		<(sed 's/.*"loss": \([^,]*\),.*/\1/' "$3") | awk -v wanted="$steps" '
		{d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (!(d <= worst)) worst = d}
		END {print NF == 2 && NR == wanted ? worst + 0 : "missing"}')
	echo "$1: losses within $worst"
	awk -v worst="$worst" 'BEGIN {exit !(worst ~ /^[0-9]/ && worst < 1e-5)}' ||
		fail "$1: that is more than 1e-5"
}

# peak KIND LOG: bytes of the last step
peak() {
	tail -n 1 "$2" | sed "s/.*\"$1\": {\"now\": [0-9]*, \"peak\": \([0-9]*\)}.*/\1/"
}

# What is sampled, or the mean loss of an evaluation.
said() {
	grep '^mean loss' <<<"$1" || tail -n 1 <<<"$1"
}

for world in $(worlds 1 2 3); do
	batch=$((6 / world)) steps=8
	trains "$world" 3 "${train[@]}" --batch $batch --steps 8 --log "$scratch/whole" \
		--checkpoint "$scratch/from-whole"
	whole=$out
	streamed "$world" 3 "${train[@]}" --batch $batch --steps 8 --log "$scratch/streamed" \
		--checkpoint "$scratch/from-streamed"
	close "$world ranks" "$scratch/whole" "$scratch/streamed"
	[[ $(said "$whole") == $(said "$out") ]] ||
		fail "$world ranks sample $(said "$out"), not $(said "$whole")"
	if ((world == 1)); then
		cmp -s <(sed 's/.*"loss_bits": "\([0-9a-f]*\)".*/\1/' "$scratch/whole") \
			<(sed 's/.*"loss_bits": "\([0-9a-f]*\)".*/\1/' "$scratch/streamed") ||
			fail "1 rank, which has all: other losses"
	else
		for kind in gathered gradients; do
			less=$(peak $kind "$scratch/streamed") more=$(peak $kind "$scratch/whole")
			echo "$world ranks: $kind: $less bytes of $more"
			# A gradient's sums are its shard, and whole in neither.
			((less < more && less > 0)) || fail "$world ranks: $kind: $less of $more"
		done
		# A slice of all that the ranks store is in pieces, too.
		chunk=64M streamed "$world" 3 "${train[@]}" --batch $batch --steps 8 \
			--log "$scratch/one-slice"
		close "$world ranks, one slice" "$scratch/whole" "$scratch/one-slice"
		# The embedding has 1.2 MB, a block 0.18.
		((2 * $(peak gathered "$scratch/streamed") < 5003 * 60 * 4)) ||
			fail "$world ranks gather $(peak gathered "$scratch/streamed") bytes"
	fi
	# Each goes on with what the other has saved.
	steps=12
	trains "$world" 3 "${train[@]}" --batch $batch --steps 12 --log "$scratch/streamed" \
		--checkpoint "$scratch/from-streamed"
	streamed "$world" 3 "${train[@]}" --batch $batch --steps 12 --log "$scratch/whole" \
		--checkpoint "$scratch/from-whole"
	close "$world ranks, saved by the other" "$scratch/whole" "$scratch/streamed"
	# What both export is one model, by the names of Hugging Face.
	trains "$world" 3 "${train[@]}" --batch $batch --steps 0 \
		--export "$scratch/whole.safetensors"
	streamed "$world" 3 "${train[@]}" --batch $batch --steps 0 \
		--export "$scratch/streamed.safetensors"
	cmp "$scratch/whole.safetensors" "$scratch/streamed.safetensors" ||
		fail "$world ranks: other exports"
	grep -aq '"transformer.wte.weight"' "$scratch/streamed.safetensors" || fail "no wte"
	trains "$world" 3 "${model[@]}" --batch $batch --steps 3 --eval \
		--checkpoint "$scratch/from-whole"
	whole=$(said "$out")
	streamed "$world" 3 "${model[@]}" --batch $batch --steps 3 --eval \
		--checkpoint "$scratch/from-whole"
	[[ $whole == mean\ loss* ]] || fail "no mean loss: $whole"
	awk -v a="${whole##* }" -v b="$(said "$out" | sed 's/.* //')" 'BEGIN {
		d = (a - b) / a; exit !(d < 1e-5 && d > -1e-5)}' ||
		fail "$world ranks: $(said "$out"), not $whole"
	rm -rf "$scratch"/from-*
done
