#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Bad input ends the job on all ranks, soon, with one sentence that says what is wrong.
# shellcheck source=tests/gpt/gpt.sh
. "${top_srcdir:?run me by make check}/tests/gpt/gpt.sh"

ranks=$(worlds 1 2 | tail -n 1)
world=$ranks
shape=(--layers 1 --heads 2 --width 16 --context 32 --steps 2)

# refused STATUS WORDS ARGUMENT...: one line on stderr by gpt, which has these words.
refused() {
	local want=$1 words=$2 said
	shift 2
	gpt "$world" 3 "$@"
	((status == want)) || fail "gpt $*: status $status is not $want: $out $err"
	said=$(grep -c '^gpt: ' "$scratch/err")
	((said == 1)) || fail "gpt $*: $said sentences, not 1: $err"
	grep '^gpt: ' "$scratch/err" | grep -qF -- "$words" ||
		fail "gpt $*: no '$words' in: $err"
}

# ---- flags, which are the same on all ranks

refused 2 '--txet is not a flag' --txet a
world=1
refused 2 'is not a flag' "$text"
refused 2 'one of --text and --tokens'
refused 2 'one of --text and --tokens' --text "$text" --tokens "$text"
refused 2 '--steps needs a value' --text "$text" --steps
refused 2 '--steps is "ten"' --text "$text" --steps ten
refused 2 '--batch is "0"' --text "$text" --batch 0
refused 2 '--batch is "1.5"' --text "$text" --batch 1.5
refused 2 '--lr is "-1"' --text "$text" --lr -1
refused 2 '--lr is "nan"' --text "$text" --lr nan
refused 2 '--optimizer is "sgd"; it must be adamw, adamw8bit or muon' --text "$text" --optimizer sgd
refused 2 '--eval takes no value' --text "$text" --eval=1
refused 2 "the model's shape is that of --model" --text "$text" --model "$scratch" --layers 2
refused 1 'width, 16, is not a multiple of the 3 heads' --text "$text" "${shape[@]}" --heads 3
refused 1 "--seq is 64; the model's context is 32" --text "$text" "${shape[@]}" --seq 64
refused 1 'the vocabulary is 100' --text "$text" "${shape[@]}" --vocab 100

# ---- text and tokens

world=$ranks # each rank finds it, and one of them says it
refused 1 "$scratch/none: No such file" --text "$text" "$scratch/none" "${shape[@]}"
world=1
refused 1 "$scratch is not a file" --text "$scratch" "${shape[@]}"
printf 'short' >"$scratch/short"
refused 1 "has 5 tokens; a sequence of 32 needs 33" --text "$scratch/short" "${shape[@]}"
refused 1 "5 bytes, not a whole number of 16-bit tokens" --tokens "$scratch/short" "${shape[@]}"
# Token 1000 = 0xe8 0x03 stands at position 500, which only the last rank's second step reads.
{
	head -c 1000 /dev/zero
	printf '\xe8\x03'
	head -c 1000 /dev/zero
} >"$scratch/tokens"
world=$ranks
refused 1 'token 500 is 1000; the vocabulary ends at 255' --tokens "$scratch/tokens" \
	"${shape[@]}" --batch 1 --steps 30
world=1
refused 1 "--log $scratch/none/log: No such file" --text "$text" "${shape[@]}" \
	--log "$scratch/none/log"
[[ ! -c /dev/full ]] ||
	refused 1 '--log: No space left' --text "$text" "${shape[@]}" --log /dev/full
refused 1 "$scratch/none/model.safetensors" --text "$text" "${shape[@]}" \
	--export "$scratch/none/model.safetensors"
[[ ! -e $scratch/none ]] || fail "a failed run left $scratch/none"

# ---- models

need jansson
model=$scratch/model
mkdir "$model"
world=$ranks
trains "$world" 3 --text "$text" "${shape[@]}" --steps 0 --export "$model/model.safetensors"
[[ -s $model/config.json ]] || fail "there is no config.json beside the export"
good=$model/model.safetensors config=$(<"$model/config.json")
gpt "$world" 3 --model "$model" --text "$text" --steps 1 --eval
((status == 0)) || fail "an exported model cannot be read: $err"

# edit FROM TO: the good model, with other words of the same length in its header
edit() {
	LC_ALL=C sed "1s/$1/$2/" "$good" >"$scratch/edited.safetensors"
	cmp -s "$good" "$scratch/edited.safetensors" && fail "no $1 to edit"
	mkdir -p "$scratch/edited"
	mv "$scratch/edited.safetensors" "$scratch/edited/model.safetensors"
	printf '%s\n' "$config" >"$scratch/edited/config.json"
}

damaged() {
	refused 1 "$1" --model "$scratch/edited" --text "$text" --steps 1
}

world=1
edit 'h\.0\.mlp\.c_fc\.weight' 'h.0.mlp.c_fc.heavy!'
damaged "no tensor there ('transformer.h.0.mlp.c_fc.weight')"
edit 'wte\.weight' 'wtf.weight'
damaged "have no tensor there ('wte.weight'"
edit '\[48\]' '[-8]'
damaged "$scratch/edited/model.safetensors"
head -c 2000 "$good" >"$scratch/edited/model.safetensors"
damaged "$scratch/edited/model.safetensors"
world=$ranks
head -c -4 "$good" >"$scratch/edited/model.safetensors"
damaged "$scratch/edited/model.safetensors"
world=1
: >"$scratch/edited/model.safetensors"
damaged "$scratch/edited/model.safetensors"
rm "$scratch/edited/model.safetensors"
damaged "$scratch/edited"

cp "$good" "$scratch/edited"
set_config() {
	printf '%s\n' "${config/"$1"/"$2"}" >"$scratch/edited/config.json"
	[[ $(<"$scratch/edited/config.json") != "$config" ]] || fail "no $1 to edit"
}
set_config '"n_embd": 16' '"n_embd": 32'
damaged 'transformer.wte.weight' # its shape is another
set_config '"n_embd": 16' '"n_embd": "16"'
damaged 'n_embd is not a whole number'
set_config '"n_layer": 1' '"n_layer": 2'
damaged "no tensor there ('transformer.h.1.ln_1.weight'"
set_config '"n_layer": 1,' ''
damaged 'n_layer is not a whole number'
set_config 'gelu_new' 'relu'
damaged 'activation_function is "relu"; only "gelu_new" is built here'
set_config '}' ''
damaged "$scratch/edited/config.json"
rm "$scratch/edited/config.json"
damaged "$scratch/edited/config.json"
