#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# smoke.sh with every subject that can be measured at any size.
subjects="partition sources load flatten gather downcast reduce adamw step save restore" most=4
# shellcheck source=tests/bench/smoke.sh
. "${top_srcdir:?run me by make check}/tests/bench/smoke.sh"
