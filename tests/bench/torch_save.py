#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a save in the background holds training up, beside torch.distributed.checkpoint's
async_save.

torch_save.py ZERORUN FOLDER RECORD: lets two ranks train in turns, and adds a row to the bench's
record. torch_save.py zero|fsdp2 FOLDER, a rank of these: rank 0 prints the median of milliseconds
that the save and the steps after it took, beyond as many steps without one. 25 million parameters
in f32 and both of AdamW's states, 300 MB in all.
"""
import shutil
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from peers import ROUNDS, Peers
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import slurm_zero as zero

STEPS = 8


def train(kind, folder):
    torch.set_num_threads(1)
    zero.init()
    beside = dist.new_group()
    torch.manual_seed(1)
    model = nn.Sequential(*(layer for _ in range(24)
                            for layer in (nn.Linear(1024, 1024), nn.GELU())))
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

    def pause():
        dist.barrier()
        start = time.monotonic()
        steps()
        middle = time.monotonic()
        wait = begin()
        steps()
        end = time.monotonic()
        wait()
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder)
        dist.barrier()
        return 1e3 * (end - middle - (middle - start))

    steps()
    pauses = [pause() for _ in range(ROUNDS)]
    if dist.get_rank() == 0:
        print("figures", statistics.median(pauses))


def compare(zerorun, folder, record):
    peers = Peers("torch_save", zerorun, record)
    pauses = peers.in_turns(("zero", "fsdp2"), f"{folder}/torch_save")
    peers.ratio("PyTorch: pause of a save in the background over DCP's async_save",
                pauses["zero"][0], pauses["fsdp2"][0], "ms", "async_save")


if __name__ == "__main__":
    (compare if len(sys.argv) == 4 else train)(*sys.argv[1:])
