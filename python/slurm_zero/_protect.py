# SPDX-License-Identifier: Apache-2.0
"""Copies of the shards in the memory of nodes, after a step, for the next attempt of the run."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from . import _checkpoint, _device, _zero

if TYPE_CHECKING:
    from ._job import Job


def _hex(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


def _generators() -> bytes:
    """The states of this rank's random generators, as JSON: another node may send it, and no code
    of it could run."""
    states: dict[str, Any] = {"torch": _hex(torch.get_rng_state()), "python": random.getstate()}
    if _device.device.type == "cuda":
        states["cuda"] = _hex(torch.cuda.get_rng_state(_device.device))
    if "numpy" in sys.modules:
        name, words, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = [name, words.tolist(), *rest]
    return json.dumps(states).encode()


def _set_generators(text: bytes) -> None:
    states = json.loads(text)
    version, words, gauss = states["python"]
    torch.set_rng_state(_tensor(states["torch"]))
    random.setstate((version, tuple(words), gauss))
    if "cuda" in states and _device.device.type == "cuda":
        torch.cuda.set_rng_state(_tensor(states["cuda"]), _device.device)
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(states["numpy"]))


class Protection:
    def __init__(self, job: Job, models: list[torch.nn.Module], optimizers: list[Optimizer],
                 every: int, extra: Callable[[], Any] | None):
        self.job = job
        self.optimizers = optimizers
        self.every = every
        self.extra = extra or (lambda: None)
        # Whose step ends an iteration; a wrapper has the optimizer of torch's.
        self.last: Any = getattr(optimizers[-1], "optimizer", optimizers[-1])
        # DeepSpeed's engine goes on after its optimizer, and has states of its own.
        self.engine: Any = getattr(self.last, "_engine", None)
        if any(getattr(o, "_engine", self.engine) is not self.engine for o in optimizers):
            raise NotImplementedError("zero.protect takes one engine of DeepSpeed's, not several")
        if self.engine is not None:
            self.last = self.engine
            models = [m.module if m is self.engine else m for m in models]
        self.models = models
        self.iterations = 0
        self.tensors: list[torch.Tensor] = []  # that are being written

    def restore(self, path: str | None) -> dict[str, Any] | None:
        if path is not None and self.engine is not None:
            path = self.engine.latest_folder(path)
        found, own = _checkpoint.restore_protected(self.job, self.models, self.optimizers, path)
        if own:
            _set_generators(own)
        if found and self.engine is not None:
            self.engine.take_protected(found)
        return found

    def _extra(self) -> Any:
        extra = self.extra()
        return extra if self.engine is None else self.engine.protected(extra)

    def after_step(self, stepped: Any) -> None:
        """Of an optimizer or an engine."""
        if stepped is not self.last:
            return
        self.iterations += 1
        if _zero.protect_due(self.every, self.iterations):
            self.tensors = _checkpoint.protect(
                self.job, self.models, self.optimizers, self.every,
                self._extra, _generators(),
            )
