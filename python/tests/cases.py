# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank. Each case trains a sharded model and the same model unsharded, in this
process, on the batches of all ranks, and compares gradients and parameters over three steps."""

import copy
import dataclasses
import functools
import os
import sys
import traceback

import torch
from torch import nn

import loading  # noqa: F401, whose cases are of this program, too
import optimizers  # noqa: F401
import slurm_zero as zero
from harness import (
    CASES, WIDTH, Block, Boom, Fails, Model, batches, case, compare, device, expect, loss_of, rank,
    shard, train, world,
)


@case
def plain():
    model = Model()
    single = copy.deepcopy(model)
    train("plain", model, single)
    state = model.state_dict()
    assert list(state) == list(single.state_dict())
    for key, value in single.state_dict().items():
        torch.testing.assert_close(state[key].full_tensor(), value, rtol=2e-4, atol=2e-4)
    # And back, from whole values.
    more = {k: v + 1 for k, v in single.state_dict().items()}
    model.load_state_dict(more)
    for key, value in more.items():
        torch.testing.assert_close(model.state_dict()[key].full_tensor(), value)
    p = model.head.weight
    torch.testing.assert_close(p.mean().full_tensor(), p.full_tensor().mean())
    torch.testing.assert_close(p.t().full_tensor(), p.full_tensor().t())


@case
def written():
    """Between two steps the program changes parameters, frozen ones too."""
    model = Model()
    model.embed.requires_grad_(False)

    def between(model, single):
        more = {k: v * 0.9 + 0.1 for k, v in single.state_dict().items()}
        for m in (model, single):
            loss_of(m, batches(9)[0])  # after which the outermost group is still gathered
            with torch.no_grad():
                m.head.weight.mul_(3)
        torch.testing.assert_close(*(loss_of(m, batches(9)[0]) for m in (model, single)))
        for m in (model, single):
            m.load_state_dict(more)
            with torch.no_grad():
                m.head.weight.mul_(0.5)
                m.embed.weight.add_(1)

    train("written", model, between=between)

    # The library's f32 masters become what is written.
    model = shard(Model().bfloat16())
    optimizer = zero.AdamW(model.parameters(), lr=1e-2)
    more = {k: v.full_tensor() + 1 for k, v in model.state_dict().items()}
    for lr in (1e-2, 0):
        optimizer.param_groups[0]["lr"] = lr
        loss_of(model, batches(0)[rank]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if lr:
            model.load_state_dict(more)
    for key, value in more.items():
        assert torch.equal(model.state_dict()[key].full_tensor(), value), key


@case
def frozen_first_layers():
    model = Model()
    model.embed.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    train("frozen", model)


@case
def lora():
    class Lora(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
            self.a, self.b = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

        def forward(self, x):
            return torch.tanh(self.base(x) + self.b(self.a(x)))

    model = Model(Lora)
    for part in (model.embed, model.norm, model.head):
        part.requires_grad_(False)
    train("lora", model)


@case
def accumulation():
    def backward(model, data, scale, last):
        half = torch.cat([data, data.flip(0)])
        if isinstance(model, zero.FullyShardedModule):
            with zero.no_sync(model):
                (loss_of(model, half[:1]) * scale).backward()
            assert all(p.grad is None for p in model.parameters())
        else:
            (loss_of(model, half[:1]) * scale).backward()
        (loss_of(model, half[1:]) * scale).backward()

    train("no_sync", Model(), backward=backward)


@case
def accumulation_keeps_f32():
    """Gradients of bf16, 256 and eight times 1, are 264, and what no reduce has seen stays when
    gradients are dropped, but for a reset."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.ones(5)) for _ in range(2))

        def forward(self, which, x):
            return getattr(self, which) * x

    for given in ("no_sync", "zero_grad", "reset"):
        policy = zero.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        model = zero.fully_shard(Two(), mp_policy=policy)
        model.set_requires_gradient_sync(False)
        for turn in range(9):
            for which in "ab":
                model(which, torch.full((5,), 256 if (which == "a") == (turn == 0) else 1)
                      .float()).sum().backward()
            assert model.a.grad is None
            if given == "zero_grad":
                model.zero_grad()
        if given == "reset":
            zero.reset()
        model.set_requires_gradient_sync(True)
        model("a", torch.ones(5)).sum().backward()
        kept = given != "reset"
        assert (model.a.grad.full_tensor() == 265 - (not kept) * 264).all(), model.a.grad
        assert (model.b.grad is None) == (not kept)
        assert not kept or (model.b.grad.full_tensor() == 8 * 256 + 1).all(), model.b.grad


