# SPDX-License-Identifier: Apache-2.0
"""A sharded parameter, its gradient or its optimizer state: a DTensor of which each rank has a range
of the flattened elements. torch's own uneven Shard(0) is a range of rows, and computes wrong values
with anything else, so every operation is dispatched here."""

import math

import torch
import torch.distributed as dist
from torch.distributed import _state_dict_utils
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata, MetadataIndex, TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._ops._math_ops import _NormPartial

aten = torch.ops.aten

# On each element by itself, though their tags do not say so.
_ELEMENTWISE = {
    aten.copy_, aten.fill_, aten.zero_, aten.clone, aten._to_copy, aten.detach, aten.alias,
    aten.zeros_like, aten.ones_like, aten.empty_like, aten.full_like, aten.zeros, aten.lift_fresh,
}
# Named as if they were on each element.
_REDUCTIONS = {"_foreach_max", "_foreach_powsum"}
_NORMS = {aten._foreach_norm, aten.linalg_vector_norm}
_NEW = {aten.new_empty, aten.new_zeros, aten.new_ones, aten.new_full}


class Capsule:
    """What torch.from_dlpack takes of a capsule."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


class Cut:
    """Which elements of a parameter each rank has."""

    def __init__(self, name, shape, stride, mesh):
        self.name, self.shape, self.stride, self.mesh = name, shape, stride, mesh
        self.ranges = None  # [world]: (first, end), once the groups are laid out
        self.job = self.param = None  # see _hooks
        self.parameter = None  # the FlatShard that is the module's

    @property
    def range(self):
        return self.ranges[self.mesh.get_local_rank()]

    def slice(self, full):
        first, last = self.range
        return full.detach().reshape(-1)[first:last]

    def recut(self, value):
        """A FlatShard of a tensor of the whole shape, which is plain or some other DTensor."""
        if isinstance(value, FlatShard):
            return value
        if isinstance(value, DTensor):
            value = value.full_tensor()
        return FlatShard.wrap(self.slice(value).clone(), self)

    def rectangles(self):
        """This rank's elements as rectangles: [(offsets, sizes, begin of its range of local elements)]"""
        first, last = self.range
        at, found = 0, []
        for offsets, sizes in _rectangles(tuple(self.shape), first, last):
            found.append((torch.Size(offsets), torch.Size(sizes), at))
            at += math.prod(sizes)
        return found

    # Copies of a tensor are cut as the tensor is, and have nothing else of the job.
    def __deepcopy__(self, memo):
        return self

    def __getstate__(self):
        return {k: getattr(self, k) for k in ("name", "shape", "stride", "mesh", "ranges")}

    def __setstate__(self, state):
        self.__init__(*(state[k] for k in ("name", "shape", "stride", "mesh")))
        self.ranges = state["ranges"]


