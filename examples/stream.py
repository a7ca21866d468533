#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What streamed parameters save: trains a model whose head, or whose experts, are nearly all of it,
whole and slice by slice.

    zerorun -n 2 python3 examples/stream.py whole head 65536 512
    zerorun -n 2 python3 examples/stream.py streamed experts 64 512

It trains for a few steps from the same values either way. Rank 0 prints what that takes: the most
memory of the process beyond what it had before the steps, of the library that which is gathered and
the gradients beyond their sums, bytes sent, seconds of forward and backward, and the losses. With
--record FILE a second run, of the other way, prints the ratios too.

    zerorun -n 4 python3 examples/stream.py streamed head 65536 512 --slice 2097152 --limit 1.4

--limit gives each rank a memory control group of its own (as root, with the memory controller of
version 1 or 2) of so many times the bytes of the largest parameter, beyond what the process has at
first; and trains 20 steps by zero.AdamW, saves, restores and exports.

--sample FILE, without a limit, has rank 0 write what its process takes meanwhile, for
examples/stream_plot.py."""

import argparse
import json
import os
import re
import shutil
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

import slurm_zero as zero


class Experts(nn.Module):
    """With the attributes by which experts of Transformers say how they compute."""

    has_gate, has_bias, has_post_expert_norm, is_transposed = True, False, False, False
    _is_expert_parallel = False

    def __init__(self, experts, width):
        super().__init__()
        self.num_experts = experts
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 4 * width, width))
        self.down_proj = nn.Parameter(torch.empty(experts, width, 2 * width))

    def _apply_gate(self, x):
        gate, up = x.chunk(2, -1)
        return nn.functional.silu(gate) * up

    def forward(self, x, index, weights):
        out = torch.zeros_like(x)
        both = zip(self.gate_up_proj.unbind(), self.down_proj.unbind())
        for expert, (gate_up, down) in enumerate(both):
            tokens, at = torch.where(index == expert)
            y = self._apply_gate(x[tokens] @ gate_up.t())
            y = y @ down.t() * weights[tokens, at, None]
            out.index_add_(0, tokens, y)
        return out


class Layer(nn.Module):
    def __init__(self, experts, width):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(experts, width)

    def forward(self, x):
        weights, index = self.router(x).softmax(-1).topk(4, -1)
        return x + self.experts(x, index, weights)


class Head(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.body, self.head = nn.Linear(width, width), nn.Linear(width, words, bias=False)

    def get_output_embeddings(self):
        return self.head

    def forward(self, x, labels):
        return nn.functional.cross_entropy(self.head(torch.tanh(self.body(x))), labels)


def status(key):
    with open("/proc/self/status") as file:
        return int(re.search(rf"^{key}:\s*(\d+) kB", file.read(), re.M)[1]) * 1024


def make(args):
    torch.manual_seed(1)
    with torch.device("meta"):
        if args.what == "head":
            return Head(args.count, args.width)
        return nn.Sequential(*(Layer(args.count, args.width) for _ in range(2)))


def fill(model):
    model.to_empty(device="cpu")
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3 * p.shape[-1] ** -0.5)


class Sampler(threading.Thread):
    """Writes lines of seconds, bytes of the process beyond those at first, and what it does."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.doing, self.over = path, "load", threading.Event()

    def run(self):
        first, start = status("VmRSS"), time.monotonic()
        with open(self.path, "w", encoding="ascii", buffering=1) as file:
            while not self.over.wait(0.01):
                size = status("VmRSS") - first
                file.write(f"{time.monotonic() - start:.3f} {size} {self.doing}\n")


