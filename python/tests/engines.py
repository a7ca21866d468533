# SPDX-License-Identifier: Apache-2.0
"""engines.py STAGE FOLDER CASE...: a DeepSpeed program that has never heard of slurm-zero. Rank 0
prints `case: what number...` lines, which are to be the same whoever's the engine is."""

import contextlib
import copy
import itertools
import json
import os
import shutil

import deepspeed
import numpy
import torch
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed_cases import case, folder, rank, run, stage, tell
from torch import nn

STEPS, VOCABULARY, WIDTH, MICRO = 20, 61, 24, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("seen", torch.zeros(()))
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def make(**options):
    torch.manual_seed(1 + options.pop("seed", 0))
    return Model(**options)


# A linear layer of DeepSpeed's own, of stage 3, adds a bias after it has rounded.
ZERO = {"stage": stage, "memory_efficient_linear": False}


def settings(**others):
    return copy.deepcopy({  # DeepSpeed may take keys out of it
        "train_micro_batch_size_per_gpu": MICRO, "gradient_accumulation_steps": 2,
        "zero_optimization": ZERO, "zero_allow_untested_optimizer": True,
        "steps_per_print": 1000, **others,
    })


ADAMW = {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-3,
                                     "weight_decay": 0.1, "torch_adam": True}}
WARMUP = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-2,
                                         "warmup_num_steps": 5, "warmup_type": "linear"}}


def batch(step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, VOCABULARY, (MICRO, 9), generator=generator)


def train(name, engine, steps=STEPS, first=0, norms=True):
    """Tells the mean loss of this rank's micro-batches, norms and rates."""
    for step in range(first, first + steps):
        losses = []
        for micro in range(engine.gradient_accumulation_steps()):
            loss = engine(batch(10 * step + micro))
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        norm = engine.get_global_grad_norm()
        tell(name, f"loss.{step}", sum(losses) / len(losses))
        if stage and norms:
            tell(name, f"norm.{step}", float(norm))
        tell(name, f"lr.{step}", engine.get_lr()[0])
    counts = engine.global_steps, engine.global_samples, engine.skipped_steps
    tell(name, "counts", *counts)


@case
def of_config():
    """Accumulation, clipping, scheduler and optimizer of the configuration."""
    engine, optimizer, _, scheduler = deepspeed.initialize(
        model=make(seed=rank),  # rank 0's values count
        config=settings(optimizer=ADAMW, scheduler=WARMUP, gradient_clipping=0.5),
    )
    assert isinstance(engine, deepspeed.DeepSpeedEngine)
    assert optimizer is engine.optimizer and scheduler is engine.lr_scheduler
    train("of_config", engine)
    engine.eval()
    with torch.no_grad():
        tell("of_config", "evaluated", engine(batch(7)).item())


@case
def of_client():
    """An optimizer that was made before, with groups, and a scheduler of torch's."""
    model = make(tied=False)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-2, eps=1e-3,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, lr_scheduler=scheduler, config=settings(),
    )
    train("of_client", engine)


@case
def callables():
    """An optimizer and a scheduler that initialize makes, and one micro-batch in a step."""
    engine, *_ = deepspeed.initialize(
        model=make(), optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
        lr_scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        config=settings(gradient_accumulation_steps=1, gradient_clipping=1.0),
    )
    train("callables", engine)


@case
def boundaries():
    """As Accelerate does: it says which micro-batch is the last, and gives parameters in groups."""
    model = make()
    params = [{"params": [p]} for p in model.parameters() if p.dim() > 1]
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=params, config=settings(optimizer={
            "type": "Adam", "params": {"lr": 1e-2, "eps": 1e-3, "torch_adam": True}}),
    )
    for step in range(6):
        for micro in range(3):
            engine.set_gradient_accumulation_boundary(micro == 2)
            loss = engine(batch(10 * step + micro))
            engine.backward(loss)
        engine.step()
        tell("boundaries", f"loss.{step}", loss.item())
    tell("boundaries", "steps", engine.global_steps)


