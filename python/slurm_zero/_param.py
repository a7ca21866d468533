# SPDX-License-Identifier: Apache-2.0
"""A parameter of a group, and the parts of a group that the library gathers and sums as one."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from . import _device, _zero
from ._flat_shard import FlatShard, ShardSpec, tensor_of

if TYPE_CHECKING:
    from ._group import Group, MixedPrecisionPolicy

DTYPES = {torch.float32: _zero.F32, torch.float16: _zero.F16, torch.bfloat16: _zero.BF16}
# Also of parameters that are not trained, which are gathered as they are.
STORED = DTYPES | {
    torch.float64: _zero.F64, torch.int64: _zero.I64, torch.int32: _zero.I32,
    torch.uint8: _zero.U8, torch.bool: _zero.BOOL, torch.float8_e4m3fn: _zero.F8_E4M3,
    torch.float8_e5m2: _zero.F8_E5M2,
}


def param_dtype(policy: MixedPrecisionPolicy, p: nn.Parameter) -> torch.dtype | None:
    """What the policy has this parameter gathered as. None: as it is."""
    override = getattr(policy, "param_dtype_override_fn", None)
    dtype = override and override(p)
    if dtype is None:
        return policy.param_dtype
    if dtype not in (policy.param_dtype, p.dtype):
        raise ValueError(
            "param_dtype_override_fn must return None, param_dtype, or the parameter's original "
            f"dtype but got {dtype!r} for a parameter with dtype {p.dtype} and param_dtype "
            f"{policy.param_dtype}"
        )
    return dtype if dtype in DTYPES else None


class Types:
    """The annotations that a parameter has by the package spmd_types, as torch's own parameters of
    FSDP2 keep them: it is a plain tensor in a forward, and they say what its gradient is. FSDP2's
    methods, which are private, find in this what they need of such a parameter."""

    def __init__(self, name: str):
        self._module_info = types.SimpleNamespace(param_name=name)
        self.is_spmd_types = True

    def restore(self, full: nn.Parameter) -> None:
        from torch.distributed.fsdp._fully_shard import _fsdp_param

        _fsdp_param.FSDPParam._restore_spmd_types(self, full)


def from_types(p: nn.Parameter, name: str, info: Any) -> nn.Parameter:
    """A parameter with such annotations as a DTensor of the whole mesh."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    known = getattr(_fsdp_param, "spmd", None)
    local = known and known.get_local_type(p)
    if not local:
        raise ValueError(
            "When dp_mesh_dims is provided, all parameters must be DTensors on the full SPMD mesh "
            f"(e.g. via distribute_module). Got plain tensor for parameter '{name}'."
        )
    kept = Types(name)
    made = _fsdp_param.FSDPParam._resolve_spmd_types_for_storage(
        kept, p, _fsdp_param.get_partition_spec(p), local, info
    )
    made._types = kept
    return made


