# SPDX-License-Identifier: Apache-2.0
"""steps.py FOLDER: what the end of an optimizer's step tells the library and the program. steps.py
FOLDER read: the report that it left."""

import glob
import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn

import slurm_zero as zero

folder = sys.argv[1]
if len(sys.argv) > 2:
    (path,) = glob.glob(f"{folder}/zero-*.json")
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    with open(f"{folder}/steps", encoding="ascii") as file:
        steps = int(file.read())
    assert report["job"]["steps"] == steps, (report["job"], steps)
    print("the report has", steps, "steps")
    sys.exit()

zero.init(f"report={folder}")
zero.stop_on(signal.SIGUSR1)
model = nn.Linear(8, 8)
zero.fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


step()
assert not zero.stopping()
zero.save(model, optimizer, f"{folder}/saved", background=True)
steps, complete = 1, torch.zeros(())
while not complete:
    step()
    steps += 1
    complete = torch.tensor(float(os.path.exists(f"{folder}/saved/latest")))
    dist.broadcast(complete, 0)
zero.save_wait()
if dist.get_rank() == dist.get_world_size() - 1:
    os.kill(os.getpid(), signal.SIGUSR1)
assert not zero.stopping()
step()
assert zero.stopping()
if dist.get_rank() == 0:
    with open(f"{folder}/steps", "w", encoding="ascii") as file:
        file.write(str(steps + 1))
print("told to stop")
