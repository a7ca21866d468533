# SPDX-License-Identifier: Apache-2.0
"""zero.Init and GatheredParameters. A parameter of zero.Init is empty, and has a source of its
values until initialize shards it: a file of safetensors, of which each rank then reads its part
alone, or an even part of them on each rank. So what a program ties, resizes or freezes before needs
nothing."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from types import ModuleType, TracebackType
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero import partition_parameters as stock
from torch import nn

from .. import _flat_shard, _from_rank0, _start
from .._flat_shard import FlatShard
from . import config as configuration
from . import tell

_SMALL = 16384  # elements: what has so few always has its values


@dataclasses.dataclass
class Source:
    """Where the values of a parameter are until it is sharded; nowhere, if nothing is set."""

    part: torch.Tensor | None = None  # of even ones of the flattened elements
    file: str | None = None
    key: str | None = None


def open_comm() -> None:
    """DeepSpeed's configuration needs the number of ranks."""
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed()


def source_of(p: nn.Parameter) -> Source | None:
    return getattr(p, "_zero_source", None)


def _size_of_part(numel: int) -> int:
    return -(-numel // dist.get_world_size())


def _scatter(full: torch.Tensor) -> torch.Tensor:
    """This rank's part of what rank 0 has."""
    size = _size_of_part(full.numel())
    mine, parts = full.new_empty(size), None
    if dist.get_rank() == 0:
        flat = full.contiguous().view(-1)
        parts = [flat[rank * size : (rank + 1) * size] for rank in range(dist.get_world_size())]
        parts = [nn.functional.pad(p, (0, size - p.numel())).view(torch.uint8) for p in parts]
    if size:
        dist.scatter(mine.view(torch.uint8), parts, src=0)
    return mine


def _slice(full: torch.Tensor) -> torch.Tensor:
    """This rank's part of what all ranks have."""
    size = _size_of_part(full.numel())
    mine, first = full.new_zeros(size), dist.get_rank() * size
    part = full.contiguous().view(-1)[first : first + size]
    mine[: part.numel()] = part
    return mine


def _whole(p: nn.Parameter) -> torch.Tensor:
    source = source_of(p)
    if source.part is not None:
        whole = source.part.new_empty(source.part.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(whole.view(torch.uint8), source.part.view(torch.uint8))
        return whole[: p.ds_numel].view(p.ds_shape)
    if source.file:
        return read(source.file, source.key).to(p.dtype)
    return torch.empty(p.ds_shape, dtype=p.dtype)


def read(file: str, key: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return opened.get_tensor(key)


def _skips_values() -> bool:
    """Transformers has put its own functions in the place of those of torch.nn.init: the values
    come from a file."""
    return nn.init.normal_.__module__ != nn.init.__name__


class Init(stock.Init):
    """DeepSpeed's own finds the parameters and changes the types of tensors; what becomes of a
    parameter is ours."""

    used = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(stock.Init.__init__).bind(None, *args, **kwargs).arguments
        if not given.get("enabled", True):
            return stock.Init(*args, **kwargs)
        config = given.get("config_dict_or_path", given.get("config"))
        names = ("data_parallel_group", "mpu", "zero_param_parallel_group", "param_swapper",
                 "sequence_data_parallel_group")
        others = {name: given.get(name) for name in names}
        others["remote_device"] = "nvme" if given.get("remote_device") == "nvme" else None
        why = configuration.why_not(configuration.read(config), **others)
        tell(why)
        return stock.Init(*args, **kwargs) if why else super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any):
        open_comm()
        Init.used = True
        super().__init__(*args, **kwargs)

    # torch's own keeps nothing that is gathered.
    mem_efficient_linear = property(lambda self: False, lambda self, value: None)

    def _zero_init_param(self, param: nn.Parameter) -> None:
        self._convert_to_deepspeed_param(param)
        full, param._zero_source = param.detach(), Source()
        if not _skips_values() or full.numel() < _SMALL:
            param._zero_source.part = _scatter(full)
        self._partition([param])

    def _all_gather(self, param_list: list[nn.Parameter], *_: Any, **__: Any) -> list:
        for p in param_list:
            if p.ds_status is stock.ZeroParamStatus.NOT_AVAILABLE:
                p.data = _whole(p)
                p.ds_status = stock.ZeroParamStatus.AVAILABLE
        return []

    def _partition(self, param_list: list[nn.Parameter], force: bool = False,
                   has_been_updated: bool = False, free_data: bool = True) -> None:
        for p in param_list:
            if p.ds_status is stock.ZeroParamStatus.AVAILABLE:
                if has_been_updated:
                    p._zero_source = Source(part=_slice(p.detach()))
                p.data = torch.empty(0, dtype=p.dtype, device=p.device)
                p.ds_status = stock.ZeroParamStatus.NOT_AVAILABLE
                p.ds_tensor = p._zero_source.part


class GatheredParameters(stock.GatheredParameters):
    """Within it a sharded parameter has its whole values on each rank, so that a rank may read it
    alone. What the modifier writes is everyone's at the end."""

    def __init__(self, params: Any, modifier_rank: int | None = None,
                 fwd_module: nn.Module | None = None, enabled: bool = True):
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        sharded = [p for p in params if isinstance(p, FlatShard)]
        self._sharded = list(dict.fromkeys(sharded)) if enabled else []
        self._modifier = modifier_rank
        self._versions: dict[FlatShard, int] = {}
        super().__init__([p for p in params if not isinstance(p, FlatShard)], modifier_rank,
                         fwd_module, enabled)

    def __enter__(self) -> None:
        for p in self._sharded:
            if _flat_shard.storage(p) in _flat_shard.gathered:
                raise RuntimeError(
                    f"Nested GatheredParameters contexts cannot overlap parameters: {p}"
                )
        with torch.no_grad():
            whole = {p: p.full_tensor() for p in self._sharded}
        for p, full in whole.items():
            _flat_shard.gathered[_flat_shard.storage(p)] = full
            self._versions[p] = full._version
        super().__enter__()

    def __exit__(self, kind: type | None, error: BaseException | None,
                 trace: TracebackType | None) -> Any:
        whole = {p: _flat_shard.gathered.pop(_flat_shard.storage(p)) for p in self._sharded}
        result = super().__exit__(kind, error, trace)
        if error is not None or not whole:
            return result
        if self._modifier is not None:
            mine = dist.get_rank() == self._modifier
            _from_rank0.stream({p._shard_spec.param: full if mine else None
                                for p, full in whole.items()}, self._modifier)
        elif any(p.ds_enable_sanity_checks and full._version != self._versions[p]
                 for p, full in whole.items()):
            raise RuntimeError(
                "Detected in-place modification of ZeRO-3 parameters inside GatheredParameters "
                "with modifier_rank=None. Use modifier_rank=<rank> to broadcast updates across "
                "ranks."
            )
        return result


def replace(deepspeed: ModuleType) -> None:
    for module in (stock, deepspeed.runtime.zero, deepspeed.zero):
        module.Init, module.GatheredParameters = Init, GatheredParameters
    _start.after_import("transformers.modeling_utils", "deepspeed.pretrained", "replace_loading")
