# SPDX-License-Identifier: Apache-2.0
"""A sharded parameter, its gradient or its optimizer state: a DTensor of which each rank has a
range of the flattened elements. torch's own uneven Shard(0) is a range of rows, and computes wrong
values with anything else, so every operation is dispatched here."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata, MetadataIndex, TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils._pytree import tree_map_only

from . import _device, _zero

if TYPE_CHECKING:
    from ._param import Param
    from ._job import Job

aten = torch.ops.aten

# On each element by itself, though their tags do not say so.
_ELEMENTWISE = {
    aten.copy_, aten.fill_, aten.zero_, aten.clone, aten._to_copy, aten.detach, aten.alias,
    aten.zeros_like, aten.ones_like, aten.empty_like, aten.full_like, aten.zeros, aten.lift_fresh,
}
# Named as if they were on each element.
_REDUCTIONS = {"_foreach_max", "_foreach_powsum"}
_NORMS = {aten._foreach_norm, aten.linalg_vector_norm}
_OVER_RANKS = {aten.any, aten.all, aten.max, aten.min, aten.sum}  # of all elements
_RANDOM_LIKE = {aten.rand_like: aten.uniform_.default, aten.randn_like: aten.normal_.default}
_RANDOM_CHUNK = 1 << 18  # elements that are drawn from one seed
_NEW = {aten.new_empty, aten.new_zeros, aten.new_ones, aten.new_full}


def tensor_of(memory: memoryview | None, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor over memory of the library, or an empty one."""
    if memory is None:
        return torch.empty(0, dtype=dtype, device=_device.device)
    tensor = torch.frombuffer(memory, dtype=dtype)
    if _device.on_gpu():  # that tensor was its address alone
        shown = _zero.bytes_on_device(memory, tensor.data_ptr(), len(memory))
        return torch.utils.dlpack.from_dlpack(shown).view(dtype)
    return tensor


# Whole values of parameters, by the storages of their local tensors, which operations see instead
# within GatheredParameters.
gathered: dict[int, torch.Tensor] = {}


