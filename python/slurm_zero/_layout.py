# SPDX-License-Identifier: Apache-2.0
"""Gives the groups that were made to the library, which allocates their memory."""

from __future__ import annotations

import functools
import gc
import hashlib
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from . import _device, _zero
from ._group import Group
from ._param import DTYPES, STORED, Param, Part
from ._team import Team

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
        self.kept = 0  # handles that were left when models were last looked for that nobody has
        self.made = 0  # parts, for their names
        self._roots: list[weakref.ref[nn.Module]] = []
        # What parts of this rank's groups are alive by, if other ranks have them no more.
        self.left: dict[int, list[weakref.ref]] = {}
        self.teams: list[Team] = []  # in the same order on all ranks
        self.handles: list[Any] = []  # of the parts of all ranks, likewise
        self.names: dict[str, Any] = {}  # of their parameters, with the part's handle
        self.split = False  # ranks of different teams have parameters of one name
        self.foreign: dict[str, Any] = {}  # handles of those that this rank has no part of
        self.replicated = False  # in a grid: other ranks store what this one owns, too

    @property
    def groups(self) -> list[Group]:
        return self.job.groups[: self.count]

    @property
    def roots(self) -> list[nn.Module]:
        return [root for ref in self._roots if (root := ref())]

    def drop(self) -> None:
        """Frees the groups of models that the program has dropped, once all ranks have collected
        them. The job has them strongly until here: what ranks do with all groups is the same."""
        if not self.handles:
            return
        self.job.writes.end()
        self.job.last = None
        alive_by = self.left | {
            id(part.handle): [weakref.ref(g), *part.regions()]
            for g in self.groups for part in g.parts
        }
        groups, new = [weakref.ref(g) for g in self.groups], self.job.groups[self.count :]
        for team in self.teams:
            team.groups = [weakref.ref(g) for g in team.groups]
        for g in self.job.groups:
            g.next_gathered = [None, None]
        g = None
        self.job.groups = []
        gc.collect()
        mine = bytes(_held(alive_by.get(id(h), ())) for h in self.handles)
        every = _zero.exchange(mine)
        ranks = [every[i :: len(mine)] for i in range(len(mine))]  # by handle
        dropped = {id(h) for h, flags in zip(self.handles, ranks) if not any(flags)}
        self.left = {}

        def still(ref: weakref.ref[Group]) -> Group | None:
            group = ref()
            mine = [id(part.handle) for part in group.parts] if group else []
            if all(ranks[handles[h]][rank] == _GROUP for h in mine for rank in group.team.ranks):
                return group
            self.left |= {h: alive_by[h] for h in mine}
            return None

        handles = {id(h): i for i, h in enumerate(self.handles)}
        self.job.groups = [g for ref in groups if (g := still(ref))]
        self.count = len(self.job.groups)
        self.job.groups += new
        for team in self.teams:
            team.groups = [g for ref in team.groups if (g := ref()) in self.job.groups]
        for handle in self.handles:
            if id(handle) in dropped:
                _zero.group_drop(handle)
        self.names = {name: h for name, h in self.names.items() if id(h) not in dropped}
        # A number is free once the library has none of its names, which some rank may still need.
        taken = {_number_in(name) for name in self.names}
        for team in self.teams:
            team.roots = [ref if i in taken else None for i, ref in enumerate(team.roots)]
        self.foreign = {n: p for n, p in self.foreign.items() if n in self.names}
        self.handles = [h for h in self.handles if id(h) not in dropped]
        self.kept = len(self.handles)

    def update(self) -> None:
        """Lays out the groups that are new on any rank. All ranks call it."""
        new = self.job.groups[self.count :]
        if not new:
            return
        if len(self.handles) > 2 * self.kept:
            del new
            self.drop()
            new = self.job.groups[self.count :]
        for group in new:
            group.follow()
        described: Description = {}
        own: dict[Key, Group] = {}
        paths = self._find_roots(new)
        for group in new:
            if group.params:
                key = (group.team.ranks, group.team.made)
                group.team.made += 1
                group.team.groups.append(group)
                described[key], own[key] = _describe(group, paths), group
        every = _exchange(described)
        self._declare(every, own)
        # Ranks adopt the same tensors, or none.
        if self.job.stage < 3 and every == [described]:
            _adopt([p for group in own.values() for part in group.parts for p in part.params])
        if _device.on_gpu():
            _device.trim()  # the library sees what is free
        _zero.layout()
        self.count = len(self.job.groups)
        sends = False
        if self.job.stage == 3:
            ranks = int(_zero.setting("shard"))
            self.replicated = ranks < dist.get_world_size()
            # Ranks of a team prefetch alike, though its nodes may have other numbers of ranks.
            sends = any(_zero.exchange(bytes([int(_zero.setting("share")) % ranks != 0])))
        values = [
            (p.sharded, p.original) for group in new for p in group.params
            if isinstance(p.original, DTensor) and not p.original.is_meta and not p.of_tp()
        ]
        for part in (part for group in own.values() for part in group.parts):
            casts = part.dtype and any(p.sharded.dtype != part.dtype for p in part.params)
            part.needs_gather = bool(sends or casts or part.group.team.handle)
            for p in part.params:
                self._take(part, p)
        with torch.no_grad():
            for sharded, value in values:
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
        roots = list(dict.fromkeys(self.roots + [m for m in tops if m not in inside]))
        self._roots = [weakref.ref(root) for root in roots]
        # A module that was used before its model was sharded is a root no more.
        inside |= {m for root in roots for m in root.modules() if m is not root}
        for group in self.job.groups:
            group.root = any(m in roots and m not in inside for m in group.modules)
        paths: Paths = {}
        for root in roots:
            for path, module in root.named_modules():
                paths.setdefault(module, (root, path))
        return paths

    def _declare(self, every: list[Description], own: dict[Key, Group]) -> None:
        """Tells the library of the groups of all ranks, on each of them in the same order."""
        merged: Description = {}
        for described in every:
            for key, value in described.items():
                merged.setdefault(key, value)
        names = Counter(name for _, _, params in merged.values() for name, *_ in params)
        for key, (reduce_dtype, slice_bytes, params) in merged.items():
            team, group = self._team(key[0]), own.get(key)
            parts: dict[tuple, tuple[Any, Part | None]] = {}
            for index, (name, dtype, shape, trainable, gathered, _) in enumerate(params):
                if (trainable, gathered) not in parts:
                    handle = self._new_handle(team, reduce_dtype, slice_bytes)
                    part = group and group.new_part(handle, gathered)
                    parts[trainable, gathered] = handle, part
                handle, part = parts[trainable, gathered]
                if names[name] > 1 or name in self.names:
                    name = f"{name}@{team}"  # as experts have, which differ though named alike
                    self.split = True
                self.names[name] = handle
                # Also what is frozen, see Part.
                param = _zero.param_new(handle, name, STORED[dtype], shape, dtype in DTYPES)
                if group:
                    p = group.params[index]
                    p.handle, p.name, p.spec.name, p.part = param, name, name, part
                    part.params.append(p)
                else:
                    self.foreign[name] = param

    def _new_handle(self, team: Team, reduce_dtype: torch.dtype | None,
                    slice_bytes: int) -> Any:
        handle = _zero.group_new(f"group {self.made}", team.handle)
        self.made += 1
        if reduce_dtype:
            _zero.group_gradient_dtype(handle, DTYPES[reduce_dtype])
        if slice_bytes:
            _zero.set_slices(handle, slice_bytes)
        self.handles.append(handle)
        return handle

    def _team(self, ranks: tuple[int, ...]) -> Team:
        team = self.job.teams.setdefault(ranks, Team(ranks))
        if team not in self.teams:
            self.teams.append(team)
            if len(ranks) < dist.get_world_size():
                team.handle = _zero.team_new(ranks)
        return team

    def _take(self, part: Part, p: Param) -> None:
        """Moves the values of a parameter to the library's memory."""
        spec, dtype = p.spec, p.sharded.dtype
        spec.ranges = dict(zip(part.group.team.ranks, _zero.owned(part.handle, p.handle)))
        p.sharded._local_tensor = p.memory()
        if p.place() not in ("", "meta", "mesh"):
            values = p.original.detach()
            values = (values.to_local() if p.of_tp() else values).contiguous()
            _zero.load_from(p.handle, values.data_ptr())
        if part.group.slice_bytes:
            if p.original is not None:
                p.let_go()
            return
        full = _zero.address(p.handle, part.gather_as())
        gathered = part.dtype if dtype in DTYPES else None
        full = p.region(full, gathered or dtype).view(spec.sizes)
        full = spec.whole(full) if spec.tp and not p.types else full
        p.make_full(full)
        if part.needs_gather:
            self.job.saved.add(full, part.group)
        if p.original is not None:
            p.let_go()


