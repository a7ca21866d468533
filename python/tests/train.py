# SPDX-License-Identifier: Apache-2.0
"""train.py [RANK STEP FOLDER]: prints the losses of a few steps, which are the same for every
number of ranks that divides 12. RANK is killed at STEP, and writes when to FOLDER/at."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import slurm_zero as zero

lost, lost_step = (int(word) for word in sys.argv[1:3]) if len(sys.argv) > 1 else (-1, -1)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(31, 67), nn.GELU(), nn.Linear(67, 67), nn.GELU(), nn.Linear(67, 5))
for layer in model[::2]:
    zero.fully_shard(layer)
zero.fully_shard(model)
rank, world = dist.get_rank(), dist.get_world_size()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(10):
    samples, labels = torch.randn(12, 31), torch.randint(5, (12,))
    if rank == lost and step == lost_step:
        with open(f"{sys.argv[3]}/at", "w", encoding="ascii") as file:
            file.write(f"{time.time()}\n")
        os.kill(os.getpid(), signal.SIGKILL)
    mine = slice(rank * 12 // world, (rank + 1) * 12 // world)
    loss = nn.functional.cross_entropy(model(samples[mine]), labels[mine])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = loss.detach()
    dist.all_reduce(loss)
    if rank == 0:
        print(f"loss {loss.item() / world:.5f}", flush=True)
