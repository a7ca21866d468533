# SPDX-License-Identifier: Apache-2.0
"""Gives the groups that were made to the library, which allocates their memory."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from . import _zero
from ._group import DTYPES, STORED, Group, Param
from ._team import Team
from ._tensor import tensor_of

if TYPE_CHECKING:
    from ._job import Job

# What a rank's new groups are. A group is the same on all ranks of its team: it is known by these
# and by its place among the groups of that team.
Key = tuple[tuple[int, ...], int]
Description = dict[Key, tuple]
Paths = dict[nn.Module, tuple[nn.Module, str]]  # the outermost module, and where below it


class Layout:
    def __init__(self, job: Job):
        self.job = job
        self.count = 0  # of the groups that are laid out
        self.roots: list[nn.Module] = []
        self.teams: list[Team] = []  # in the same order on all ranks
        self.handles: list[Any] = []  # of the groups of all ranks, likewise
        self.names: set[str] = set()  # of their parameters
        self.split = False  # ranks of different teams have parameters of one name
        self.foreign: dict[str, Any] = {}  # handles of those that this rank has no part of
        self.replicated = False  # in a grid: other ranks store what this one owns, too

    @property
    def groups(self) -> list[Group]:
        return self.job.groups[: self.count]

    def update(self) -> None:
        """Lays out the groups that are new on any rank. All ranks call it."""
        new = self.job.groups[self.count :]
        if not new:
            return
        for group in new:
            group.follow()
        described: Description = {}
        own: dict[Key, Group] = {}
        paths = self._find_roots(new)
        for group in new:
            if group.params:
                key = (group.team.ranks, len(group.team.groups))
                group.team.groups.append(group)
                described[key], own[key] = _describe(group, paths), group
        self._declare(_exchange(described), own)
        _zero.layout()
        self.count = len(self.job.groups)
        sends = False
        if self.job.stage == 3:
            ranks = int(_zero.setting("shard"))
            self.replicated = ranks < dist.get_world_size()
            # Ranks of a team prefetch alike, though its nodes may have other numbers of ranks.
            sends = any(_zero.exchange(bytes([int(_zero.setting("share")) % ranks != 0])))
        values = [(p.sharded, p.original) for group in new for p in group.params if not p.of_tp()]
        for group in own.values():
            dtype = group.policy.param_dtype
            casts = dtype and any(p.original.dtype != dtype for p in group.params)
            group.needs_gather = bool(sends or casts or group.team.handle)
            for p in group.params:
                self._take(group, p)
        with torch.no_grad():
            for sharded, value in values:
                if isinstance(value, DTensor) and not value.is_meta:
                    sharded.copy_(value)

    def differs(self) -> bool:
        """Whether ranks have different groups."""
        return any(team.handle for team in self.teams)

    def merge(self, mine: dict) -> dict:
        """What all ranks say of the groups that they have. All ranks call it."""
        if not self.differs():
            return mine
        every: list = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        return {key: value for said in reversed(every) for key, value in said.items()}

    def _find_roots(self, new: list[Group]) -> Paths:
        tops = [m for g in new for m in g.modules]
        inside = {m for top in tops for m in top.modules() if m is not top}
        self.roots += dict.fromkeys(m for m in tops if m not in inside and m not in self.roots)
        # A module that was used before its model was sharded is a root no more.
        inside |= {m for root in self.roots for m in root.modules() if m is not root}
        for group in self.job.groups:
            group.root = any(m in self.roots and m not in inside for m in group.modules)
        paths: Paths = {}
        for root in self.roots:
            for path, module in root.named_modules():
                paths.setdefault(module, (root, path))
        return paths

    def _declare(self, every: list[Description], own: dict[Key, Group]) -> None:
        """Tells the library of the groups of all ranks, on each of them in the same order."""
        merged: Description = {}
        for described in every:
            for key, value in described.items():
                merged.setdefault(key, value)
        names = Counter(name for _, params in merged.values() for name, *_ in params)
        for key, (reduce_dtype, params) in merged.items():
            team = self._team(key[0])
            handle = _zero.group_new(f"group {len(self.handles)}", team.handle)
            if reduce_dtype:
                _zero.group_gradient_dtype(handle, DTYPES[reduce_dtype])
            group = own.get(key)
            if group:
                group.handle = handle
            self.handles.append(handle)
            for index, (name, dtype, shape, trainable, _) in enumerate(params):
                if names[name] > 1 or name in self.names:
                    name = f"{name}@{team}"  # as experts have, which differ though named alike
                    self.split = True
                self.names.add(name)
                param = _zero.param_new(handle, name, STORED[dtype], shape, trainable)
                if group:
                    p = group.params[index]
                    p.handle, p.name, p.spec.name = param, name, name
                else:
                    self.foreign[name] = param

    def _team(self, ranks: tuple[int, ...]) -> Team:
        team = self.job.teams.setdefault(ranks, Team(ranks))
        if team not in self.teams:
            self.teams.append(team)
            if len(ranks) < dist.get_world_size():
                team.handle = _zero.team_new(ranks)
        return team

    def _take(self, group: Group, p: Param) -> None:
        """Moves the values of a parameter to the library's memory."""
        spec, dtype = p.spec, p.original.dtype
        spec.ranges = dict(zip(group.team.ranks, _zero.owned(group.handle, p.handle)))
        p.sharded._local_tensor = p.memory()
        if not p.original.is_meta and (p.of_tp() or not isinstance(p.original, DTensor)):
            values = p.original.detach()
            values = (values.to_local() if p.of_tp() else values).contiguous()
            _zero.load_from(p.handle, values.data_ptr())
        full = _zero.address(p.handle, group.gather_as())
        gathered = group.policy.param_dtype if dtype in DTYPES else None
        full = tensor_of(full, gathered or dtype).view(spec.sizes)
        full = spec.whole(full) if spec.tp else full
        with torch.inference_mode(False):
            p.full = nn.Parameter(full, requires_grad=p.trainable)
        self.job.originals.pop(p.original)
        p.original._sharded_as = p.name  # for an optimizer that still has it
        p.original = None


