# SPDX-License-Identifier: Apache-2.0
"""protect_engine.py FILE STEPS [RANK STEP]: as protect.py, by an engine of DeepSpeed's. Its loss
scale is too large at first, so that steps are skipped, and a checkpoint is saved after the third
step that is not. With FOLDER=PATH the checkpoint is what it begins with."""

import os
import signal
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
from torch import nn

import slurm_zero as zero

path, steps = sys.argv[1], int(sys.argv[2])
victim, last = (int(a) for a in sys.argv[3:]) if len(sys.argv) > 3 else (-1, -1)
deepspeed.init_distributed("gloo")
torch.set_num_threads(1)
deepspeed.utils.logger.setLevel("WARNING")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(7, 64), nn.Dropout(0.3), nn.Linear(64, 3))
model.register_buffer("seen", torch.zeros(()))
engine, optimizer, _, scheduler = deepspeed.initialize(model=model, config={
    "train_micro_batch_size_per_gpu": 6, "gradient_accumulation_steps": 2, "steps_per_print": 1000,
    "zero_optimization": {"stage": int(os.environ.get("ZERO_STAGE", "3"))},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "initial_scale_power": 19, "hysteresis": 1, "loss_scale_window": 3},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 9}},
})
assert optimizer is engine.optimizer
torch.manual_seed(5 + rank)  # each rank its own


def write(*words):
    if rank == 0:
        with open(path, "a", encoding="utf-8") as file:
            print(*words, file=file)


found = zero.protect(engine if victim < 0 else engine.module, optimizer,
                     extra=lambda: {"told": engine.global_steps}, folder=os.environ.get("FOLDER"))
if found:
    assert set(found) == {"path", "step", "extra"}, found
    assert found["extra"]["told"] == found["step"] == engine.global_steps, found
    write("from", engine.global_steps, world)
for step in range(engine.global_steps, steps):
    for _ in range(2):
        loss = engine(torch.randn(6, 7)).float().square().mean()
        model.seen += loss.item()
        if (rank, step) == (victim, last):
            os.kill(os.getpid(), signal.SIGKILL)
        engine.backward(loss)
        engine.step()
    value = torch.tensor(loss.item(), dtype=torch.float64)
    torch.distributed.all_reduce(value)
    write("step", step, value.item().hex(), model.seen.item().hex(), scheduler.get_last_lr()[0],
          optimizer.cur_scale, engine.global_samples, engine.skipped_steps)
    if "FOLDER" in os.environ and engine.global_steps - engine.skipped_steps == 3:
        engine.save_checkpoint(os.environ["FOLDER"], client_state={"told": engine.global_steps})
assert 0 < engine.skipped_steps < steps / 2, engine.skipped_steps