def _with_whole(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    """The arguments with such values in their places; None if there are none."""
    any_found = False

    def whole(tensor: FlatShard) -> torch.Tensor:
        nonlocal any_found
        value = gathered.get(storage(tensor))
        any_found = any_found or value is not None
        return tensor if value is None else value

    found = tree_map_only(FlatShard, whole, (args, kwargs))
    return found if any_found else None


class ShardSpec:
    """Which elements of a parameter each rank of a mesh has. `tp` is that of a DTensor of other
    ranks beside it, as in tensor parallelism: then they are those of its local tensor. It may also
    be of a mesh that has this one's dimensions, too, which are those with the names `dims`."""

    def __init__(self, name: str, shape: tuple[int, ...], stride: tuple[int, ...],
                 mesh: DeviceMesh, tp: DTensorSpec | None = None, dims: Iterable[str] = ()):
        self.name, self.shape, self.stride, self.tp = name, shape, stride, tp
        self.over = self.mesh = mesh
        self.placements = (*[Replicate()] * (mesh.ndim - 1), Shard(0))
        # The rectangle of the tensor whose elements are sharded
        self.sizes, self.offsets = tuple(shape), (0,) * len(shape)
        if tp:
            names = tp.mesh.mesh_dim_names or ()
            self.beside = [i for i in range(tp.mesh.ndim) if not dims or names[i] not in dims]
            if self.beside:
                rest = tp.mesh[tuple(names[i] for i in self.beside)] if dims else tp.mesh
                self.mesh = DeviceMesh._concatenate([mesh, rest])
            parts = math.prod(tp.mesh.size(i) for i in self.beside if tp.placements[i].is_shard(0))
            # As torch names it; nobody computes with it.
            shard = _StridedShard(0, split_factor=parts) if parts > 1 else Shard(0)
            beside = (tp.placements[i] for i in self.beside)
            self.placements = (*self.placements[:-1], shard, *beside)
            with torch.device("cpu"):  # torch computes with tensors, and the program's may be meta
                self.sizes, self.offsets = compute_local_shape_and_global_offset(
                    shape, tp.mesh, tp.placements
                )
        self._of_types: dict[torch.dtype, DTensorSpec] = {}
        # {rank: (first, end)}, once the groups are laid out
        self.ranges: dict[int, tuple[int, int]] | None = None
        self.job: Job | None = None
        self._param: weakref.ref[Param] | None = None

    @property
    def param(self) -> Param | None:
        """That a module has. Python collects no circle with a gradient in it: this is none."""
        return self._param and self._param()

    @param.setter
    def param(self, param: Param | None) -> None:
        self._param = param and weakref.ref(param)

    def of_type(self, dtype: torch.dtype) -> DTensorSpec:
        """What torch knows of a tensor of it. It takes long to make."""
        made = self._of_types.get(dtype)
        if made is None:
            meta = TensorMeta(torch.Size(self.shape), self.stride, dtype)
            made = DTensorSpec(self.mesh, self.placements, tensor_meta=meta)
            self._of_types[dtype] = made
        return made

    @property
    def range(self) -> tuple[int, int]:
        return self.ranges[dist.get_rank()]

    def slice(self, full: torch.Tensor) -> torch.Tensor:
        first, last = self.range
        full = full.detach()
        if self.tp:
            full = full[tuple(slice(o, o + s) for o, s in zip(self.offsets, self.sizes))]
        return full.reshape(-1)[first:last]

    def whole(self, local: torch.Tensor) -> DTensor:
        """The DTensor of tensor parallelism with this local tensor."""
        meta = TensorMeta(torch.Size(self.shape), self.stride, local.dtype)
        spec = DTensorSpec(self.tp.mesh, self.tp.placements, tensor_meta=meta)
        return DTensor(local, spec, requires_grad=False)

    def to_shard(self, value: torch.Tensor) -> FlatShard:
        """A FlatShard of a tensor of the whole shape, which is plain or some other DTensor."""
        if isinstance(value, FlatShard):
            return value
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return FlatShard.wrap(self.slice(value).clone(), self)

    def rectangles(self) -> list[tuple[torch.Size, torch.Size, int]]:
        """This rank's elements as rectangles: [(offsets, sizes, first of the local elements)]"""
        first, last = self.range
        at, found = 0, []
        for offsets, sizes in _rectangles(tuple(self.sizes), first, last):
            offsets = torch.Size(o + begin for o, begin in zip(offsets, self.offsets))
            found.append((offsets, torch.Size(sizes), at))
            at += math.prod(sizes)
        return found

    # Copies of a tensor are sharded as the tensor is, and have nothing else of the job.
    def __deepcopy__(self, memo: dict) -> ShardSpec:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "job": None, "_param": None, "_of_types": {}}