@case
def data():
    """The loader of initialize, and a frozen part."""
    model = make(tied=False)
    model.blocks[0].requires_grad_(False)
    path = f"{folder}/config.json"
    if rank == 0:
        with open(path, "w", encoding="ascii") as file:
            json.dump(settings(optimizer=ADAMW), file)
    torch.distributed.barrier()
    samples = [batch(i)[0] for i in range(16)]
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=[p for p in model.parameters() if p.requires_grad],
        training_data=samples, config=path,
    )
    torch.manual_seed(3)
    for ids in loader:
        loss = engine(ids)
        engine.backward(loss)
        engine.step()
    tell("data", "steps", engine.global_steps)
    total = torch.tensor(loss.item())
    torch.distributed.all_reduce(total)
    tell("data", "loss", total.item())


@contextlib.contextmanager
def gathered(p, modifier=None):
    with deepspeed.zero.GatheredParameters(p, modifier_rank=modifier), torch.no_grad():
        yield


@case
def context():
    """zero.Init, and what programs do with its parameters before and after initialize."""
    config = settings(optimizer=ADAMW)
    torch.manual_seed(5 + rank)  # rank 0's values count
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = Model(tied=False)
        later = nn.Linear(WIDTH, WIDTH, bias=False)
    sizes = [p.numel() for p in model.parameters()]
    assert not any(sizes) and all(hasattr(p, "ds_id") for p in model.parameters()), sizes
    assert tuple(model.embed.weight.ds_shape) == (VOCABULARY, WIDTH)
    with gathered(list(model.parameters())):
        for name, p in model.named_parameters():
            tell("context", f"made.{name}", p.double().sum().item(), p.double().norm().item())
    with gathered(model.blocks[1].up.weight, modifier=1):
        if rank == 1:
            model.blocks[1].up.weight.fill_(0.01)
            model.blocks[1].up.weight[3, 4] = 0.5
    model.head.weight = model.embed.weight  # tied
    model.blocks[2].down = later  # another module, of another shape
    model.blocks[2].up = nn.Linear(WIDTH, WIDTH)  # made outside
    with torch.no_grad():
        model.blocks[2].up.weight.fill_(0.02)
        model.blocks[2].up.bias.fill_(0.03)
    model.blocks[0].norm.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2,
                                  eps=1e-3)
    del config["optimizer"]
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    train("context", engine, steps=4)
    with gathered([p for p in model.parameters()]):
        if rank == 0:  # alone
            state = model.state_dict()
            for name, value in state.items():
                tell("context", f"trained.{name}", value.double().norm().item())
    with gathered(model.blocks[0].up.weight, modifier=0):
        if rank == 0:
            model.blocks[0].up.weight.data[1] = 0.25
            nn.init.ones_(model.blocks[0].up.weight[2:4])
    with gathered(model.blocks[0].up.weight):
        tell("context", "written", model.blocks[0].up.weight.double().sum().item())
        assert float(model.blocks[0].up.weight[1, 0]) == 0.25
    # DeepSpeed's own forgets it at the next step, whose masters are older.
    tell("context", "evaluated", engine(batch(7)).item())


@case
def converted():
    """zero.Init of a model that is there, no names of classes, and a module's own parameters."""
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((5,), 2.0))
            self.layers = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 5))
            self.apply(self.set)

        def set(self, module):
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 0.125 + rank)
                nn.init.zeros_(module.bias)

        def forward(self, x):
            return (self.layers(x) * self.scale).square().mean()

    config = settings(optimizer=ADAMW)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = Own()
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    deepspeed.zero.Init(module=other, config_dict_or_path=config)
    assert not any(p.numel() for p in other.parameters())
    engine, *_ = deepspeed.initialize(model=model, config=config)
    for step in range(4):
        loss = engine(torch.full((2, 7), 0.1 * (step + 1)))
        engine.backward(loss)
        engine.step()
        tell("converted", f"loss.{step}", loss.item())


