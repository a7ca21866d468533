# SPDX-License-Identifier: Apache-2.0
"""What the cases share: a model, and its training beside the same model unsharded."""

import atexit
import copy
import functools
import gc
import os

import torch
import torch.utils.checkpoint
from torch import nn

import slurm_zero as zero

torch.manual_seed(1)
torch.set_num_threads(1)
if os.environ.get("ZERO_TEST_DEVICE"):
    import standin  # noqa: F401, see device/

    torch.testing.assert_close = functools.partial(torch.testing.assert_close, check_device=False)
zero.init()
# The library collects garbage when models come and go: of what the cases make, not of torch's own.
gc.freeze()
atexit.register(gc.unfreeze)
# Of what is sharded
device = torch.empty(0, device=os.environ.get("ZERO_TEST_DEVICE", "cpu")).device
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
WIDTH = 13


class Block(nn.Module):
    def __init__(self, checkpoint=None):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 29), nn.Linear(29, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.checkpoint = checkpoint

    def forward(self, x):
        if self.checkpoint is None:
            return x + self.inner(x)
        return x + torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=self.checkpoint)

    def inner(self, x):
        return self.b(torch.tanh(self.a(self.norm(x))))


class Model(nn.Module):
    def __init__(self, block=Block, outer=None):
        super().__init__()
        self.embed = nn.Embedding(31, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 31, bias=False)
        self.outer = outer

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            if self.outer is None:
                x = block(x)
            else:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.outer)
        return self.head(self.norm(x))


def shard(model, whole=None, **options):
    """With `whole` for the options of the outermost group."""
    for block in dict.fromkeys(model.blocks):
        zero.fully_shard(block, **options)
    return zero.fully_shard(model, **(options if whole is None else whole))


def loss_of(model, ids):
    logits = model(ids[:, :-1])
    wanted = ids[:, 1:].to(logits.device)
    return nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def batches(step, micro=0):
    generator = torch.Generator().manual_seed(100 * step + micro)
    return torch.randint(0, 31, (world, 2, 7), generator=generator)


def compare(name, model, single, tolerance, whats=("gradient", "value")):
    want = dict(single.named_parameters())
    for key, p in model.named_parameters():
        assert isinstance(p, zero.FlatShard), (name, key)
        for what in whats:
            mine, other = (t.grad if what == "gradient" else t for t in (p, want[key]))
            if other is None or mine is None:
                assert other is None and mine is None, (
                    name, key, what, mine is None, other is None)
                continue
            torch.testing.assert_close(
                mine.full_tensor(), other.detach(), rtol=tolerance, atol=tolerance,
                msg=lambda text: f"{name}: {what} of {key}: {text}",
            )


def train(name, model, single=None, *, sharder=shard, loss=loss_of, steps=3, tolerance=2e-5,
          make=None, clip=0.1, between=None, backward=None):
    single = copy.deepcopy(model) if single is None else single
    sharder(model)
    # A small eps would turn the rounding of a gradient that is nearly 0 into another step.
    make = make or (lambda ps: torch.optim.AdamW(ps, lr=1e-2, eps=1e-3))
    mine, other = (make([p for p in m.parameters() if p.requires_grad]) for m in (model, single))
    for step in range(steps):
        data = batches(step)
        for m, ranks in ((model, [rank]), (single, range(world))):
            for r in ranks:
                scale = 1 if m is model else 1 / world
                if backward:
                    backward(m, data[r], scale, r == ranks[-1])
                else:
                    (loss(m, data[r]) * scale).backward()
        if clip:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            torch.testing.assert_close(
                norm, torch.nn.utils.clip_grad_norm_(single.parameters(), clip), rtol=1e-4,
                atol=1e-5
            )
        compare(f"{name} step {step}", model, single, tolerance, ["gradient"])
        mine.step(), other.step()
        compare(f"{name} after step {step}", model, single, 10 * tolerance, ["value"])
        mine.zero_grad(), other.zero_grad()
        if between:
            between(model, single)


class Boom(Exception):
    pass


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise Boom("in backward")


CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def expect(error, text, function):
    try:
        function()
    except error as e:
        assert text in str(e), e
        return
    raise AssertionError(f"no {error.__name__} with '{text}'")