def _rectangles(shape: tuple[int, ...], first: int, last: int) -> Iterator[tuple[tuple, tuple]]:
    """The elements [first, last) of a tensor as (offsets, sizes), in their order."""
    if first >= last:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    begin, end = -(-first // row), last // row  # of the whole rows

    def part(index: int, first: int, last: int) -> Iterator[tuple[tuple, tuple]]:
        for offsets, sizes in _rectangles(shape[1:], first - index * row, last - index * row):
            yield (index, *offsets), (1, *sizes)

    if begin > end:
        yield from part(end, first, last)
        return
    yield from part(begin - 1, first, begin * row)
    if begin < end:
        yield (begin, *[0] * len(shape[1:])), (end - begin, *shape[1:])
    yield from part(end, end * row, last)


def _gathered(mesh: DeviceMesh, at: list[int], dim: int = 0) -> list[int]:
    """The ranks in the order in which gathers over the last dimension, then over the one before it
    and so on have their parts at a place: a process group has its ranks ascending."""
    if dim == mesh.ndim:
        return [int(mesh.mesh[tuple(at)])]
    places = [[*at[:dim], i, *at[dim + 1 :]] for i in range(mesh.size(dim))]
    places.sort(key=lambda place: int(mesh.mesh[tuple(place)]))
    return [rank for place in places for rank in _gathered(mesh, place, dim + 1)]


class FlatShard(DTensor):
    @staticmethod
    def wrap(local: torch.Tensor, spec: ShardSpec, requires_grad: bool = False) -> FlatShard:
        tensor = FlatShard(local, spec.of_type(local.dtype), requires_grad=requires_grad)
        tensor._shard_spec = spec
        return tensor

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"FlatShard({self._shard_spec.name}, {tuple(self.shape)}, {self.dtype})"

    def to_local(self, *, grad_placements: Any = None) -> torch.Tensor:
        _ready(self)
        return self._local_tensor.detach()

    def full_tensor(self, *, grad_placements: Any = None) -> torch.Tensor:
        """The whole tensor. All ranks of the mesh call it. It is not differentiable."""
        _ready(self)
        spec, local = self._shard_spec, self._local_tensor.detach()
        if local.is_meta:
            return local.new_empty(spec.shape)
        if spec.mesh.size() == 1:
            return local.clone().reshape(spec.shape)
        mine = local.new_zeros(max(end - first for first, end in spec.ranges.values()))
        mine[: local.numel()] = local
        # As bytes, since gloo does not know all types.
        parts = _gather(mine.view(torch.uint8), spec.over)
        parts = [parts[rank].view(mine.dtype) for rank in spec.ranges]
        in_order = sorted(zip(spec.ranges.values(), parts), key=lambda part: part[0])
        whole = torch.cat([p[: end - first] for (first, end), p in in_order]).reshape(spec.sizes)
        return spec.whole(whole).full_tensor() if spec.tp else whole

    def redistribute(self, device_mesh: DeviceMesh | None = None,
                     placements: Iterable | None = None, **_: Any) -> DTensor:
        if placements is None or any(not p.is_replicate() for p in placements):
            raise NotImplementedError(
                f"{self._shard_spec.name} can be redistributed to Replicate() only, not to "
                f"{placements}"
            )
        return _replicate(self)

    def t_(self) -> DTensor:
        """nn.init.orthogonal_ turns what it made beside a parameter."""
        if self._shard_spec.param is None or self._shard_spec.param.sharded is not self:
            torch.utils.swap_tensors(self, _replicate(self).t())
            return self
        return super().t_()

    # -- torch.distributed.checkpoint

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        _ready(self)
        # What is read goes straight to the memory.
        begin_write(self)
        return [ChunkStorageMetadata(offsets, sizes)
                for offsets, sizes, _ in self._shard_spec.rectangles()]

    def __create_write_items__(self, fqn: str, object: Any) -> list[WriteItem]:
        _ready(self)
        properties = TensorProperties.create_from_tensor(self._local_tensor.detach())
        return [
            WriteItem(
                index=MetadataIndex(fqn, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(offsets, sizes), properties, self.shape
                ),
            )
            for offsets, sizes, _ in self._shard_spec.rectangles()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        for offsets, sizes, at in self._shard_spec.rectangles():
            if offsets == index.offset:
                return self._local_tensor.detach()[at : at + math.prod(sizes)].view(sizes)
        raise ValueError(f"{index.fqn} has no part at {index.offset} on this rank")

    def __deepcopy__(self, memo: dict) -> FlatShard:
        local = self._local_tensor.detach().clone()
        copy = memo[id(self)] = FlatShard.wrap(local, self._shard_spec, self.requires_grad)
        copy._is_param = getattr(self, "_is_param", False)
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        return copy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if gathered and (found := _with_whole(args, kwargs)):
            return func(*found[0], **found[1])
        flat: list[FlatShard] = []
        _each(args, flat.append)
        _each(kwargs.values(), flat.append)
        for tensor in flat:
            _ready(tensor)
        packet = func.overloadpacket
        name = packet.__name__
        if name in _REDUCTIONS:
            raise NotImplementedError(
                f"{name} of {flat[0]._shard_spec.name}, of which each rank has a part"
            )
        if packet in _NEW:
            return _new(func, args, kwargs)
        if packet is aten._amp_foreach_non_finite_check_and_unscale_:
            return _unscale(func, *args)
        if packet is aten.equal:
            return _equal(*args)
        if packet in _RANDOM_LIKE:
            made = torch.empty_like(args[0], **kwargs)
            return _draw(_RANDOM_LIKE[packet], made, (), {})
        if torch.Tag.nondeterministic_seeded in func.tags and len(flat) == 1:
            if func._schema.arguments[-1].name == "generator" and flat[0] is _written(func, args):
                return _draw(func, args[0], args[1:], kwargs)
        if packet is aten.eye and flat[0] is kwargs.get("out"):
            return _eye(flat[0])
        if packet in _OVER_RANKS and len(args) == 1 and args[0].numel() and not (
            args[0].is_meta or args[0]._shard_spec.tp
        ):
            return _over_ranks(func, args[0], kwargs)
        if packet in _NORMS:
            if _is_whole(func, args, kwargs):
                return _norm(func, args, kwargs)
        elif (
            packet in _ELEMENTWISE
            or name.startswith(("_foreach_", "_fused_"))
            or torch.Tag.pointwise in func.tags
        ):
            try:
                return _local(func, args, kwargs)
            except _OtherElements:
                pass
        elif _is_view(func):
            found = _view(func, args, kwargs)
            return _view_of_whole(func, args, kwargs) if found is None else found
        if torch.Tag.inplace_view in func.tags:
            raise NotImplementedError(f"{name} of {flat[0]._shard_spec.name}, which is sharded")
        _warn(name, flat[0])
        if func._schema.is_mutable:
            return _write_whole(func, args, kwargs)
        args, kwargs = tree_map_only(FlatShard, _replicate, (args, kwargs))
        return func(*args, **kwargs)


class WholeView(DTensor):
    """A view of elements of a FlatShard that do not follow each other. It is of a whole copy, and
    what is written to it is written to the FlatShard, by all ranks."""

    @staticmethod
    def wrap(local: torch.Tensor, base: FlatShard, whole: torch.Tensor) -> WholeView:
        meta = TensorMeta(local.shape, local.stride(), local.dtype)
        mesh = base._shard_spec.mesh
        spec = DTensorSpec(mesh, (Replicate(),) * mesh.ndim, tensor_meta=meta)
        view = WholeView(local, spec, requires_grad=False)
        view._written = base, whole
        return view

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs, first = kwargs or {}, args[0] if args else None
        if not isinstance(first, WholeView) or not (func._schema.is_mutable or _is_view(func)):
            args, kwargs = tree_map_only(
                WholeView, lambda v: DTensor(v._local_tensor, v._spec, requires_grad=False),
                (args, kwargs),
            )
            return func(*args, **kwargs)
        base, whole = first._written
        if func._schema.is_mutable:
            whole.copy_(base.full_tensor())
        args, kwargs = tree_map_only(
            DTensor, lambda t: t._local_tensor if isinstance(t, WholeView) else t.full_tensor(),
            (args, kwargs),
        )
        found = func(*args, **kwargs)
        if func._schema.is_mutable:
            base.copy_(whole)
            return first
        return tree_map_only(torch.Tensor, lambda t: WholeView.wrap(t, base, whole), found)


# On a GPU optimizers and clipping take all tensors at once if they know their type.
for _types in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
    _types.append(FlatShard)


def install_dispatch(mesh: DeviceMesh) -> None:
    """Torch before 2.15 computes with each DTensor in C++, also where __torch_dispatch__ is
    another: the rules that it looks for first are one for all operations then."""
    spec = ShardSpec("", (0,), (1,), mesh)
    spec.ranges = {dist.get_rank(): (0, 0)}
    if isinstance(FlatShard.wrap(torch.empty(0), spec).detach(), FlatShard):
        return
    from torch._library.simple_registry import GenericTorchDispatchRuleHolder as Rules

    find = Rules.find

    def find_ours(self: Any, cls: type) -> Any:
        ours = cls in (FlatShard, WholeView)
        return cls.__torch_dispatch__.__func__ if ours else find(self, cls)

    Rules.find = find_ours


_warned: set[str] = set()


def _warn(name: str, tensor: FlatShard) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{name} makes the whole of {tensor._shard_spec.name} on each rank: it is slow, and "
            "all ranks must do it", stacklevel=3,
        )


def _is_view(func: Any) -> bool:
    return any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)


