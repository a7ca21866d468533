#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch_load.py make LAYERS FOLDER: a checkpoint of a GPT-2 of that many layers and width 1024, with
random values. torch_load.py zero|fsdp2|deepspeed FOLDER, by a launcher: loads it, and rank 0 prints the
milliseconds, those with what builds the sharded model, and the bytes of memory that the ranks together
had at most, beyond the shards and what they had before.
"""
import os
import sys
import time

os.environ["DS_ACCELERATOR"] = "cpu"
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config


def make(layers, folder):
    from safetensors.torch import save_file

    config = GPT2Config(n_embd=1024, n_layer=layers, n_head=16, architectures=["GPT2LMHeadModel"])
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tensors = {n: torch.randn(p.shape) * 0.02 for n, p in model.named_parameters()}
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})


def config_of(folder):
    return AutoConfig.from_pretrained(folder)


def build_zero(folder):
    import slurm_zero as zero

    with zero.meta():
        model = AutoModelForCausalLM.from_config(config_of(folder))
    model.tie_weights()
    for block in model.transformer.h:
        zero.fully_shard(block)
    return zero.fully_shard(model)


def fill_zero(model, folder):
    import slurm_zero as zero

    zero.load(model, folder)


def build_fsdp2(folder):
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(folder))
    model.tie_weights()
    for block in model.transformer.h:
        fully_shard(block)
    return fully_shard(model)


def fill_fsdp2(model, folder):
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    model.to_empty(device="cpu")
    model.tie_weights()
    state = load_file(f"{folder}/model.safetensors") if dist.get_rank() == 0 else {}
    if state:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state, options=options)


def build_deepspeed(folder):
    """Its way builds and fills at once."""
    import deepspeed
    import transformers.models.gpt2.modeling_gpt2

    deepspeed.init_distributed("gloo")
    return []


def fill_deepspeed(model, folder):
    from transformers.integrations import HfDeepSpeedConfig

    config = {"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}
    model.append(HfDeepSpeedConfig(config))  # which counts for as long as it lives
    model.append(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))


def field(file, name):
    with open(f"/proc/self/{file}", encoding="ascii") as text:
        for line in text:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    raise KeyError(name)


def main():
    way, folder = sys.argv[1:]
    for ours, theirs in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
        if way != "zero":
            os.environ.setdefault(ours, os.environ.get(f"OMPI_COMM_WORLD_{theirs}", ""))
    build, fill = globals()[f"build_{way}"], globals()[f"fill_{way}"]
    start = time.monotonic()
    model = build(folder)
    dist.barrier()
    built = time.monotonic() - start
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # VmHWM counts from here
    before, start = field("smaps_rollup", "Pss"), time.monotonic()
    fill(model, folder)
    dist.barrier()
    filled = time.monotonic() - start
    # Pages that ranks share count once; those that were freed again belong to one rank.
    freed = field("status", "VmHWM") - field("status", "VmRSS")
    beyond = torch.tensor(freed + field("smaps_rollup", "Pss") - before)
    dist.all_reduce(beyond)
    if dist.get_rank() == 0:
        beyond = beyond.item() - os.path.getsize(f"{folder}/model.safetensors")
        print(f"{1e3 * filled:.1f} {1e3 * (built + filled):.1f} {beyond}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), sys.argv[3])
    else:
        main()
