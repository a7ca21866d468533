#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What streamed parameters take beside the same ones gathered whole, both by slurm_zero.

streamed.py ZERORUN RECORD: lets two ranks, each as if on a node of its own, go forward and backward
through what examples/stream.py trains: two layers of experts, and a head with its loss; in turns
slice by slice and whole. It adds rows to the bench's record. The experts are those of Transformers'
Qwen3-MoE by its grouped_mm, if it can be imported. streamed.py streamed|whole experts|head is a
rank of these.
"""
import argparse
import os
import sys

import stream
import torch
import torch.distributed as dist
from peers import Peers

WIDTH, SLICE = 512, 16 << 20
COUNTS = {"experts": 64, "head": 65536}
# What is told, in the order of a rank's figures; of what; unit, and its size.
ROWS = [("time", COUNTS, "s", 1, "seconds"), ("bytes sent", COUNTS, "MB", 1e6, "sent"),
        ("gathered and gradients", ["experts"], "MB", 1e6, "passing"),
        ("memory of the process", ["head"], "MB", 1e6, "process")]


def grouped_experts():
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    def make(experts, width):
        config = Qwen3MoeConfig(hidden_size=width, moe_intermediate_size=2 * width,
                                num_experts=experts)
        config._experts_implementation = "grouped_mm"
        return Qwen3MoeExperts(config)

    return make


def measure(way, what):
    torch.set_num_threads(1)
    stream.zero.init()
    try:
        stream.Experts = grouped_experts()
    except ImportError:
        pass
    args = argparse.Namespace(what=what, count=COUNTS[what], width=WIDTH, tokens=512, steps=5,
                              sample=None)
    row = stream.train(args, SLICE if way == "streamed" else False)
    if dist.get_rank() == 0:
        print("figures", *(row[key] for *_, key in ROWS))


def compare(zerorun, record):
    peers = Peers("streamed", zerorun, record)
    os.environ.update(ZERO_SHARE="1", OMP_NUM_THREADS="1")
    for what, name in ("experts", "experts"), ("head", "a head and its loss"):
        figures = peers.in_turns(("streamed", "whole"), what)
        for column, (kind, of, unit, size, _) in enumerate(ROWS):
            if what in of:
                ours, whole = (figures[way][column] / size for way in ("streamed", "whole"))
                peers.ratio(f"PyTorch: {name} streamed over whole: {kind}", ours, whole, unit,
                            "whole")


if __name__ == "__main__":
    (measure if sys.argv[1] in ("streamed", "whole") else compare)(*sys.argv[1:])