@case
def accumulation_with_sync():
    def backward(model, data, scale, last):
        for i in range(2):
            (loss_of(model, data[i : i + 1]) * scale).backward()

    train("accumulation", Model(), backward=backward)


@case
def evaluation_between_steps():
    def between(model, single):
        data = batches(9)[0]
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                torch.testing.assert_close(loss_of(model.eval(), data), loss_of(single, data))
        model.train()
        loss_of(model, data)  # without a backward pass

    train("evaluation", Model(), between=between)


@case
def tied_weights():
    model = Model()
    model.head.weight = model.embed.weight
    train("tied", model)


class Words(Block):
    """Has the embedding, too, as its own."""

    def __init__(self):
        super().__init__()
        self.words = nn.Parameter(torch.randn(31, WIDTH) / 4)

    def forward(self, x):
        return super().forward(x) + (x @ self.words.t()).softmax(-1) @ self.words


def tie(model):
    model.head.weight = model.embed.weight
    model.blocks[1].words = model.embed.weight


def tied(name, modules, before=False, after=False):
    """The program ties parameters before it shards them, before their first use, or after it.
    `modules` of the model are groups of their own."""

    def run():
        model = Model(Words)
        single = copy.deepcopy(model)
        if before:
            tie(model)
        if not after:
            tie(single)

        def sharder(m):
            for module in modules(m):
                zero.fully_shard(module)
            shard(m)
            if not before and not after:
                tie(m)

        def between(model, single):
            if after:
                tie(model), tie(single)
            assert model.head.weight is model.embed.weight is model.blocks[1].words

        train(name, model, single, sharder=sharder, between=between)

    CASES[name] = run


def parts(model):
    return [model.embed, [model.norm, model.head]]


tied("tied_first", parts, before=True)
tied("tied_later", parts)
tied("tied_later_in_root", lambda m: [])
tied("tied_after_use", parts, after=True)


@case
def replaced():
    """A parameter that the program puts in the place of another, before and after its first use."""
    model = Model()
    single = copy.deepcopy(model)

    def replace(m, seed):
        value = torch.randn(31, WIDTH, generator=torch.Generator().manual_seed(seed))
        if m is single:
            m.head.weight.data.copy_(value)
            return
        if seed:
            wrong = nn.Parameter(torch.ones(2, WIDTH))
            m.blocks[0].a.bias, bias = wrong, m.blocks[0].a.bias
            expect(NotImplementedError, "blocks.0.a.bias was replaced", lambda: m.blocks[0](value))
            m.blocks[0].a.bias = bias
        m.head.weight = nn.Parameter(value)

    def sharder(m):
        shard(m)
        replace(m, 0), replace(single, 0)
        m.blocks[2].norm.bias = single.blocks[2].norm.bias = None
        m(batches(0)[0])  # an optimizer is built with what is sharded

    def between(*models):
        for m in models:
            replace(m, 1)

    train("replaced", model, single, sharder=sharder, between=between,
          make=lambda ps: torch.optim.SGD(ps, lr=1e-2))
    # What is given for one call is for that alone.
    given = {"head.weight": torch.zeros(31, WIDTH)}
    assert not torch.func.functional_call(model, given, (batches(0)[0],)).any()
    assert model(batches(0)[0]).any()
    # What was on meta gets its values by that, also once it is laid out.
    with torch.device("meta"):
        linear = zero.fully_shard(nn.Linear(3, 5))
    linear.bias = nn.Parameter(torch.arange(5.0))
    expect(RuntimeError, "weight']", lambda: linear(torch.ones(3)))
    linear.weight = nn.Parameter(torch.ones(5, 3))
    torch.testing.assert_close(linear(torch.ones(3)), 3 + torch.arange(5.0))