def train(args, streamed):
    model, sampler = make(args), Sampler(args.sample)
    if args.sample and dist.get_rank() == 0:
        sampler.start()
    for module in list(model) if args.what == "experts" else [model.head]:
        zero.fully_shard(module, streamed=streamed)
    zero.fully_shard(model)
    fill(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    seconds, losses, sent = [], [], zero.traffic()["bytes_sent"]
    begun, before = zero.memory(), status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM begins again
    for number in range(args.steps):
        sampler.doing = f"step {number}"
        x = torch.randn(args.tokens, args.width, generator=generator)
        labels = torch.randint(0, args.count, (args.tokens,), generator=generator)
        dist.barrier()
        start = time.perf_counter()
        loss = model(x, labels) if args.what == "head" else model(x).square().mean()
        loss.backward()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    sampler.over.set()
    after = zero.memory()
    sums = sum(p.to_local().numel() * 4 for p in model.parameters())
    passing = sum(after[k][1] - begun[k][0] for k in ("gathered", "gradients")) - sums
    return {
        "process": status("VmHWM") - before, "passing": passing,
        "sent": (zero.traffic()["bytes_sent"] - sent) / args.steps,
        "seconds": min(seconds[1:]), "losses": losses,
    }


def confine(limit):
    """This process may take so many bytes more."""
    root = "/sys/fs/cgroup"
    old = os.path.isdir(f"{root}/memory")
    folder = f"{root}/memory/stream-{os.getpid()}" if old else f"{root}/stream-{os.getpid()}"
    os.mkdir(folder)
    if not old:  # what the process has stays with the group that it comes from
        with open(f"{folder}/memory.swap.max", "w", encoding="ascii") as file:
            file.write("0")
    name = "memory.limit_in_bytes" if old else "memory.max"
    with open(f"{folder}/{name}", "w", encoding="ascii") as file:
        file.write(str(limit))
    with open(f"{folder}/cgroup.procs", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    return folder


def train_confined(args, streamed):
    model, rank = make(args), dist.get_rank()
    largest = max(p.numel() * 4 for p in model.parameters())
    warm = torch.randn(64, 64, requires_grad=True)
    (warm @ warm).sum().backward()  # what torch takes once
    dist.barrier()
    confine(int(args.limit * largest))
    for module in list(model) if args.what == "experts" else [model.head]:
        zero.fully_shard(module, streamed=streamed)
    zero.fully_shard(model)
    fill(model)
    optimizer = zero.AdamW(model.parameters(), 1e-3)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    generator = torch.Generator().manual_seed(7 + rank)

    def step():
        x = torch.randn(args.tokens, args.width, generator=generator)
        labels = torch.randint(0, args.count, (args.tokens,), generator=generator)
        loss = model(x, labels) if args.what == "head" else model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    losses = [step() for _ in range(20)]
    zero.save(model, optimizer, folder[0])
    zero.restore(model, optimizer, folder[0])
    zero.export(model, f"{folder[0]}/model")
    losses.append(step())
    if rank == 0:
        shutil.rmtree(folder[0])
        print(f"{args.way:>9}: loaded, trained, saved, restored and exported within {args.limit} "
              f"of {largest / 1e6:.0f} MB a rank: losses {losses[0]:.4f} to {losses[-1]:.4f}",
              flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("streamed", "whole"))
    parser.add_argument("what", choices=("head", "experts"))
    parser.add_argument("count", type=int, help="rows of the head, or experts of a layer")
    parser.add_argument("width", type=int)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--slice", type=int, default=16 << 20, help="bytes")
    parser.add_argument("--record", help="a file")
    parser.add_argument("--limit", type=float, help="of the largest parameter's bytes")
    parser.add_argument("--sample", help="a file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    zero.init()
    streamed = args.slice if args.way == "streamed" else False
    if args.limit:
        return train_confined(args, streamed)
    row = train(args, streamed)
    if dist.get_rank():
        return
    print(f"{args.way:>9}: process {row['process'] / 1e6:7.1f} MB, gathered and gradients "
          f"{row['passing'] / 1e6:7.1f} MB, sent {row['sent'] / 1e6:7.1f} MB a step, "
          f"{row['seconds']:.3f} s, losses "
          + " ".join(f"{loss:.6f}" for loss in row["losses"]), flush=True)
    if not args.record:
        return
    try:
        with open(args.record, encoding="ascii") as file:
            found = json.load(file)
    except FileNotFoundError:
        found = {}
    found[args.way] = row
    with open(args.record, "w", encoding="ascii") as file:
        json.dump(found, file)
    if len(found) == 2:
        ratios = (f"{key} {found['streamed'][key] / found['whole'][key]:.2f}"
                  for key in ("process", "passing", "sent", "seconds"))
        print(f"{'ratio':>9}: " + ", ".join(ratios), flush=True)


if __name__ == "__main__":
    main()
