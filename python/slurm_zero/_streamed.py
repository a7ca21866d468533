# SPDX-License-Identifier: Apache-2.0
"""Parameters that are too large to be whole anywhere. Such a parameter is a group of its own, which
no module gathers: what computes with it here goes over its slices, forward and backward, and writes
the gradient of each into the library's buffer, which is reduced at once. All ranks go over all
slices, whatever they compute with them.

A slice has whole rows of the parameter, of a matrix or of a stack of them, a run of each rank's."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from . import _device, _zero
from ._flat_shard import FlatShard, tensor_of
from ._group import Group, MixedPrecisionPolicy, no_compile
from ._param import DTYPES, Param, param_dtype, require_filled

if TYPE_CHECKING:
    from ._job import Job

Place = tuple[nn.Module, str]
# Of what is asked for a loss alone, as far as models of Transformers say so.
heads: weakref.WeakSet[nn.Module] = weakref.WeakSet()
# Of a slice: matrix of the stack, its rows [first, end), and the slice's row where they begin.
Rows = tuple[int, int, int, int]


class Slice:
    def __init__(self, group: StreamedGroup, handle: Any, memory: memoryview | None,
                 runs: list[tuple[int, int, int]]):
        self.group, self.handle = group, handle
        shape = group.params[0].spec.sizes
        self.row, self.height = shape[-1], shape[-2]
        part = group.parts[0]
        self.values = tensor_of(memory, part.dtype or group.params[0].sharded.dtype)
        self.values = self.values.view(-1, self.row)
        self.rows = [rows for run in runs for rows in self._split(*run)]

    def _split(self, first: int, count: int, at: int) -> Iterator[Rows]:
        row, end, at = first // self.row, (first + count) // self.row, at // self.row
        while row < end:
            matrix, begin = divmod(row, self.height)
            rows = min(end - row, self.height - begin)
            yield matrix, begin, begin + rows, at
            row, at = row + rows, at + rows

    def gradient(self) -> torch.Tensor:
        """The library's buffer; all its rows are to be written."""
        dtype = self.group.policy.reduce_dtype or torch.float32
        memory = _zero.slice_gradient(self.handle, DTYPES[dtype], len(self.values) * self.row)
        return tensor_of(memory, dtype).view(-1, self.row)


class StreamedGroup(Group):
    """One parameter. Its modules compute with its slices; they have no hooks."""

    takes_modules = False

    def __init__(self, job: Job, p: nn.Parameter, places: list[Place], mesh: DeviceMesh,
                 policy: MixedPrecisionPolicy, slice_bytes: int):
        self._found = p, places
        self.slice_bytes = slice_bytes
        self._slices: list[Slice] = []
        self._begun: dict[Slice, bool] = {}  # whether one is gathered, or may be on its way
        modules = list(dict.fromkeys(module for module, _ in places))
        super().__init__(job, modules, mesh, policy, True, set())

    def _watch_modules(self) -> None:
        for module in self.modules:
            stream(module)

    def _collect(self, ignored: set[nn.Parameter]) -> list[Param]:
        p, places = self._found
        del self._found
        return [Param(self, p, places, param_dtype(self.policy, p))]

    def begin_copy(self, memo: dict[int, Any]) -> Group:
        raise NotImplementedError(
            f"a copy of {self.params[0].name}, which is streamed, is not supported: copy the "
            "model before fully_shard"
        )

    def borrow(self, owner: Param, place: Place) -> None:
        """Another module has this parameter, too, as tied embeddings do."""
        module, attribute = place
        if how_of(module, attribute) is None:
            raise NotImplementedError(
                f"{attribute} of {type(module).__name__} is {owner.name}, which is streamed, and "
                "this module cannot compute with slices: fully_shard(..., streamed=False)"
            )
        owner.places.append(place)
        self.modules.append(module)
        stream(module)

    # What is whole nowhere cannot be gathered whole.
    def unshard(self) -> None:
        self.job.layout.update()

    begin_unshard = unshard

    def reshard(self) -> None:
        """After an exception some slices may be left."""
        for each in list(self._begun):
            self._release(each)

    def forget(self) -> None:
        super().forget()
        self._begun.clear()

    # -- slices

    @property
    def slices(self) -> list[Slice]:
        if not self._slices:
            part, p = self.parts[0], self.params[0]
            self._slices = [
                Slice(self, *made)
                for made in _zero.slices(part.handle, p.handle, part.gather_as())
            ]
        return self._slices

    def begin(self) -> None:
        """All that computes with the slices begins with this. All ranks call it."""
        self.job.check_backward()
        self.job.layout.update()
        self.follow()
        require_filled(self.params)
        self.job.writes.end()
        p = self.params[0]
        if p.sharded.requires_grad != p.trainable:
            p.update_requires_grad()

    def begin_backward(self) -> None:
        self.job.begin_backward(self)
        self.job.writes.end()

    def gathered(self, backward: bool = False) -> Iterator[Slice]:
        """Each slice in turn while it is gathered, and the next one under way."""
        dtype = self.parts[0].gather_as()
        slices = self.slices[::-1] if backward else self.slices
        for each, after in zip(slices, [*slices[1:], None]):
            _zero.gather(each.handle, dtype)
            self._begun[each] = True
            if after:
                _zero.prefetch_slice(after.handle, dtype)
                self._begun[after] = False
            try:
                yield each
            finally:
                self._release(each)

    def _release(self, each: Slice) -> None:
        gathered = self._begun.pop(each, None)
        if gathered is not None:
            # The bound of memory may have had a prefetch skipped.
            with contextlib.nullcontext() if gathered else contextlib.suppress(_zero.Error):
                _zero.release(each.handle)

    def reduce(self, each: Slice) -> None:
        """Its gradient is written."""
        _zero.reduce(each.handle)
        self.params[0].has_grad = True


