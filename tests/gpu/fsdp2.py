# SPDX-License-Identifier: Apache-2.0
"""The same training by slurm_zero and by torch's FSDP2 on one GPU, each in a process of its own:

    fsdp2.py zero|torch FILE     trains: losses, milliseconds and bytes of the GPU go to FILE
    fsdp2.py compare ZERO TORCH  prints rows of the table of tests/gpu/run; fails if losses differ

ZERO_TEST_DEVICE and ZERO_TEST_SMALL are for a try without a GPU: no figures to keep."""

import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp

SMALL = os.environ.get("ZERO_TEST_SMALL")
WIDTH, LAYERS, WORDS, BATCH, LENGTH = (32, 2, 64, 2, 8) if SMALL else (1024, 12, 32000, 8, 512)
STEPS, WARM = (3, 1) if SMALL else (25, 5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.attend(self.first(x)).view(b, t, 3, -1, 16 if SMALL else 64).unbind(2)
        heads = (h.transpose(1, 2) for h in (q, k, v))
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.narrow(nn.functional.gelu(self.wide(self.second(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.words.weight.t()


def used():
    if SMALL:
        return 1
    free, total = torch.cuda.mem_get_info()
    return total - free


def train(side, path):
    device = os.environ.get("ZERO_TEST_DEVICE", "cuda")
    if device == "standin":
        import standin  # noqa: F401, see python/tests/device
    before = used()
    if side == "zero":
        import slurm_zero as zero

        zero.init(device=device)
        shard, policy = zero.fully_shard, zero.MixedPrecisionPolicy
    else:
        store = dist.FileStore(tempfile.mktemp(), 1)
        dist.init_process_group("nccl", store=store, rank=0, world_size=1)
        shard, policy = fsdp.fully_shard, fsdp.MixedPrecisionPolicy
    options = {"mp_policy": policy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    if SMALL:
        options = {}
    torch.manual_seed(1)
    model = Model()
    for module in (*model.blocks, model):
        shard(module.to(device) if side == "torch" else module, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=generator).to(device)
    losses, milliseconds, most = [], [], 0
    for _ in range(STEPS):
        begun = time.perf_counter()
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # waits for the device
        milliseconds.append(1e3 * (time.perf_counter() - begun))
        most = max(most, used() - before)
    with open(path, "w", encoding="ascii") as file:
        json.dump({"losses": losses, "ms": statistics.median(milliseconds[WARM:]),
                   "bytes": max(most, 1)}, file)


def compare(ours, theirs):
    ours, theirs = (json.load(open(path, encoding="ascii")) for path in (ours, theirs))

    def row(name, figure, mine, other, unit):
        print(json.dumps({"row": name, "ranks": 1, "figure": figure, "ours": mine, "bare": other,
                          "unit": unit}))

    pairs = list(zip(ours["losses"], theirs["losses"]))
    worst = max(abs(a - b) / abs(b) for a, b in pairs)
    row("PyTorch losses", round(worst, 6), *(round(x, 4) for x in pairs[-1]), "(last)")
    for name, key, factor, unit in (("PyTorch step", "ms", 1, "ms"),
                                    ("PyTorch memory", "bytes", 1e-6, "MB")):
        row(name, round(ours[key] / theirs[key], 3), round(ours[key] * factor, 2),
            round(theirs[key] * factor, 2), unit)
    sys.exit(not worst < 0.01)


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        compare(*sys.argv[2:])
    else:
        train(*sys.argv[1:])
