# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034 # what is unused here is for those who read this
# The options as `zerorun --help` lists them, and values to try each with, so that a new option is
# tested without a word here.
: "${ZERORUN:?}" "${scratch:?}"

names=() # as in YAML; without config, which names a file with the others
declare -A argument_of default_of help_of flag_of variable_of

read_table() {
	local flag argument default help name
	while IFS=$'\t' read -r flag argument default help; do
		name=${flag#--zero-}
		name=${name//-/_}
		argument_of[$name]=$argument default_of[$name]=${default#-}
		help_of[$name]=$help
		flag_of[$name]=$flag variable_of[$name]=ZERO_${name^^}
		[[ $name == config ]] || names+=("$name")
	done < <("$ZERORUN" --help | awk '
		function row() {
			if (!flag)
				return
			gsub(/ +/, " ", text)
			sub(/^ /, "", text)
			fallback = "-"
			if (match(text, /\([^()]*\)$/))
				fallback = substr(text, RSTART + 1, RLENGTH - 2)
			print flag "\t" argument "\t" fallback "\t" text
			flag = ""
		}
		/^ *--zero-[a-z-]*=/ {
			row()
			at = index($1, "=")
			flag = substr($1, 1, at - 1)
			argument = substr($1, at + 1)
			$1 = ""
			text = $0
			next
		}
		/^$/ { row() }
		flag { text = text " " $0 }')
	[[ ${#names[@]} -gt 10 && ${flag_of[config]-} == --zero-config ]] ||
		fail "zerorun --help has no table of options"
}

# value NAME LAYER: into $value, another one than the layer below has; layer 0 has the compiled
# default. Layer 8 is another one than the layers 1 to 4 have where there are enough values.
value() {
	local choices at
	value=${default_of[$1]}
	(($2)) || return 0
	case ${argument_of[$1]} in
	SIZE | "SIZE|auto") value=$(($2 + 1))M ;;
	"SIZE|PERCENT%") (($2 % 2)) && value=$((10 + $2))% || value=$2M ;;
	"no|PERCENT") value=$(($2 + 20)) ;;
	DIR) value="$scratch/report $2%" ;;
	*"|"*)
		IFS='|' read -ra choices <<<"${argument_of[$1]}"
		for at in "${!choices[@]}"; do
			[[ ${choices[at]} == "${default_of[$1]}" ]] && break
		done
		value=${choices[(at + $2 * (${#choices[@]} - 1)) % ${#choices[@]}]}
		[[ $value != N ]] || value=2
		;;
	*) fail "${flag_of[$1]}=${argument_of[$1]}: the test knows no values for it" ;;
	esac
}

# bytes SIZE: into $bytes; what is no size stays as it is
bytes() {
	bytes=$1
	if [[ $1 =~ ^([0-9]+)([KMGT])$ ]]; then
		case ${BASH_REMATCH[2]} in
		K) bytes=$((BASH_REMATCH[1] << 10)) ;;
		M) bytes=$((BASH_REMATCH[1] << 20)) ;;
		G) bytes=$((BASH_REMATCH[1] << 30)) ;;
		T) bytes=$((BASH_REMATCH[1] << 40)) ;;
		esac
	fi
}

# flags LAYER and variables LAYER: all options, into the arrays $flags and $variables
flags() {
	local name
	flags=()
	for name in "${names[@]}"; do
		value "$name" "$1"
		flags+=("${flag_of[$name]}=$value")
	done
}

variables() {
	local name
	variables=()
	for name in "${names[@]}"; do
		value "$name" "$1"
		variables+=("${variable_of[$name]}=$value")
	done
}

# defaults LAYER [INDENT]: a section of that name with all options
defaults() {
	local name indent=${2-}
	echo "${indent}defaults:"
	for name in "${names[@]}"; do
		value "$name" "$1"
		echo "$indent  $name: \"$value\""
	done
}
