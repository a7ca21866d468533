# SPDX-License-Identifier: Apache-2.0
"""deepspeed_write.py FOLDER NAME...: DeepSpeed itself trains a small model and saves it to
FOLDER/NAME, and what it says of its parameters, their moments and its next losses to
FOLDER/NAME/said.pt. A NAME has the stage, the type and other words, as stage3_fp16_subgroups."""

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from deepspeed_model import Model, batch, groups

# PyTorch computes in fp16 on any processor; DeepSpeed asks for one that has instructions for it.
get_accelerator().is_fp16_supported = lambda: True


def config(stage, dtype, words):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0 if "small" in words else 100}
    if "subgroups" in words:
        zero["sub_group_size"] = 500
    made = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {
            "lr": 1e-2, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-3,
            "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {
            "warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 4,
            "warmup_type": "linear"}},
    }
    if dtype == "bf16":
        made["bf16"] = {"enabled": True}
    if dtype == "fp16":
        made["fp16"] = {"enabled": True, "initial_scale_power": 8}
    return made


def values(engine):
    """What DeepSpeed has of each trained parameter: {"fp32": {name: tensor}, ...}"""
    said, optimizer = {"fp32": {}, "exp_avg": {}, "exp_avg_sq": {}}, engine.optimizer
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
        # DeepSpeed does this after the step of the first group, when others have no moments yet.
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    for name, p in engine.module.named_parameters():
        if not p.requires_grad:
            continue
        found = {"fp32": p, **optimizer.state.get(p, {})}
        if hasattr(optimizer, "fp32_groups"):  # stage 0, of 16 bits
            pairs = zip(optimizer.fp16_groups, optimizer.fp32_groups)
            master = next(m for ps, ms in pairs for q, m in zip(ps, ms) if q is p)
            found = {"fp32": master, **optimizer.optimizer.state[master]}
        elif engine.zero_optimization_stage():
            found = {"fp32": safe_get_full_fp32_param(p)}
            for key in ("exp_avg", "exp_avg_sq"):
                found[key] = safe_get_full_optimizer_state(p, key)
        for key, of in said.items():
            of[name] = found[key].detach().clone().view(getattr(p, "ds_shape", p.shape))
    return said


def write(folder, name):
    stage, dtype, *words = name.split("_")
    stage = int(stage.removeprefix("stage"))
    conf = config(stage, dtype, words)
    torch.manual_seed(1)
    with deepspeed.zero.Init(config_dict_or_path=conf, enabled=stage == 3):
        model = Model()
    engine, _, _, scheduler = deepspeed.initialize(
        model=model, model_parameters=groups(model), config=conf)

    def train(steps):
        losses = []
        for step in steps:
            ids = batch(step, dist.get_rank())
            loss = engine(ids)
            engine.backward(loss)
            engine.step()
            mean = loss.detach().float()
            dist.all_reduce(mean)
            losses.append(mean.item() / dist.get_world_size())
        return losses

    train(range(5))
    said = values(engine)
    frozen = engine.module.frozen.weight
    with deepspeed.zero.GatheredParameters([frozen], enabled=stage == 3):
        said["frozen"] = frozen.detach().clone()
    path = os.path.join(folder, name)
    engine.save_checkpoint(path, client_state={"epoch": 7, "seen": [1, 2, {"name": "x"}]})
    said["lr"] = engine.get_lr()
    said["losses"] = train(range(5, 10))
    if dist.get_rank() == 0:
        torch.save(said, os.path.join(path, "said.pt"))


for wanted in sys.argv[2:]:
    write(sys.argv[1], wanted)
    dist.barrier()
if dist.get_rank() == 0:
    print(f"written: {len(sys.argv) - 2}")
dist.destroy_process_group()