@case
def models_come_and_go():
    """What the program has dropped is freed, when all ranks have; what one of them holds is not."""
    first = shard(Model())
    layout, held, bytes_of = zero._api._job.layout, None, []
    for turn in range(4):
        layout.kept = 0  # so that it looks each time
        model = shard(Model())
        optimizer = torch.optim.AdamW(model.parameters())
        loss_of(model, batches(turn)[rank]).backward()
        optimizer.step()
        if turn == 1:
            # One rank holds some memory of it alone, the others hold all.
            held = model.embed.weight.to_local() if rank == 0 else model
            kept = held.clone() if rank == 0 else None
        if turn == 2:
            assert rank or torch.equal(held, kept)
            held = None
        del model, optimizer
        bytes_of.append(zero.memory()["shards"][0])
        loss_of(first, batches(turn)[rank]).backward()
    more = bytes_of[2] - bytes_of[1]
    assert bytes_of[3] == bytes_of[1] and more > 0, bytes_of
    assert first.embed.weight.grad is not None


@case
def transposed_parameter():
    class T(Block):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)

        def forward(self, x):
            return super().forward(x @ self.w.t())

    train("transposed", Model(T))


@case
def unused_parameters():
    class U(Block):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(3, 3)

    train("unused", Model(U))


@case
def unused_on_some_ranks():
    class S(Block):
        def forward(self, x):
            return super().forward(x) if self.use else x + self.b(self.a(x))

    def backward(m, data, scale, last):
        r = rank if m is model else backward.turn
        for block in m.blocks:
            block.use = r == 0
        if m is not model:
            backward.turn = (backward.turn + 1) % world
        (loss_of(m, data) * scale).backward()

    # Norms are a part of their own where they are of a type of their own.
    parts = zero.MixedPrecisionPolicy(
        param_dtype_override_fn=lambda p: p.dtype if p.shape == (WIDTH,) else None
    )
    for policy in (None, parts):
        backward.turn, model = 0, Model(S)
        train("unused on some ranks", model, backward=backward,
              sharder=functools.partial(shard, mp_policy=policy))


for reentrant in (False, True):
    kind = "reentrant" if reentrant else "not_reentrant"

    def inside(reentrant=reentrant, kind=kind):
        train(f"inside {kind}", Model(lambda: Block(reentrant)))

    def around(reentrant=reentrant, kind=kind):
        train(f"around {kind}", Model(outer=reentrant))

    def around_twice(reentrant=reentrant, kind=kind):
        model = Model(outer=reentrant)
        model.blocks = nn.ModuleList([model.blocks[0], model.blocks[1], model.blocks[0]])
        train(f"twice {kind}", model)

    CASES[f"checkpoint_inside_{kind}"] = inside
    CASES[f"checkpoint_around_{kind}"] = around
    CASES[f"called_twice_{kind}"] = around_twice


@case
def called_twice():
    model = Model()
    model.blocks = nn.ModuleList([model.blocks[0], model.blocks[1], model.blocks[0]])
    train("called twice", model)


@case
def two_losses_on_one_graph():
    def backward(model, data, scale, last):
        out = model(data)
        (out.square().mean() * scale).backward(retain_graph=True)
        (out.abs().mean() * scale).backward()

    train("two losses", Model(), backward=backward)


@case
def two_forwards_one_backward():
    train("two forwards", Model(), loss=lambda m, d: loss_of(m, d[:1]) + loss_of(m, d[1:]))


@case
def two_forwards_two_backwards():
    def backward(model, data, scale, last):
        losses = [loss_of(model, data[:1]) * scale, loss_of(model, data[1:]) * scale]
        losses[0].backward(), losses[1].backward()

    train("two backwards", Model(), backward=backward)


