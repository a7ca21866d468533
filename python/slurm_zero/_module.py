# SPDX-License-Identifier: Apache-2.0
"""What a module can do once it is sharded."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp import FSDPModule, UnshardHandle

from . import _device
from ._flat_shard import FlatShard
from ._group import Group
from ._job import Job
from ._param import DTYPES, STORED

_classes: dict[type, type] = {}  # of sharded modules, by what they were


class FullyShardedModule(FSDPModule):
    """What fully_shard adds to a module's class."""

    job: Job  # since init

    def __new__(cls, *args: Any, **kwargs: Any) -> nn.Module:
        # A part of a container, such as layers[:2], is made by its class: it is not sharded itself.
        plain = cls.__mro__[cls.__mro__.index(FSDPModule) + 1]
        module = plain.__new__(plain)
        module.__init__(*args, **kwargs)
        return module

    def __deepcopy__(self, memo: dict) -> FullyShardedModule:
        """A copy is sharded as this module is. All ranks make it."""
        self.job.settle()
        mine = [g for g in self._groups() if id(g) not in memo]
        made = [group.begin_copy(memo) for group in mine]
        copied = memo[id(self)] = object.__new__(type(self))
        copied.__setstate__(copy.deepcopy(self.__reduce_ex__(4)[2], memo))
        for group, new in zip(mine, made):
            group.end_copy(new, memo)
        return copied

    def _groups(self, recurse: bool = True) -> list[Group]:
        mine = set(self.modules()) if recurse else {self}
        return [g for g in self.job.groups if any(m in mine for m in g.modules)]

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers this module's own group; reshard() releases it. With `async_op` the gather is
        only begun, where there is one, and the parameters are there after the handle's wait()."""
        groups = self._groups(recurse=False)
        if async_op:
            for group in groups:
                group.begin_unshard()
            return _Unsharding(groups)
        for group in groups:
            group.unshard()
        return None

    def reshard(self) -> None:
        for group in self._groups(recurse=False):
            group.reshard()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *,
                                   recurse: bool = True) -> None:
        for group in self._groups(recurse):
            group.sync = group.all_reduce = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """While it is off, gradients are summed over the ranks that store one copy alone, and over
        all by the first backward after it. It matters where copies are replicated."""
        for group in self._groups(recurse):
            group.all_reduce = requires_all_reduce

    def set_gradient_divide_factor(self, factor: float) -> None:
        for group in self._groups(recurse=False):
            group.divide = factor

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The old name of set_gradient_divide_factor."""
        self.set_gradient_divide_factor(factor)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(
                f"reshard_after_forward should be a bool, got {type(reshard_after_forward)}"
            )
        for group in self._groups(recurse):
            group.reshard_after_forward = reshard_after_forward

    def set_reshard_after_backward(self, reshard_after_backward: bool, *,
                                   recurse: bool = True) -> None:
        for group in self._groups(recurse):
            group.reshard_after_backward = reshard_after_backward

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Without it nothing may read the group's parameters in a backward pass."""
        for group in self._groups(recurse=False):
            group.unshard_in_backward = unshard_in_backward

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None], *,
                            stream: Any = None) -> None:
        """It is called with what this rank has of the mean gradients of the group, flat and f32,
        and may change them. All runs on the calling thread, so that `stream` changes nothing."""
        for group in self._groups(recurse=False):
            group.all_reduce_hook = hook

    def _require_root(self, method: str) -> None:
        if any(g in self.job.layout.groups and not g.root for g in self._groups(recurse=False)):
            raise RuntimeError(f"{method} must be called on the root FSDP module")

    def reset_iter_state(self) -> None:
        """What slurm_zero.reset() does, for all models."""
        self._require_root("reset_iter_state")
        if self.job.layout.count:
            self.job.reset()

    def set_manual_backward_finalization(self, enabled: bool) -> None:
        """While it is on, finalize_backward() adds the gradients of the backward passes before
        it to those of the parameters."""
        self._require_root("set_manual_backward_finalization")
        if self.job.in_backward():
            raise RuntimeError(
                "set_manual_backward_finalization cannot change mode during backward"
            )
        for group in self._groups():
            group.manual = enabled

    def finalize_backward(self, *, async_op: bool = False) -> Any:
        """When it returns, the gradients are there, also with `async_op`."""
        self._require_root("finalize_backward")
        groups = self._groups()
        if not all(g.manual for g in groups):
            raise RuntimeError(
                "finalize_backward requires manual backward finalization. Call "
                "set_manual_backward_finalization(True) before forward"
            )
        self.job.add_gradients(groups)
        return _GradientReductionHandle() if async_op else None

    def _set_prefetch(self, backward: bool, modules: list[FullyShardedModule]) -> None:
        for module in modules:
            if not isinstance(module, FullyShardedModule):
                raise ValueError(f"Expects FSDPModule but got {type(module)}: {module}")
        wanted = [g for module in modules for g in module._groups(recurse=False)]
        for group in self._groups(recurse=False):
            group.wanted[backward] = wanted

    def set_modules_to_forward_prefetch(self, modules: list[FullyShardedModule]) -> None:
        """Their groups are prefetched when this module's forward begins, instead of the group that
        was gathered after this one in the last forward pass. The same on all ranks."""
        self._set_prefetch(False, modules)

    def set_modules_to_backward_prefetch(self, modules: list[FullyShardedModule]) -> None:
        self._set_prefetch(True, modules)

    _apply = nn.Module._apply

    def _get_fsdp_state(self) -> Group:
        return self._groups(recurse=False)[0]


