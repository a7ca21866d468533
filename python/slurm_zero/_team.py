# SPDX-License-Identifier: Apache-2.0
"""The ranks of a mesh, over which groups are sharded."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import _zero

if TYPE_CHECKING:
    from ._group import Group


class Team:
    def __init__(self, ranks: tuple[int, ...]):
        self.ranks = ranks  # ascending
        self.handle: Any = None  # of the library; None: all ranks
        self.groups: list[Group] = []  # of this rank, with parameters, that are laid out
        self.made = 0  # of its groups, those that were dropped as well
        # The outermost modules of these, by their numbers; None: that model is no more
        self.roots: list[weakref.ref[nn.Module] | None] = []
        self.in_backward = False  # one of them is in the present backward pass

    def __str__(self) -> str:
        """Such as 0,1,4 or 0-6/2."""
        first, last, step = self.ranks[0], self.ranks[-1], (*self.ranks, 0)[1] - self.ranks[0]
        if len(self.ranks) < 3 or self.ranks != tuple(range(first, last + 1, step)):
            return ",".join(map(str, self.ranks))
        return f"{first}-{last}" + (f"/{step}" if step > 1 else "")

    def any_rank(self, flags: bytes) -> list[bool]:
        """Which of the flags are set on one of the ranks at least. All of them call it, at the end
        of a backward pass."""
        if self.handle is None:
            return [bool(flag) for flag in _zero.backward_end(flags)]
        every = _zero.team_exchange(flags, self.handle, len(self.ranks))
        flags = torch.frombuffer(bytearray(every), dtype=torch.bool)
        return flags.view(len(self.ranks), -1).any(0).tolist()