@case
def exceptions():
    class F(Block):
        fail = None

        def forward(self, x):
            if self.fail == "forward":
                raise Boom("in forward")
            x = super().forward(x)
            return Fails.apply(x) if self.fail == "backward" else x

    def between(model, single):
        for where in ("forward", "backward"):
            model.blocks[1].fail = where
            expect(Boom, where, lambda: loss_of(model, batches(7)[rank]).backward())
            model.blocks[1].fail = None
            if where == "backward":
                expect(zero.Error, "reset", lambda: model(batches(7)[rank]))
            zero.reset()

    train("exceptions", Model(F), between=between)


@case
def gradients_of_activations():
    def backward(model, data, scale, last):
        kept = []
        hook = model.blocks[1].register_forward_hook(lambda m, a, o: kept.append(o))
        loss = loss_of(model, data) * scale
        hook.remove()
        grad, = torch.autograd.grad(loss, kept, retain_graph=True)
        assert grad.abs().sum() > 0
        loss.backward()

    train("autograd.grad", Model(), backward=backward)


def compiled(name, backend, outer=None, frozen=False):
    def run():
        model = Model(outer=outer)
        if frozen:
            model.embed.requires_grad_(False)
            model.blocks[0].requires_grad_(False)
        single = copy.deepcopy(model)
        for block in model.blocks:
            block.compile(backend=backend)
        train(name, model, single)

    CASES[name] = run


compiled("compiled", "aot_eager")
compiled("compiled_checkpoint_frozen", "aot_eager", outer=False, frozen=True)


@case
def side_output():
    class Side(Block):
        def forward(self, x):
            x = super().forward(x)
            self.side = self.b(torch.tanh(self.a(x))).square().mean()
            return x

    def loss(model, data):
        loss = loss_of(model, data)
        return loss + sum(b.side for b in model.blocks)

    train("side", Model(Side), loss=loss)


@case
def changed_in_place():
    """What autograd has saved is changed before it is used: torch's error, with our hooks too."""
    class Changes(Block):
        def forward(self, x):
            y = torch.tanh(x)
            z = y * y
            y.add_(1)
            return super().forward(x) + z

    model = shard(Model(Changes))
    loss = loss_of(model, batches(0)[rank])
    expect(RuntimeError, "is at version 1; expected version 0 instead", loss.backward)
    zero.reset()


@case
def sparse():
    """Autograd saves a tensor that has no storage."""
    class Sparse(Block):
        def forward(self, x):
            mix = torch.eye(len(x.flatten(0, 1))).flip(0).to_sparse().to(x.device)
            return super().forward(x) + torch.sparse.mm(mix, x.flatten(0, 1)).view_as(x)

    train("sparse", Model(Sparse))


@case
def auxiliary_output_alone():
    class Two(Block):
        def forward(self, x):
            return super().forward(x), self.norm(x).square().mean()

    class M(Model):
        def forward(self, ids):
            x, aux = self.embed(ids), 0
            for block in self.blocks:
                x, a = block(x)
                aux = aux + a
            self.aux = aux
            return self.head(self.norm(x)), aux

    def backward(model, data, scale, last):
        out, aux = model(data)
        (aux * scale).backward(retain_graph=True)
        (out.square().mean() * scale).backward()

    train("auxiliary", M(Two), backward=backward)


@case
def view_changed_in_place():
    class V(Block):
        def forward(self, x):
            return super().forward(x).view(-1, WIDTH)

    class M(Model):
        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
                x += 1
                x = x * 2
            return self.head(self.norm(x)).view(*ids.shape, -1)

    train("view", M(V))


@case
def list_of_modules():
    def sharder(model):
        zero.fully_shard([model.norm, model.head])
        shard(model)

    train("list", Model(), sharder=sharder)


@case
def outputs_in_structures():
    @dataclasses.dataclass
    class Out:
        x: torch.Tensor

    class D(Block):
        def forward(self, x):
            return {"x": super().forward(x)}

    class E(Block):
        def forward(self, x):
            return Out(super().forward(x))

    class M(Model):
        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
                x = x["x"] if isinstance(x, dict) else x.x
            return self.head(self.norm(x))

    turn = iter((D, E, D))
    train("structures", M(lambda: next(turn)()))


