# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: models whose parameters are used slice by slice, beside the same models
unsharded."""

import copy
import os
import sys
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import harness
import slurm_zero as zero
from harness import (
    CASES, Block, Boom, Fails, Model, batches, case, compare, device, expect, loss_of, rank, shard,
    train, world,
)
from slurm_zero import _api, _zero

harness.WIDTH = WIDTH = 32  # of which a rank has 8 rows at least
copy_of = int(os.environ.get("ZERO_SHARD", world))  # ranks store one between them
SLICE = 4 * WIDTH * 8 * copy_of


def streamed(model, **options):
    return shard(model, streamed=SLICE, **options)


def slices_of(model):
    """The most slices of a parameter."""
    groups = [g for g in _api._job.groups if g.slice_bytes and set(g.modules) & {*model.modules()}]
    assert groups, "nothing is streamed"
    return max(len(g.slices) for g in groups)


@case
def plain():
    model = Model()
    train("plain", model, sharder=streamed)
    apart = int(_zero.setting("share")) < copy_of and int(_zero.setting("stage")) == 3
    assert (slices_of(model) > 1) == apart, (slices_of(model), apart)


@case
def own_optimizer():
    train("zero.AdamW", Model(), sharder=streamed,
          make=lambda ps: zero.AdamW(ps, 1e-2, (0.9, 0.999), 1e-3)
          if any(isinstance(p, zero.FlatShard) for p in ps)
          else torch.optim.AdamW(ps, 1e-2, (0.9, 0.999), 1e-3))


@case
def tied():
    def make():
        model = Model()
        model.head.weight = model.embed.weight
        return model

    train("tied", make(), sharder=streamed)

    def apart(model):  # the head is a group of its own, which the embedding borrows
        zero.fully_shard(model.head, streamed=SLICE)
        return shard(model)

    train("tied, apart", make(), sharder=apart)


@case
def accumulation():
    model = Model()
    single = copy.deepcopy(model)
    streamed(model)
    for micro in range(3):
        data = batches(0, micro)
        model.set_requires_gradient_sync(micro == 2)
        loss_of(model, data[rank]).backward()
        for r in range(world):
            (loss_of(single, data[r]) / world).backward()
        if micro < 2:
            assert model.embed.weight.grad is None
    compare("accumulation", model, single, 2e-5)


@case
def bfloat16():
    policy = zero.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    train("bfloat16", Model(), sharder=lambda m: streamed(m, mp_policy=policy), tolerance=5e-2,
          clip=0)
    low = zero.MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)
    train("bfloat16 sums", Model(), sharder=lambda m: streamed(m, mp_policy=low), tolerance=5e-2,
          clip=0)


@case
def autocast():
    def loss(model, ids):
        with torch.autocast(next(model.parameters()).device.type, torch.bfloat16):
            logits = model(ids[:, :-1])
        wanted = ids[:, 1:].to(logits.device)
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())

    train("autocast", Model(), sharder=streamed, loss=loss, tolerance=5e-2, clip=0)


@case
def checkpointing():
    for reentrant in (True, False):
        train(f"checkpoint {reentrant}", Model(lambda: Block(reentrant)), sharder=streamed)
        train(f"checkpointed blocks {reentrant}", Model(outer=reentrant), sharder=streamed)


@case
def frozen():
    model = Model()
    model.embed.requires_grad_(False)
    model.blocks[1].requires_grad_(False)
    train("frozen", model, sharder=streamed)
    assert model.embed.weight.grad is None
    thawed = model.embed.weight.requires_grad_(True)
    loss_of(model, batches(9)[rank]).backward()
    assert thawed.grad is not None and thawed.grad.norm() > 0


@case
def evaluated():
    model = Model()
    single = copy.deepcopy(model).eval()
    streamed(model).eval()
    ids = batches(0)[rank]
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            logits = model(ids)
        torch.testing.assert_close(logits, single(ids), rtol=1e-5, atol=1e-5)
    losses = [loss_of(model, batches(step)[rank]) for step in (1, 2)]
    sum(losses).backward()
    for step in (1, 2):
        for r in range(world):
            (loss_of(single, batches(step)[r]) / world).backward()
    compare("two losses", model, single, 2e-5)


@case
def written():
    model = Model()
    single = copy.deepcopy(model)
    streamed(model)
    model(batches(0)[rank])
    with torch.no_grad():
        for m in (model, single):
            m.embed.weight.mul_(0.5)
            m.head.weight[3:5] = 1
    torch.testing.assert_close(model(batches(0)[rank]), single(batches(0)[rank].to(
        single.embed.weight.device)), rtol=1e-5, atol=1e-5)
    state = {k: v.full_tensor() for k, v in model.state_dict().items()}
    for key, value in single.state_dict().items():
        torch.testing.assert_close(state[key], value)


@case
def exceptions():
    model = Model()
    single = copy.deepcopy(model)
    streamed(model)
    hook = model.blocks[1].register_forward_hook(lambda m, a, out: Fails.apply(out))
    expect(Boom, "in backward", lambda: loss_of(model, batches(0)[rank]).backward())
    expect(zero.Error, "call slurm_zero.reset()", lambda: model(batches(0)[rank]))
    zero.reset()
    hook.remove()
    loss_of(model, batches(0)[rank]).backward()
    for r in range(world):
        (loss_of(single, batches(0)[r]) / world).backward()
    compare("after an exception", model, single, 2e-5)
    # In the midst of the slices of a forward, after which nothing is reset: no slice is left.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mock.patch.object(torch, "mm", side_effect=Boom("in a product")):
        expect(Boom, "in a product", lambda: model(batches(0)[rank]))
    optimizer.step()
    assert not zero.memory()["gathered"][0] or device.type != "cpu", zero.memory()
    model(batches(0)[rank])


def save(folder):
    """What a streamed model leaves to one that is not."""
    model = streamed(Model())
    optimizer = zero.AdamW(model.parameters(), 1e-2)
    for step in range(2):
        loss_of(model, batches(step)[rank]).backward()
        optimizer.step()
        optimizer.zero_grad()
    zero.save(model, optimizer, folder)
    zero.export(model, f"{folder}/model")
    whole = {k: v.full_tensor() for k, v in model.state_dict().items()}
    if rank == 0:
        torch.save(whole, f"{folder}/whole")


def restore(folder):
    want = torch.load(f"{folder}/whole")
    model = shard(Model())
    optimizer = zero.AdamW(model.parameters(), 1e-2)
    zero.restore(model, optimizer, folder)
    check_values(model, want)
    loss_of(model, batches(0)[rank]).backward()
    optimizer.step()


def load(folder):
    with torch.device("meta"):
        model = Model()
    streamed(model)
    zero.load(model, f"{folder}/model")
    check_values(model, torch.load(f"{folder}/whole"))
    loss_of(model, batches(0)[rank]).backward()


def check_values(model, want):
    for key, value in model.state_dict().items():
        assert torch.equal(value.full_tensor().cpu(), want[key].cpu()), key


@case
def memory():
    """Of what is streamed no more than two slices are there."""
    harness.WIDTH = 256
    model = nn.Sequential(nn.Linear(256, 4096, bias=False), nn.Tanh(),
                          nn.Linear(4096, 256, bias=False))
    harness.WIDTH = WIDTH
    _api._job.settle()
    before = zero.memory()
    zero.fully_shard(model, streamed=1 << 17)
    model(torch.ones(3, 256, device=device)).sum().backward()
    after = zero.memory()
    if slices_of(model) > 1:
        grown = after["gathered"][1] - before["gathered"][1]
        assert grown <= 4 << 20 if device.type != "cpu" else grown <= 2 << 17, (before, after)
        sums = 2 * model[0].weight.numel() * 4 // copy_of
        if copy_of < world:  # those of a copy, and of all
            sums += 2 * model[0].weight.numel() * 4 // world
        grown = after["gradients"][1] - before["gradients"][1]
        assert grown <= sums + (6 << 17), (before, after)


class Causal(Model):
    """Its head is asked for a loss."""

    def get_output_embeddings(self):
        return self.head


@case
def losses():
    """Cross entropies of all kinds, and of no tokens; anything else makes logits whole."""
    single = Causal()
    model, ids = streamed(copy.deepcopy(single)), batches(3)[rank]
    wanted = torch.randint(0, 31, (2, 7), generator=torch.Generator().manual_seed(rank))
    wanted[0, :3] = -100
    weights = torch.rand(31)
    ce = nn.functional.cross_entropy
    for name, loss in {
        "mean": lambda out, y: ce(out.view(-1, 31), y.view(-1)),
        "sum": lambda out, y: ce(out.float().reshape(-1, 31), y.flatten(), reduction="sum"),
        "none": lambda out, y: (ce(out.view((-1, 31)), y.flatten(), reduction="none")
                                * torch.arange(14, device=out.device)).sum(),
        "shifted": lambda out, y: ce(out[..., :-1, :].contiguous().view(-1, 31),
                                     y[..., 1:].reshape(-1)),
        "ignored": lambda out, y: nn.CrossEntropyLoss(ignore_index=7, reduction="sum")(
            out.view(-1, 31), y.flatten().clamp(min=7)),
        "nothing": lambda out, y: ce(out[:0].reshape(-1, 31), y[:0].reshape(-1), reduction="sum")
                                  + ce(out.view(-1, 31), y.flatten()),
        "weights": lambda out, y: ce(out.view(-1, 31), y.view(-1), weights.to(out.device)),
        "smooth": lambda out, y: ce(out.view(-1, 31), y.view(-1), label_smoothing=0.1),
        "other": lambda out, y: out.softmax(-1).square().sum() + (2 * out + 1).std(),
        "twice": lambda out, y: ce(out.view(-1, 31), y.view(-1)) + out.logsumexp(-1).mean(),
    }.items():
        found = [loss(m(ids.to(p.device)), wanted.to(p.device))
                 for m in (model, single) for p in [next(m.parameters())]]
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5, msg=lambda text: f"{name}: {text}")
        found[0].backward()
        # the mean over the ranks of what each has
        found[1].backward()
        for p in single.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= world
        compare(name, model, single, 2e-5)
        model.zero_grad(), single.zero_grad()
    logits = model(ids)
    assert logits.shape == (2, 7, 31) and logits.dim() == 3 and logits.dtype == torch.float32
    if device.type == "cpu":
        wanted[0, 0] = 31
        expect(IndexError, "not in [0, 31)", lambda: ce(logits.reshape(-1, 31),
                                                        wanted.view(-1)))
    for bad in (-1, 31):
        expect(IndexError, "out of range", lambda bad=bad: model.embed(
            torch.tensor([bad], dtype=torch.int32, device=device)))
    zero.reset()
    empty = model(ids[:0])
    assert empty.shape == (0, 7, 31)


@case
def chosen():
    """By --zero-stream=auto, or not, if the program says nothing or False."""
    is_auto = _zero.setting("stream") == "auto"
    threshold = int(_zero.setting("stream_threshold"))
    for given, want in ((None, is_auto), ("auto", True), (False, False), (0, False)):
        model = Model()
        shard(model, streamed=given)
        for group in _api._job.groups:
            if group.slice_bytes and set(group.modules) & {*model.modules()}:
                assert want and group.slice_bytes == int(_zero.setting("stream_chunk"))
        large = any(p.numel() * 4 > threshold for p in model.parameters())
        found = type(model.head).forward is not model.head.forward.__func__
        assert found == (want and large), (given, found)


@case
def refused():
    model = streamed(Model())
    expect(NotImplementedError, "copy the model before fully_shard", lambda: copy.deepcopy(model))
    for wrong, text in ((-1, "1 byte or more"), ("yes", "it is True, False"), (0.5, "it is True")):
        expect(ValueError, text, lambda: zero.fully_shard(nn.Linear(2, 2), streamed=wrong))
    other = nn.Module()
    other.table = model.embed.weight
    other.rest = nn.Linear(2, 2)
    expect(NotImplementedError, "cannot compute with slices", lambda: zero.fully_shard(other))


def main():
    """The names of cases, or one of save, restore and load and a folder."""
    names = sys.argv[1:] or list(CASES)
    if names and names[0] in ("save", "restore", "load"):
        names = [globals()[names[0]](names[1])]
    else:
        for name in names:
            if name != "autocast" or device.type == "cpu":  # which the test device has not
                CASES[name]()
    if rank == 0:
        print(f"{len(names)} passed, 0 failed", flush=True)


main()
