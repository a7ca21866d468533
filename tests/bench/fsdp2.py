#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same model sharded by PyTorch's FSDP2, by slurm_zero, and not at all, in turns.

fsdp2.py ZERORUN TOKENS LOG RECORD: trains on the 16-bit tokens of a file, and adds rows to the
bench's record, also of the steps that examples/gpt has logged. GPT-2 of 6 layers, width 384, 6
heads, 50304 tokens with a tied head; 4 sequences of 256 on each rank, f32, AdamW, norms clipped to
1. The ranks share the machine's cores. fsdp2.py SIDE TOKENS [watch] is a rank of these.
"""
import json
import os
import statistics
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from peers import RANKS, Peers, rendezvous
from torch import nn

LAYERS, WIDTH, HEADS, VOCAB, BATCH, LENGTH, STEPS = 6, 384, 6, 50304, 4, 256, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.attn_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.mlp_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        shape = (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.attn(self.ln_1(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.T
        return F.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))


def make_fsdp2():
    from torch.distributed.fsdp import fully_shard

    rendezvous()
    dist.init_process_group("gloo")
    return fully_shard, torch.optim.AdamW, {"fused": True}


def make_ours():
    import slurm_zero as zero

    zero.init()
    return zero.fully_shard, torch.optim.AdamW, {"fused": True}


def make_whole():
    """All of the model on each rank, which is told of nobody else's gradients."""
    rendezvous()
    dist.init_process_group("gloo")
    return (lambda module: module), torch.optim.AdamW, {"fused": True}


def make_own_step():
    import slurm_zero as zero

    return make_ours()[0], zero.AdamW, {}


SIDES = {"fsdp2": make_fsdp2, "ours": make_ours, "own step": make_own_step, "whole": make_whole}


def pss():
    """Bytes of this process, a part of what it shares with others."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))


def train(side, path, watch=""):
    """Prints the median of a step's milliseconds, and the peak of the ranks' memory if it is
    watched, which takes time."""
    fully_shard, optimizer, options = SIDES[side]()
    torch.set_num_threads(max(1, os.cpu_count() // RANKS))
    torch.manual_seed(1)
    peak, over = [0], threading.Event()

    def look():
        while not over.wait(0.02):
            peak[0] = max(peak[0], pss())

    model = GPT()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = optimizer(model.parameters(), lr=3e-4, weight_decay=0.1, **options)
    with open(path, "rb") as file:
        corpus = torch.frombuffer(bytearray(file.read()), dtype=torch.uint16).long()
    watcher = threading.Thread(target=look)
    if watch:
        watcher.start()
    milliseconds = []
    for step in range(1 + STEPS):
        first = torch.randint(len(corpus) - LENGTH - 1, (BATCH,)).tolist()
        rows = torch.stack([corpus[i : i + LENGTH + 1] for i in first])
        dist.barrier()
        start = time.monotonic()
        model(rows[:, :-1], rows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        if step:
            milliseconds.append(1e3 * (time.monotonic() - start))
    over.set()
    if watch:
        watcher.join()
    peaks = torch.tensor([peak[0]])
    dist.all_reduce(peaks)
    if dist.get_rank() == 0:
        print("figures", statistics.median(milliseconds), int(peaks))


def hooks():
    """Prints the milliseconds of this thread that the hooks of 8 groups take in a step without the
    optimizer: those of a model that computes nearly nothing, less those of the same one
    unsharded."""
    import slurm_zero as zero

    torch.set_num_threads(1)

    def model():
        parts = (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(7))
        return nn.Sequential(*parts, nn.Linear(4, 4))

    def step(m):
        start = time.thread_time()
        m(x).sum().backward()
        took = time.thread_time() - start
        for p in m.parameters():
            p.grad = None
        return took

    x = torch.ones(1, 4)
    sharded, single = model(), model()
    for part in sharded[:7]:
        zero.fully_shard(part)
    zero.fully_shard(sharded)
    pairs = [(step(sharded), step(single)) for _ in range(220)][20:]
    print("figures", 1e3 * statistics.median(a - b for a, b in pairs))


def compare(zerorun, tokens, log, record):
    peers = Peers("gpt", zerorun, record)
    ms = {side: figures[0] for side, figures in peers.in_turns(SIDES, tokens).items()}
    with open(log, encoding="ascii") as file:
        gpt = statistics.median(json.loads(line)["ms"] for line in file)
    peers.ratio("gpt: step over PyTorch FSDP2", gpt, ms["fsdp2"], "ms", "FSDP2")
    peers.ratio("PyTorch: step over FSDP2, the same AdamW", ms["ours"], ms["fsdp2"], "ms", "FSDP2")
    peers.ratio("PyTorch: step with zero.AdamW over FSDP2", ms["own step"], ms["fsdp2"], "ms",
                "FSDP2")
    peers.ratio("PyTorch: step over the unsharded model's", ms["ours"], ms["whole"], "ms",
                "unsharded")
    peak = {side: peers.run(side, tokens, "watch")[1] / 1e6 for side in ("fsdp2", "ours")}
    peers.ratio("PyTorch: peak of both ranks together over FSDP2", peak["ours"], peak["fsdp2"],
                "MB", "FSDP2")
    (alone,) = peers.run("hooks", ranks=1)
    peers.row("PyTorch: time of the hooks of 8 groups in a step", alone, "ms", alone, float("nan"),
              "ms", "-", ranks=1)


if __name__ == "__main__":
    if sys.argv[1] == "hooks":
        hooks()
    else:
        (train if sys.argv[1] in SIDES else compare)(*sys.argv[1:])