@case
def outputs_cast_in_recomputations():
    """What a module returns to a checkpoint has the same type both times."""
    policy = zero.MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float32)
    found = {}
    for reentrant in (None, True, False):
        torch.manual_seed(4)
        block = zero.fully_shard(Block(), mp_policy=policy)

        def forward(x, block=block):
            return block(block(x).sin())

        x = torch.ones(3, WIDTH, requires_grad=True)
        if reentrant is None:
            out = forward(x)
        else:
            out = torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=reentrant)
        out.sum().backward()
        found[reentrant] = [p.grad.full_tensor() for p in block.parameters()]
        torch.testing.assert_close(found[reentrant], found[None], rtol=0, atol=0)


@case
def loss_scaled():
    """f16 with a GradScaler, which halves the scale where the part of a single rank is infinite."""
    model = Model()
    single = copy.deepcopy(model)
    inner = zero.MixedPrecisionPolicy(torch.float16)
    outer = dataclasses.replace(inner, output_dtype=torch.float32)
    shard(model, whole={"mp_policy": outer}, mp_policy=inner)
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, single))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
    for step in range(6):
        scaler.scale(loss_of(model, batches(step)[rank])).backward()
        if step % 3 == 2:  # all of its elements are on one rank
            part = model.blocks[0].norm.bias.grad._local_tensor
            part[:1] = float("inf")
        else:
            for r in range(world):
                (loss_of(single, batches(step)[r]) / world).backward()
            other.step()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(), other.zero_grad()
        assert scaler.get_scale() == 2.0 ** (10 - (step + 1) // 3), scaler.get_scale()
        compare("loss_scaled", model, single, 5e-3)


@case
def hooks():
    """Of a gradient, which change it; and of what was added to .grad: optimizers that step and drop
    it there. On the unsharded model the same with whole gradients."""
    model = Model()
    single = copy.deepcopy(model)
    shard(model)
    mask = torch.arange(13 * 29).view(29, 13).float() / 99
    steps = {}

    def take(optimizer, name, p):
        steps[name] += 1
        optimizer.step()
        optimizer.zero_grad()

    for m in (model, single):
        for name, p in m.named_parameters():
            if name.endswith("a.weight"):
                p.register_hook(lambda grad: grad * mask.to(grad.device))
            optimizer = torch.optim.AdamW([p], lr=1e-2, eps=1e-3)
            if m is model:
                steps[name] = 0
                p.register_post_accumulate_grad_hook(functools.partial(take, optimizer, name))
            else:
                p.optimizer = optimizer
    for step in range(3):
        loss_of(model, batches(step)[rank]).backward()
        assert all(p.grad is None for p in model.parameters())
        sum(loss_of(single, batches(step)[r]) / world for r in range(world)).backward()
        for p in single.parameters():
            p.optimizer.step()
        single.zero_grad()
        compare("hooks", model, single, 2e-4)
    assert set(steps.values()) == {3}, steps


def counted(name, function):
    """How often a function of the library is called meanwhile."""
    calls, real = [], getattr(zero._zero, name)
    setattr(zero._zero, name, lambda *args: calls.append(args) or real(*args))
    try:
        function()
    finally:
        setattr(zero._zero, name, real)
    return len(calls)


@case
def methods():
    """Those of FSDPModule, by what they change: gathers of two steps without an optimizer, and
    gradients, which train() compares."""

    def steps(model):
        for _ in range(2):
            loss_of(model, batches(0)[rank]).backward()
        model.zero_grad()

    gathers = {}
    for given in ("", "set_reshard_after_backward", "set_reshard_after_forward",
                  "set_unshard_in_backward"):
        model = Model()
        model.embed = nn.Sequential(model.embed)
        single = copy.deepcopy(model)

        def sharder(m, given=given):
            zero.fully_shard(m.embed)
            shard(m)
            if given:
                getattr(m.embed if given == "set_unshard_in_backward" else m, given)(False)
            gathers[given] = counted("gather", lambda: steps(m))

        train(given, model, single, sharder=sharder)
    # Four inner groups, and the root, which is gathered once for both passes.
    assert gathers == {"": 18, "set_reshard_after_backward": 13, "set_unshard_in_backward": 16,
                       "set_reshard_after_forward": 10}, gathers

    def sharder(m):
        shard(m, reshard_after_forward=world)
        m.set_manual_backward_finalization(True)
        for part in (m, *m.blocks):
            part.set_all_reduce_hook(lambda flat: flat.mul_(3))
            part.set_reduce_scatter_divide_factor(world / 2)
        m.blocks[0].set_is_last_backward(False)
        m.set_force_sum_reduction_for_comms(True)

    def backward(m, data, scale, last):
        if m is model:
            handle = m.blocks[1].unshard(async_op=True)
            assert isinstance(m.blocks[1].a.bias, zero.FlatShard)
            handle.wait()
            assert not isinstance(m.blocks[1].a.bias, zero.FlatShard)
            m.blocks[1].reshard()
        (loss_of(m, data) * (scale if m is model else 6 * scale)).backward()
        if m is model:
            assert all(p.grad is None for p in m.parameters())
            assert (m.finalize_backward(async_op=last) is None) != last

    model = Model()
    single = copy.deepcopy(model)
    train("methods", model, single, sharder=sharder, backward=backward)
    expect(RuntimeError, "on the root", model.blocks[0].reset_iter_state)
    loss_of(model, batches(0)[rank]).backward()
    model.reset_iter_state()
    model.finalize_backward()
    assert all(p.grad is None for p in model.parameters())
    refused = {name for name, method in vars(zero.FullyShardedModule).items()
               if getattr(method, "__name__", None) == "refused"}
    assert refused <= {"set_custom_all_gather", "set_custom_reduce_scatter"}, refused


@case
def second_order():
    """A penalty on the gradient of a block's output, alone and with the loss. What create_graph
    leaves in .grad of parameters has no graph."""
    for alone, gathers in ((False, False), (False, True), (True, True)):
        model = Model()
        single = copy.deepcopy(model)
        inner = zero.MixedPrecisionPolicy(torch.bfloat16 if gathers else None)
        outer = dataclasses.replace(inner, output_dtype=torch.float32)

        def backward(m, data, scale, last, alone=alone, gathers=gathers, model=model):
            kept = []
            hook = m.blocks[0].register_forward_hook(lambda m, a, o: kept.append(o))
            loss = (rounded_loss if gathers and m is not model else loss_of)(m, data) * scale
            hook.remove()
            grad, = torch.autograd.grad(loss, kept, create_graph=True)
            (grad.float().square().sum() * 100 / scale + (0 if alone else loss)).backward()

        train("second order", model, single, backward=backward, clip=0,
              sharder=lambda m: shard(m, whole={"mp_policy": outer}, mp_policy=inner),
              tolerance=1e-2 if gathers else 2e-5, make=lambda ps: torch.optim.SGD(ps, lr=1e-2))
    model = shard(Model())
    loss_of(model, batches(0)[rank]).backward(create_graph=True)
    assert not any(p.grad.requires_grad for p in model.parameters())


def rounded_loss(m, data):
    """Of a model that is not sharded, with parameters and activations of bf16."""
    rounded = {k: v.bfloat16() for k, v in m.named_parameters()}
    return loss_of(lambda ids: torch.func.functional_call(m, rounded, (ids,)).float(), data)


@case
def bfloat16():
    """Gathered as bf16: against a model that rounds its f32 parameters itself."""
    model = Model()
    single = copy.deepcopy(model)
    inner = zero.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    outer = dataclasses.replace(inner, output_dtype=torch.float32)

    def sharder(m):
        for block in m.blocks:
            zero.fully_shard(block, mp_policy=inner)
        zero.fully_shard(m, mp_policy=outer)

    def loss(m, data):
        return (loss_of if m is model else rounded_loss)(m, data)

    train("bf16", model, single, sharder=sharder, loss=loss, tolerance=1e-2, clip=0,
          make=lambda ps: torch.optim.SGD(ps, lr=1e-2))


@case
def prefetch():
    """In the order of the last pass, when the order has changed, and as the program says."""
    model = Model()
    single = copy.deepcopy(model)
    inner = zero.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    blocks, handles, begun = list(model.blocks), [], []
    want = [[], [0, 1, 2, 1, 0], None, [2, 1, 0, 1, 2], None]
    real = zero._zero.prefetch

    def sharder(m):
        for block in m.blocks:
            zero.fully_shard(block, mp_policy=inner)
        zero.fully_shard(m, mp_policy=dataclasses.replace(inner, output_dtype=torch.float32))

    def record(group, param, dtype):
        begun.append(handles.index(group))
        return real(group, param, dtype)

    def loss(m, data):
        return (loss_of if m is model else rounded_loss)(m, data)

    def between(*models):
        handles[:] = [group.parts[0].handle for group in zero._api._job.groups[-4:]]
        expected = want.pop(0)
        assert expected is None or begun == expected, (begun, expected)
        begun.clear()
        if expected and expected[0] == 0:
            for m in models:
                m.blocks = nn.ModuleList(reversed(m.blocks))
        if len(want) == 1:
            model.set_modules_to_forward_prefetch([blocks[2], blocks[0]])
            blocks[2].set_modules_to_forward_prefetch([])
            blocks[0].set_modules_to_backward_prefetch([blocks[2]])
            want[0] = [2, 0, 2]  # what is prefetched already is not begun again

    zero._zero.prefetch = record
    try:
        train("prefetch", model, single, sharder=sharder, loss=loss, steps=5, tolerance=2e-2,
              clip=0, make=lambda ps: torch.optim.SGD(ps, lr=1e-2), between=between)
    finally:
        zero._zero.prefetch = real


@case
def stored_as_bfloat16():
    def make(ps):
        return torch.optim.SGD(ps, lr=1e-2)

    policy = zero.MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    train("stored bf16", Model().bfloat16(), sharder=lambda m: shard(m, mp_policy=policy),
                     tolerance=1e-2, clip=0, make=make)


@case
def some_ignored():
    """One optimizer of parameters that are sharded and others that are not."""
    model = Model()
    single = copy.deepcopy(model)
    model.norm.to(device)  # what is ignored stays where it is
    ignored = {model.norm.weight, model.norm.bias}

    def make(ps):
        return torch.optim.AdamW(ps, lr=1e-2, eps=1e-3)

    zero.fully_shard(model, ignored_params=ignored)
    mine, other = make(model.parameters()), make(single.parameters())
    for step in range(3):
        data = batches(step)
        loss_of(model, data[rank]).backward()
        for p in ignored:
            torch.distributed.all_reduce(p.grad)
            p.grad /= world
        for r in range(world):
            (loss_of(single, data[r]) / world).backward()
        mine.step(), other.step()
        mine.zero_grad(), other.zero_grad()
        for key, p in model.named_parameters():
            full = p.full_tensor() if isinstance(p, zero.FlatShard) else p
            torch.testing.assert_close(full, single.get_parameter(key), rtol=2e-4, atol=2e-4)


@case
def models_by_turns():
    """A generator, and a critic that is sharded when the generator has been trained already."""

    def losses(sharded):
        torch.manual_seed(3)
        generator, critic = (
            nn.Sequential(nn.Linear(i, 9), nn.Tanh(), nn.Linear(9, o)) for i, o in ((4, 6), (6, 1))
        )
        models, optimizers, said = (generator, critic), [], []
        for step in range(4):
            if step < 2:
                if sharded:
                    zero.fully_shard(models[step][0]), zero.fully_shard(models[step])
                optimizers.append(torch.optim.AdamW(models[step].parameters(), lr=1e-2, eps=1e-3))
            noise = torch.randn(world, 5, 4, generator=torch.Generator().manual_seed(step))
            for turn, optimizer in enumerate(optimizers):
                mean = 0
                for r in [rank] if sharded else range(world):
                    made = generator(noise[r])
                    if len(optimizers) == 1:
                        loss = made.square().mean()
                    else:
                        loss = critic(made.detach()).mean() if turn else -critic(made).mean()
                    (loss if sharded else loss / world).backward()
                    mean += loss.item()
                optimizer.step()
                for o in optimizers:
                    o.zero_grad()
                said.append(mean)
        sums = torch.tensor(said)
        torch.distributed.all_reduce(sums) if sharded else None
        return sums

    torch.testing.assert_close(losses(True), losses(False), rtol=2e-5, atol=2e-5)


@case
def frozen_and_trained_by_turns():
    """As a generator's parameters are while its critic is trained."""

    def freeze(m, frozen):
        for part in (m.embed, m.blocks[1].a, m.blocks[1].b, m.blocks[1].norm):
            part.requires_grad_(not frozen)
        m.blocks[2].a.requires_grad_(not frozen)

    def between(model, single):
        between.frozen = not between.frozen
        for m in (model, single):
            freeze(m, between.frozen)

    settings = {"lr": 1e-2, "eps": 1e-3}
    # The library counts the steps of those together that are frozen together from the start.
    for frozen, own in ((False, torch.optim.AdamW), (True, torch.optim.AdamW), (True, zero.AdamW)):
        between.frozen = frozen
        model = Model()
        freeze(model, frozen)
        model.blocks[1].counts = nn.Parameter(torch.arange(5), requires_grad=False)
        single = copy.deepcopy(model)
        makers = iter(((own, model), (torch.optim.AdamW, single)))

        def make(_):
            kind, m = next(makers)
            return kind(m.parameters(), **settings)

        train(f"by turns, {frozen}, {own}", model, single, between=between, steps=5, make=make)


@case
def types_within_a_group():
    """Norms are gathered as they are, and weights in 16 bits: each gradient is of its own type."""
    policy = zero.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        param_dtype_override_fn=lambda p: p.dtype if p.ndim < 2 else None,
    )

    class Rounded(Block):
        def inner(self, x):
            return self.b(torch.tanh(self.a(self.norm(x.float()).bfloat16()).float()).bfloat16())

    class Linear(nn.Linear):
        def forward(self, x):
            kinds.add((self.weight.dtype, None if self.bias is None else self.bias.dtype))
            bias = 0 if self.bias is None else self.bias.bfloat16()
            return nn.functional.linear(x.bfloat16(), self.weight.bfloat16()) + bias

    kinds = set()
    model = Model(Rounded)
    for block in model.blocks:
        for linear in (block.a, block.b):
            linear.__class__ = Linear
    model.head.__class__ = Linear
    single = copy.deepcopy(model)
    train("types", model, single, sharder=functools.partial(shard, mp_policy=policy),
          tolerance=3e-2, steps=2, clip=None)
    assert (torch.bfloat16, torch.float32) in kinds, kinds


