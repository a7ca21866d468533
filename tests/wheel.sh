#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pip install ./python: in an environment of its own, without anything of the build, the package
# finds its library, the library its modules, and the environment's zerorun starts two ranks of it.
# With TORCH_PYTHON, which names a Python with torch, these train a model.
. "${top_srcdir:?run me by make check}/tests/common.sh"
need mpi
need_command python3
[[ -e $top_builddir/python/slurm_zero/_zero.abi3.so ]] ||
	skip python3 "this build has no Python package"
# pip builds in the sources.
[[ $top_srcdir -ef $top_builddir ]] || skip python3 "this build is not in the sources"
scratch
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PYTHONPATH

"${TORCH_PYTHON:-python3}" -m venv "$scratch/venv" >"$scratch/out" 2>&1 ||
	skip python3 "no venv: $(<"$scratch/out")"
"$scratch/venv/bin/pip" install --no-index --no-deps "$top_srcdir/python" >"$scratch/out" 2>&1 ||
	fail "pip install: $(tail -20 "$scratch/out")"

"$scratch/venv/bin/python" -c '
from importlib.metadata import entry_points

print([entry.value for entry in entry_points(group="torch.backends") if entry.name == "slurm_zero"])
' >"$scratch/out" 2>&1
[[ $(<"$scratch/out") == "['slurm_zero._start:begin']" ]] ||
	fail "what torch calls: $(<"$scratch/out")"

cat >"$scratch/program.py" <<'PYTHON'
import importlib.util
import os

# without torch only the extension can be imported
package = importlib.util.find_spec("slurm_zero").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("_zero", os.path.join(package, "_zero.abi3.so"))
zero = importlib.util.module_from_spec(spec)
spec.loader.exec_module(zero)
zero.open("backend=host", 0)
with open("/proc/self/maps", encoding="utf-8") as file:
    loaded = sorted({line.split()[-1] for line in file if "zero" in line and ".so" in line})
rank, world = zero.place()[:2]
with open(f"rank{rank}", "w", encoding="utf-8") as file:
    print(f"rank {rank} of {world}", *loaded, file=file)
zero.close()
PYTHON
cd "$scratch" || fail "no folder"
for flag in --zero-preload=yes --zero-preload=no; do
	venv/bin/zerorun -n 2 "$flag" venv/bin/python program.py >out 2>&1 ||
		fail "two ranks: $(<out)"
	for rank in 0 1; do
		line=$(grep "^rank $rank of 2 " "rank$rank") ||
			fail "rank $rank: $(<"rank$rank") $(<out)"
		for file in ${line#* of 2 }; do
			[[ $file == "$(realpath venv)"/* ]] || fail "rank $rank has loaded $file"
		done
	done
	[[ $(cat rank0 rank1 |
		grep -c "venv/lib/libzero.so.2 .*venv/lib/slurm-zero/zero_host.so") == 2 ]] ||
		fail "what was loaded: $(cat rank0 rank1)"
	rm rank0 rank1
done

need_torch
# After the environment's own packages, since those of torch may include another slurm_zero.
packages='import sysconfig; print(sysconfig.get_path("platlib"))'
"$TORCH_PYTHON" -c "$packages" >"$(venv/bin/python -c "$packages")/torch.pth"
cat >train.py <<'PYTHON'
import slurm_zero as zero
import torch

torch.manual_seed(0)
model = zero.fully_shard(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.ones(2, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item()}", torch.distributed.get_world_size(), zero.__file__)
PYTHON
venv/bin/zerorun -n 2 venv/bin/python train.py >out 2>&1 || fail "training: $(<out)"
[[ $(grep -c " 2 $(realpath venv)/lib" out) == 6 ]] || fail "training: $(<out)"