def _view(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A view, or several, of elements that follow each other, of which each rank has its part."""
    base = args[0]
    spec, local = base._shard_spec, base._local_tensor
    if spec.tp:
        return None
    found = func(torch.empty(spec.shape, dtype=base.dtype, device="meta"), *args[1:], **kwargs)
    views = []
    for view in [found] if isinstance(found, torch.Tensor) else found:
        if not view.is_contiguous() or view.dtype != base.dtype:
            return None
        begin, count = view.storage_offset(), view.numel()
        part = ShardSpec(spec.name, tuple(view.shape), view.stride(), spec.mesh)
        part.ranges = {
            rank: tuple(min(max(at - begin, 0), count) for at in bounds)
            for rank, bounds in spec.ranges.items()
        }
        part.job, part.param = spec.job, spec.param
        first, end = part.range
        at = begin + first - spec.range[0] if end > first else 0
        views.append(FlatShard.wrap(local[at : at + end - first], part))
    return views[0] if isinstance(found, torch.Tensor) else views


def _view_of_whole(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    base = args[0]
    _warn(func.overloadpacket.__name__, base)
    whole = base.full_tensor()
    return tree_map_only(torch.Tensor, lambda t: WholeView.wrap(t, base, whole),
                         func(whole, *args[1:], **kwargs))


def _write_whole(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An operation in place, in whole copies, whose parts then replace what they are of."""
    copies: dict[int, tuple[FlatShard, torch.Tensor]] = {}

    def copy(tensor: DTensor) -> torch.Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor, tensor.full_tensor()
        return copies[id(tensor)][1]

    out = func(*tree_map_only(DTensor, copy, args), **tree_map_only(DTensor, copy, kwargs))
    given = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    written = [given.get(a.name) for a in func._schema.arguments
               if a.alias_info and a.alias_info.is_write]
    _each(written, lambda tensor: tensor.copy_(copies[id(tensor)][1]))
    return next((t for t, c in copies.values() if c is out), out)


def _draw(func: Any, tensor: FlatShard, args: tuple, kwargs: dict[str, Any]) -> FlatShard:
    """Random values in place, which are the same for any number of ranks: each chunk of the whole
    has a seed of its own, which follows from a draw of the first rank's generator."""
    spec, local = tensor._shard_spec, tensor._local_tensor
    if local.is_meta:
        return tensor
    begin_write(tensor)
    drawn = torch.randint(1 << 32, (), generator=kwargs.pop("generator", None))
    every = _gather(drawn, spec.mesh)
    place = sum(o * step for o, step in zip(spec.offsets, spec.stride))
    seed = every[min(every)].item() + 0x85EBCA6B * place
    generator = torch.Generator()
    (first, end), numel = spec.range, math.prod(spec.sizes)
    chunks = range(first // _RANDOM_CHUNK, -(-end // _RANDOM_CHUNK) if end > first else 0)
    for chunk in chunks:
        begin = chunk * _RANDOM_CHUNK
        values = torch.empty(min(_RANDOM_CHUNK, numel - begin), dtype=local.dtype)
        generator.manual_seed((seed + 0x9E3779B1 * chunk) % (1 << 32))
        func(values, *args, **kwargs, generator=generator)
        low, high = max(first, begin), min(end, begin + len(values))
        local[low - first : high - first] = values[low - begin : high - begin]
    return tensor


def _eye(tensor: FlatShard) -> FlatShard:
    begin_write(tensor)
    rows, columns = tensor._shard_spec.shape
    if tensor._shard_spec.tp:
        return tensor.copy_(torch.eye(rows, columns))
    first, end = tensor._shard_spec.range
    local = tensor._local_tensor.zero_()
    step = columns + 1
    local[-first % step : max(min(end, min(rows, columns) * step) - first, 0) : step] = 1
    return tensor


def _over_ranks(func: Any, tensor: FlatShard, kwargs: dict[str, Any]) -> DTensor:
    """A sum and the like of all elements, from those of the ranks that have some."""
    spec, local = tensor._shard_spec, tensor._local_tensor
    dtype = func(local.new_empty(1, device="meta"), **kwargs).dtype
    mine = torch.zeros((), dtype=torch.float64 if dtype.is_floating_point else torch.int64)
    if local.numel():
        mine.copy_(func(local, **kwargs))
    parts = _gather(mine, spec.over)
    parts = [parts[rank] for rank, (first, end) in spec.ranges.items() if end > first]
    value = func(torch.stack(parts)).to(local.device, dtype)
    return _on_mesh(tensor, value, Replicate())


def _gather(mine: torch.Tensor, mesh: DeviceMesh) -> dict[int, torch.Tensor]:
    """What the ranks have: a tensor of one shape on each."""
    device = mine.device
    mine = mine[None].to(mesh.device_type)
    for dim in reversed(range(mesh.ndim)):
        parts = [torch.empty_like(mine) for _ in range(mesh.size(dim))]
        dist.all_gather(parts, mine, group=mesh.get_group(dim))
        mine = torch.cat(parts)
    return dict(zip(_gathered(mesh, mesh.get_coordinate()), mine.to(device)))


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    lead = one if isinstance(one, FlatShard) else other
    same = torch.equal(_operand(one, lead), _operand(other, lead))
    return all(_gather(torch.tensor(same), lead._shard_spec.mesh).values())


def _ready(tensor: FlatShard) -> None:
    if tensor._shard_spec.ranges is None:
        tensor._shard_spec.job.layout.update()


def _each(values: Iterable, visit: Callable[[FlatShard], None]) -> None:
    for value in values:
        if isinstance(value, FlatShard):
            visit(value)
        elif isinstance(value, (list, tuple)):
            _each(value, visit)


def _replicate(tensor: FlatShard) -> DTensor:
    return _on_mesh(tensor, tensor.full_tensor(), Replicate())


def _on_mesh(tensor: FlatShard, local: torch.Tensor, placement: Placement) -> DTensor:
    spec = tensor._shard_spec
    placements = [placement] * spec.mesh.ndim
    if spec.tp and placement.is_partial():
        for i in range(spec.over.ndim, spec.mesh.ndim):
            placements[i] = Replicate() if spec.placements[i].is_replicate() else placement
    return DTensor.from_local(local, spec.mesh, placements, run_check=False)


def _first(values: Iterable) -> FlatShard | list | tuple:
    """The first FlatShard, or a list that has one."""
    return next(
        value for value in values
        if isinstance(value, FlatShard)
        or isinstance(value, (list, tuple)) and any(isinstance(v, FlatShard) for v in value)
    )


class _OtherElements(Exception):
    """An operand is not one number, and has not the elements of the sharded one."""


def _operand(value: Any, lead: Any) -> Any:
    """What this rank has of an operand, beside `lead`: a FlatShard, a list with some, or a tensor
    of such a list that is not sharded."""
    if isinstance(value, (list, tuple)):
        many = isinstance(lead, (list, tuple)) and len(lead) == len(value)
        return [_operand(v, l) for v, l in zip(value, lead if many else [lead] * len(value))]
    if not isinstance(value, torch.Tensor):
        return value
    spec = getattr(lead, "_shard_spec", None)
    if spec is not None:
        if value.dim() and tuple(value.shape) != tuple(spec.shape):
            raise _OtherElements
        if isinstance(value, FlatShard) and value._shard_spec.ranges == spec.ranges:
            return value._local_tensor
    elif isinstance(value, FlatShard) or (value.dim() and not isinstance(lead, torch.Tensor)):
        raise _OtherElements
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return spec.slice(value) if value.dim() and spec is not None else value


def _written(func: Any, args: tuple) -> Any:
    return args[0] if func._schema.is_mutable and args else None


def _local(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An operation on each element by itself. Raises _OtherElements if it has others."""
    lead = _first([*args, *kwargs.values()])
    leads = [lead] if isinstance(lead, FlatShard) else lead
    operands = [_operand(a, lead) for a in args]
    options = {k: _operand(v, lead) for k, v in kwargs.items()
               if k not in ("memory_format", "layout")}
    written = _written(func, args)
    for tensor in written if isinstance(written, (list, tuple)) else [written]:
        if isinstance(tensor, FlatShard):
            begin_write(tensor)
        elif isinstance(tensor, DTensor):
            raise NotImplementedError(
                f"{func.overloadpacket.__name__} would change a tensor that is not sharded as the "
                "parameters are"
            )
    device = options.get("device") if func.overloadpacket is aten._to_copy else None
    if device not in (None, _device.device):
        raise NotImplementedError(
            f"{lead._shard_spec.name} stays on the device where it was sharded"
        )
    out = func(*operands, **options)
    if func._schema.is_mutable:
        return written if isinstance(written, FlatShard) or out is not None else None
    found = []
    for o, l in zip([out] if leads is not lead else out, leads):
        if isinstance(l, FlatShard):
            if o.shape != l._local_tensor.shape:
                raise NotImplementedError(
                    f"{func} of {l._shard_spec.name}, of which each rank has a part"
                )
            o = FlatShard.wrap(o, l._shard_spec)
        found.append(o)
    return found if leads is lead else found[0]


def _new(func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
    """A new tensor beside this one: sharded as it is if it has its shape."""
    tensor, size = args[0], tuple(args[1])
    same = size == tuple(tensor.shape)
    local = tensor._local_tensor
    out = func(local, local.shape if same else size, *args[2:], **kwargs)
    return FlatShard.wrap(out, tensor._shard_spec) if same else out


def begin_write(tensor: FlatShard) -> None:
    param = tensor._shard_spec.param
    # Also where this rank has no element, so that all ranks know of it.
    if param is not None and storage(tensor) == storage(param.sharded):
        param.group.job.writes.begin(param.part)


def storage(tensor: FlatShard) -> int:
    return tensor._local_tensor.untyped_storage()._cdata


def _is_whole(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a norm is over all dimensions."""
    if func.overloadpacket is aten._foreach_norm:
        return all(isinstance(t, FlatShard) for t in args[0])
    dim = args[2] if len(args) > 2 else kwargs.get("dim")
    keep = args[3] if len(args) > 3 else kwargs.get("keepdim")
    return not dim and not keep and isinstance(args[0], FlatShard)


def _norm(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    dtype = kwargs.get("dtype")

    def one(tensor: FlatShard) -> torch.Tensor:
        local = tensor._local_tensor.to(dtype) if dtype else tensor._local_tensor
        if order in (float("inf"), "inf"):
            placement = Partial("max")
            value = local.abs().max() if local.numel() else local.new_zeros(())
        elif order in (float("-inf"), 0):
            return torch.linalg.vector_norm(_replicate(tensor), order)
        else:
            placement = _NormPartial(float(order))
            value = torch.linalg.vector_norm(local, float(order))
        return _on_mesh(tensor, value, placement)

    return [one(t) for t in args[0]] if isinstance(args[0], (list, tuple)) else one(args[0])


def _unscale(func: Any, gradients: list[torch.Tensor], found_inf: torch.Tensor,
             scale: torch.Tensor) -> None:
    """As torch's for DTensors: what one rank has found in its part is known to all."""
    sharded = [g for g in gradients if isinstance(g, DTensor)]
    func([g._local_tensor if isinstance(g, DTensor) else g for g in gradients], found_inf, scale)
    for mesh in dict.fromkeys(g.device_mesh for g in sharded):
        for dim in range(mesh.ndim):
            dist.all_reduce(found_inf, dist.ReduceOp.MAX, group=mesh.get_group(dim))


_init_state_dict = default_planner._init_state_dict


def _init_with_memory(state_dict: dict[str, Any]) -> Any:
    """torch.distributed.checkpoint.load into parameters on meta."""

    def visit(values: Any) -> None:
        for key, value in values.items() if isinstance(values, dict) else enumerate(values):
            if isinstance(value, FlatShard) and value.is_meta:
                value._shard_spec.param.fill()
                values[key] = value._shard_spec.param.sharded.detach()
            elif isinstance(value, (dict, list)):
                visit(value)

    visit(state_dict)
    return _init_state_dict(state_dict)


default_planner._init_state_dict = _init_with_memory
