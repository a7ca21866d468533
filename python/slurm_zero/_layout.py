# SPDX-License-Identifier: Apache-2.0
"""Gives the groups that were made to the library, which allocates their memory."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from . import _zero
from ._group import DTYPES, STORED, Group, Param
from ._tensor import tensor_of

if TYPE_CHECKING:
    from ._job import Job


class Layout:
    def __init__(self, job: Job):
        self.job = job
        self.count = 0  # of the groups that are laid out
        self.roots: list[nn.Module] = []
        self.replicated = False  # in a grid: other ranks store what this one owns, too

    @property
    def groups(self) -> list[Group]:
        return self.job.groups[: self.count]

    def update(self) -> None:
        """Lays out the groups that are new. All ranks call it."""
        new = self.job.groups[self.count :]
        if not new:
            return
        for group in new:
            group.follow()
        names = self._names(new)
        lines = []
        for number, group in enumerate(new, self.count):
            if not group.params:
                continue
            group.handle = _zero.group_new(f"group {number}")
            if group.policy.reduce_dtype:
                _zero.group_gradient_dtype(group.handle, DTYPES[group.policy.reduce_dtype])
            for p in group.params:
                dtype, shape = p.original.dtype, tuple(p.original.shape)
                p.trainable = p.can_train = p.sharded.requires_grad
                p.name = p.spec.name = names[p.places[0]]
                p.handle = _zero.param_new(group.handle, p.name, STORED[dtype], shape, p.trainable)
                meta = " on meta" if p.original.is_meta else ""
                frozen = "" if p.trainable else "frozen "
                lines.append(f"{frozen}{p.name} of {dtype} {shape}{meta} in group {number}")
        _require_same([*lines, "no parameter more"])
        _zero.layout()
        self.count = len(self.job.groups)
        sends = False
        if self.job.stage == 3:
            ranks = int(_zero.setting("shard"))
            self.replicated = ranks < dist.get_world_size()
            # Ranks of a team prefetch alike, though its nodes may have other numbers of ranks.
            sends = any(_zero.exchange(bytes([int(_zero.setting("share")) % ranks != 0])))
        values = [(p.sharded, p.original) for group in new for p in group.params]
        for group in new:
            dtype = group.policy.param_dtype
            casts = dtype and any(p.original.dtype != dtype for p in group.params)
            group.needs_gather = bool(group.params and (sends or casts))
            for p in group.params:
                self._take(group, p)
        with torch.no_grad():
            for sharded, value in values:
                if isinstance(value, DTensor) and not value.is_meta:
                    sharded.copy_(value)

    def _names(self, new: list[Group]) -> dict[tuple[nn.Module, str], str]:
        """The names of the parameters below the outermost modules, which it finds."""
        tops = [m for g in new for m in g.modules]
        inside = {m for top in tops for m in top.modules() if m is not top}
        self.roots += dict.fromkeys(m for m in tops if m not in inside and m not in self.roots)
        # A module that was used before its model was sharded is a root no more.
        inside |= {m for root in self.roots for m in root.modules() if m is not root}
        for group in self.job.groups:
            group.root = any(m in self.roots and m not in inside for m in group.modules)
        names: dict[tuple[nn.Module, str], str] = {}
        for index, top in enumerate(self.roots):
            # The first model's names are its own, those of others have a number before them.
            prefix = f"{index}:" if index else ""
            for path, module in top.named_modules():
                for attribute in module._parameters:
                    name = prefix + (f"{path}." if path else "") + attribute
                    names.setdefault((module, attribute), name)
        return names

    def _take(self, group: Group, p: Param) -> None:
        """Moves the values of a parameter to the library's memory."""
        spec, dtype = p.spec, p.original.dtype
        spec.ranges = _zero.owned(group.handle, p.handle)
        p.sharded._local_tensor = p.memory()
        if not p.original.is_meta and not isinstance(p.original, DTensor):
            values = p.original.detach().contiguous()
            _zero.load_from(p.handle, values.data_ptr())
        full = _zero.address(p.handle, group.gather_as())
        gathered = group.policy.param_dtype if dtype in DTYPES else None
        full = tensor_of(full, gathered or dtype).view(spec.shape)
        with torch.inference_mode(False):
            p.full = nn.Parameter(full, requires_grad=p.trainable)
        self.job.originals.pop(p.original)
        p.original._sharded_as = p.name  # for an optimizer that still has it
        p.original = None


def _require_same(lines: list[str]) -> None:
    """Raises an error on all ranks that names the first line that is not the same on all."""
    digest, world = hashlib.sha256("\n".join(lines).encode()).digest(), dist.get_world_size()
    if _zero.exchange(digest) == digest * world:
        return
    every: list = [None] * world
    dist.all_gather_object(every, lines)
    said = next(said for said in zip(*every) if len(set(said)) > 1)
    rank = next(r for r, line in enumerate(said) if line != said[0])
    raise _zero.Error(
        f"ranks have different models: rank 0 has {said[0]}, rank {rank} has {said[rank]}"
    )