@case
def experts():
    """Each word goes to one of five experts, some of which no rank, or not every rank, uses."""

    class Expert(Block):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(WIDTH, 5)
            self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))

        def forward(self, x):
            weight, index = self.router(x)[..., :4].softmax(-1).max(-1)
            out = torch.zeros_like(x)
            for i in index.unique().tolist():
                out[index == i] = self.experts[i](x[index == i]) * weight[index == i, None]
            return super().forward(x) + out

    def backward(model, data, scale, last):
        (loss_of(model, data[:1, :3]) * scale).backward()

    train("experts", Model(Expert), backward=backward)


# What stands in for a GPU cannot do: its layer_norm takes one type, the cuBLAS that torch has
# loaded is the real one, and it has no sparse tensors.
NOT_ON_STANDIN = {"types_within_a_group", "library_muon", "sparse"}


def main():
    names = sys.argv[1:] or [n for n in CASES if device.type == "cpu" or n not in NOT_ON_STANDIN]
    for name in names:
        try:
            CASES[name]()
        except Exception:
            # Other ranks may wait for this one, which the library ends.
            print(f"FAIL: {name} on rank {rank} of {world}", traceback.format_exc(), flush=True)
            sys.exit(1)
    if rank == 0:
        print(f"{len(names)} passed", flush=True)


if __name__ == "__main__":
    main()
