# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: what zero.plan says of a model, whole, on meta or sharded, is what a rank then
has; nothing is allocated and no job opened for it."""

import contextlib
import io
import os

import torch
from torch import nn

import harness
import slurm_zero as zero
from harness import Model, batches, device, expect, loss_of, rank, shard, world
from slurm_zero import _zero

stage = int(_zero.setting("stage"))
share = int(_zero.setting("share"))
streamed = _zero.setting("stream") == "auto"  # all matrices, by whole rows
harness.WIDTH = 1024 if streamed else 130  # some pages
words = ("streamed parameters, at stage 3: 8, the largest embed.weight of 124K in slices of 16.0K"
         if streamed else "without activations")


def planned(model, settings=""):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        plan = zero.plan(model, [1, world], [0, stage], share=share, settings=settings)
    assert out.getvalue() == f"{plan}\n" and f"stage {stage}" in str(plan), out.getvalue()
    assert words in str(plan) or settings and "streamed" not in str(plan), str(plan)
    assert plan[0, 1]["shards"] == plan[stage, 1]["shards"]
    return plan[stage, world]


with torch.device("meta"):
    plan = planned(Model())
assert plan == planned(Model())
whole = planned(Model(), "stream=no")
assert whole == plan or streamed and whole["gathered"] > 3 * plan["gathered"], (whole, plan)
assert planned(Model(), "states=8bit")["optimizer"] < plan["optimizer"] / 2
model = Model().to(device)
shard(model)
assert plan == planned(model), "groups of fully_shard are those of the plan"
before = zero.memory()["caller"][0]
optimizer = zero.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    loss_of(model, batches(step)[rank].to(device)).backward()
    optimizer.step()
    optimizer.zero_grad()
found = {kind: most for kind, (_, most) in zero.memory().items()}
if device.type != "cpu" and stage == 3:  # rounded up to 2 MB
    assert found["gathered"] == 3 << 21 and 3 * plan["gathered"] > plan["shards"], found
    found["total"] -= found["gathered"] - plan["gathered"]
elif share == 1 and stage == 3:  # a prefetch may come when the layer before is gone
    assert 0.6 * plan["gathered"] < found["gathered"] <= plan["gathered"], (plan, found)
for kind in ("shards", "optimizer"):
    assert plan[kind] == found[kind], (kind, plan, found)
assert found["total"] - found["caller"] <= plan["total"], (plan, found)
if streamed:
    assert plan == planned(model, "stream=no"), "it is sharded already"
assert found["gradients"] <= plan["gradients"] <= 2 * found["gradients"], (plan, found)
wrong = nn.Linear(2, 2, dtype=torch.complex64)
expect(ValueError, "parameter weight is torch.complex64", lambda: zero.plan(wrong))
expect(zero.Error, "stage", lambda: zero.plan(model, stages=[7]))
expect(zero.Error, "world 0", lambda: zero.plan(model, ranks=[0]))
if rank == 0:
    print(f"ok, as planned at stage {stage}, {os.environ.get('ZERO_TEST_DEVICE', 'cpu')}")