def _rectangles(shape, first, last):
    """The elements [first, last) of a tensor as (offsets, sizes), in their order."""
    if first >= last:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    begin, end = -(-first // row), last // row  # of the whole rows

    def part(index, first, last):
        for offsets, sizes in _rectangles(shape[1:], first - index * row, last - index * row):
            yield (index, *offsets), (1, *sizes)

    if begin > end:
        yield from part(end, first, last)
        return
    yield from part(begin - 1, first, begin * row)
    if begin < end:
        yield (begin, *[0] * len(shape[1:])), (end - begin, *shape[1:])
    yield from part(end, end * row, last)


class FlatShard(DTensor):
    @staticmethod
    def wrap(local, cut, requires_grad=False):
        meta = TensorMeta(torch.Size(cut.shape), cut.stride, local.dtype)
        spec = DTensorSpec(cut.mesh, (Shard(0),), tensor_meta=meta)
        tensor = FlatShard(local, spec, requires_grad=requires_grad)
        tensor._cut = cut
        return tensor

    def __repr__(self, *, tensor_contents=None):
        return f"FlatShard({self._cut.name}, {tuple(self.shape)}, {self.dtype})"

    def to_local(self, *, grad_placements=None):
        _ready(self)
        return self._local_tensor.detach()

    def full_tensor(self, *, grad_placements=None):
        """The whole tensor. All ranks must call it. It is not differentiable."""
        _ready(self)
        cut, local = self._cut, self._local_tensor.detach()
        world = cut.mesh.size()
        if world == 1:
            return local.clone().reshape(cut.shape)
        mine = local.new_zeros(max(end - first for first, end in cut.ranges))
        mine[: local.numel()] = local
        parts = [torch.empty_like(mine) for _ in cut.ranges]
        dist.all_gather(parts, mine, group=cut.mesh.get_group())
        in_order = sorted(zip(cut.ranges, parts), key=lambda part: part[0])
        return torch.cat([p[: end - first] for (first, end), p in in_order]).reshape(cut.shape)

    def redistribute(self, device_mesh=None, placements=None, **_):
        if placements is None or any(not p.is_replicate() for p in placements):
            raise NotImplementedError(
                f"{self._cut.name} can be redistributed to Replicate() only, not to {placements}"
            )
        return _replicate(self)

    # -- torch.distributed.checkpoint

    def __create_chunk_list__(self):
        _ready(self)
        # What is read goes straight to the memory.
        _begin_write(self)
        return [ChunkStorageMetadata(offsets, sizes) for offsets, sizes, _ in self._cut.rectangles()]

    def __create_write_items__(self, fqn, object):
        _ready(self)
        properties = TensorProperties.create_from_tensor(self._local_tensor.detach())
        return [
            WriteItem(
                index=MetadataIndex(fqn, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(ChunkStorageMetadata(offsets, sizes), properties, self.shape),
            )
            for offsets, sizes, _ in self._cut.rectangles()
        ]

    def __get_tensor_shard__(self, index):
        for offsets, sizes, at in self._cut.rectangles():
            if offsets == index.offset:
                return self._local_tensor.detach()[at : at + math.prod(sizes)].view(sizes)
        raise ValueError(f"{index.fqn} has no part at {index.offset} on this rank")

    def __deepcopy__(self, memo):
        copy = FlatShard.wrap(self._local_tensor.detach().clone(), self._cut, self.requires_grad)
        memo[id(self)] = copy
        return copy

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        flat = []
        _each(args, flat.append)
        _each(kwargs.values(), flat.append)
        for tensor in flat:
            _ready(tensor)
        packet = func.overloadpacket
        name = packet.__name__
        if name in _REDUCTIONS:
            raise NotImplementedError(f"{name} of {flat[0]._cut.name}, of which each rank has a part")
        if packet in _NEW:
            return _new(func, args, kwargs)
        if packet in _NORMS and _whole(func, args, kwargs):
            return _norm(func, args, kwargs)
        if packet not in _NORMS and (
            packet in _ELEMENTWISE
            or name.startswith(("_foreach_", "_fused_"))
            or torch.Tag.pointwise in func.tags
        ) and _fits(args, kwargs):
            return _local(func, args, kwargs)
        if func._schema.is_mutable:
            raise NotImplementedError(
                f"{name} in place on {flat[0]._cut.name}, of which each rank has a part only: "
                "compute a whole tensor and copy_ it"
            )
        out = func(*_map(args, _replicate), **_map(kwargs, _replicate))
        return out


def be_dispatched(mesh):
    """Torch before 2.15 computes with each DTensor in C++, also where __torch_dispatch__ is another: the
    rules that it looks for first are one for all operations then."""
    cut = Cut("", (0,), (1,), mesh)
    cut.ranges = [(0, 0)] * mesh.size()
    if isinstance(FlatShard.wrap(torch.empty(0), cut).detach(), FlatShard):
        return
    from torch._library.simple_registry import GenericTorchDispatchRuleHolder as Rules

    find = Rules.find

    def find_ours(self, cls):
        return FlatShard.__torch_dispatch__.__func__ if cls is FlatShard else find(self, cls)

    Rules.find = find_ours


def _ready(tensor):
    cut = tensor._cut
    if cut.ranges is None:
        cut.job.lay_out()


def _each(values, visit):
    for value in values:
        if isinstance(value, FlatShard):
            visit(value)
        elif isinstance(value, (list, tuple)):
            _each(value, visit)


def _map(values, change):
    if isinstance(values, FlatShard):
        return change(values)
    if isinstance(values, (list, tuple)):
        return type(values)(_map(v, change) for v in values)
    if isinstance(values, dict):
        return {k: _map(v, change) for k, v in values.items()}
    return values


def _replicate(tensor):
    return DTensor.from_local(
        tensor.full_tensor(), tensor._cut.mesh, [Replicate()], run_check=False
    )


def _first(values):
    """The first FlatShard, or a list that begins with one."""
    for value in values:
        if isinstance(value, FlatShard):
            return value
        if isinstance(value, (list, tuple)) and any(isinstance(v, FlatShard) for v in value):
            return value
    return None


def _fits(args, kwargs):
    """Whether each operand is one number, or has the elements of the sharded one."""
    lead = _first(list(args) + list(kwargs.values()))

    def fits(value, cut):
        if not isinstance(value, torch.Tensor):
            return True
        return value.dim() == 0 or (cut is not None and tuple(value.shape) == tuple(cut.shape))

    for value in list(args) + list(kwargs.values()):
        if isinstance(value, (list, tuple)):
            if not any(isinstance(v, torch.Tensor) for v in value):
                continue
            for i, v in enumerate(value):
                at = lead[i] if isinstance(lead, (list, tuple)) and i < len(lead) else lead
                if isinstance(at, torch.Tensor) and not isinstance(at, FlatShard):
                    # A parameter that is not sharded, in a list with others that are.
                    if isinstance(v, FlatShard):
                        return False
                    continue
                if not fits(v, getattr(at, "_cut", None)):
                    return False
        elif isinstance(lead, FlatShard):
            if not fits(value, lead._cut):
                return False
        elif isinstance(value, torch.Tensor) and value.dim() != 0:
            return False
    return True


def _operand(value, cut):
    if isinstance(value, FlatShard):
        return value._local_tensor
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor) and value.dim() and cut is not None:
        return cut.slice(value)
    return value


def _local(func, args, kwargs):
    lead = _first(list(args) + list(kwargs.values()))
    many = not isinstance(lead, FlatShard)
    written = args[0] if func._schema.is_mutable and args else None
    for tensor in written if isinstance(written, (list, tuple)) else [written]:
        if isinstance(tensor, FlatShard):
            _begin_write(tensor)
        elif isinstance(tensor, DTensor):
            raise NotImplementedError(
                f"{func.overloadpacket.__name__} would change a tensor that is not cut as the parameters are"
            )

    def operand(value):
        if isinstance(value, (list, tuple)):
            cuts = [getattr(lead[i] if many and i < len(lead) else lead, "_cut", None)
                    for i in range(len(value))]
            return [_operand(v, c) for v, c in zip(value, cuts)]
        return _operand(value, None if many else lead._cut)

    kwargs = {k: operand(v) for k, v in kwargs.items() if k not in ("memory_format", "layout")}
    if func.overloadpacket is aten._to_copy and kwargs.get("device") not in (None, torch.device("cpu")):
        raise NotImplementedError(f"{lead._cut.name} stays on the device where it was sharded")
    out = func(*[operand(a) for a in args], **kwargs)
    if func._schema.is_mutable:
        if isinstance(written, FlatShard):
            return written
        return written if out is not None else None
    for o, l in zip(out, lead) if many else [(out, lead)]:
        if isinstance(l, FlatShard) and o.shape != l._local_tensor.shape:
            raise NotImplementedError(f"{func} of {l._cut.name}, of which each rank has a part")
    if many:
        return [FlatShard.wrap(o, l._cut) if isinstance(l, FlatShard) else o
                for o, l in zip(out, lead)]
    return FlatShard.wrap(out, lead._cut)


def _new(func, args, kwargs):
    """A new tensor beside this one: cut as it is if it has its shape."""
    tensor, size = args[0], tuple(args[1])
    same = size == tuple(tensor.shape)
    local = tensor._local_tensor
    out = func(local, local.shape if same else size, *args[2:], **kwargs)
    return FlatShard.wrap(out, tensor._cut) if same else out


def _begin_write(tensor):
    cut = tensor._cut
    own = cut.parameter
    # Also where this rank has no element, so that all ranks know of it.
    if own is not None and _storage(tensor) == _storage(own):
        cut.job.begin_write(cut.param.group)


def _storage(tensor):
    return tensor._local_tensor.untyped_storage()._cdata


def _whole(func, args, kwargs):
    """Whether a norm is over all dimensions."""
    if func.overloadpacket is aten._foreach_norm:
        return all(isinstance(t, FlatShard) for t in args[0])
    dim = args[2] if len(args) > 2 else kwargs.get("dim")
    keep = args[3] if len(args) > 3 else kwargs.get("keepdim")
    return not dim and not keep and isinstance(args[0], FlatShard)


def _norm(func, args, kwargs):
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    dtype = kwargs.get("dtype")

    def one(tensor):
        local = tensor._local_tensor.to(dtype) if dtype else tensor._local_tensor
        if order in (float("inf"), "inf"):
            placement = Partial("max")
            value = local.abs().max() if local.numel() else local.new_zeros(())
        elif order in (float("-inf"), 0):
            return torch.linalg.vector_norm(_replicate(tensor), order)
        else:
            placement = _NormPartial(float(order))
            value = torch.linalg.vector_norm(local, float(order))
        return DTensor.from_local(value, tensor._cut.mesh, [placement], run_check=False)

    return [one(t) for t in args[0]] if isinstance(args[0], (list, tuple)) else one(args[0])


_distribute = _state_dict_utils._distribute_tensors


def _distribute_tensors(local_state_dict, keys, *args, **kwargs):
    """set_model_state_dict and set_optimizer_state_dict with broadcast_from_rank0: torch's function
    would give each rank even rows."""
    others = []
    for key in keys:
        value = local_state_dict.get(key)
        if isinstance(value, tuple) and isinstance(value[0], FlatShard):
            local_state_dict[key] = value[0].detach().copy_(value[1])
        else:
            others.append(key)
    return _distribute(local_state_dict, others, *args, **kwargs)


_state_dict_utils._distribute_tensors = _distribute_tensors
