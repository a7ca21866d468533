# SPDX-License-Identifier: Apache-2.0
"""rendezvous.py RANK WORLD FOLDER: a rank whose launcher is a folder. Prints the interface by which
gloo is to go, and fails if the ranks do not reach each other."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

from slurm_zero._rendezvous import make_store

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
turns = 0


def exchange(mine):
    global turns
    turns += 1
    name = f"{folder}/{turns}."
    with open(f"{name}{rank}.new", "wb") as file:
        file.write(mine)
    os.rename(f"{name}{rank}.new", f"{name}{rank}")
    while not all(os.path.exists(f"{name}{r}") for r in range(world)):
        time.sleep(0.01)
    return b"".join(open(f"{name}{r}", "rb").read() for r in range(world))


store = make_store(rank, world, False, exchange)
dist.init_process_group(
    "gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60)
)
sum_of_ranks = torch.tensor([float(rank)])
dist.all_reduce(sum_of_ranks)
assert sum_of_ranks == sum(range(world))
print(f"rank {rank} by {os.environ.get('GLOO_SOCKET_IFNAME')}")
dist.barrier()
