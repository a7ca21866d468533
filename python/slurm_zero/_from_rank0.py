# SPDX-License-Identifier: Apache-2.0
"""Values that rank 0 alone has, as with broadcast_from_rank0 of torch's state dicts and
Accelerate's cpu_ram_efficient_loading: torch sends each tensor whole to every rank. Here each piece
of `stream_chunk` bytes goes to the rank that keeps it, and to no other."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _state_dict_utils as utils
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from . import _zero
from ._flat_shard import FlatShard
from ._param import Param


def _param_of(value: Any) -> Param | None:
    """The parameter that this is the value of, if rank 0 and all others have a part of it."""
    param = value._shard_spec.param if isinstance(value, FlatShard) else None
    # A state of an optimizer is sharded as its parameter is.
    if param is None or value._local_tensor.untyped_storage()._cdata != (
        param.sharded._local_tensor.untyped_storage()._cdata
    ):
        return None
    some = param.spec.tp or len(param.group.team.ranks) < dist.get_world_size()
    return None if some else param


def stream(values: dict[Param, torch.Tensor | None], rank: int = 0) -> None:
    """That rank has the values, others None. All ranks call it."""
    next(iter(values)).group.job.settle()
    for param, value in values.items():
        if value is not None:
            value = value.detach().to(param.sharded.dtype).contiguous()
        address = 0 if value is None or not value.numel() else value.data_ptr()
        _zero.load_from_rank(param.handle, rank, address)
        param.fill()


_broadcast_tensors = utils._broadcast_tensors


def _broadcast(full: dict[str, Any], local: dict[str, Any], keys: list[str], *args: Any,
               **kwargs: Any) -> None:
    """torch's function, which set_model_state_dict and set_optimizer_state_dict call with one key
    at a time. `full` has sizes instead of values on other ranks than 0."""
    mine: dict[str, Param] = {}
    for key in keys:
        param, given = _param_of(local.get(key)), full[key]
        shape = given.shape if isinstance(given, torch.Tensor) else given.size
        if param is not None and tuple(shape) == tuple(param.spec.shape):
            mine[key] = param
    if mine:
        has = dist.get_rank() == 0
        stream({param: full[key] if has else None for key, param in mine.items()})
    for key, param in mine.items():
        local[key] = param.sharded.detach()
    others = [key for key in keys if key not in mine]
    if others:
        _broadcast_tensors(full, local, others, *args, **kwargs)


_distribute_tensors = utils._distribute_tensors


def _distribute(local: dict[str, Any], keys: list[str], *args: Any, **kwargs: Any) -> None:
    """What each rank has whole. torch's function would give each rank even rows."""
    others = []
    for key in keys:
        value = local.get(key)
        if isinstance(value, tuple) and isinstance(value[0], FlatShard):
            param = value[0]._shard_spec.param
            if value[0].is_meta and param is not None:
                param.fill()
                value = param.sharded, value[1]
            local[key] = value[0].detach().copy_(value[1])
        else:
            others.append(key)
    _distribute_tensors(local, others, *args, **kwargs)


utils._broadcast_tensors, utils._distribute_tensors = _broadcast, _distribute


def replace_accelerates(fsdp_utils: ModuleType) -> None:
    """Its function that loads a model which rank 0 alone has."""
    stock = fsdp_utils.fsdp2_load_full_state_dict

    @functools.wraps(stock)
    def load(accelerator: Any, model: nn.Module, full_sd: dict[str, Any], *args: Any,
             **kwargs: Any) -> nn.Module:
        if not any(isinstance(p, FlatShard) for p in model.parameters()):
            return stock(accelerator, model, full_sd, *args, **kwargs)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, full_sd, options=options)
        return model

    fsdp_utils.fsdp2_load_full_state_dict = load
