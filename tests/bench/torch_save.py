#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_save.py fsdp2|zero FOLDER, on each rank: how long a save in the background holds training up.

It prints the median of milliseconds that the save and the steps after it took, beyond as many steps
without one: of FSDP2 with torch.distributed.checkpoint's async_save, or of slurm_zero.save. 25 million
parameters in f32 and both of AdamW's states, 300 MB in all.
"""
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import slurm_zero as zero

ROUNDS, STEPS = 3, 8
kind, folder = sys.argv[1:]
torch.set_num_threads(1)
zero.init()
rank, beside = dist.get_rank(), dist.new_group()
torch.manual_seed(1)
model = nn.Sequential(*(layer for _ in range(24) for layer in (nn.Linear(1024, 1024), nn.GELU())))
shard = torch.distributed.fsdp.fully_shard if kind == "fsdp2" else zero.fully_shard
for layer in model[::2]:
    shard(layer)
shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(64, 1024)


def steps():
    for _ in range(STEPS):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()


def begin():
    """Begins a save; what it returns waits for it."""
    if kind == "zero":
        zero.save(model, optimizer, folder, background=True)
        return zero.save_wait
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    return dcp.async_save(state, checkpoint_id=f"{folder}/dcp", process_group=beside).result


def measure():
    dist.barrier()
    start = time.monotonic()
    steps()
    middle = time.monotonic()
    wait = begin()
    called = time.monotonic()
    steps()
    end = time.monotonic()
    wait()
    dist.barrier()
    waited = time.monotonic()
    if rank == 0:
        shutil.rmtree(folder)
    dist.barrier()
    # The pause, and for who looks closer: the call, what it then waited, the steps.
    return [1e3 * t for t in (end - middle - (middle - start), called - middle, waited - end, middle - start)]


steps()
measured = [measure() for _ in range(ROUNDS)]
if rank == 0:
    print(*(f"{statistics.median(times):.1f}" for times in zip(*measured)))
