# SPDX-License-Identifier: Apache-2.0
SOAKS = tests/soak/train.sh tests/soak/slurm.sh
EXTRA_DIST += $(SOAKS) tests/soak/jobs.sh tests/soak/soak.sh

# An hour that loses many ranks, and has many jobs; then what is random, or kills, again and again
# with new seeds, until something fails: for a night.
check-soak:
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(SOAKS)'
	for round in `seq $${ROUNDS-100}`; do \
		echo "round $$round"; \
		ZERO_TEST_LONG=1 $(MAKE) $(AM_MAKEFLAGS) check TESTS='$(SOAK_TESTS)' || exit; \
	done
.PHONY: check-soak
