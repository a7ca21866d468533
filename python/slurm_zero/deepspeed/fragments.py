# SPDX-License-Identifier: Apache-2.0
"""deepspeed.utils.safe_get_full_fp32_param and the like: whole values, optimizer states and
gradients of a sharded parameter, and those that this rank has. All ranks call them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .. import _zero
from .._adamw import AdamW
from .._flat_shard import FlatShard

_MOMENTS = ("exp_avg", "exp_avg_sq")


def _moments(p: FlatShard) -> list[torch.Tensor]:
    """Of what this rank stores."""
    p._shard_spec.param.group.job.writes.end()
    first, end = p._shard_spec.range
    found = [torch.zeros(end - first) for _ in _MOMENTS]
    _zero.get_moments(p._shard_spec.param.handle, first, end - first,
                      *(m.data_ptr() for m in found))
    return found


def _set_moment(p: FlatShard, key: str, part: FlatShard) -> None:
    """The library takes those that this rank steps, which at stage 0 are all."""
    spec, parts = p._shard_spec, _moments(p)
    parts[_MOMENTS.index(key)] = part._local_tensor.float().cpu().contiguous()
    first, end = spec.range
    if spec.param.group.job.stage == 0:
        parts = [FlatShard.wrap(m, spec).full_tensor().contiguous() for m in parts]
        first, end = 0, p.numel()
    _zero.set_moments(spec.param.handle, first, end - first, *(m.data_ptr() for m in parts))


def _optimizer(p: FlatShard) -> torch.optim.Optimizer | None:
    """The one that steps it, if there is one."""
    stepped_by = getattr(p, "_stepped_by", None)
    return stepped_by and stepped_by()


def _get(p: FlatShard, key: str | None = None) -> FlatShard | None:
    """The values, or a state."""
    if not p.requires_grad:
        return None
    if key is None:
        return p.detach().float()
    optimizer = _optimizer(p)
    if isinstance(optimizer, AdamW) and key in _MOMENTS:
        moment = _moments(p)[_MOMENTS.index(key)].to(p._local_tensor.device)
        return FlatShard.wrap(moment, p._shard_spec)
    state = None if optimizer is None else optimizer.state.get(p, {}).get(key)
    if not isinstance(state, FlatShard):
        raise ValueError(f"{key} not found in optimizer state fragment")
    return state


@torch.no_grad()
def _set(p: FlatShard, value: FlatShard, key: str | None = None) -> None:
    if not p.requires_grad:
        return
    if key is None:
        p.copy_(value)
    elif isinstance(_optimizer(p), AdamW) and key in _MOMENTS:
        _set_moment(p, key, value)
    else:
        _get(p, key).copy_(value)


@torch.no_grad()
def _set_grad(p: FlatShard, value: FlatShard) -> None:
    if p.grad is None:
        raise ValueError("Gradients are only available immediately after backward and before "
                         "engine step")
    p.grad.copy_(value)


def _whole(part: FlatShard | None) -> torch.Tensor | None:
    return None if part is None else part.full_tensor()


def _mine(part: FlatShard | None) -> torch.Tensor | None:
    return None if part is None else part._local_tensor.detach()


def _part(p: FlatShard, whole: torch.Tensor) -> FlatShard:
    return p._shard_spec.to_shard(whole.reshape(p.shape))


def _as_part(p: FlatShard, mine: torch.Tensor) -> FlatShard:
    if mine.numel() != p._local_tensor.numel():
        raise AssertionError(
            f"Number of elements do not match: {mine.numel()} != {p._local_tensor.numel()}"
        )
    return FlatShard.wrap(mine.detach().reshape(-1), p._shard_spec)


def _update_grads(params: list[FlatShard], update: Callable) -> None:
    for p in params:
        if p.grad is not None:
            _set_grad(p, _part(p, update(p.grad.full_tensor(), p)))


def _functions(kind: str, out: Callable, into: Callable) -> dict[str, Callable]:
    """Of whole tensors, or of what this rank has."""
    return {
        f"get_{kind}_fp32_param": lambda param: out(_get(param)),
        f"set_{kind}_fp32_param": lambda param, value: _set(param, into(param, value)),
        f"get_{kind}_optimizer_state": lambda param, optim_state_key: (
            out(_get(param, optim_state_key))
        ),
        f"set_{kind}_optimizer_state": lambda param, value, optim_state_key: (
            _set(param, into(param, value), optim_state_key)
        ),
        f"get_{kind}_grad": lambda param: out(param.grad),
        f"set_{kind}_grad": lambda param, value: _set_grad(param, into(param, value)),
    }


_OURS: dict[str, Callable] = {
    **_functions("full", _whole, _part), **_functions("local", _mine, _as_part),
    "update_full_grad_vectorized": lambda param_list, update_func: (
        _update_grads(param_list, update_func)
    ),
}


def _either(theirs: Callable, ours: Callable) -> Callable:
    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        first = next(iter((*args, *kwargs.values())), None)
        if isinstance(first, list) and first:
            first = first[0]
        return (ours if isinstance(first, FlatShard) else theirs)(*args, **kwargs)

    return call


def replace(deepspeed: ModuleType) -> None:
    stock = sys.modules["deepspeed.utils.tensor_fragment"]  # a class of the package has its name
    for name, ours in _OURS.items():
        theirs = getattr(stock, f"safe_{name}")
        if not hasattr(theirs, "__wrapped__"):
            for module in (stock, deepspeed.utils):
                setattr(module, f"safe_{name}", _either(theirs, ours))
