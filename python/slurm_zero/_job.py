# SPDX-License-Identifier: Apache-2.0
"""The job of this process, and its passes over the groups."""

from __future__ import annotations

import enum

import torch
from torch import nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh

from . import _device, _zero
from ._flat_shard import FlatShard
from ._group import Group, GroupState, no_compile
from ._layout import Layout
from ._param import Param
from ._saved import Saved
from ._steps import Steps, Writes
from ._team import Team


class Pass(enum.Enum):
    FORWARD = enum.auto()  # also between passes
    BACKWARD = enum.auto()


class Job:
    def __init__(self, settings: str):
        self.settings = settings
        self.stage = int(_zero.setting("stage"))
        self.mesh: DeviceMesh | None = None
        self.teams: dict[tuple[int, ...], Team] = {}  # by their ranks
        self.groups: list[Group] = []
        # By what they were, parameters of groups that are not laid out yet.
        self.originals: dict[nn.Parameter, Param] = {}
        self.layout, self.writes, self.steps = Layout(self), Writes(self), Steps(self)
        self.saved = Saved(self)
        self.present = Pass.FORWARD
        self.creates_graph = False
        self.last: Group | None = None  # that was gathered last in this pass

    def team_of(self, mesh: DeviceMesh) -> Team:
        ranks = tuple(sorted(mesh.mesh.flatten().tolist()))
        return self.teams.setdefault(ranks, Team(ranks))

    def owner(self, p: nn.Parameter | None) -> Param | None:
        """What a parameter is sharded as, or was."""
        if isinstance(p, FlatShard):
            param = p._shard_spec.param
            return param if param and param.sharded is p else None
        return self.originals.get(p)

    def taken(self) -> set[nn.Module]:
        """The modules whose parameters are in groups."""
        roots = [root for g in self.groups if g.takes_modules for root in g.modules]
        return {m for root in roots for m in root.modules()}

    def settle(self) -> None:
        """Nothing is gathered, and all that was written is everywhere. All ranks call it."""
        self.layout.update()
        for group in self.groups:
            group.follow()
        self.writes.end()
        for group in self.groups:
            group.reshard()

    def in_backward(self) -> bool:
        return self.present is Pass.BACKWARD

    def end_pass(self) -> None:
        if self.last:
            self.last.next_gathered[self.in_backward()] = None
        self.last = None

    def check_backward(self) -> None:
        if self.in_backward() and torch._C._current_graph_task_id() == -1:
            raise _zero.Error(
                "an exception ended a backward pass: call slurm_zero.reset() on all ranks before "
                "the next"
            )

    def begin_backward(self, group: Group) -> None:
        for each in (group, *group.lenders):
            each.team.in_backward = True
        if not self.in_backward():
            self.end_pass()
            self.present = Pass.BACKWARD
            # Then what it used stays gathered until the next pass has ended.
            self.creates_graph = torch.is_grad_enabled()
            Variable._execution_engine.queue_callback(self.end_backward)

    @no_compile
    def end_backward(self) -> None:
        """Ends a backward pass."""
        for group in self.layout.groups:
            if group.state is not GroupState.SHARDED:
                group.post_backward()
            group.keep_gradients()
        self.end_pass()
        self.present = Pass.FORWARD
        ran = [team for team in self.layout.teams if team.in_backward]
        for team in ran:
            team.in_backward = False
        self.add_gradients([g for team in ran for g in team.groups if not g.manual])

    def add_gradients(self, groups: list[Group]) -> None:
        """Adds the sums over the ranks to .grad of the shards."""
        for team in self.layout.teams:
            self._add_gradients_of(team, [g for g in groups if g.team is team])

    def _add_gradients_of(self, team: Team, groups: list[Group]) -> None:
        # A group may have no parameters, if its parts have them all.
        synced = [g for g in groups if g.parts and g.sync]
        if not synced:
            return
        # Ranks may have used different parameters.
        mine = bytearray()
        for part in (part for group in synced for part in group.parts):
            mine.append(bool(part.kept))
            mine += bytes(p.has_grad for p in part.params)
        any_rank = iter(team.any_rank(bytes(mine)))
        used = []
        for group in synced:
            params = []
            for part in group.parts:
                if next(any_rank):
                    part.reduce()
                params += [p for p in part.params if next(any_rank)]
            used.append((group, params))
        replicated = self.layout.replicated and team.handle is None
        if replicated:
            _zero.reduce_replicas([part.handle for g in synced if g.all_reduce for part in g.parts])
        for group, params in used:
            if group.all_reduce or not replicated:
                for p in params:
                    p.has_grad = False
                group.add_gradients([p for p in params if p.trainable], len(team.ranks))
        _device.trim_host()

    def reset(self) -> None:
        _zero.reset()
        self.present, self.last = Pass.FORWARD, None
        self.steps.stepping = None
        self.writes.parts.clear()
        for team in self.teams.values():
            team.in_backward = False
        for group in self.layout.groups:
            group.forget()