# ---- what computes with slices -------------------------------------------------------------------


def anchor() -> torch.Tensor:
    """What has autograd call backward, where no input needs a gradient: the parameter does."""
    return torch.empty(0, requires_grad=True)


def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


class Product(torch.autograd.Function):
    """Rows [bounds[e], bounds[e + 1]) of x by matrix e of the stack: x @ w[e].T, or x @ w[e] if it
    is `transposed`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _: torch.Tensor, bounds: list[int],
                group: StreamedGroup, transposed: bool) -> torch.Tensor:
        first = group.slices[0]
        out = (x.new_zeros if transposed else x.new_empty)(
            len(x), first.row if transposed else first.height
        )
        for each in group.gathered():
            for e, begin, end, at in each.rows:
                mine = slice(bounds[e], bounds[e + 1])
                w = each.values[at : at + end - begin].to(x.dtype)
                if mine.start == mine.stop:
                    continue
                if transposed:
                    out[mine].addmm_(x[mine, begin:end], w)
                else:
                    torch.mm(x[mine], w.t(), out=out[mine, begin:end])
        ctx.save_for_backward(x)
        ctx.bounds, ctx.group, ctx.transposed = bounds, group, transposed
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple:
        (x,), group, bounds = ctx.saved_tensors, ctx.group, ctx.bounds
        group.begin_backward()
        needs_x, trainable = ctx.needs_input_grad[0], group.params[0].trainable
        dx = torch.zeros_like(x) if needs_x else None
        for each in group.gathered(True) if needs_x else group.slices[::-1]:
            grad = each.gradient() if trainable else None
            for e, begin, end, at in each.rows:
                mine, here = slice(bounds[e], bounds[e + 1]), slice(at, at + end - begin)
                if mine.start == mine.stop:
                    if trainable:
                        grad[here].zero_()
                    continue
                a, b = (x, dout) if ctx.transposed else (dout, x)
                if trainable:
                    product(a[mine, begin:end].t(), b[mine], grad[here])
                if needs_x:
                    w = each.values[here].to(x.dtype)
                    if ctx.transposed:
                        torch.mm(dout[mine], w.t(), out=dx[mine, begin:end])
                    else:
                        dx[mine].addmm_(dout[mine, begin:end], w)
            if trainable:
                group.reduce(each)
        return dx, None, None, None, None


class Lookup(torch.autograd.Function):
    """Rows of the parameter, by their numbers."""

    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, _: torch.Tensor, group: StreamedGroup,
                padding: int | None) -> torch.Tensor:
        first = group.slices[0]
        sorted_ids, order = ids.reshape(-1).sort()
        # Where in the sorted numbers each run begins and ends; a GPU is waited for once.
        edges = sorted({row for each in group.slices for rows in each.rows for row in rows[1:3]})
        rows = torch.tensor(edges, dtype=ids.dtype, device=ids.device)
        at = torch.searchsorted(sorted_ids, rows).tolist()
        if at[0] or at[-1] < len(order):
            raise IndexError("index out of range in self")
        ctx.where = dict(zip(edges, at))
        out = first.values.new_zeros(len(order), first.row)
        for each in group.gathered():
            for _, begin, end, at in each.rows:
                mine = slice(ctx.where[begin], ctx.where[end])
                out[order[mine]] = each.values[sorted_ids[mine] - begin + at]
        ctx.save_for_backward(sorted_ids, order)
        ctx.group, ctx.padding = group, padding
        return out.view(*ids.shape, first.row)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple:
        (sorted_ids, order), group = ctx.saved_tensors, ctx.group
        group.begin_backward()
        dout = dout.reshape(len(order), group.slices[0].row)
        for each in group.slices if group.params[0].trainable else ():
            grad = each.gradient().zero_()
            for _, begin, end, at in each.rows:
                mine = slice(ctx.where[begin], ctx.where[end])
                rows = dout[order[mine]].to(grad.dtype)
                grad.index_add_(0, sorted_ids[mine] - begin + at, rows)
                if ctx.padding is not None and begin <= ctx.padding < end:
                    grad[ctx.padding - begin + at] = 0
            group.reduce(each)
        return None, None, None, None


def _dtype_of(x: torch.Tensor, group: StreamedGroup) -> torch.dtype:
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return group.parts[0].dtype or group.params[0].sharded.dtype


def _multiply(x: torch.Tensor, bounds: list[int], p: FlatShard,
              transposed: bool = False) -> torch.Tensor:
    group = p._shard_spec.param.group
    group.begin()
    x = x.to(_dtype_of(x, group))
    with torch.autocast(x.device.type, enabled=False):
        return Product.apply(x, anchor(), bounds, group, transposed)


def _linear(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    if self in heads and self.bias is None and torch.is_grad_enabled():
        group = self.weight._shard_spec.param.group
        group.begin()
        return _streamed_loss.logits_of(
            x, self, group, _dtype_of(x, group), lambda hidden: _apply_linear(self, hidden)
        )
    return _apply_linear(self, x)


def _apply_linear(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1, x.shape[-1])
    out = _multiply(flat, [0, len(flat)], self.weight)
    if self.bias is not None:
        out = out + self.bias.to(out.dtype)
    return out.view(*x.shape[:-1], out.shape[-1])


def _embedding(self: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
    group = self.weight._shard_spec.param.group
    group.begin()
    return Lookup.apply(ids, anchor(), group, self.padding_idx)


def _experts(self: Any, hidden: torch.Tensor, top_k_index: torch.Tensor,
             top_k_weights: torch.Tensor) -> torch.Tensor:
    """Experts of Transformers, whose attributes say how they compute (integrations/moe.py)."""
    pairs = top_k_index.reshape(-1)  # of a token and an expert
    order = pairs.argsort(stable=True)
    counts = torch.bincount(pairs, minlength=self.num_experts)
    bounds = [0, *counts.cumsum(0).tolist()]
    sorted_experts, tokens = pairs[order], order // top_k_index.shape[-1]

    def project(x: torch.Tensor, name: str) -> torch.Tensor:
        weight = getattr(self, name)
        if _is_streamed(weight):
            out = _multiply(x, bounds, weight, self.is_transposed)
        else:
            parts = [
                x[begin:end] @ (w if self.is_transposed else w.t())
                for w, begin, end in zip(weight, bounds, bounds[1:])
            ]
            out = torch.cat(parts)
        if self.has_bias:
            out = out + getattr(self, name + "_bias")[sorted_experts]
        return out

    x = project(hidden[tokens], "gate_up_proj" if self.has_gate else "up_proj")
    x = project(self._apply_gate(x) if self.has_gate else self.act_fn(x), "down_proj")
    if self.has_post_expert_norm:
        x = self.post_expert_norm(x)
    x = x * top_k_weights.reshape(-1)[order, None]
    out = torch.zeros(hidden.shape, dtype=x.dtype, device=x.device)
    return out.index_add_(0, tokens, x).to(hidden.dtype)


def _is_streamed(p: Any) -> bool:
    param = p._shard_spec.param if isinstance(p, FlatShard) else None
    return param is not None and isinstance(param.group, StreamedGroup)


def how_of(module: nn.Module, attribute: str) -> Callable | None:
    """What computes with slices of a module's parameter. None: nothing here."""
    forward = type(module).forward
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        return _linear if attribute == "weight" else None
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward:
        plain = module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
        return _embedding if attribute == "weight" and plain else None
    known = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "num_experts")
    if all(hasattr(module, name) for name in known) and not module._is_expert_parallel:
        names = ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
        return _experts if attribute in names else None
    return None