def saving(**others):
    torch.manual_seed(9)
    return deepspeed.initialize(model=make(), config=settings(
        optimizer=ADAMW, scheduler=WARMUP, gradient_clipping=1.0, **others))[0]


@case
def saved():
    """Checkpoints by tags, with states of the program; the training goes on as it would have."""
    engine = saving()
    train("saved", engine, steps=3)
    state = {"told": [1, "two"], "rank": rank, "random": numpy.random.get_state()}
    assert engine.save_checkpoint(f"{folder}/saved", client_state=state)
    tag = f"global_step{engine.global_steps}"
    assert open(f"{folder}/saved/latest", encoding="ascii").read() == tag
    train("saved", engine, steps=2, first=3)
    engine.save_checkpoint(f"{folder}/saved", tag="other", save_latest=False)
    engine.save_checkpoint(f"{folder}/saved", tag="other", save_latest=False)  # once more
    assert open(f"{folder}/saved/latest", encoding="ascii").read() == tag
    del engine

    engine = saving()
    assert engine.load_checkpoint(f"{folder}/none") == (None, None)
    path, state = engine.load_checkpoint(f"{folder}/saved")
    assert tag in path and state["told"] == [1, "two"], (path, state)
    numpy.random.set_state(state["random"])
    assert state["rank"] == (rank if stage == 3 else 0)
    train("saved.loaded", engine, steps=2, first=3)
    del engine

    if stage == 0 and deepspeed.__version__ == "0.16.0":
        return  # which fails
    engine = saving()
    engine.load_checkpoint(f"{folder}/saved", tag="other", load_module_only=True)
    tell("saved", "counts", engine.global_steps)
    if stage != 3:  # where DeepSpeed loads nothing
        tell("saved", "module", engine(batch(7)).item())


def fails(call):
    """Whether it raises an error, which it does on both ranks or on neither."""
    try:
        call()
        raised = False
    except Exception:
        raised = True
    every = [None, None]
    torch.distributed.all_gather_object(every, raised)
    assert every[0] == every[1], every
    return raised


def plant(module, name, good, who):
    """Makes a function fail on a rank after so many calls. Returns what takes that back."""
    stock, calls = getattr(module, name), itertools.count()

    def planted(*args, **kwargs):
        if next(calls) >= good and rank == who:
            raise OSError("planted")
        return stock(*args, **kwargs)

    setattr(module, name, planted)
    return lambda: setattr(module, name, stock)


@case
def failing():
    """What a rank cannot do is an error of both, `latest` names a whole checkpoint all the time,
    and the training goes on."""
    engine = saving()
    train("failing", engine, steps=1)
    if not type(engine).__module__.startswith("deepspeed."):  # whose other rank waits
        path = f"{folder}/failing"
        engine.save_checkpoint(path, tag="first")
        other = f"{path}/first/engine_rank_{2 if stage == 3 else 1}.pt"
        if rank == 0:  # as of a save by more ranks
            shutil.copy(f"{path}/first/engine_rank_0.pt", other)
        engine.save_checkpoint(path, tag="first")
        assert not os.path.exists(other)
        calls = (os, "makedirs"), (os, "replace"), (torch, "save"), (shutil, "copy")
        failed = 0
        for number, (call, who, good) in enumerate(itertools.product(calls, range(2), range(3))):
            mend = plant(*call, good, who)
            failed += fails(lambda number=number: engine.save_checkpoint(path, tag=number))
            fails(lambda: engine.save_16bit_model(f"{path}/whole"))
            mend()
            assert engine.load_checkpoint(path)[0] is not None
        assert failed >= 6, failed
        if rank == 0:
            with open(f"{path}/latest", encoding="ascii") as file:
                last = f"{path}/{file.read()}"
            last += "/" + max(name for name in os.listdir(last) if name.endswith(".pt"))
            os.truncate(last, 100)
        torch.distributed.barrier()
        assert fails(lambda: engine.load_checkpoint(path))
    train("failing", engine, steps=1, first=1)


