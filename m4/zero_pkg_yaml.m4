dnl SPDX-License-Identifier: Apache-2.0
dnl LibYAML reads zero.yaml.
AC_DEFUN([ZERO_PKG_YAML], [
ZERO_PKG([yaml], [YAML], [zero.yaml and the Slurm plugin], [yaml-0.1], ["-lyaml"],
	[yaml.h],
	[[yaml_parser_t parser; return !yaml_parser_initialize(&parser);]],
	[libyaml-dev or libyaml-devel])
])
