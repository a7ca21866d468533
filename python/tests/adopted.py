# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank, at stages 0 to 2: a model that has values is flattened buffer by buffer, and
each tensor is gone before memory is taken for the next buffer. Both are never there as a whole."""

import re

import torch
from torch import nn

import slurm_zero as zero
from harness import device, rank, world

LAYERS, WIDTH = 12, 2048


def resident(what):
    with open("/proc/self/status") as file:
        return int(re.search(rf"^{what}:\s*(\d+) kB", file.read(), re.M)[1]) * 1024


layers = [nn.Linear(WIDTH, WIDTH, bias=False, device=device) for _ in range(LAYERS)]
layer_bytes = layers[0].weight.nbytes
values = [layer.weight.double().sum().item() for layer in layers]
kept, same = layers[3].weight, layers[3].weight.detach().clone()
for layer in layers:
    zero.fully_shard(layer)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # VmHWM begins again
before = resident("VmRSS")
layers[0](torch.ones(1, WIDTH, device=device))  # what is sharded is laid out
more = resident("VmHWM") - before
assert device.type != "cpu" or more < 6 * layer_bytes, (
    f"{more >> 20} MB more than {LAYERS * layer_bytes >> 20} MB, which were there"
)
for layer, value in zip(layers, values):
    assert abs(layer.weight.full_tensor().double().sum().item() - value) < 1e-6
assert torch.equal(kept, same), "a tensor that the program keeps has changed"
# What comes later is adopted, too.
late = nn.Linear(WIDTH, 3)
want = late.weight.detach().clone()
zero.fully_shard(late)(torch.ones(1, WIDTH, device=device))
assert torch.equal(late.weight.full_tensor().cpu(), want)
# What is not stored row by row is copied, as it always was.
late = nn.Conv2d(3, 4, 3)
want = late.weight.detach().clone()
zero.fully_shard(late)
late.to(memory_format=torch.channels_last)
assert torch.equal(late.weight.full_tensor().cpu(), want)
if rank == 0:
    print(f"ok, with {more >> 20} MB more, of {LAYERS * layer_bytes >> 20}", flush=True)