@case
def direct():
    """backward() of the loss itself, which older releases of DeepSpeed do not have."""
    if not hasattr(deepspeed.DeepSpeedEngine, "scale"):
        return
    engine = saving()
    for step in range(4):
        for micro in range(2):
            loss = engine(batch(10 * step + micro))
            loss.backward()
            engine.step()
        tell("direct", f"loss.{step}", loss.item(), float(engine.get_global_grad_norm()))
    engine = saving(fp16={"enabled": True, "loss_scale": 128})
    for step in range(2):
        for micro in range(2):
            engine.scale(engine(batch(10 * step + micro))).backward()
            engine.step()
    tell("fp16.direct", "norm", float(engine.get_global_grad_norm()))


@case
def coalesced():
    """Several backward passes whose gradients are reduced together, which older releases of
    DeepSpeed do not have."""
    if not hasattr(deepspeed.DeepSpeedEngine, "coalesce_grad_reduction"):
        return
    engine = saving(gradient_accumulation_steps=1)
    for step in range(4):
        with engine.coalesce_grad_reduction():
            for micro in range(3):
                loss = engine(batch(10 * step + micro))
                engine.backward(loss)
        engine.step()
        tell("coalesced", f"loss.{step}", loss.item(), float(engine.get_global_grad_norm()))


@case
def skipped():
    """A step whose gradients have an infinity is left out, but by older releases of DeepSpeed's."""
    if not hasattr(deepspeed.runtime.utils, "is_invalid_grad_norm"):
        return
    for dtype in ("f32", "bf16"):
        engine = saving(**({} if dtype == "f32" else {dtype: {"enabled": True}}))
        for micro in range(8):
            loss = engine(batch(micro))
            engine.backward(loss * (float("inf") if micro == 5 and rank == 1 else 1))
            engine.step()
            tell(f"{dtype}.skipped", f"loss.{micro}", loss.item())
        tell(f"{dtype}.skipped", "counts", engine.global_steps, engine.skipped_steps)
        assert engine.get_global_grad_norm() < 1e9
    if not type(engine).__module__.startswith("deepspeed."):
        # The norm of 16-bit gradients may be larger than they can be, and a rank may have none.
        large = [torch.full((4,), 6e4, dtype=torch.float16)]
        assert engine._norm(large if rank == 0 else []) == 1.2e5


@case
def fragments():
    """Whole gradients, values and optimizer states between backward() and step()."""
    from deepspeed import utils

    def tell_all(what, get, *key):
        for name, p in engine.module.named_parameters():
            value = get(p, *key)
            assert type(value) is torch.Tensor and value.dtype is torch.float32, type(value)
            assert value.shape == getattr(p, "ds_shape", p.shape), value.shape
            half = value.flatten()[: value.numel() // 2]
            tell(f"fragments.{kind}", f"{what}.{name}", value.norm().item(), half.norm().item())

    def change(get, put, p, factor, *key):
        value = get(p, *key) * factor
        put(p, value, *key)
        if "local" not in get.__name__:
            assert torch.equal(get(p, *key), value)

    momentum = torch.optim.SGD
    for kind, states in ("adam", ("exp_avg", "exp_avg_sq")), ("sgd", ("momentum_buffer",)):
        engine = saving() if kind == "adam" else deepspeed.initialize(
            model=make(), optimizer=lambda ps: momentum(ps, lr=0.05, momentum=0.9),
            config=settings())[0]
        train(f"fragments.{kind}", engine, steps=1)
        for step in range(1, 4):
            for micro in range(2):
                loss = engine(batch(10 * step + micro))
                engine.backward(loss)
                if micro and step < 3:
                    p, q = engine.module.blocks[0].up.weight, engine.module.blocks[1].down.bias
                    tell_all(f"grad.{step}", utils.safe_get_full_grad)
                    change(utils.safe_get_full_grad, utils.safe_set_full_grad, p, 0.5)
                    utils.safe_update_full_grad_vectorized([p, q], lambda grad, _: grad * 3)
                    change(utils.safe_get_full_fp32_param, utils.safe_set_full_fp32_param, q, 2)
                    for key in states:
                        change(utils.safe_get_full_optimizer_state,
                               utils.safe_set_full_optimizer_state, p, 1.5, key)
                if micro and step < 3 and stage == 3:
                    change(utils.safe_get_local_grad, utils.safe_set_local_grad, q, 0.5)
                    change(utils.safe_get_local_fp32_param, utils.safe_set_local_fp32_param, p, 3)
                    change(utils.safe_get_local_optimizer_state,
                           utils.safe_set_local_optimizer_state, q, 1.5, states[0])
                engine.step()
            tell(f"fragments.{kind}", f"loss.{step}", loss.item())
            tell_all(f"value.{step}", utils.safe_get_full_fp32_param)
            for key in states:
                tell_all(f"{key}.{step}", utils.safe_get_full_optimizer_state, key)


@case
def external():
    """A parameter that another module uses, too."""
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
            deepspeed.zero.register_external_parameter(self, self.layers[1].weight)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).tanh()
            return nn.functional.linear(x, self.layers[1].weight).square().mean()

    torch.manual_seed(11)
    engine, *_ = deepspeed.initialize(model=Outer(), config=settings(optimizer=ADAMW))
    for step in range(4):
        loss = engine(torch.full((2, 5), 0.1 * (step + 1)))
        engine.backward(loss)
        engine.step()
        tell("external", f"loss.{step}", loss.item())


