# SPDX-License-Identifier: Apache-2.0
"""unedited.py WHAT [DEED RANK FOLDER]: a program that has never heard of slurm-zero. It trains a
small model for 20 steps by WHAT: ddp, fsdp2, deepspeed, accelerate, trainer or lightning. Rank 0
prints the losses and the model's class. RANK does the DEED after the fifth step or, if that is of
the end, at the end, and writes when to FOLDER/at."""

import atexit
import ctypes
import importlib.util
import os
import signal
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
import torch.distributed as dist
from torch import nn

what = sys.argv[1]
deed, culprit, folder = sys.argv[2:5] if len(sys.argv) > 2 else (None, -1, None)
STEPS, LR = 20, 1e-2
losses = []


def tell_time():
    with open(f"{folder}/at", "w", encoding="ascii") as file:
        file.write(f"{time.time()}\n")


def hang_after_the_interpreter():
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.pause, ctypes.c_void_p), None, None)


DEEDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "segv": lambda: ctypes.string_at(0),
    "raise": lambda: 1 / 0,
    "exit0": lambda: sys.exit(0),
    "exit3": lambda: sys.exit(3),
    "teardown": lambda: hang_after_the_interpreter(),
    "atexit": lambda: atexit.register(signal.pause),
    "_exit": lambda: None,
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([nn.Linear(31, 67), nn.Linear(67, 67), nn.Linear(67, 5)])

    def forward(self, samples, labels):
        for layer in self.layers[:-1]:
            samples = nn.functional.gelu(layer(samples))
        return {"loss": nn.functional.cross_entropy(self.layers[-1](samples), labels)}


def batch(step):
    """This rank's part of 12 samples."""
    generator = torch.Generator().manual_seed(step)
    samples = torch.randn(12, 31, generator=generator)
    labels = torch.randint(5, (12,), generator=generator)
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = slice(rank * 12 // world, (rank + 1) * 12 // world)
    return samples[mine], labels[mine]


def stepped(loss):
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    losses.append(loss.item() / dist.get_world_size())
    if len(losses) == 5 and deed and dist.get_rank() == int(culprit):
        tell_time()
        DEEDS[deed]()


def loop(model, optimizer):
    for step in range(STEPS):
        loss = model(*batch(step))["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        stepped(loss)
    return model


def ddp():
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Model())
    return loop(model, torch.optim.AdamW(model.parameters(), lr=LR))


def fsdp2(**options):
    importlib.util.find_spec("torch.distributed.fsdp")  # as libraries ask whether it is there
    from torch.distributed.fsdp import FSDPModule, fully_shard

    dist.init_process_group("gloo")
    model = Model()
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model)
    assert isinstance(model, FSDPModule)
    return loop(model, torch.optim.AdamW(model.parameters(), lr=LR))


def refused():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fsdp2(mp_policy=MixedPrecisionPolicy(param_dtype=torch.float64))


def deepspeed():
    import deepspeed

    deepspeed.init_distributed("gloo")
    config = {"train_micro_batch_size_per_gpu": 12 // dist.get_world_size(),
              "zero_optimization": {"stage": 3},
              "zero_allow_untested_optimizer": True}
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(STEPS):
        loss = engine(*batch(step))["loss"]
        engine.backward(loss)
        engine.step()
        stepped(loss)
    return engine


def accelerate():
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Linear"],
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = Model()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=LR))
    for step in range(STEPS):
        loss = model(*batch(step))["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        stepped(loss)
    return model


def trainer():
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 12 * STEPS

        def __getitem__(self, index):
            generator = torch.Generator().manual_seed(index)
            return {"samples": torch.randn(31, generator=generator), "labels": index % 5}

    class Told(Trainer):
        def compute_loss(self, *args, **kwargs):
            self.told = super().compute_loss(*args, **kwargs)
            return self.told

    class Each(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            stepped(told.told)

    arguments = TrainingArguments(
        output_dir="/nonexistent", per_device_train_batch_size=12 // int(os.environ["WORLD_SIZE"]),
        max_steps=STEPS,
        learning_rate=LR, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
        disable_tqdm=True,
        fsdp=True,
        fsdp_config={"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                     "transformer_layer_cls_to_wrap": ["Linear"]},
    )
    told = Told(model=Model(), args=arguments, train_dataset=Data(), callbacks=[Each()])
    told.train()
    return told.model_wrapped


def lightning():
    import lightning

    class Told(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, index):
            loss = self.model(*batch(int(index)))["loss"]
            stepped(loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=LR)

        def train_dataloader(self):
            return torch.utils.data.DataLoader(range(STEPS), batch_size=None)

    world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    fit = lightning.Trainer(
        accelerator="cpu", devices=local, num_nodes=world // local, strategy="ddp", max_epochs=1,
        logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )
    fit.fit(Told())
    return fit.strategy.model


torch.set_num_threads(1)
model = globals()[what]()
if dist.get_rank() == 0:
    print(*(f"loss {loss:.6f}" for loss in losses), type(model).__mro__[1].__name__, sep="\n",
          flush=True)
if deed == "_exit":
    os._exit(0)
if deed not in ("teardown", "atexit"):
    dist.destroy_process_group()
elif dist.get_rank() == int(culprit):
    tell_time()