def _adopt(params: list[Param]) -> None:
    """The library flattens what the parameters have already, buffer by buffer, and lets go of each
    tensor before it takes memory for the next ones."""
    for place in (_device.GPU, "cpu"):
        found = [p for p in params if p.place() == place and p.original.numel()]
        for p in found:
            _zero.adopt(p.handle, p.original.data_ptr(), place != "cpu",
                        p.let_go if place == "cpu" else functools.partial(_let_go, p))
        if found:
            return  # all that is adopted is in one place


def _let_go(p: Param) -> None:
    p.let_go()
    _device.trim()


_GROUP = 2


def _held(refs: list[weakref.ref]) -> int:
    """_GROUP: this rank has the group, which is the first; 1: a tensor of its memory alone."""
    alive = [ref() is not None for ref in refs]
    return _GROUP if alive and alive[0] else int(any(alive))


def _number_in(name: str) -> int:
    number, colon, _ = name.partition(":")
    return int(number) if colon and number.isdecimal() else 0


def _number(roots: list[weakref.ref[nn.Module] | None], root: nn.Module) -> int:
    """The first model's names are its own, those of others have a number before them, which may
    have been that of a model that is no more."""
    for index, ref in enumerate(roots):
        if ref and ref() is root:
            return index
    if None not in roots:
        roots.append(None)
    index = roots.index(None)
    roots[index] = weakref.ref(root)
    return index


def _describe(group: Group, paths: Paths) -> tuple:
    params = []
    for p in group.params:
        p.trainable = p.sharded.requires_grad
        module, attribute = p.places[0]
        root, path = paths[module]
        index = _number(group.team.roots, root)
        name = (f"{index}:" if index else "") + (f"{path}." if path else "") + attribute
        dtype, shape = p.original.dtype, tuple(p.spec.sizes)
        params.append((name, dtype, shape, p.trainable, p.dtype, p.place()))
    return group.policy.reduce_dtype, group.slice_bytes, params


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
    for (ranks, place), (_, slice_bytes, params) in described.items():
        for name, dtype, shape, trainable, gathered, where in params if ranks == team else ():
            frozen, meta = "" if trainable else "frozen ", " on meta" if where == "meta" else ""
            gathered = f" gathered as {gathered}" if gathered else ""
            slices = f" in slices of {slice_bytes} bytes" if slice_bytes else ""
            yield f"{frozen}{name} of {dtype} {shape}{gathered}{meta} in group {place}{slices}"
    yield "no parameter more"
