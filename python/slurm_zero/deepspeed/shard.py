# SPDX-License-Identifier: Apache-2.0
"""Shards the model that initialize is called with."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus, ZeroParamType
from torch import nn

from .. import _api, _flat_shard, _zero
from .._flat_shard import FlatShard
from .._group import MixedPrecisionPolicy
from .._module import FullyShardedModule
from .._param import DTYPES, Param
from .init import Source, source_of

Changed = dict[nn.Parameter, FlatShard]  # a parameter as it was, and as it is


def blocks(model: nn.Module) -> list[nn.Module]:
    """What is gathered together: the model's own blocks, or else the members of its lists. What
    shares a parameter with others is left to the outermost group."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    found = [m for m in model.modules() if type(m).__name__ in names]
    if not found:
        lists = (m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential)))
        found = [child for m in lists for child in m if next(child.parameters(), None) is not None]
    found = list(dict.fromkeys(m for m in found if m is not model))
    inner = {m for top in found for m in top.modules() if m is not top}
    found = [m for m in found if m not in inner and (
        not isinstance(m, (nn.ModuleList, nn.ModuleDict))
    )]
    owners: dict[nn.Parameter, set[nn.Module | None]] = {}
    inside = {m: top for top in found for m in top.modules()}
    for m in model.modules():
        external = getattr(m, "_external_params", {}).values()  # of register_external_parameter
        for p in (*m.parameters(recurse=False), *external):
            owners.setdefault(p, set()).add(inside.get(m))
    shared = {m for tops in owners.values() if len(tops) > 1 for m in tops}
    return [m for m in found if m not in shared]


def computed_dtype(model: nn.Module, wanted: torch.dtype) -> torch.dtype | None:
    """The type of a forward pass: that of the configuration, or the model's own if that says f32;
    None if parameters are gathered as they are."""
    if wanted is not torch.float32:
        return wanted
    own = {p.dtype for p in model.parameters() if p.requires_grad and p.is_floating_point()}
    return own.pop() if len(own) == 1 and own != {torch.float32} else None


def _empty(p: nn.Parameter, computed: torch.dtype | None) -> nn.Parameter:
    """What is trained is stored as f32, and what is not as it is computed with."""
    dtype = p.dtype
    if computed and dtype in DTYPES:
        dtype = torch.float32 if p.requires_grad else computed
    shape = p.ds_shape if source_of(p) else p.shape
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), p.requires_grad)


def _swap(model: nn.Module, made: dict[nn.Parameter, nn.Parameter]) -> None:
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None and type(module).__setattr__ is nn.Module.__setattr__:
                module._parameters[name] = made[p]
            elif p is not None:  # LSTMs have lists of their parameters
                setattr(module, name, made[p])


def _spread(param: Param, part: torch.Tensor) -> None:
    """Ranks have even parts of the values; each takes what it stores, piece by piece."""
    world, size = dist.get_world_size(), part.numel()
    first, end = param.spec.range
    _flat_shard.begin_write(param.sharded)
    local, chunk = param.sharded._local_tensor, max(1, _CHUNK // world)
    for at in range(0, size, chunk):
        piece = part[at : at + chunk].contiguous()
        every = piece.new_empty(world * piece.numel())
        dist.all_gather_into_tensor(every.view(torch.uint8), piece.view(torch.uint8))
        for rank, values in enumerate(every.view(world, -1)):
            begin = rank * size + at
            low, high = max(first, begin), min(end, begin + values.numel())
            if low < high:
                local[low - first : high - first] = values[low - begin : high - begin]


_CHUNK = 1 << 22  # elements


@torch.no_grad()
def _fill(params: dict[Param, nn.Parameter], computed: torch.dtype | None) -> None:
    files: dict[str, dict[str, str]] = {}
    for param, p in params.items():
        source = source_of(p)
        if source is None:
            value = p.detach().to(param.sharded.dtype).contiguous()
            _zero.load_from_rank(param.handle, 0, value.data_ptr() if value.numel() else 0)
            p.data = p.data.new_empty(0)
        elif source.file:
            files.setdefault(source.file, {})[param.name] = source.key
        param.fill()
    for file, names in files.items():
        others = dict.fromkeys(_api.job().layout.names, "of another file")
        _zero.load_model(file, others | names, None, False)
    for param, p in params.items():
        source = source_of(p)
        if source is not None and source.part is not None:
            _spread(param, source.part)
        if source is not None:
            p._zero_source = Source()
        if computed and param.sharded.dtype in DTYPES and param.sharded.dtype is not computed:
            # As values of 16 bits that masters of f32 are made of.
            _flat_shard.begin_write(param.sharded)
            local = param.sharded._local_tensor
            local.copy_(local.to(computed))


def _mark(sharded: FlatShard, p: nn.Parameter, number: int) -> None:
    """Libraries look for these attributes before they use GatheredParameters."""
    sharded.ds_id = getattr(p, "ds_id", number)
    sharded.ds_shape, sharded.ds_numel = sharded.shape, sharded.numel()
    sharded.ds_param_type = ZeroParamType.PARTITIONED
    sharded.ds_status = ZeroParamStatus.NOT_AVAILABLE
    sharded.ds_tensor, sharded.ds_persist = sharded._local_tensor, False
    sharded.ds_enable_sanity_checks = getattr(p, "ds_enable_sanity_checks", False)


def shard(model: nn.Module, stage: int, settings: str, wanted: torch.dtype) -> Changed:
    if isinstance(model, FullyShardedModule):  # by an engine before
        return {p: p for p in model.parameters()}
    if _api.job() is None:
        _api.init(settings)
    _api.job().layout.drop()  # models of engines before, so that names begin anew
    job, computed = _api.job(), computed_dtype(model, wanted)
    policy = MixedPrecisionPolicy(param_dtype=computed)
    made, found = {p: _empty(p, computed) for p in model.parameters()}, blocks(model)
    _swap(model, made)
    for block in found:
        _api.fully_shard(block, mp_policy=policy)
    _api.fully_shard(model, mp_policy=policy)
    params = {job.originals[q]: p for p, q in made.items()}
    job.layout.update()
    _fill(params, computed)
    job.settle()
    changed: Changed = {}
    for number, (param, p) in enumerate(params.items()):
        changed[p] = param.sharded
        own = {k: v for k, v in vars(p).items()
               if not callable(v) and not k.startswith(("ds_", "_zero_"))}
        vars(param.sharded).update(own)
        if stage == 3:
            _mark(param.sharded, p, number)
    return changed
