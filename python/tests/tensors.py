# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: what programs may do with sharded parameters as with torch's own, and what is
refused with a sentence."""

import copy
import os

import torch
import torch.distributed as dist
from harness import expect, rank, world
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import Replicate

import slurm_zero as zero
from slurm_zero._flat_shard import ShardSpec

zero.init()  # a second time does nothing


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(13, 13) for _ in range(3))
        self.out = nn.Linear(13, 3)
        self.scale = nn.Parameter(torch.tensor([0.7]))
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
    empty = Model()
    empty.lstm = nn.LSTM(3, 2)
    empty = zero.fully_shard(empty)

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
        torch.min, lambda t: (t > 0).any(), lambda t: (t > 0).all(), lambda t: t.double().sum(),
        lambda t: torch.tensor(torch.equal(t, t.clone()) and not torch.equal(t, t + 1)),
        lambda t: t.unsqueeze(0).flatten(), lambda t: t.reshape(-1).split(2)[-1],
        lambda t: t.sum(dtype=torch.float64), lambda t: t.bfloat16().max(),
    ):
        mine, other = what(p.detach()), what(want.detach())
        mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
        torch.testing.assert_close(
            mine, other, equal_nan=True, msg=lambda text: f"{name}: {text}"
        )
    assert torch.equal(p.redistribute(placements=[Replicate()]).to_local(), want), name

# Changes of parts and views, in what each rank has of them, or in whole copies.
with torch.no_grad():
    for edit in (
        lambda t: t.copy_(torch.arange(169.0).view(13, 13)), lambda t: t[1].zero_(),
        lambda t: t[3:5].fill_(7), lambda t: t.view(-1)[20:41].mul_(2), lambda t: t[:, 2].fill_(1),
        lambda t: t.t()[3].add_(t[4]), lambda t: t.__setitem__((0, 0), 5), lambda t: t.cumsum_(0),
        lambda t: t.index_fill_(0, torch.tensor([1, 2]), 3), lambda t: t.add_(torch.ones(13)),
        lambda t: t.unsqueeze(1).chunk(2)[1].neg_(), lambda t: t.diagonal().copy_(t[2]),
        lambda t: t.t().copy_(t.clone()),
        lambda t: torch.mul(t, 2, out=t), lambda t: t.fmod_(5).sub_(2),
        lambda t: t.view(13, 13, 1)[:, 1:].sign_(), nn.init.eye_, lambda t: t[:5].add_(t[5:10]),
    ):
        mine, other = model.layers[1].weight, single.layers[1].weight
        edit(mine), edit(other)
        assert torch.equal(mine.full_tensor(), other), (mine.full_tensor(), other)
    conv = zero.fully_shard(nn.Conv2d(4, 6, 3))
    plain = nn.Conv2d(4, 6, 3)
    for fill in (nn.init.dirac_, nn.init.ones_):
        fill(conv.weight), fill(plain.weight)
        assert torch.equal(conv.weight.full_tensor(), plain.weight)
    for shape in ((4, 9), (9, 4)):
        square = zero.fully_shard(nn.Linear(*shape)).weight
        product = nn.init.orthogonal_(square).full_tensor()
        product = product @ product.t() if len(product) == 4 else product.t() @ product
        torch.testing.assert_close(product, torch.eye(4))


# Random values are those of rank 0's seed, and the same however a tensor is cut.
def drawn(fill, cuts):
    found = []
    for first, end in zip(cuts, cuts[1:]):
        torch.manual_seed(4 + rank)
        spec = ShardSpec("", (7, 90000), (90000, 1), model.out.weight.device_mesh)
        spec.ranges = dict.fromkeys(range(world), (first, end))
        tensor = zero.FlatShard.wrap(torch.full((end - first,), 9.0), spec)
        found.append(fill(tensor).to_local())
    return torch.cat(found)


for fill, mean, deviation in (
    (nn.init.normal_, 0, 1), (nn.init.uniform_, 0.5, 12**-0.5), (torch.randn_like, 0, 1),
    (lambda t: nn.init.trunc_normal_(t, std=2), 0, 2 * 0.2911**0.5),
    (nn.init.kaiming_normal_, 0, (2 / 90000) ** 0.5), (lambda t: t.bernoulli_(0.5), 0.5, 0.5),
    (lambda t: t.exponential_(), 1, 1),
):
    one = drawn(fill, [0, 630000])
    assert torch.equal(one, drawn(fill, [0, 3, 262144, 300001, 600000, 630000]))
    assert abs(one.mean() - mean) < 0.01 * deviation and abs(one.std() / deviation - 1) < 0.01
    assert len(one.unique()) > 600000 * 0.9 or deviation == 0.5
    every = [torch.empty_like(one) for _ in range(world)]
    dist.all_gather(every, one)
    assert all(torch.equal(one, other) for other in every)
count = torch.tensor(sum(p.to_local().numel() for p in model.parameters()))
dist.all_reduce(count)
assert count == sum(p.numel() for p in single.parameters())

# Sharded modules are torch's, but for what is not supported.
assert isinstance(model, FSDPModule) and isinstance(model.layers[0], FSDPModule)
assert type(parts[:1]) is nn.Sequential
expect(NotImplementedError, "custom_all_gather", lambda: model.set_custom_all_gather(None))
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

# Moves change nothing, or types before the first use and buffers, or are refused.
late = zero.fully_shard(copy.deepcopy(single)).to(torch.float16).bfloat16()
assert late.out.weight.dtype == torch.bfloat16 and late.mean.dtype == torch.bfloat16
torch.testing.assert_close(late(x.bfloat16()), single(x).bfloat16(), rtol=2e-2, atol=2e-2)
for move in (nn.Module.double, nn.Module.half, lambda m: m.to("meta"),
             lambda m: m.to(torch.bfloat16)):
    for module in (model, model.out, model.layers[1]):
        expect(NotImplementedError, "cannot be moved or converted", lambda: move(module))
before = list(model.parameters())
assert model.to("cpu").float() is model
assert all(a is b for a, b in zip(before, model.parameters()))

# What is on meta says so, until it is filled.
before = list(empty.parameters())
assert empty.mean.is_meta and all(p.is_meta for p in before)
nn.init.ones_(empty.out.weight)
expect(RuntimeError, "still on meta device: ['2:scale', '2:layers.0.weight'", lambda: empty(x))
nn.Module.load_state_dict(empty, {"out.weight": single.out.weight + 1}, strict=False)
assert not empty.out.weight.is_meta and empty.out.bias.is_meta
assert not empty.to_empty(device="cpu").mean.is_meta
assert all(a is b and not a.is_meta for a, b in zip(before, empty.parameters()))
assert torch.equal(empty.out.weight.full_tensor(), single.out.weight + 1)
empty.load_state_dict({k: v + 1 for k, v in single.state_dict().items()}, strict=False)
assert torch.equal(empty.mean, single.mean + 1)
assert torch.equal(empty(x), empty(x))
empty.lstm.reset_parameters()
recurrent = nn.LSTM(3, 2)
recurrent.load_state_dict({k: v.full_tensor() for k, v in empty.lstm.state_dict().items()})
with torch.no_grad():
    empty.unshard()
    assert torch.equal(empty.lstm(x[:, :3])[0], recurrent(x[:, :3])[0])
    empty.reshard()

# A state is that of one call. Parameters of other types are stored and gathered as they are.
states = {zero.fully_shard.state(m) for m in (model, *model.layers, parts)}
assert len(states) == 5 and zero.fully_shard.state(model.out) is None
assert type(parts).__name__ == "FSDPSequential" and isinstance(parts, nn.Sequential)


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        for dtype in (torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool,
                      torch.float8_e4m3fn, torch.float8_e5m2):
            value = torch.tensor([[0, 1, 1, 0, 1] * 7]).to(dtype)
            setattr(self, str(dtype)[6:], nn.Parameter(value, requires_grad=False))

    def forward(self):
        kept = {k: v.clone() for k, v in self.named_parameters() if k != "scale"}
        return kept, self.scale.square().sum()


plain = Quantized()
for dtype in (None, torch.bfloat16):
    quantized = zero.fully_shard(
        copy.deepcopy(plain), mp_policy=zero.MixedPrecisionPolicy(param_dtype=dtype))
    kept, loss = quantized()
    loss.backward()
    for (name, want), p in zip(plain.named_parameters(), quantized.parameters()):
        assert p.full_tensor().dtype == want.dtype, name
        for mine in (p.full_tensor(), *([kept[name]] if name in kept else [])):
            assert torch.equal(mine.float(), want.float()), name

# Copies are sharded alike, and go their own ways: a moving average, and an optimizer's state.
for used in (False, True):
    first, alone = copy.deepcopy(single), copy.deepcopy(single)
    for m in (*first.layers, first):
        zero.fully_shard(m)
    steps = [torch.optim.AdamW(m.parameters()) for m in (first, alone)]
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    if used:
        first(x)
    averages = [torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=average)
                for m in (first, alone)]
    inner = averages[0].module.layers[0]
    assert isinstance(inner, FSDPModule) and inner.weight is not first.layers[0].weight
    saved = None
    for step in range(4):
        for m, optimizer, ema in zip((first, alone), steps, averages):
            m(x).square().mean().backward()
            optimizer.step(), optimizer.zero_grad()
            ema.update_parameters(m)
        if step == 1:
            saved = copy.deepcopy(steps[0])
    for ema, want in zip(averages[0].module.parameters(), averages[1].module.parameters()):
        torch.testing.assert_close(ema.full_tensor(), want.detach())
    torch.testing.assert_close(averages[0](x), averages[1](x))
    for m in averages:
        m(x).square().mean().backward()
    torch.testing.assert_close(
        averages[0].module.out.weight.grad.full_tensor(), averages[1].module.out.weight.grad)
    assert first.out.weight.grad is None
    assert saved.state[saved.param_groups[0]["params"][0]]["step"] == 2
    steps[0].load_state_dict(saved.state_dict())
    assert steps[0].state[first.scale]["step"] == 2
    assert copy.deepcopy(first.out.weight) is not first.out.weight

expect(zero.Error, "SGD was built before fully_shard, with scale", early.step)
expect(zero.Error, "already, not 'stage=2'", lambda: zero.init("stage=2"))
zero.replace_fsdp2()
given = [os.environ[n] for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
assert given == [str(n) for n in (rank, world, rank, world)], given
if rank == 0:
    print("1 passed, 0 failed", flush=True)
