# SPDX-License-Identifier: Apache-2.0
"""A sharded parameter, its gradient or its optimizer state: a DTensor of which each rank has a range
of the flattened elements. torch's own uneven Shard(0) is a range of rows, and computes wrong values
with anything else, so every operation is dispatched here."""

import torch
import torch.distributed as dist
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


class Cut:
    """Which elements of a parameter each rank has."""

    def __init__(self, name, shape, stride, mesh):
        self.name, self.shape, self.stride, self.mesh = name, shape, stride, mesh
        self.cuts = None  # [world + 1], once the groups are laid out
        self.lay_out = None  # a function that lays them out
        self.writable = lambda: True
        self.parameter = None  # the FlatShard that is the module's

    @property
    def range(self):
        rank = self.mesh.get_local_rank()
        return self.cuts[rank], self.cuts[rank + 1]

    def slice(self, full):
        first, last = self.range
        return full.detach().reshape(-1)[first:last]


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
        counts = [b - a for a, b in zip(cut.cuts, cut.cuts[1:])]
        mine = local.new_zeros(max(counts))
        mine[: local.numel()] = local
        parts = [torch.empty_like(mine) for _ in counts]
        dist.all_gather(parts, mine, group=cut.mesh.get_group())
        return torch.cat([p[:n] for p, n in zip(parts, counts)]).reshape(cut.shape)

    def redistribute(self, device_mesh=None, placements=None, **_):
        if placements is None or any(not p.is_replicate() for p in placements):
            raise NotImplementedError(
                f"{self._cut.name} can be redistributed to Replicate() only, not to {placements}"
            )
        return _replicate(self)

    def __create_write_items__(self, fqn, object):
        raise NotImplementedError("torch.distributed.checkpoint of slurm_zero's tensors: use zero.export")

    __create_chunk_list__ = __get_tensor_shard__ = __create_write_items__

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


def _ready(tensor):
    cut = tensor._cut
    if cut.cuts is None:
        cut.lay_out()


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
    if written is not None:
        _each([written], _check_writable)

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


def _check_writable(tensor):
    cut = tensor._cut
    own = cut.parameter
    if own is not None and tensor._local_tensor.data_ptr() == own._local_tensor.data_ptr():
        if tensor._local_tensor.numel() and not cut.writable():
            raise NotImplementedError(
                f"{cut.name} is changed outside of an optimizer's step, which needs stage 3"
            )


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
