# SPDX-License-Identifier: Apache-2.0
"""slow.py FILE: the last rank sleeps in each forward pass until rank 0 has printed that it is slow,
and then until rank 0 has printed that it is slow no more it does not."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import slurm_zero as zero

zero.init("slow=50")
rank, last = dist.get_rank(), dist.get_world_size() - 1
if rank == 0:
    printed = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND)
    messages = os.dup(2)
    os.dup2(printed, 2)
model = nn.Linear(8, 8)
zero.fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_until(words, sleeps):
    found = torch.zeros(())
    while not found:
        for _ in range(100):
            if sleeps:
                time.sleep(0.02)
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0:
            with open(sys.argv[1], encoding="utf-8") as file:
                found = torch.tensor(float(words in file.read()))
        dist.broadcast(found, 0)


train_until(f"zero: rank {last} on node ", rank == last)
train_until(" is no longer slow since step ", False)
if rank == 0:
    os.dup2(messages, 2)
print("the slow rank was named")