class Param:
    """A parameter of a group."""

    def __init__(self, group: Group, original: nn.Parameter, places: list[tuple[nn.Module, str]],
                 dtype: torch.dtype | None, name: str = ""):
        self.group, self.places = group, places  # [(module, attribute)]
        self.dtype = dtype  # that it is gathered as; None: as it is
        self.part: Part | None = None  # once it is laid out
        self.original: nn.Parameter | None = original  # until it is laid out
        self.trainable = original.requires_grad
        self.handle = self.name = None
        self.full: nn.Parameter | None = None
        self.watched = False  # the gradient of `full` is taken as soon as it is there
        self.regions: list[weakref.ref[memoryview]] = []
        self.has_grad = False  # this rank has added a gradient since the last backward pass
        stride = original.contiguous().stride()
        name = places[0][1] if places else name
        tp = None
        if isinstance(original, FlatShard):
            tp = original._shard_spec.tp
        elif isinstance(original, DTensor) and (group.dims or original.device_mesh != group.mesh):
            tp = original._spec
        self.types: Types | None = getattr(original, "_types", None)
        self.spec = ShardSpec(name, tuple(original.shape), stride, group.mesh, tp, group.dims)
        self.spec.job, self.spec.param = group.job, self
        self.filled = not original.is_meta
        device = _device.device if self.filled else "meta"
        empty = torch.empty(0, dtype=original.dtype, device=device)
        self.sharded = FlatShard.wrap(empty, self.spec, requires_grad=self.trainable)
        self.sharded._is_param = True
        group.job.originals[original] = self
        self.swap(original, self.sharded)

    def of_tp(self) -> bool:
        """Its local tensor before it is laid out is what the ranks of the mesh shard."""
        return self.spec.tp is not None and not isinstance(self.original, FlatShard)

    def place(self) -> str:
        """Where its values are before it is laid out: "meta", "mesh" for a DTensor that is whole,
        "local" for what has to be copied first, or a type of device. "": no more here."""
        if self.original is None or self.original.is_meta:
            return "" if self.original is None else "meta"
        if isinstance(self.original, DTensor):
            return "local" if self.of_tp() else "mesh"
        plain = self.original.is_contiguous() and not self.of_tp()
        return self.original.device.type if plain else "local"

    def let_go(self) -> None:
        """The library has the values of the tensor that the program had made."""
        del self.group.job.originals[self.original]
        self.original._sharded_as = self.name  # for an optimizer that still has it
        self.original = None

    @property
    def can_train(self) -> bool:
        return self.sharded.dtype in DTYPES

    def whole_gradient(self) -> torch.Tensor:
        grad = self.full.grad
        if self.spec.tp is None:
            return grad
        tp = self.spec.tp
        if self.types:
            placements = self.types._spmd_grad_placements
            grad = DTensor.from_local(grad, tp.mesh, placements, run_check=False)
        # Sums over the group's own mesh are the library's.
        placements = list(grad.placements)
        for dim in self.spec.beside:
            placements[dim] = tp.placements[dim]
        local = grad.redistribute(placements=placements)._local_tensor
        return local.wait() if isinstance(local, AsyncCollectiveTensor) else local

    def update_requires_grad(self) -> None:
        """requires_grad was changed."""
        if not self.can_train:
            raise NotImplementedError(
                f"{self.name} of {self.sharded.dtype} cannot be trained; float32, float16 and "
                "bfloat16 can"
            )
        self.trainable = self.sharded.requires_grad
        if self.full is not None:
            self.full.requires_grad_(self.trainable)
            self.watch_gradient()

    def make_full(self, values: torch.Tensor) -> None:
        """What modules compute with while the group is gathered, over the memory of that."""
        with torch.inference_mode(False):
            self.full = nn.Parameter(values, requires_grad=self.trainable)
        self.watch_gradient()

    def watch_gradient(self) -> None:
        """Each gradient is taken at once: no two are whole at a time beside the library's. Not so
        those of the root, which come from the beginning of a backward pass to its end: the buffer
        of all of them would be there as long."""
        # What is redistributed is communication, whose order is that of the parameters.
        if self.trainable and not self.watched and self.spec.tp is None:
            self.watched, me = True, weakref.ref(self)

            @torch._dynamo.disable(recursive=True)
            def take(_: torch.Tensor) -> None:
                param = me()
                if param is not None and not param.group.root:
                    param.part.keep(param)

            self.full.register_post_accumulate_grad_hook(take)

    def swap(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """What the program has put in the place of a parameter stays there, see Group.follow."""
        for module, attribute in self.places:
            if module._parameters.get(attribute) is old:
                if type(module).__setattr__ is nn.Module.__setattr__:
                    module._parameters[attribute] = new
                else:  # LSTMs have lists of their parameters
                    setattr(module, attribute, new)

    def memory(self) -> torch.Tensor:
        """What this rank has of it. None before it is laid out."""
        ranges, dtype = self.spec.ranges, self.sharded.dtype
        device = _device.device if self.filled else "meta"
        if ranges is None or not self.filled:
            first, end = self.spec.range if ranges else (0, 0)
            return torch.empty(end - first, dtype=dtype, device=device)
        return self.region(_zero.shard(self.handle, *self.spec.range), dtype)

    def whole_value(self) -> torch.Tensor | None:
        """A copy of all of it, if this rank can make it alone: at stages 0 to 2."""
        job = self.group.job
        if job.stage == 3 or self.part is None or self.part in job.writes.parts or not self.filled:
            return None
        whole = self.region(_zero.address(self.handle, _zero.PARAM), self.sharded.dtype)
        return whole.view(self.spec.sizes).clone() if self.spec.tp is None else None

    def region(self, memory: memoryview | None, dtype: torch.dtype) -> torch.Tensor:
        """A tensor over memory of the library, which is there as long as such a tensor is."""
        if memory is not None:
            self.regions.append(weakref.ref(memory))
        return tensor_of(memory, dtype)

    def fill(self) -> None:
        """It was on meta: the program, or a file, has values for it now."""
        if not self.filled:
            self.filled = True
            self.renew(self.memory())

    def convert(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """To another type, before it is laid out."""
        with torch.no_grad():
            new = nn.Parameter(fn(self.original), self.original.requires_grad)
        del self.group.job.originals[self.original]
        self.group.job.originals[new] = self
        self.original = new
        self.renew(torch.empty(0, dtype=new.dtype, device=self.sharded.device))

    def renew(self, local: torch.Tensor) -> None:
        """The same object becomes of another device or type, as torch's modules do it."""
        new = FlatShard.wrap(local, self.spec, requires_grad=self.sharded.requires_grad)
        new._is_param = True
        torch.utils.swap_tensors(self.sharded, new)


def require_filled(params: list[Param]) -> None:
    on_meta = [p.name for p in params if not p.filled]
    if on_meta:
        raise RuntimeError(
            "FSDP parameters should be materialized from meta device before training, but the "
            f"following were still on meta device: {on_meta}\nUse slurm_zero.load, or "
            f'model.to_empty(device="{_device.device.type}") and then reset_parameters() of each '
            "module"
        )


class Part:
    """Parameters of a group that the library gathers and sums as one: they are gathered as one
    type, and all of them, or none, were to be trained when they were laid out. So what is frozen
    has no memory for gradients, and may be thawed."""

    def __init__(self, group: Group, handle: Any, dtype: torch.dtype | None):
        self.group, self.handle, self.dtype = group, handle, dtype
        self.params: list[Param] = []
        self.needs_gather = False  # whether a gather sends or casts anything
        self.gathered = False  # or its gather was begun
        self.kept: set[Param] = set()  # whose gradients are in the buffer, and not reduced yet

    def regions(self) -> list[weakref.ref[memoryview]]:
        return [region for p in self.params for region in p.regions]

    def gather_as(self) -> int:
        return DTYPES[self.dtype] if self.dtype else _zero.PARAM

    def gather(self) -> None:
        _zero.gather(self.handle, self.gather_as())
        self.gathered = True

    def prefetch(self) -> None:
        # The bound of memory may have it skipped, on all ranks.
        if self.needs_gather and _zero.prefetch(
            self.handle, self.params[0].handle, self.gather_as()
        ):
            self.gathered = True

    def release(self) -> None:
        if self.gathered:
            self.gathered = False
            _zero.release(self.handle)

    def reduce(self) -> None:
        """Begins to sum the gradients over the ranks. A rank that has made none adds zeros."""
        for p in self.params if self.kept else ():
            if p not in self.kept and p.can_train:
                self._buffer(p).zero_()
        self.kept.clear()
        _zero.reduce(self.handle)

    def keep_gradients(self) -> None:
        for p in self.params:
            if p.full is not None and p.full.grad is not None:
                self.keep(p)

    @torch.no_grad()
    def keep(self, p: Param) -> None:
        """Adds what a backward pass made to the buffer, of the type that is reduced."""
        made = p.whole_gradient()
        if p in self.kept:
            self._buffer(p).add_(made)
        else:
            self._buffer(p).copy_(made)
            self.kept.add(p)
        _device.used([made])
        p.has_grad = True
        p.full.grad = None

    def _buffer(self, p: Param) -> torch.Tensor:
        dtype = self.group.policy.reduce_dtype or torch.float32
        return tensor_of(_zero.gradient(p.handle, DTYPES[dtype]), dtype).view(p.spec.sizes)
