# SPDX-License-Identifier: Apache-2.0
"""The model of the tests of DeepSpeed's checkpoints: odd sizes, tied and frozen parameters, scalars
and buffers."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(13, 29), nn.Linear(29, 13, bias=False)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x + self.scale * self.b(torch.tanh(self.a(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(31, 13)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.frozen = nn.Linear(13, 13)
        self.frozen.requires_grad_(False)
        self.norm = nn.LayerNorm(13)
        self.head = nn.Linear(13, 31, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.arange(13.0) / 100)
        self.register_buffer("count", torch.tensor(3))

    def forward(self, ids):
        x = self.embed(ids[:, :-1]) + self.shift.to(self.norm.weight.dtype)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(self.frozen(x)))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def groups(model):
    """Those with weight decay, and those without."""
    trained = [p for p in model.parameters() if p.requires_grad]
    shape = [getattr(p, "ds_shape", p.shape) for p in trained]
    return [
        {"params": [p for p, s in zip(trained, shape) if len(s) > 1]},
        {"params": [p for p, s in zip(trained, shape) if len(s) < 2], "weight_decay": 0.0},
    ]


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 31, (2, 7), generator=generator)