# Torch has one since 2.15, whose wait() does nothing.
_GradientReductionHandle = getattr(fsdp, "GradientReductionHandle", UnshardHandle)


class _Unsharding(UnshardHandle):
    def __init__(self, groups: list[Group]):
        self.groups = groups

    def wait(self) -> None:
        for group in self.groups:
            group.unshard()
        self.groups = []


# Settings of streams, buffers and process groups that the library does not have, and:
# set_is_last_backward: each backward ends its own reduces. set_force_sum_reduction_for_comms: all
# are sums. set_reduce_scatter_unused_params: it is always so. set_keep_unsharded_storage: addresses
# never change.
_WITHOUT_EFFECT = (
    "set_is_last_backward", "set_force_sum_reduction_for_comms", "set_reduce_scatter_unused_params",
    "set_keep_unsharded_storage", "set_post_optim_event", "set_separate_reduce_scatter_group",
    "set_reduce_scatter_max_input_buffers", "set_symm_mem_for_comm",
    "set_allocate_memory_from_process_group_for_comm", "_set_unshard_async_op",
)


def _without_effect(self: nn.Module, *args: Any, **kwargs: Any) -> None:
    """The library has nothing that it would change."""


def _refuse(name: str) -> Callable:
    def refused(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"slurm_zero does not support {name}")

    return refused


for _name in _WITHOUT_EFFECT:
    setattr(FullyShardedModule, _name, _without_effect)
for _name in vars(FSDPModule):
    if not _name.startswith("_") and _name not in vars(FullyShardedModule):
        setattr(FullyShardedModule, _name, _refuse(_name))


def _apply(module: nn.Module, fn: Callable, recurse: bool = True) -> nn.Module:
    """nn.Module._apply of a module that has sharded parameters: .to_empty() fills those on meta,
    .to(), .half() and the like change their types until they are first used, then buffers only."""
    sharded = {k: p for k, p in module._parameters.items() if isinstance(p, FlatShard)}
    for name, p in sharded.items():
        probe = torch.empty(0, dtype=p.dtype, device=p.device)
        moved = fn(probe)
        if probe.is_meta and moved.dtype == p.dtype and moved.device.type == _device.device.type:
            p._shard_spec.param.fill()
        elif moved.device == p.device and p._shard_spec.ranges is None and (
            moved.dtype in (DTYPES if p.requires_grad else STORED)
        ):
            if moved.dtype != p.dtype:
                p._shard_spec.param.convert(fn)
        elif (moved.dtype, moved.device) != (probe.dtype, probe.device):
            raise NotImplementedError(
                f"parameter {name} of {type(module).__name__} is {p.dtype} on {p.device}, and "
                f"cannot be moved or converted to {moved.dtype} on {moved.device}: what is trained "
                f"is float32, float16 or bfloat16 on {_device.device.type}, and stays what it was "
                "when it was first used"
            )
    every = module._parameters
    module._parameters = {k: p for k, p in every.items() if k not in sharded}
    try:
        return nn.Module._apply(module, fn, recurse)
    finally:
        module._parameters = {k: module._parameters.get(k, p) for k, p in every.items()}


def _load_in_place(module: nn.Module, state_dict: dict[str, Any], prefix: str,
                   local_metadata: dict[str, Any], *_: Any) -> None:
    """load_state_dict(assign=True) would put the given tensors in the place of the parameters.
    Without it, those on meta would stay empty."""
    for name, p in module._parameters.items():
        value = state_dict.get(prefix + name)
        if isinstance(p, FlatShard) and value is not None and value.shape == p.shape:
            if not value.is_meta:
                p._shard_spec.param.fill()
            if local_metadata.get("assign_to_params_buffers"):
                with torch.no_grad():
                    p.copy_(value)
                state_dict[prefix + name] = p


def become_sharded(modules: list[nn.Module], groups: list[Group]) -> None:
    """Gives modules their class, and those that have parameters of their groups what these need."""
    for module in {m: None for group in groups for p in group.params for m, _ in p.places}:
        module._apply = types.MethodType(_apply, module)
        module.register_load_state_dict_pre_hook(_load_in_place)
    for module in modules:
        cls = type(module)
        if cls not in _classes:
            _classes[cls] = type(f"FSDP{cls.__name__}", (FullyShardedModule, cls), {})
        module.__class__ = _classes[cls]
