# SPDX-License-Identifier: Apache-2.0
"""zerorun -n 2 --zero-deepspeed=keep|replace python tests/bench/zero3.py FOLDER [LAYERS [STAGE]]:
what ZeRO of a GPT-2 of 1.6 GB costs whoever's the engine is. Rank 0 makes the model in FOLDER if it
is not there, and prints seconds, its process's own, and its memory beyond that before it loaded."""

import os
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
from transformers import AutoModelForCausalLM, GPT2Config
from transformers.integrations import HfDeepSpeedConfig

folder, layers, stage = sys.argv[1], *map(int, (*sys.argv[2:], *(28, 3)[len(sys.argv) - 2 :]))
deepspeed.init_distributed("gloo")
torch.set_num_threads(1)
rank = torch.distributed.get_rank()
CONFIG = {
    "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage},
    "gradient_clipping": 1.0, "steps_per_print": 1000,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
}


def memory(key):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1e6


def forget_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def measure(what, function):
    torch.distributed.barrier()
    begin, used = time.monotonic(), time.process_time()
    result = function()
    used = time.process_time() - used  # before the barrier, which spins
    torch.distributed.barrier()
    if rank == 0:
        print(f"{what}: {time.monotonic() - begin:.2f} s, {used:.2f} s of its processor, "
              f"peak {memory('VmHWM') - base:.2f} GB", flush=True)
    return result


path = f"{folder}/model-{layers}"
if rank == 0 and not os.path.exists(path):
    config = GPT2Config(n_embd=1024, n_layer=layers, n_head=16, resid_pdrop=0, embd_pdrop=0,
                        attn_pdrop=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
torch.distributed.barrier()
hf = HfDeepSpeedConfig(CONFIG)
forget_peak()
base = memory("VmRSS")


def load():
    model = AutoModelForCausalLM.from_pretrained(path)
    return deepspeed.initialize(model=model, config=CONFIG)[0]


engine = measure("from_pretrained and initialize", load)
ids = torch.randint(0, 50257, (1, 64), generator=torch.Generator().manual_seed(rank))


def step():
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()


forget_peak()
for number in range(3):
    measure(f"step {number}", step)
measure("save_checkpoint", lambda: engine.save_checkpoint(f"{folder}/saved"))
measure("until it is on the disk", os.sync)
measure("load_checkpoint", lambda: engine.load_checkpoint(f"{folder}/saved"))
