# SPDX-License-Identifier: Apache-2.0
"""What each rank needs for a model, at each stage and number of ranks, before anything is
allocated."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import nn

from . import _device, _streamed, _zero
from ._flat_shard import FlatShard
from ._param import STORED

# Up to and with the first number, as in "model.layers.0."
_LAYER = re.compile(r"(?:[^.]+\.)*?\d+\.")


class Plan(dict):
    """Bytes by kind of a rank, by (stage, ranks)."""

    def __init__(self, what: str):
        super().__init__()
        self.what = what
        self.streamed: dict[str, tuple[int, int]] = {}  # bytes of a parameter, and of a slice

    def __str__(self) -> str:
        stages = sorted({stage for stage, _ in self})
        lines = [f"{'ranks':>8}" + "".join(f"{f'stage {stage}':>10}" for stage in stages)]
        for ranks in sorted({ranks for _, ranks in self}):
            needs = (_size(self[stage, ranks].get("total", 0)) for stage in stages)
            lines.append(f"{ranks:>8}" + "".join(f"{need:>10}" for need in needs))
        if self.streamed:
            name, (whole, cut) = max(self.streamed.items(), key=lambda item: item[1])
            lines.append(
                f"streamed parameters, at stage 3: {len(self.streamed)}, the largest {name} of "
                f"{_size(whole)} in slices of {_size(cut)}"
            )
        return "\n".join([self.what, *lines])


def _size(count: float) -> str:
    for unit in " KMGT":
        if count < 1024 or unit == "T":
            return f"{count:.{int(unit != ' ' and count < 100)}f}{unit}"
        count /= 1024
    raise AssertionError


def _group_of(name: str, p: nn.Parameter) -> object:
    """Those of fully_shard, or what it is usually called for: the layers, and all else."""
    if isinstance(p, FlatShard) and p._shard_spec.param:
        return p._shard_spec.param.group
    layer = _LAYER.match(name)
    return layer[0] if layer else ""


def plan(model: nn.Module, ranks: Iterable[int] = (1, 2, 4, 8, 16, 32, 64),
         stages: Iterable[int] = (0, 1, 2, 3), *, settings: str = "", share: int = 1,
         device: str | torch.device | None = None) -> Plan:
    """Prints what a rank needs for a model, which may be on meta, and returns it: bytes by kind, by
    (stage, ranks). It counts parameters, gradients, the states of AdamW and what is gathered; of
    what is streamed, or would be with these settings, slices; not activations. `settings` are those
    of zero(3); so many ranks `share` the memory of a node, if they are on CPUs. It opens no job."""
    ranks, stages = tuple(ranks), tuple(stages)
    groups: dict[object, int] = {}
    params, elements, sizes = [], 0, {}
    can = _streamed.find([model], set(), set(), 0, warn=False)
    for name, p in model.named_parameters():
        if p.dtype not in STORED:
            raise ValueError(f"parameter {name} is {p.dtype}, which is not supported")
        of = _group_of(name, p)
        slice_bytes = -1 if p in can else getattr(of, "slice_bytes", 0)
        group = groups.setdefault(of, len(groups))
        dtype = STORED[p.dtype]
        params.append((group, name, dtype, tuple(p.shape), p.requires_grad, slice_bytes))
        elements += p.numel()
        sizes[name] = p.numel() * p.element_size()
    params.sort(key=lambda described: described[0])
    gpu = _device.is_gpu(device and torch.device(device))
    made = Plan(
        f"What each rank needs on {'a GPU' if gpu else 'CPUs'} for {elements:,} parameters in "
        f"{len(groups)} groups, with AdamW, without activations:"
    )
    for world in ranks:
        for stage in stages:
            need, slices = _zero.plan(params, f"{settings} stage={stage}".strip(), world,
                                      min(share, world), gpu)
            if stage == 3 and any(slices):
                made.streamed = {
                    name: (sizes[name], cut) for (_, name, *_), cut in zip(params, slices) if cut
                }
            made[stage, world] = {kind: most for kind, (_, most) in need.items() if most}
    print(made)
    return made
