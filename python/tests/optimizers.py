# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py: stock optimizers, and the library's own."""

import copy
import unittest.mock

import torch
from torch import nn

import slurm_zero as zero
from harness import WIDTH, Block, Model, case, expect, loss_of, rank, shard, train, world


def optimizer(name, make):
    def run():
        train(name, Model(), make=make, clip=0, tolerance=1e-4)

    run.__name__ = name
    case(run)


optimizer("adamw_loop", lambda ps: torch.optim.AdamW(ps, lr=1e-3, foreach=False))
optimizer("adamw_fused", lambda ps: torch.optim.AdamW(ps, lr=1e-3, fused=True))
optimizer("sgd", lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9))
optimizer("rmsprop", lambda ps: torch.optim.RMSprop(ps, lr=1e-4))
optimizer("nadam", lambda ps: torch.optim.NAdam(ps, lr=1e-3))


def own_adamw(ps, **options):
    kind = zero.AdamW if isinstance(ps[0], zero.FlatShard) else torch.optim.AdamW
    return kind([{"params": ps[:2], "weight_decay": 0}, {"params": ps[2:], "lr": 3e-3}], **options)


@case
def library_adamw():
    """Groups of parameters with settings of their own, clipping, and by turns another lr and
    another weight_decay."""
    optimizers = []

    def make(ps):
        optimizers.append(own_adamw(ps, lr=1e-2, eps=1e-3, weight_decay=0.1))
        return optimizers[-1]

    def between(model, single):
        name, factor = changes[0]
        changes.reverse()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group[name] *= factor

    changes = [("weight_decay", 4), ("lr", 0.7)]
    train("zero.AdamW", Model(), make=make, between=between, steps=6)


class Container(torch.optim.Optimizer):
    """Its step is that of other optimizers, which may have parameters that it has not."""

    def __init__(self, optimizers, params):
        super().__init__(params, {})
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()


@case
def container():
    for known in None, 1:

        def make(ps):
            parts = [torch.optim.AdamW(ps[:3], lr=1e-2, eps=1e-3), torch.optim.SGD(ps[3:], lr=1e-2)]
            return Container(parts, ps[:known])

        train(f"container that has {known or 'all'}", Model(), make=make)


@case
def library_adamw_by_turns():
    """In each step another parameter of a group has no gradient."""
    turn = [0]

    class Turns(Block):
        def inner(self, x):
            h = torch.tanh(self.a(self.norm(x)))
            return self.b(h) if turn[0] % 2 else h[..., :WIDTH]

    def between(model, single):
        turn[0] += 1

    # The bias correction counts the steps of a group, torch's those of a parameter.
    train("zero.AdamW, by turns", Model(Turns), between=between, steps=5,
          make=lambda ps: own_adamw(ps, lr=1e-2, eps=1e-3, betas=(0.0, 0.0)))


@case
def library_adamw_of_a_part():
    """The optimizer has some parameters of a group, and later one less."""

    def between(*models):
        for m in models:
            m.norm.bias.requires_grad_(False)

    train("zero.AdamW, of a part", Model(), between=between, clip=0,
          make=lambda ps: own_adamw(ps[-3:], lr=1e-2, eps=1e-3, weight_decay=0.1))


@case
def library_adamw_without_gradients():
    """Some parameters, and a whole group, that no step has gradients of."""
    model = Model()
    single = copy.deepcopy(model)

    def loss(m, ids):
        blocks = list(m.blocks)
        m.blocks = nn.ModuleList(blocks[:2])
        total = loss_of(m, ids)
        m.blocks = nn.ModuleList(blocks)
        return total

    train("zero.AdamW, unused", model, single, loss=loss,
          make=lambda ps: own_adamw(ps, lr=1e-2, eps=1e-3))
    unsharded = [torch.zeros(3, requires_grad=True)]
    expect(ValueError, "that fully_shard has sharded", lambda: zero.AdamW(unsharded))
    assert zero.AdamW([{"params": []}, {"params": [model.norm.weight]}]).step() is None
    mixed = zero.AdamW([{"params": [model.norm.weight], "eps": 1e-4},
                        {"params": [model.norm.bias]}])
    expect(ValueError, "have the same eps", mixed.step)


@case
def library_adamw_8bit():
    """The first step is that of f32; later ones are as near as 8 bits are."""
    torch.manual_seed(3)
    single = nn.Sequential(nn.Linear(40, 130), nn.Tanh(), nn.Linear(130, 5))
    model = zero.fully_shard(copy.deepcopy(single))
    options = {"lr": 1e-2, "eps": 1e-5}
    mine = zero.AdamW8bit(model.parameters(), **options)
    other = torch.optim.AdamW(single.parameters(), **options)
    for step in range(6):
        x = torch.randn(world, 3, 40, generator=torch.Generator().manual_seed(step))
        model(x[rank]).square().mean().backward()
        single(x.flatten(0, 1)).square().mean().backward()
        for o in (mine, other):
            o.step()
            o.zero_grad()
        for (name, p), q in zip(model.named_parameters(), single.parameters()):
            far = (p.full_tensor().cpu() - q).abs().max().item()
            assert far < (5e-3 if step else 1e-5), (step, name, far)
            # The weight of 5200 elements has 8 bits; the others are too few for it.
            assert step > 1 or (far > 1e-4) == (step == 1 and name == "0.weight"), (step, name, far)


class Both:
    """torch's two optimizers in the place of one zero.Muon."""

    def __init__(self, matrices, others):
        self.parts = [torch.optim.Muon(matrices, lr=1e-3, momentum=0.9),
                      torch.optim.AdamW(others, lr=1e-3, eps=1e-3)]

    def step(self):
        for part in self.parts:
            part.step()

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()


def newton_schulz(x, coefficients, steps, eps):
    a, b, c = coefficients
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@case
def library_muon():
    """Against torch's own with its iterations in f32: in bf16 a step differs by a twentieth."""

    def make(ps):
        matrices, others = ([p for p in ps if (p.ndim == 2) == wanted] for wanted in (True, False))
        if not isinstance(ps[0], zero.FlatShard):
            return Both(matrices, others)
        return zero.Muon([{"params": matrices}, {"params": others, "use_muon": False, "eps": 1e-3}],
                         lr=1e-3, momentum=0.9)

    with unittest.mock.patch.object(torch.optim._muon, "_zeropower_via_newtonschulz",
                                    newton_schulz):
        train("zero.Muon", Model(), make=make, steps=4, tolerance=1e-6)
    model = Model()
    shard(model)
    expect(ValueError, "put it in a group with use_muon=False",
           lambda: zero.Muon([model.norm.weight]))
    expect(ValueError, "adjust_lr_fn is 'other'; it must be one of",
           lambda: zero.Muon(model.parameters(), adjust_lr_fn="other"))
    block = model.blocks[0]
    mixed = zero.Muon([{"params": [block.a.weight], "momentum": 0.5},
                       {"params": [block.b.weight], "momentum": 0.9}])
    expect(ValueError, "all groups of zero.Muon have the same momentum", mixed.step)


@case
def muon():
    model = Model()
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("blocks") and p.ndim == 2)
    train("muon", model, make=lambda ps: torch.optim.Muon(ps, lr=1e-3), clip=0, tolerance=1e-4)
