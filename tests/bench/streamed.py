#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What streamed parameters take beside the same ones gathered whole, both by slurm_zero.

streamed.py ZERORUN RECORD: lets two ranks, each as if on a node of its own, go forward and backward
through two layers of experts, and a head with its loss, in turns slice by slice and whole, and adds
rows to the bench's record. The experts are those of Transformers' Qwen3-MoE by its grouped_mm, if
it can be imported. streamed.py streamed|whole experts|head is a rank of these: rank 0 prints the
seconds of forward and backward, the bytes that a rank sent in them, those that it had gathered or
as gradients at most, beyond the sums, and those of its process, beyond what it had before.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from peers import Peers
from torch import nn
from torch_load import field

EXPERTS, CHOSEN, WIDTH, INNER, TOKENS, VOCAB, STEPS = 64, 4, 512, 1024, 512, 65536, 4
SLICE = 16 << 20


class Experts(nn.Module):
    """With the attributes by which experts of Transformers say how they compute."""

    has_gate, has_bias, has_post_expert_norm, is_transposed = True, False, False, False
    num_experts, _is_expert_parallel = EXPERTS, False

    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(EXPERTS, 2 * INNER, WIDTH))
        self.down_proj = nn.Parameter(torch.empty(EXPERTS, WIDTH, INNER))

    def _apply_gate(self, x):
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    def forward(self, x, index, weights):
        out = torch.zeros_like(x)
        both = zip(self.gate_up_proj.unbind(), self.down_proj.unbind())
        for expert, (gate_up, down) in enumerate(both):
            tokens, at = torch.where(index == expert)
            y = self._apply_gate(x[tokens] @ gate_up.t())
            y = y @ down.t() * weights[tokens, at, None]
            out.index_add_(0, tokens, y)
        return out


def make_experts():
    try:
        from transformers import Qwen3MoeConfig
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts
    except ImportError:
        return Experts()
    config = Qwen3MoeConfig(hidden_size=WIDTH, moe_intermediate_size=INNER, num_experts=EXPERTS)
    config._experts_implementation = "grouped_mm"
    return Qwen3MoeExperts(config)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS, bias=False), make_experts()

    def forward(self, x):
        weights, index = self.router(x).softmax(-1).topk(CHOSEN, -1)
        return x + self.experts(x, index, weights)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def get_output_embeddings(self):
        return self.head

    def forward(self, x, labels):
        return F.cross_entropy(self.head(torch.tanh(self.body(x))), labels)


def make(what, streamed):
    import slurm_zero as zero

    with torch.device("meta"):
        model = Head() if what == "head" else nn.Sequential(Layer(), Layer())
    for module in [model.head] if what == "head" else model:
        zero.fully_shard(module, streamed=streamed)
    zero.fully_shard(model)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=p.shape[-1] ** -0.5)
    return model


def measure(way, what):
    import slurm_zero as zero

    torch.set_num_threads(1)
    zero.init()
    model = make(what, SLICE if way == "streamed" else False)
    generator = torch.Generator().manual_seed(dist.get_rank())
    seconds, begun, before = [], zero.memory(), field("status", "VmRSS")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # VmHWM counts from here
    for _ in range(1 + STEPS):
        x = torch.randn(TOKENS, WIDTH, generator=generator)
        labels = torch.randint(VOCAB, (TOKENS,), generator=generator)
        dist.barrier()
        sent, start = zero.traffic()["bytes_sent"], time.monotonic()
        (model(x, labels) if what == "head" else model(x).square().mean()).backward()
        dist.barrier()
        seconds.append(time.monotonic() - start)
        sent = zero.traffic()["bytes_sent"] - sent
        model.zero_grad()
    sums = sum(4 * p.to_local().numel() for p in model.parameters())
    now = zero.memory()
    passing = sum(now[key][1] - begun[key][0] for key in ("gathered", "gradients")) - sums
    if dist.get_rank() == 0:
        print("figures", statistics.median(seconds[1:]), sent, passing,
              field("status", "VmHWM") - before)


def compare(zerorun, record):
    peers = Peers("streamed", zerorun, record)
    os.environ.update(ZERO_SHARE="1", OMP_NUM_THREADS="1")
    for what, name in ("experts", "experts"), ("head", "a head and its loss"):
        figures = peers.in_turns(("streamed", "whole"), what)
        ratios = [("time", "s", 1), ("bytes sent", "MB", 1e6),
                  ("gathered and gradients", "MB", 1e6), ("memory of the process", "MB", 1e6)]
        for column, (kind, unit, size) in enumerate(ratios):
            if column != (3 if what == "experts" else 2):
                peers.ratio(f"PyTorch: {name} streamed over whole: {kind}",
                            *(figures[way][column] / size for way in ("streamed", "whole")), unit,
                            "whole")


if __name__ == "__main__":
    (measure if sys.argv[1] in ("streamed", "whole") else compare)(*sys.argv[1:])
