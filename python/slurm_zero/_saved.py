# SPDX-License-Identifier: Apache-2.0
"""What autograd has saved of a group's parameters is there when its backward reads it, also where
no gradient of the group's outputs has come before, as of a loss that a module keeps for itself. The
hooks are torch's saved_tensors_hooks, and keep its check of changes in place."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ._group import Group, GroupState

if TYPE_CHECKING:
    from ._job import Job


# A tensor, its version, and the group whose parameter it is, or a view of one
_Saved = tuple[torch.Tensor, int, Group | None]


class Saved:
    def __init__(self, job: Job):
        self.job = job
        self.groups: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()
        self._begun: tuple[nn.Module, Any] | None = None  # the module that the hooks end with

    def add(self, full: torch.Tensor, group: Group) -> None:
        """Where a parameter is while its group is gathered, and not else."""
        local = full._local_tensor if isinstance(full, DTensor) else full
        if local.numel():  # others have no address
            self.groups[local.untyped_storage().data_ptr()] = group

    def begin(self, module: nn.Module) -> None:
        """The forward of a module begins. Hooks of the program stay: what they save is a copy, or
        computed again."""
        autograd = torch._C._autograd
        if (
            self.groups and torch.is_grad_enabled()
            and autograd._saved_tensors_hooks_is_enabled()
            and autograd._top_saved_tensors_default_hooks(False) is None
        ):
            hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
            hooks.__enter__()
            self._begun = module, hooks

    def end(self, module: nn.Module) -> None:
        if self._begun and self._begun[0] is module:
            hooks, self._begun = self._begun[1], None
            hooks.__exit__()

    def _pack(self, tensor: torch.Tensor) -> _Saved:
        local, group = tensor, None
        if isinstance(tensor, DTensor):
            local = tensor._local_tensor
        if type(local) in (torch.Tensor, nn.Parameter) and local.layout is torch.strided:
            group = self.groups.get(local.untyped_storage().data_ptr())
        return tensor, tensor._version, group

    def _unpack(self, saved: _Saved) -> torch.Tensor:
        tensor, version, group = saved
        if tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{tensor.type()} {list(tensor.shape)}] is at version "
                f"{tensor._version}; expected version {version} instead. Hint: enable anomaly "
                "detection to find the operation that failed to compute its gradient, with "
                "torch.autograd.set_detect_anomaly(True)."
            )
        if group is not None and group.state in (GroupState.SHARDED, GroupState.PREFETCHED):
            if torch._C._current_graph_task_id() != -1:  # else it is only looked at
                group.use_in_backward()
        return tensor
