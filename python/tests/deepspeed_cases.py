# SPDX-License-Identifier: Apache-2.0
"""PROGRAM STAGE FOLDER CASE...: what engines.py and pretrained.py begin and end with. They have
never heard of slurm-zero; rank 0 prints `case: what number...` lines, which are to be the same
whoever's the engine is."""

import sys

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

stage, folder = int(sys.argv[1]), sys.argv[2]
deepspeed.init_distributed("gloo")
torch.set_num_threads(1)
deepspeed.utils.logger.setLevel("WARNING")
# PyTorch computes in fp16 on any processor; DeepSpeed asks for one that has instructions for it.
get_accelerator().is_fp16_supported = lambda: True
rank = torch.distributed.get_rank()
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def tell(name, what, *numbers):
    if rank == 0:
        print(f"{name}:", what, *(f"{number:.9g}" for number in numbers), flush=True)


def run():
    for name in sys.argv[3:]:
        CASES[name]()
    torch.distributed.barrier()