def stream(module: nn.Module) -> None:
    """Has a module compute with slices, while its parameter is streamed."""
    hows = (how_of(module, name) for name in module._parameters)
    how = next(how for how in hows if how is not None)
    plain = type(module).forward

    @no_compile
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if any(_is_streamed(p) for p in self._parameters.values()):
            return how(self, *args, **kwargs)
        return plain(self, *args, **kwargs)

    module.forward = types.MethodType(forward, module)


def note_heads(modules: list[nn.Module]) -> None:
    for module in modules:
        head = getattr(module, "get_output_embeddings", lambda: None)()
        if isinstance(head, nn.Linear):
            heads.add(head)


def find(modules: list[nn.Module], taken: set[nn.Module], ignored: set[nn.Parameter],
         threshold: int, warn: bool = True) -> dict[nn.Parameter, list[Place]]:
    """The parameters above a threshold, in bytes, that can be streamed. Of a group's modules those
    that are in no group yet."""
    found: dict[nn.Parameter, list[Place]] = {}
    whole: set[nn.Parameter] = set()
    for module in dict.fromkeys(m for root in modules for m in root.modules()):
        for name, p in module._parameters.items() if module not in taken else ():
            plain = p is not None and p not in ignored and type(p) is nn.Parameter
            if not plain or p.nbytes <= threshold or not p.numel():
                continue
            if how_of(module, name) is None or p.dtype not in DTYPES:
                whole.add(p)
                if warn:
                    _device.warn_whole(module, name, p)
            found.setdefault(p, []).append((module, name))
    return {p: places for p, places in found.items() if p not in whole}


from . import _streamed_loss  # noqa: E402, which has what is here
