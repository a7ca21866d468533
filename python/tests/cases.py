# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank. Each case trains a sharded model and the same model unsharded, in this process,
on the batches of all ranks, and compares gradients and parameters over three steps."""

import copy
import dataclasses
import json
import os
import shutil
import struct
import sys
import tempfile
import traceback

import torch
import torch.utils.checkpoint
from torch import nn

import slurm_zero as zero

torch.manual_seed(1)
torch.set_num_threads(1)
zero.init()
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


def shard(model, **options):
    for block in dict.fromkeys(model.blocks):
        zero.fully_shard(block, **options)
    return zero.fully_shard(model, **options)


def loss_of(model, ids):
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def batches(step, micro=0):
    generator = torch.Generator().manual_seed(100 * step + micro)
    return torch.randint(0, 31, (world, 2, 7), generator=generator)


def compare(name, model, single, tolerance):
    want = dict(single.named_parameters())
    for key, p in model.named_parameters():
        assert isinstance(p, zero.FlatShard), (name, key)
        for what, mine, other in (("gradient", p.grad, want[key].grad), ("value", p, want[key])):
            if other is None or mine is None:
                assert other is None and mine is None, (name, key, what, mine is None, other is None)
                continue
            torch.testing.assert_close(
                mine.full_tensor(), other.detach(), rtol=tolerance, atol=tolerance,
                msg=lambda text: f"{name}: {what} of {key}: {text}",
            )


def train(name, model, single=None, *, sharder=shard, loss=loss_of, steps=3, tolerance=2e-5, make=None,
          clip=0.1, between=None, backward=None):
    single = copy.deepcopy(model) if single is None else single
    sharder(model)
    # A small eps would turn the rounding of a gradient that is nearly 0 into a step of another size.
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
                norm, torch.nn.utils.clip_grad_norm_(single.parameters(), clip), rtol=1e-4, atol=1e-5
            )
        compare(f"{name} step {step}", model, single, tolerance)
        mine.step(), other.step()
        compare(f"{name} after step {step}", model, single, 10 * tolerance)
        mine.zero_grad(), other.zero_grad()
        if between:
            between(model, single)


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
    if os.environ.get("ZERO_STAGE", "3") == "3":
        model.load_state_dict(more)
        for key, value in more.items():
            torch.testing.assert_close(model.state_dict()[key].full_tensor(), value)
    else:
        expect(RuntimeError, "needs stage 3", lambda: model.load_state_dict(more))
    p = model.head.weight
    torch.testing.assert_close(p.mean().full_tensor(), p.full_tensor().mean())
    torch.testing.assert_close(p.t().full_tensor(), p.full_tensor().t())


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

    model = Model(S)

    def backward(m, data, scale, last):
        r = rank if m is model else backward.turn
        for block in m.blocks:
            block.use = r == 0
        if m is not model:
            backward.turn = (backward.turn + 1) % world
        (loss_of(m, data) * scale).backward()

    backward.turn = 0
    train("unused on some ranks", model, backward=backward)


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


class Boom(Exception):
    pass


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise Boom("in backward")


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


@case
def compiled():
    model = Model()
    single = copy.deepcopy(model)
    for block in model.blocks:
        block.compile(backend="aot_eager")
    train("compiled", model, single)


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
        if m is model:
            return loss_of(m, data)
        rounded = {k: v.bfloat16() for k, v in m.named_parameters()}
        return loss_of(lambda ids: torch.func.functional_call(m, rounded, (ids,)).float(), data)

    train("bf16", model, single, sharder=sharder, loss=loss, tolerance=1e-2, clip=0, make=lambda ps: torch.optim.SGD(ps, lr=1e-2))


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
    ignored = {model.norm.weight, model.norm.bias}
    single = copy.deepcopy(model)

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


def write_safetensors(path, tensors):
    """f32 tensors."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.numpy().tobytes())


@case
def load_of_a_part():
    first, second = shard(Model()), Model()
    before = [p.full_tensor() for p in first.parameters()]
    shard(second)
    values = {f"norm.{name}": torch.rand(WIDTH) for name in ("weight", "bias", "other")}
    path = [tempfile.mkdtemp() + "/x.safetensors" if rank == 0 else None]
    torch.distributed.broadcast_object_list(path)
    if rank == 0:
        write_safetensors(path[0], values)
    torch.distributed.barrier()
    missing, unexpected = zero.load(second, path[0], strict=False)
    assert "head.weight" in missing and "norm.bias" not in missing and unexpected == ["norm.other"]
    expect(zero.Error, "norm.other", lambda: zero.load(second, path[0]))
    for got, want in zip(first.parameters(), before):
        torch.testing.assert_close(got.full_tensor(), want, rtol=0, atol=0)
    torch.testing.assert_close(second.norm.bias.full_tensor(), values["norm.bias"], rtol=0, atol=0)
    missing, _ = zero.load(second.blocks[1].norm, path[0], strict=False)
    assert missing == ["weight", "bias"], missing
    expect(ValueError, "no parameter of this Linear", lambda: zero.load(nn.Linear(2, 2), path[0]))
    torch.distributed.barrier()
    if rank == 0:
        shutil.rmtree(os.path.dirname(path[0]))


@case
def refused():
    class View(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(5))

        def forward(self, x):
            return self.w.view(1, 5)

    view, model = zero.fully_shard(View()), shard(Model())
    expect(ValueError, "before", lambda: zero.fully_shard(model))
    expect(ValueError, "in a group already", lambda: zero.fully_shard(model.embed))
    sharing = nn.Linear(2, 2)
    sharing.weight = model.embed.weight
    expect(ValueError, "in a group already", lambda: zero.fully_shard(sharing))
    expect(ValueError, "torch.int64", lambda: zero.fully_shard(Ints()))
    expect(NotImplementedError, "two dimensions", lambda: zero.fully_shard(
        nn.Linear(2, 2), mesh=torch.distributed.init_device_mesh("cpu", (1, world))))
    expect(NotImplementedError, "moved", lambda: model.double())
    toggled = zero.fully_shard(nn.Linear(3, 3))
    toggled(torch.ones(3))
    toggled.bias.requires_grad_(False)
    expect(NotImplementedError, "requires_grad of", lambda: toggled(torch.ones(3)))
    expect(NotImplementedError, "in place", lambda: model.head.weight.detach().cumsum_(0))
    expect(NotImplementedError, "each rank has a part", lambda: torch._foreach_max([model.head.weight]))
    expect(NotImplementedError, "closure", lambda: torch.optim.SGD(model.parameters()).step(lambda: 0))
    expect(NotImplementedError, "return a copy", lambda: view(torch.ones(1)))
    zero.reset()

    def second_order():
        loss_of(model, batches(0)[rank]).backward(create_graph=True)

    expect(NotImplementedError, "create_graph", second_order)
    zero.reset()


class Ints(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(5, dtype=torch.int64), requires_grad=False)


def main():
    names = sys.argv[1:] or list(CASES)
    failed = 0
    for name in names:
        try:
            CASES[name]()
        except Exception:
            failed += 1
            print(f"FAIL: {name} on rank {rank} of {world}", traceback.format_exc(), flush=True)
            zero.reset()
    if rank == 0:
        print(f"{len(names) - failed} passed, {failed} failed", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
