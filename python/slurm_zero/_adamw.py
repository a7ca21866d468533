# SPDX-License-Identifier: Apache-2.0
"""AdamW and Muon by the library, without a tensor for each state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from . import _zero
from ._flat_shard import FlatShard, tensor_of

if TYPE_CHECKING:
    from ._param import Param


_NO_MUON = (False, 0, False, 0, 0, 0, 0, 0, 0)


class AdamW(torch.optim.Optimizer):
    """As torch.optim.AdamW (Loshchilov and Hutter, arXiv 1711.05101) of sharded parameters. The
    library keeps the moments, which zero.save and zero.restore know, and no state_dict; parameters
    of 16 bits have f32 masters. A step whose gradients are not finite changes nothing. Groups of
    parameters may have lr and weight_decay of their own, but betas and eps are those of all."""

    # Of the moments, as zero_states has them; None: those of --zero-states
    states: int | None = None

    def __init__(self, params: Iterable, lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self._prepared = False
        self._scales: dict[Param, tuple[float, float]] = {}  # that the library knows
        for group in self.param_groups:
            for p in group["params"]:
                if not isinstance(p, FlatShard):
                    raise ValueError(
                        f"zero.{type(self).__name__} steps parameters that fully_shard has "
                        f"sharded; this one, of shape {tuple(p.shape)}, is not"
                    )
                if len(p._shard_spec.param.group.team.ranks) < dist.get_world_size():
                    raise NotImplementedError(
                        f"zero.{type(self).__name__} steps what is sharded over all ranks; "
                        f"{p._shard_spec.name} is on a mesh of some: use an optimizer of torch"
                    )

    def prepare(self) -> None:
        """The moments get their type before the first step or a restore. All ranks call it."""
        if self._prepared:
            return
        self.choose()
        if self.states is not None:
            _zero.set_states(self.states)
        self._prepared = True

    def choose(self) -> None:
        """Tells the library which parameters are stepped by another rule than AdamW's."""

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        adamw, muon = self._settings()
        spec = next((p._shard_spec for g in self.param_groups for p in g["params"]), None)
        if spec is None:
            return loss
        job = spec.job
        job.steps.prepare(self)
        self.prepare()
        stepped, given = set(), set()
        for group in self.param_groups:
            scales = (float(group["lr"]), float(group["weight_decay"]))
            for p in group["params"]:
                param = p._shard_spec.param
                if p.grad is not None:
                    if param.part not in stepped:
                        _zero.gradient_sums(param.part.handle, True)
                    stepped.add(param.part)
                    given.add(param)
                    self._set_scales(param, scales)
                    self._write_gradient(param, p.grad)
        if not stepped:
            return loss
        # As in torch, what has no gradient stays as it is, and what another optimizer steps.
        parts = [part for g in job.groups for part in g.parts if part in stepped]
        unused = [p for part in parts for p in part.params if p.can_train and p not in given]
        for param in unused:
            _zero.param_trainable(param.handle, False)
        try:
            job.steps.take(parts, adamw, muon)
        finally:
            for param in unused:
                _zero.param_trainable(param.handle, True)
        return loss

    def _same(self, groups: list[dict[str, Any]], names: Iterable[str]) -> list:
        """The settings that these groups have in common."""
        first = groups[0]
        for name in names:
            if any(group[name] != first[name] for group in groups):
                raise ValueError(f"all groups of zero.{type(self).__name__} have the same {name}")
        return [first[name] for name in names]

    def _settings(self) -> tuple[tuple, tuple]:
        """The last arguments of _zero.step_groups: those of AdamW, and those of Muon."""
        betas, eps = self._same(self.param_groups, ("betas", "eps"))
        return (*betas, eps), _NO_MUON

    def _set_scales(self, param: Param, scales: tuple[float, float]) -> None:
        if self._scales.get(param) != scales:
            self._scales[param] = scales
            _zero.lr_scale(param.handle, scales[0])
            _zero.weight_decay_scale(param.handle, scales[1])

    def _write_gradient(self, param: Param, gradient: FlatShard) -> None:
        sums = tensor_of(_zero.gradient_shard(param.handle), torch.float32)
        sums.copy_(gradient._local_tensor)


class AdamW8bit(AdamW):
    """AdamW whose moments take 2 bytes an element instead of 8 (Dettmers et al., arXiv 2110.02861):
    codes of 8 bits, with a scale for each 256 elements. Parameters of less than 4096 elements keep
    f32. All moments that the library keeps become so, also those of a zero.AdamW beside it."""

    states = 1


class Muon(AdamW):
    """As torch.optim.Muon (Jordan, 2024) of sharded matrices, each orthogonalised on one rank, in
    f32. A group with `use_muon` False is stepped by AdamW, with lr, betas, eps and weight_decay of
    its own:

        zero.Muon([{"params": matrices},
                   {"params": others, "use_muon": False, "lr": 3e-4}], lr=0.02)

    Parameters of three dimensions are stacks of matrices. What is no setting of a group of
    parameters in torch either (all but lr and weight_decay) is that of all groups of its kind."""

    _rates = ("original", "match_rms_adamw", "spectral_unclamped")
    _adamw = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}

    def __init__(self, params: Iterable, lr: float = 1e-3, weight_decay: float = 0.1,
                 momentum: float = 0.95, nesterov: bool = True,
                 ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
                 eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None):
        params = list(params)
        groups = params if params and isinstance(params[0], dict) else [{"params": params}]
        muon = {"weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
                "ns_coefficients": tuple(ns_coefficients), "ns_steps": ns_steps, "eps": eps,
                "adjust_lr_fn": adjust_lr_fn or "original"}
        for rate in [muon["adjust_lr_fn"], *(g.get("adjust_lr_fn") or "original" for g in groups)]:
            if rate not in self._rates:
                raise ValueError(
                    f"adjust_lr_fn is {rate!r}; it must be one of {', '.join(self._rates)}"
                )
        super().__init__([{**(muon if g.get("use_muon", True) else self._adamw),
                           "use_muon": True, **g} for g in groups], lr=lr)
        for p in self._matrices():
            if p.ndim not in (2, 3):
                raise ValueError(
                    "zero.Muon steps matrices and stacks of them, and this parameter has the shape "
                    f"{tuple(p.shape)}: put it in a group with use_muon=False"
                )

    def _matrices(self) -> list[FlatShard]:
        return [p for group in self.param_groups if group["use_muon"] for p in group["params"]]

    def choose(self) -> None:
        for p in self._matrices():
            _zero.param_muon(p._shard_spec.param.handle, True)

    def _settings(self) -> tuple[tuple, tuple]:
        adamw, muon = (0.9, 0.999, 1e-8), _NO_MUON
        by_muon = [group for group in self.param_groups if group["use_muon"]]
        others = [group for group in self.param_groups if not group["use_muon"]]
        if others:
            betas, eps = self._same(others, ("betas", "eps"))
            adamw = (*betas, eps)
        if by_muon:
            names = ("momentum", "nesterov", "ns_steps", "ns_coefficients", "eps", "adjust_lr_fn")
            momentum, nesterov, steps, coefficients, eps, rate = self._same(by_muon, names)
            muon = (True, momentum, not nesterov, steps, *coefficients, eps,
                    self._rates.index(rate or "original"))
        return adamw, muon
