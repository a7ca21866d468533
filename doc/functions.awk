# SPDX-License-Identifier: Apache-2.0
# From zero.h, as roff: the functions it declares, under the headings of its parts.
/^\/\* ---- / {
	heading = $0
	sub(/^\/\* -+ /, "", heading)
	sub(/ -+ \*\/$/, "", heading)
	next
}
# a declaration begins at the margin and ends with a semicolon, maybe some lines further on
declaration == "" && (!/^[a-z].*[ *]zero_[a-z0-9_]*\(/ || /^typedef/) { next }
{
	sub(/\/\*.*/, "")
	gsub(/[ \t]+/, " ")
	declaration = declaration $0
}
declaration ~ /; *$/ {
	sub(/ *$/, "", declaration)
	name = declaration
	sub(/\(.*/, "", name)
	sub(/^.*[ *]/, "", name)
	at = index(declaration, name "(")
	if (heading != shown) {
		if (shown != "")
			print ".fi"
		printf ".SS \"%s\"\n.nf\n", heading
		shown = heading
	}
	print substr(declaration, 1, at - 1) "\\fB" name "\\fR" substr(declaration, at + length(name))
	declaration = ""
}
END {
	if (shown == "" || declaration != "") {
		print "functions.awk: this is not zero.h" | "cat >&2"
		exit 1
	}
	print ".fi"
}
