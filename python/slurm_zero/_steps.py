# SPDX-License-Identifier: Apache-2.0
"""What changes sharded parameters: steps of optimizers, and writes of the program."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from . import _checkpoint, _zero
from ._adamw import AdamW
from ._param import Part

if TYPE_CHECKING:
    from ._job import Job
    from ._protect import Protection


class Writes:
    """The program changes parameters outside of a step, as all ranks do. What others store of them
    follows before anything is computed with them."""

    def __init__(self, job: Job):
        self.job = job
        self.parts: dict[Part, None] = {}

    def begin(self, part: Part) -> None:
        if self.job.steps.stepping is not None or part in self.parts:
            return
        part.group.reshard()
        _zero.write_begin(part.handle)
        self.parts[part] = None

    def end(self) -> None:
        while self.parts:
            part = next(iter(self.parts))
            _zero.write_end(part.handle)
            del self.parts[part]


class Steps:
    def __init__(self, job: Job):
        self.job = job
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # that have stepped
        self.stepping: Optimizer | None = None  # of torch's
        self.stepped: set[Part] = set()  # what it has parameters of
        self.stopping = False  # what the last step was told of signals
        self.count = 0  # that were taken, for the names of checkpoints
        self.protection: Protection | None = None

    def _register(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if hasattr(p, "_sharded_as"):
                    raise _zero.Error(
                        f"this {type(optimizer).__name__} was built before fully_shard, with "
                        f"{p._sharded_as} as it was before: build it after fully_shard"
                    )
        _checkpoint.states_to_shards(optimizer)
        optimizer.register_load_state_dict_post_hook(_checkpoint.states_to_shards)
        self.optimizers.add(optimizer)

    def prepare(self, optimizer: Optimizer) -> list[Part]:
        """Whatever steps. Returns what the optimizer has parameters of."""
        if optimizer not in self.optimizers:
            self._register(optimizer)
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        params = [p for g in self.job.groups for p in g.params if id(p.sharded) in mine]
        if params:
            self.job.check_backward()
            self.job.settle()
        return list(dict.fromkeys(p.part for p in params))

    def _of_all_ranks(self, parts: list[Part]) -> list[Any]:
        """The handles of what any rank steps: ranks may have groups that others have not."""
        layout = self.job.layout
        mine = [part.handle for part in parts]
        if not layout.differs():
            return mine
        flags = bytearray(handle in mine for handle in layout.handles)
        every = _zero.exchange(bytes(flags))
        return [h for i, h in enumerate(layout.handles) if any(every[i :: len(flags)])]

    def begin(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        """Before a step of any optimizer."""
        if isinstance(optimizer, AdamW):
            return
        parts = self.prepare(optimizer)
        if not parts:
            return
        if kwargs.get("closure") is not None or any(a is not None for a in args[1:]):
            raise NotImplementedError("an optimizer's step with a closure is not supported")
        if self.stepping is not None and self.stepped.issuperset(parts):
            return  # a container steps the optimizers that it is made of
        self._end()
        _zero.step_begin(self._of_all_ranks(parts))
        self.stepping, self.stepped = optimizer, set(parts)

    def end(self, optimizer: Optimizer, args: tuple, kwargs: dict[str, Any]) -> None:
        if self.stepping is optimizer:
            self._end()
        if self.protection is not None:
            self.protection.after_step(optimizer)

    def _end(self) -> None:
        if self.stepping is not None:
            self.stepping, self.stepped = None, set()
            self.stopping = _zero.step_end()
            self.count += 1

    def take(self, parts: list[Part], adamw: tuple, muon: tuple) -> None:
        """The library's own step."""
        self.stopping = _zero.step_groups([part.handle for part in parts], *adamw, *muon)
        self.count += 1