def _describe(group: Group, paths: Paths) -> tuple:
    params = []
    for p in group.params:
        p.trainable = p.can_train = p.sharded.requires_grad
        module, attribute = p.places[0]
        root, path = paths[module]
        if root not in group.team.roots:
            group.team.roots.append(root)
        # The first model's names are its own, those of others have a number before them.
        index = group.team.roots.index(root)
        name = (f"{index}:" if index else "") + (f"{path}." if path else "") + attribute
        dtype, shape = p.original.dtype, tuple(p.spec.sizes)
        params.append((name, dtype, shape, p.trainable, p.original.is_meta))
    return group.policy.reduce_dtype, params


def _exchange(described: Description) -> list[Description]:
    """What each rank has described. Raises an error on all ranks that names the first line that is
    not the same on all ranks of a team."""
    digest, world = hashlib.sha256(repr(described).encode()).digest(), dist.get_world_size()
    if _zero.exchange(digest) == digest * world:
        return [described]
    every: list = [None] * world
    dist.all_gather_object(every, described)
    for team in dict.fromkeys(key[0] for described in every for key in described):
        for said in zip(*(_lines(every[rank], team) for rank in team)):
            rank = next((r for r, line in zip(team, said) if line != said[0]), None)
            if rank is not None:
                raise _zero.Error(
                    f"ranks have different models: rank {team[0]} has {said[0]}, rank {rank} has "
                    f"{said[team.index(rank)]}"
                )
    return every


def _lines(described: Description, team: tuple[int, ...]) -> Iterator[str]:
    for (ranks, place), (_, params) in described.items():
        for name, dtype, shape, trainable, is_meta in params if ranks == team else ():
            frozen, meta = "" if trainable else "frozen ", " on meta" if is_meta else ""
            yield f"{frozen}{name} of {dtype} {shape}{meta} in group {place}"
    yield "no parameter more"