@case
def timed():
    """The wall clock breakdown."""
    engine = saving(wall_clock_breakdown=True)
    train("timed", engine, steps=2)
    timers = engine.get_wall_clock_timers()
    names = ("fwd_microstep", "bwd_microstep", "step_microstep", "fwd", "bwd", "step")
    tell("timed", "timers", *(float(timers[name] > 0) for name in names))


@case
def bf16():
    if stage == 0:  # where DeepSpeed's own makes a step of zero gradients before the first
        FP16_UnfusedOptimizer.initialize_optimizer_states = lambda optimizer: None
    engine = saving(bf16={"enabled": True})
    train("bf16", engine, steps=8)
    if stage < 3:
        value = engine.module.state_dict()["blocks.0.up.weight"]
        assert value.dtype is torch.bfloat16 and type(value) is torch.Tensor


@case
def fp16():
    """The loss scale is too large at first; steps are skipped until it is not."""
    engine = saving(fp16={
        "enabled": True, "initial_scale_power": 17, "hysteresis": 2, "loss_scale_window": 4})
    # DeepSpeed's own of stage 3 divides the norm by the scale of the next step.
    train("fp16", engine, steps=12, norms=False)
    tell("fp16", "scale", engine.optimizer.cur_scale)
    engine = saving(fp16={"enabled": True, "loss_scale": 128})
    train("fp16.static", engine, steps=4)


@case
def moved():
    """A checkpoint that DeepSpeed itself has written is read, and the training goes on."""
    stock = f"{folder}/stock"
    engine = saving()
    engine.load_checkpoint(stock if os.path.exists(stock) else f"{folder}/saved")
    train("moved", engine, steps=2, first=3)


@case
def written():
    """A file of the model alone."""
    engine = saving(zero_optimization={
        **ZERO, "stage3_gather_16bit_weights_on_model_save": True})
    train("written", engine, steps=2)
    assert engine.save_16bit_model(f"{folder}/model", "m.bin")
    torch.distributed.barrier()
    state = torch.load(f"{folder}/model/m.bin")
    for name, value in state.items():
        tell("written", name, value.double().norm().item())
    model = make(seed=3)
    model.load_state_dict(state)
    tell("written", "loss", model(batch(7)).item(), engine(batch(7)).item())
    if stage < 3 and rank == 1:  # alone
        total = sum(v.double().sum().item() for v in engine.module.state_dict().values())
        assert abs(total - sum(v.double().sum().item() for v in state.values())) < 1e-9
    torch.distributed.barrier()


run()
