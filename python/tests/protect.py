# SPDX-License-Identifier: Apache-2.0
"""protect.py FILE STEPS [RANK STEP]: trains with dropout, two optimizers and a scheduler, protects
after each step, and appends a line for each loss to FILE. The rank is killed in the backward pass
of that step. What is restored goes on with the same bits. With GATES=FOLDER every tenth step begins
when the folder has a file of its number."""

import os
import random
import signal
import sys
import time

import numpy
import torch
from torch import nn

import slurm_zero as zero

path, steps = sys.argv[1], int(sys.argv[2])
victim, last = (int(a) for a in sys.argv[3:]) if len(sys.argv) > 3 else (-1, -1)
torch.set_num_threads(1)
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(7, 64), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.Linear(64, 3))
zero.fully_shard(model[0])
zero.fully_shard(model)
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
first = torch.optim.AdamW(model[0].parameters(), lr=1e-2)
second = zero.AdamW8bit([*model[1].parameters(), *model[3].parameters()], lr=1e-2)
scheduler = torch.optim.lr_scheduler.ExponentialLR(first, 0.9)
# Each rank its own.
torch.manual_seed(5 + rank)
random.seed(rank)
numpy.random.seed(rank)


def extra():
    if last == -2 and rank == world - 1:
        raise ValueError("no more to say")
    return {"scheduler": scheduler.state_dict()}


for bad in ({"every": -1}, {"every": 1.5}):
    try:
        zero.protect(model, first, **bad)
    except ValueError as error:
        assert "it must be a whole number" in str(error)
    else:
        raise AssertionError(f"{bad} is taken")
try:
    zero.protect(model, None)
except ValueError as error:
    assert "needs the optimizer" in str(error)
else:
    raise AssertionError("it protects without an optimizer")

found = zero.protect(model, [first, second], every=1, extra=extra)
begun = 0
if found:
    assert set(found) == {"path", "step", "extra"}, found
    scheduler.load_state_dict(found["extra"]["scheduler"])
    scheduler.step()
    begun = found["step"] // 2
    if rank == 0:
        with open(path, "a", encoding="utf-8") as file:
            print("from", begun, world, file=file)
gates = os.environ.get("GATES")
for step in range(begun, steps):
    while gates and step % 10 == 0 and not os.path.exists(f"{gates}/{step}"):
        time.sleep(0.001)
    x = torch.randn(12, 7) + random.gauss(0, 1) + numpy.random.standard_normal()
    loss = model(x).square().mean()
    if rank == victim and step == last:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    try:
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    except (ValueError, zero.Error) as error:
        assert last == -2 and "no more to say" in str(error), error
        print("all ranks are told")
        sys.exit(0)
    scheduler.step()
    value = torch.tensor(loss.item(), dtype=torch.float64)
    torch.distributed.all_reduce(value)
    if rank == 0:
        with open(path, "a", encoding="utf-8") as file:
            print("step", step, value.item().hex(), file=file)
assert last != -2, "extra failed on one rank, and nobody was told"
