# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: a mesh of two dimensions, beside the same model unsharded."""

import torch
from harness import Model, batches, expect, loss_of, rank, shard, train, world
from torch.distributed.device_mesh import init_device_mesh

import slurm_zero as zero

size = world // 2 if world > 2 else 1
mesh = init_device_mesh("cpu", (world // size, size), mesh_dim_names=("replicate", "shard"))
if world > 2:
    backwards = torch.distributed.DeviceMesh("cpu", torch.arange(world).flip(0).reshape(-1, size))
    expect(NotImplementedError, "must follow each other", lambda: shard(Model(), mesh=backwards))
expect(ValueError, "has 3 dimensions", lambda: shard(
    Model(), mesh=init_device_mesh("cpu", (world, 1, 1))))


def on_mesh(model):
    return shard(model, mesh=mesh)


train("AdamW", Model(), sharder=on_mesh)
train("zero.AdamW", Model(), sharder=on_mesh, clip=None, make=lambda ps: (
    zero.AdamW if isinstance(ps[0], zero.FlatShard) else torch.optim.AdamW)(ps, lr=1e-2, eps=1e-3))
if world > 1:
    expect(ValueError, "another mesh",
           lambda: shard(Model(), mesh=init_device_mesh("cpu", (world,))))


def accumulate(model, data, scale, last):
    """Two backward passes of which the first sums within a row of the mesh alone."""
    for part, sums in ((data[:1], False), (data[1:], True)):
        if isinstance(model, zero.FullyShardedModule):
            model.set_requires_all_reduce(sums)
        (loss_of(model, part) * scale).backward()
        if isinstance(model, zero.FullyShardedModule) and world > 1:
            assert sums or all(p.grad is None for p in model.parameters())


train("all_reduce", Model(), sharder=on_mesh, backward=accumulate)

# Each parameter is owned once, in parts that together are all of it.
model = on_mesh(Model())
loss_of(model, batches(0)[rank]).backward()
for name, p in model.named_parameters():
    owned = torch.zeros(p.numel())
    first, end = p._shard_spec.range
    owned[first:end] = 1
    torch.distributed.all_reduce(owned)
    assert owned.eq(1).all(), name
    assert p.to_local().numel() == end - first, name
print(f"{size} of {world} ranks store a copy")
