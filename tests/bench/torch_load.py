#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What loading a checkpoint costs beside the ways of FSDP2 and DeepSpeed.

torch_load.py ZERORUN LAYERS FOLDER RECORD: makes a checkpoint of a GPT-2 of that many layers and
width 1024 with random values (29 are 1.67 GB), lets two ranks load it in turns, and adds rows to
the bench's record. torch_load.py zero|fsdp2|deepspeed FOLDER, a rank of these: rank 0 prints the
seconds, those with what builds the sharded model (not those of imports and of the rendezvous), and
the bytes of memory that the ranks together had at most, beyond the shards and what they had before.
"""
import mmap
import os
import sys
import time

os.environ["DS_ACCELERATOR"] = "cpu"
import torch
import torch.distributed as dist
import transformers.models.gpt2.modeling_gpt2
from peers import Peers, rendezvous
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


def begin_zero():
    import slurm_zero as zero

    zero.init()


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


def begin_fsdp2():
    import torch.distributed.fsdp

    rendezvous()
    dist.init_process_group("gloo")


def build_fsdp2(folder):
    from torch.distributed.fsdp import fully_shard

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


def begin_deepspeed():
    import deepspeed

    rendezvous()
    deepspeed.init_distributed("gloo")


def build_deepspeed(folder):
    """Its way builds and fills at once."""
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


def warm(file):
    """Reads the file, and touches twice its size of memory and frees it. A virtual machine hands
    free memory back to its host: who touches it next would be charged for what the host does."""
    size = os.path.getsize(file)
    with open(file, "rb", buffering=0) as content:
        while content.read(1 << 22):
            pass
    memory = mmap.mmap(-1, 2 * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for page in range(0, len(memory), mmap.PAGESIZE):
        memory[page] = 1
    memory.close()


def compare(zerorun, layers, folder, record):
    make(int(layers), folder)
    peers = Peers("torch_load", zerorun, record)
    middle = peers.in_turns(("zero", "fsdp2", "deepspeed"), folder, optional=["deepspeed"])
    ours = middle.pop("zero")
    for theirs, name, column in zip(middle.values(), ("FSDP2's way", "DeepSpeed's way"), (0, 1)):
        peers.ratio(f"PyTorch: load over {name}", ours[column], theirs[column], "s", name)
        peers.ratio(f"PyTorch: load, memory over {name}", ours[2] / 1e6, theirs[2] / 1e6, "MB",
                    name)
    peers.row("PyTorch: load: beyond shards and Python", ours[2] / 1e6, "MB", ours[2] / 1e6, 0,
              "MB", "-")


def load(way, folder):
    begin, build, fill = (globals()[f"{part}_{way}"] for part in ("begin", "build", "fill"))
    begin()
    dist.barrier()
    start = time.monotonic()
    model = build(folder)
    dist.barrier()
    built = time.monotonic() - start
    warm(f"{folder}/model.safetensors")
    dist.barrier()
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
        print("figures", filled, built + filled, beyond)


if __name__ == "__main__":
    (compare if len(sys.argv) == 5 else load)(*sys.argv[1:])
