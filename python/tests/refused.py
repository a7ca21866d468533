# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: what is refused, each with a sentence on all ranks, after which the job goes
on."""

from harness import Model, batches, expect, loss_of, rank, shard, world

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

import slurm_zero as zero


class View(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(5))

    def forward(self, x):
        return self.w.view(1, 5)


view, model = zero.fully_shard(View()), shard(Model())
frozen = zero.fully_shard(nn.Linear(3, 3).double().requires_grad_(False))
expect(zero.Error, "opened with the settings '' already", lambda: zero.init("stage=1"))
zero.init(), zero.init("")

# Groups.
expect(AssertionError, "only be applied to a module once", lambda: zero.fully_shard(model))
for container in (nn.ModuleList([nn.Linear(2, 2)]), nn.ModuleDict({"a": nn.Linear(2, 2)})):
    expect(ValueError, "containers that do not implement forward",
           lambda: zero.fully_shard(container))
late = nn.Linear(2, 2)
late.scale = nn.Parameter(torch.tensor(1.0))
expect(ValueError, "Change scale to a 1D tensor", lambda: zero.fully_shard(late))
late.scale = nn.Parameter(torch.ones(3, 2).t())
expect(NotImplementedError, "non-contiguous parameters yet: scale",
       lambda: zero.fully_shard([nn.Linear(2, 2), late]))
late.scale = None
assert zero.fully_shard.state(late) is None and type(late) is nn.Linear
zero.fully_shard(late)(torch.ones(2))
expect(ValueError, "in a group already", lambda: zero.fully_shard(model.embed))
expect(ValueError, "parameter weight is torch.float64",
       lambda: zero.fully_shard(nn.Linear(2, 2).double()))


class Quantized(torch.Tensor):
    def fsdp_pre_all_gather(self, mesh):
        return (self,), None


late = nn.Linear(2, 2)
late.weight = nn.Parameter(torch.ones(2, 2).as_subclass(Quantized))
expect(NotImplementedError, "weight is a Quantized, whose fsdp_pre_all_gather",
       lambda: zero.fully_shard(late))
parts = torch.distributed.device_mesh.init_device_mesh("cpu", (world, 1))
whole = DTensor.from_local(torch.ones(2, 2), parts, [Replicate()] * 2)
late.weight = nn.Parameter(whole)
expect(NotImplementedError, "weight is a DTensor of a mesh of 2 dimensions without names",
       lambda: zero.fully_shard(late))
parts = torch.distributed.device_mesh.init_device_mesh("cpu", (world,))
whole = DTensor.from_local(torch.ones(2, 2), parts, [Replicate()])
late.weight = nn.Parameter(whole)
late.weight._local_tensor = torch.ones(2, 2).as_subclass(Quantized)
expect(NotImplementedError, "weight is a Quantized, whose fsdp_pre_all_gather",
       lambda: zero.fully_shard(late))
expect(ValueError, "mp_policy has torch.float64", lambda: zero.fully_shard(
    nn.Linear(2, 2), mp_policy=zero.MixedPrecisionPolicy(param_dtype=torch.float64)))
late = nn.Linear(2, 2)
expect(ValueError, "param_dtype_override_fn must return None", lambda: zero.fully_shard(
    late, mp_policy=zero.MixedPrecisionPolicy(param_dtype_override_fn=lambda p: torch.float16)))
zero.fully_shard(late)
expect(ValueError, "takes a module", lambda: zero.fully_shard([]))
meta = torch.distributed.DeviceMesh("meta", torch.arange(world), _init_backend=False)
expect(NotImplementedError, "the mesh is of meta",
       lambda: zero.fully_shard(nn.Linear(2, 2), mesh=meta))
expect(NotImplementedError, "moved", lambda: model.double())
expect(NotImplementedError, "does not support set_custom_all_gather",
       lambda: model.set_custom_all_gather(None))
expect(ValueError, f"should be a factor of {world}, not 7", lambda: zero.fully_shard(
    nn.Linear(2, 2), reshard_after_forward=7))

expect(NotImplementedError, "shard_placement_fn returns R for weight",
       lambda: zero.fully_shard(nn.Linear(2, 2), shard_placement_fn=lambda p: Replicate()))
expect(AssertionError, "Shard dim 1 is invalid for 1D tensor",
       lambda: zero.fully_shard(nn.Linear(2, 2), shard_placement_fn=lambda p: Shard(1)))

# Parameters.
frozen(torch.ones(3).double())
frozen.bias.requires_grad_(True)
expect(NotImplementedError, "bias of torch.float64 cannot be trained",
       lambda: frozen(torch.ones(3).double()))
expect(NotImplementedError, "head.weight, which is sharded",
       model.head.weight.detach().squeeze_)
expect(NotImplementedError, "each rank has a part", lambda: torch._foreach_max([model.head.weight]))
expect(NotImplementedError, "return a copy", lambda: view(torch.ones(1)))
zero.reset()

# Steps.
lbfgs = torch.optim.LBFGS(model.parameters())
expect(NotImplementedError, "closure", lambda: torch.optim.SGD(model.parameters()).step(lambda: 0))
expect(NotImplementedError, "closure", lambda: lbfgs.step(lambda: loss_of(model, batches(0)[rank])))


late = Model()
early = torch.optim.SGD(late.parameters())
shard(late)
loss_of(late, batches(0)[rank]).backward()
expect(zero.Error, "was built before fully_shard", early.step)
zero.reset()

# What is left can be trained.
loss_of(model, batches(0)[rank]).backward()
torch.optim.SGD(model.parameters()).step()
if rank == 0:
    print("1 passed, 0 failed", flush=True)
