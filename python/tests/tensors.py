# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: what programs may do with sharded parameters as with torch's own, and what is
refused with a sentence."""

import copy

import torch
import torch.distributed as dist
from harness import expect, rank, world
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import Replicate

import slurm_zero as zero

zero.init()  # a second time does nothing


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(13, 13) for _ in range(3))
        self.out = nn.Linear(13, 3)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("mean", torch.ones(13))

    def forward(self, x):
        x = x - self.mean
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x) * self.scale

    def encode(self, x):
        return x @ self.out.weight.t()


single = Model()
model = copy.deepcopy(single)
early = torch.optim.SGD(model.parameters(), lr=1)
for layer in model.layers:
    zero.fully_shard(layer)
zero.fully_shard(model)
register_fsdp_forward_method(model, "encode")
parts = zero.fully_shard(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
with torch.device("meta"):
    empty = zero.fully_shard(Model())

# Values, computed with the whole tensor or with each rank's part.
for (name, p), want in zip(model.named_parameters(), single.parameters()):
    assert p.shape == want.shape and p.stride() == want.stride() and p.numel() == want.numel(), name
    for what in (
        lambda t: t, torch.mean, torch.sum, torch.std, torch.max, lambda t: t.norm(),
        lambda t: t.norm(1),
        lambda t: t.norm(float("inf")), lambda t: t.t() if t.dim() == 2 else t,
        lambda t: t.mean(-1),
        lambda t: t.sort().values, lambda t: t * 2 + 1, lambda t: t.reshape(-1)[:1],
        lambda t: t.double(), lambda t: t.new_zeros(t.shape), lambda t: t.clone().add_(t),
    ):
        mine, other = what(p.detach()), what(want.detach())
        mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
        torch.testing.assert_close(
            mine, other, equal_nan=True, msg=lambda text: f"{name}: {text}"
        )
    assert torch.equal(p.redistribute(placements=[Replicate()]).to_local(), want), name
count = torch.tensor(sum(p.to_local().numel() for p in model.parameters()))
dist.all_reduce(count)
assert count == sum(p.numel() for p in single.parameters())

# Sharded modules are torch's, but for what is not supported.
assert isinstance(model, FSDPModule) and isinstance(model.layers[0], FSDPModule)
assert type(parts[:1]) is nn.Sequential
expect(NotImplementedError, "set_all_reduce_hook", lambda: model.set_all_reduce_hook(None))
x = torch.ones(2, 13)
assert torch.equal(model.encode(x), single.encode(x))

# A module without parameters of its own does in each step what it did in the first.
rounded = zero.MixedPrecisionPolicy(output_dtype=torch.bfloat16)
whole = nn.Sequential(zero.fully_shard(nn.Linear(2, 2)), zero.fully_shard(nn.Linear(2, 2)))
zero.fully_shard(whole, mp_policy=rounded)
for _ in range(2):
    y = whole(torch.ones(2))
    assert y.dtype == torch.bfloat16
    y.sum().backward()

# Muon computes with whole matrices, of 16 bits: what is rounded otherwise is a part of the step.
matrices = [[p for p in m.parameters() if p.dim() == 2] for m in (model, single)]
first = [p.detach().clone() for p in matrices[1]]
muons = [torch.optim.Muon(ps, lr=1e-2) for ps in matrices]
for step in range(3):
    single(torch.randn(40, 13,
                       generator=torch.Generator().manual_seed(step))).square().mean().backward()
    for p, want in zip(*matrices):
        p.grad = torch.zeros_like(p).copy_(want.grad)
    for optimizer in muons:
        optimizer.step()
        optimizer.zero_grad()
for p, want, begin in zip(*matrices, first):
    assert (p.full_tensor() - want).norm() < 0.1 * (want - begin).norm()

# Moves change nothing, or buffers only, or are refused.
for move in (nn.Module.double, nn.Module.half, lambda m: m.to("meta"),
             lambda m: m.to(torch.bfloat16)):
    for module in (model, model.out, model.layers[1]):
        expect(NotImplementedError, "cannot be moved or converted", lambda: move(module))
before = list(model.parameters())
assert model.to("cpu").float() is model
assert all(a is b for a, b in zip(before, model.parameters()))
assert empty.mean.is_meta and not any(p.is_meta for p in empty.parameters())
assert not empty.to_empty(device="cpu").mean.is_meta
empty.load_state_dict({k: v + 1 for k, v in single.state_dict().items()})
assert torch.equal(empty.out.weight.full_tensor(), single.out.weight + 1)
assert torch.equal(empty.mean, single.mean + 1)
expect(NotImplementedError, "cannot be copied", lambda: copy.deepcopy(model))

expect(zero.Error, "SGD was built before fully_shard, with scale", early.step)
expect(zero.Error, "already, not 'stage=2'", lambda: zero.init("stage=2"))
if rank == 0:
    print("1 passed, 0 failed", flush=True)
