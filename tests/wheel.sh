#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pip wheel ./python, and that wheel in an environment of its own of each Python of
# ZERO_TEST_PYTHONS, or of TORCH_PYTHON alone: without anything of the build the package finds its
# library, the library its modules, and the environment's zerorun starts two ranks of it. Where the
# Python has torch, these train the README's model and restore it. Nothing is left when pip
# uninstalls it. ZERO_TEST_WHEEL names a wheel that was built elsewhere.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need mpi
need_command python3
[[ -e $top_builddir/python/slurm_zero/_zero.abi3.so ]] ||
	skip python3 "this build has no Python package"
# pip builds in the sources.
[[ $top_srcdir -ef $top_builddir ]] || skip python3 "this build is not in the sources"
scratch
# A machine that does much else takes long to end a Python with torch.
export ZERO_END_SECONDS=600
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHONPATH

cat >"$scratch/place.py" <<'PYTHON'
import importlib.util
import os
import re

# without torch only the extension can be imported
package = importlib.util.find_spec("slurm_zero").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("_zero", os.path.join(package, "_zero.abi3.so"))
zero = importlib.util.module_from_spec(spec)
spec.loader.exec_module(zero)
zero.open("backend=host", 0)
with open("/proc/self/maps", encoding="utf-8") as file:
    loaded = {line.split()[-1] for line in file if re.search(r"/(lib|_)?zero[._][^/]*$", line)}
rank, world = zero.place()[:2]
with open(f"rank{rank}", "w", encoding="utf-8") as file:
    print(f"rank {rank} of {world}", *sorted(loaded), file=file)
zero.close()
PYTHON
# The README's program, and what goes on from where it has ended.
sed -n '/^```python$/,/^```$/p' "$top_srcdir/README.md" | sed '1d;/^```$/,$d' >"$scratch/train.py"
cat >>"$scratch/train.py" <<'PYTHON'
assert zero.__file__.startswith(__import__("sys").prefix), zero.__file__
PYTHON
sed 's/^for step/zero.restore(model, optimizer, "saved")\n&/' "$scratch/train.py" \
	>"$scratch/restore.py"
sources=$(cd "$top_srcdir/python" && pwd)
[[ ! ${ZERO_TEST_WHEEL-} ]] || cp "$ZERO_TEST_WHEEL" "$scratch" || fail "no wheel"
cd "$scratch" || fail "no folder"

# files: those of the environment, without what pip's own runs leave
files() {
	find venv ! -path '*/pip/*' ! -name torch.pth | sort
}

# places: both ranks have loaded the environment's library and module, and no other
places() {
	local flag rank line file
	for flag in --zero-preload=yes --zero-preload=no; do
		venv/bin/zerorun -n 2 "$flag" venv/bin/python place.py >out 2>&1 ||
			fail "two ranks: $(<out)"
		for rank in 0 1; do
			line=$(grep "^rank $rank of 2 " "rank$rank") ||
				fail "rank $rank: $(<"rank$rank") $(<out)"
			for file in ${line#* of 2 }; do
				[[ $file == "$(realpath venv)"/* ]] ||
					fail "rank $rank has loaded $file"
			done
		done
		[[ $(cat rank0 rank1 |
			grep -c "venv/lib/libzero.so.2 .*lib/slurm-zero/zero_host.so") == 2 ]] ||
			fail "what was loaded: $(cat rank0 rank1)"
		rm rank0 rank1
	done
}

# train PROGRAM: leaves its five losses, which fall, in the file losses
train() {
	venv/bin/zerorun -n 2 venv/bin/python "$1" >out 2>&1 || fail "$1: $(<out)"
	sed -n 's/^step [0-4]: loss //p' out >losses
	[[ $(wc -l <losses) == 5 ]] && sort -grc losses 2>>out || fail "$1: $(<out)"
}

# try_wheel PYTHON: in an environment of this Python, which also has the packages of PYTHON's own
try_wheel() {
	local packages
	rm -rf venv saved
	"$1" -m venv venv >out 2>&1 || skip python3 "no venv: $(<out)"
	[[ -e $(echo slurm_zero-*.whl) ]] ||
		venv/bin/pip wheel --no-index --no-deps "$sources" >out 2>&1 ||
		fail "pip wheel: $(tail -20 out)"
	files >before
	venv/bin/pip install --no-index --no-deps slurm_zero-*.whl >out 2>&1 ||
		fail "pip install: $(<out)"
	# What torch calls.
	venv/bin/python -c 'if True:
		from importlib.metadata import entry_points
		found = [entry for entry in entry_points(group="torch.backends")]
		print([entry.value for entry in found if entry.name == "slurm_zero"])' >out 2>&1
	[[ $(<out) == "['slurm_zero._start:begin']" ]] || fail "what torch calls: $(<out)"
	places
	if [[ ${ZERO_TEST_PYTHONS-}${TORCH_PYTHON-} ]]; then
		# After the environment's own packages, which may include another slurm_zero.
		packages='import sysconfig; print(sysconfig.get_path("platlib"))'
		"$1" -c "$packages" >"$(venv/bin/python -c "$packages")/torch.pth"
		! venv/bin/pip check 2>&1 | grep slurm-zero || fail "pip check"
		train train.py
		mv losses trained
		train restore.py
		cat trained losses | sort -grc || fail "no losses that fall: $(cat trained losses)"
	fi
	venv/bin/pip uninstall -y slurm-zero >out 2>&1 || fail "pip uninstall: $(<out)"
	files | diff before - >out || fail "pip uninstall leaves: $(<out)"
	"$1" -c 'if True:
		import importlib.metadata as m, sys
		torch = [d.version for d in m.distributions(name="torch")] or ["none"]
		print("Python", sys.version.split()[0], "torch", torch[0])'
}
for python in ${ZERO_TEST_PYTHONS:-${TORCH_PYTHON:-python3}}; do
	try_wheel "$python"
done
[[ ${ZERO_TEST_PYTHONS-} ]] || need_torch
