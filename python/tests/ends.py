# SPDX-License-Identifier: Apache-2.0
"""ends.py WHAT: what the last rank does wrong, and nothing catches."""

import sys

from harness import Model, batches, loss_of, rank, shard, world

import torch

import slurm_zero as zero

what, last = sys.argv[1], rank == world - 1
model = Model()
if last and what == "shape":
    model.norm = torch.nn.LayerNorm(14)
if last and what == "more":
    model.extra = torch.nn.Linear(2, 2)
if last and what == "frozen":
    model.blocks[1].a.bias.requires_grad_(False)
if last and what == "refuses":
    model.extra = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))


def fail(*_):
    raise ArithmeticError("the user's own")


shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(3):
    if last and step == 1:
        if what == "forward":
            model.blocks[1].norm.register_forward_hook(fail)
        if what == "backward":
            model.blocks[1].norm.register_full_backward_hook(fail)
        if what == "between":
            fail()
        if what == "exit":
            sys.exit(3)
    if step == 1 and what == "exit":
        torch.distributed.barrier()
    loss_of(model, batches(step)[rank]).backward()
    optimizer.step()
    optimizer.zero_grad()
