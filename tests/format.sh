#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# No line of C, CUDA, Python or shell is wider than 100 columns, and all C is formatted as
# .clang-format says. Other versions of clang-format differ in details, so only this one judges.
version=14
. "${top_srcdir:?run me by make check}/tests/common.sh"

scratch
cd "$top_srcdir" || fail "no folder $top_srcdir"
folders=()
for folder in lib kernels launcher spank python examples tests; do
	[[ -d $folder ]] && folders+=("$folder")
done

# A Python of the tests lies below them, with files of its own; page_html.c is made of page.html.
wide_in='.c .h .cu .cuh .py .sh bootstrap'
for suffix in $wide_in; do
	find "${folders[@]}" bootstrap -name venv -prune -o -type f -name "*$suffix" \
		! -name page_html.c -print0
done >"$scratch/files"
while IFS= read -r -d '' file; do
	expand -t 8 "$file" | awk -v file="$file" \
		'length > 100 {print file ":" NR ": " length " columns, and 100 are allowed"}'
done <"$scratch/files" >"$scratch/wide"
[[ ! -s $scratch/wide ]] || fail "lines are too wide: $(<"$scratch/wide")"

for format in clang-format-$version clang-format ''; do
	[[ $format ]] || skip clang-format "there is no clang-format $version"
	[[ $("$format" --version 2>/dev/null) == *"version $version."* ]] && break
done

find "${folders[@]}" -name venv -prune -o -name '*.[ch]' -print0 |
	xargs -0 "$format" --style=file --dry-run --Werror ||
	fail "$format -i FILE makes these right"
