#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training step that examples/gpt is held against: the same model sharded by PyTorch's FSDP2.

fsdp2.py RANKS TOKENS: trains on the 16-bit tokens of a file and prints the median of a step's
milliseconds. GPT-2 of 6 layers, width 384, 6 heads, 50304 tokens with a tied head; 4 sequences of
256 on each rank, f32, AdamW, norms clipped to 1. The ranks share the machine's cores.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

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


def train(rank, ranks, path, milliseconds):
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.set_num_threads(max(1, os.cpu_count() // ranks))
    torch.manual_seed(1)
    model = GPT()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    with open(path, "rb") as file:
        corpus = torch.frombuffer(bytearray(file.read()), dtype=torch.uint16).long()
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
        if rank == 0 and step:
            milliseconds.append(1e3 * (time.monotonic() - start))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
    measured = mp.Manager().list()
    mp.spawn(train, (int(sys.argv[1]), sys.argv[2], measured), nprocs=int(sys.argv[1]))
    print(f"{statistics.median(measured):.1f}")
