#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The man pages have every option of the table and name none that is not there; they have no error
# of roff; and the example of zero.yaml(5) is a file that the reader takes.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need_command man
need_command col man
# a minimal image has a stand-in that prints how to get the pages back
[[ $(man --version 2>&1) == man\ [0-9]* ]] || skip man "this man shows no pages"
scratch
umask 022

# text PAGE: as a reader sees it, on long lines
text() {
	MANWIDTH=400 LC_ALL=C man -l "$top_builddir/doc/$1" | col -bx
}

for page in zerorun.1 zero.3 zero.yaml.5 zero_checkpoint.5 spank_zero.8; do
	complaint=$(man -l --warnings "$top_builddir/doc/$page" 2>&1 >/dev/null)
	[[ -z $complaint ]] || fail "$page: $complaint"
	if command -v mandoc >/dev/null; then
		complaint=$(mandoc -Tlint "$top_builddir/doc/$page" |
			grep -v -e STYLE -e 'missing date')
		[[ -z $complaint ]] || fail "$complaint"
	fi
	text "$page" >"$scratch/$page" || fail "$page cannot be read"
	if grep -n '@' "$scratch/$page"; then
		fail "$page: that was to be replaced"
	fi
done

# The table, read apart from the program that prints the lists.
table=$top_srcdir/lib/core/options_table.h
column() {
	sed -n "s/.*\.$1 = \"\([^\"]*\)\".*/\1/p" "$table" | sort
}
flags=$(column flag) variables=$(column env) names=$(column name)
[[ $flags == *--zero-stage* && $variables == *ZERO_STAGE* && $names == *master* ]] ||
	fail "$table was not understood"

# items PAGE PATTERN: what the page explains, from items such as "--zero-stage=0|1|2|3"
items() {
	sed -nE "s/^ +($2)[=:].*/\1/p" "$scratch/$1" | sort -u
}

same() {
	local differ
	differ=$(diff <(echo "$2") <(echo "$3")) || fail "$1: the table (<) and the page (>) differ:
$differ"
}

for page in zerorun.1 spank_zero.8; do
	same "$page" "$flags" "$(items "$page" '--zero-[a-z-]+')"
done
for page in zerorun.1 zero.3 spank_zero.8; do
	same "$page" "$variables" "$(items "$page" 'ZERO_[A-Z_]+' | grep -vx ZERO_ENABLED)"
done
# facts PAGE FROM TO: what the part of the page between two headings explains
facts() {
	sed -n "/^ *$2/,/^ *$3/p" "$scratch/$1" | sed -nE 's/^ +([a-z_]+)=.*/\1/p' | sort
}
said=$({
	sed -n '/^OPTIONS/,/^PRECEDENCE/p' "$scratch/zero.yaml.5" |
		sed -nE 's/^ +([a-z_]+): .*/\1/p'
	facts zero.3 Facts Variables
} | sort)
# what a user says by flag or variable alone has no key and is no fact
keys=$(while read -r name; do
	[[ $name == config ]] && continue
	# this one has a key and a variable
	[[ $name != protect_dir ]] &&
		grep -qx "ZERO_${name^^}" <<<"$variables" &&
		! grep -qx -e "--zero-${name//_/-}" <<<"$flags" &&
		continue
	echo "$name"
done <<<"$names")
same "keys and facts" "$keys" "$said"
differ=$(diff <(facts zero.3 Facts Variables) \
	<(facts spank_zero.8 'VARIABLES OF A TASK' CONTAINERS)) ||
	fail "zero.3 (<) and spank_zero.8 (>) differ in facts: $differ"

# zero.yaml(5) names the keys that ranks must agree on, and the backend.
agreed=$(sed -n '/^enum zero_agreement/,/AGREE_EQUAL/s/.*case ZERO_OPT_\([A-Z_]*\):.*/\1/p' \
	"$top_srcdir/lib/job/settings.c" | tr '[:upper:]' '[:lower:]')
listed=$(grep -o 'must agree on .*: if they are set' "$scratch/zero.yaml.5" | grep -oE '[a-z_]+')
for key in $(items zero.yaml.5 '[a-z_]+'); do
	grep -qx "$key" <<<"$agreed"$'\nbackend' || continue
	grep -qx "$key" <<<"$listed" || fail "zero.yaml(5): ranks must also agree on $key"
done

# No page speaks of a flag or variable that there is not.
others='--zero --zero- --no-zero ZERO_CHECKPOINT ZERO_ENABLED ZERO_MPIRUN ZERO_RESTART ZERO_RUN'
others+=' ZERO_LAUNCHER ZERO_RESOLVED ZERO_OK'
while read -r word; do
	grep -qxF -e "$word" <<<"$flags"$'\n'"$variables"$'\n'"${others// /$'\n'}" ||
		fail "a page names $word, which is no option"
done < <(cat "$scratch"/*.[1-8] | grep -oE -e '--(no-)?zero[a-z-]*' -e '\bZERO_[A-Z_]+' | sort -u)

# zero(3) lists what zero.h declares.
declared=$(sed -n '/^typedef/d; s/^[a-z].*\(zero_[a-z0-9_]*\)(.*/\1/p' "$top_srcdir/lib/zero.h" |
	sort)
listed=$(sed -n '/^FUNCTIONS/,/^RETURN/p' "$scratch/zero.3" |
	sed -nE 's/^ .*[ *](zero_[a-z0-9_]+)\(.*;$/\1/p' | sort)
same "zero.h" "$declared" "$listed"

# zerorun(1) has the options of zerorun --help.
helped=$("$ZERORUN" --help | grep -oE -e '--[a-z][a-z-]*' | sort -u)
paged=$(grep -oE -e '--[a-z][a-z-]*' "$scratch/zerorun.1" | sort -u)
missing=$(comm -23 <(echo "$helped") <(echo "$paged"))
[[ -z $missing ]] || fail "zerorun --help has these, zerorun.1 has not: $missing"

if have yaml; then
	sed -n '/^EXAMPLE/,/^FILES/p' "$scratch/zero.yaml.5" | sed '1d;$d; s/^       //' \
		>"$scratch/example.yaml"
	"$ZERORUN" --check-config "$scratch/example.yaml" >/dev/null ||
		fail "the example of zero.yaml(5) is refused"

	# the site's file with its examples in force, which are lines with a bare # in front
	sed -E '/^version/,$ s/^#(  |[a-z"])/\1/' "$top_srcdir/etc/zero.yaml" >"$scratch/site.yaml"
	"$ZERORUN" --check-config "$scratch/site.yaml" >/dev/null ||
		fail "an example of etc/zero.yaml is refused"
fi
