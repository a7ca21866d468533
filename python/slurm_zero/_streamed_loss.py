# SPDX-License-Identifier: Apache-2.0
"""The logits of a streamed head, which are never whole either where all that is asked of them is
their cross entropy: it goes over the slices of the head's weight and keeps of the logits one number
of each token (Milakov and Gimelshein, arXiv 1805.02867), from which backward makes them again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map_only

from ._streamed import Slice, StreamedGroup, anchor, product


def _blocks(x: torch.Tensor) -> Iterator[slice]:
    """Tokens, so many that their logits of a slice are no larger than the slice."""
    step = max(64, x.shape[1])
    return (slice(at, at + step) for at in range(0, len(x), step))


def _logits(x: torch.Tensor, each: Slice, begin: int, end: int, at: int) -> torch.Tensor:
    return (x @ each.values[at : at + end - begin].to(x.dtype).t()).float()


class CrossEntropy(torch.autograd.Function):
    """Of each token, in f32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _: torch.Tensor, labels: torch.Tensor,
                group: StreamedGroup) -> torch.Tensor:
        most = x.new_full((len(x),), -math.inf, dtype=torch.float32)
        total, wanted = torch.zeros_like(most), torch.zeros_like(most)
        for each in group.gathered():
            for _, begin, end, at in each.rows:
                for t in _blocks(x):
                    logits = _logits(x[t], each, begin, end, at)
                    new = torch.maximum(most[t], logits.amax(1))
                    row = labels[t] - begin
                    here = (row >= 0) & (row < end - begin)
                    found = logits.gather(1, row.clamp(0, end - begin - 1)[:, None])[:, 0]
                    wanted[t] += torch.where(here, found, 0)
                    total[t] *= (most[t] - new).exp_()
                    total[t] += logits.sub_(new[:, None]).exp_().sum(1)
                    most[t] = new
        lse = total.log_().add_(most)
        ctx.save_for_backward(x, labels, lse)
        ctx.group = group
        return lse - wanted

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: torch.Tensor) -> tuple:
        (x, labels, lse), group = ctx.saved_tensors, ctx.group
        group.begin_backward()
        trainable = group.params[0].trainable
        dx = torch.zeros_like(x)
        for each in group.gathered(True):
            grad = each.gradient() if trainable else None
            if grad is not None and len(x) == 0:
                grad.zero_()
            for _, begin, end, at in each.rows:
                here = slice(at, at + end - begin)
                for t in _blocks(x):
                    logits = _logits(x[t], each, begin, end, at).sub_(lse[t, None]).exp_()
                    row = labels[t] - begin
                    one = ((row >= 0) & (row < end - begin)).to(logits.dtype)
                    row = row.clamp(0, end - begin - 1)
                    logits.scatter_add_(1, row[:, None], -one[:, None])
                    logits = logits.mul_(dloss[t, None]).to(x.dtype)
                    if trainable and t.start == 0:
                        product(logits.t(), x[t], grad[here])
                    elif trainable:
                        grad[here] += (logits.t() @ x[t]).to(grad.dtype)
                    dx[t].addmm_(logits, each.values[here].to(x.dtype))
            if trainable:
                group.reduce(each)
        return dx, None, None, None


class Logits(torch.Tensor):
    """What a head returns. Its cross entropy streams; for anything else all ranks make it whole."""

    @staticmethod
    def __new__(cls, hidden: torch.Tensor, width: int, dtype: torch.dtype, group: StreamedGroup,
                whole: Callable[[torch.Tensor], torch.Tensor]) -> Logits:
        self = torch.Tensor._make_wrapper_subclass(
            cls, (*hidden.shape[:-1], width), dtype=dtype, device=hidden.device
        )
        self._hidden, self._group, self._make, self._made = hidden, group, whole, None
        return self

    def _as(self, hidden: torch.Tensor, dtype: torch.dtype) -> Logits:
        return Logits(hidden, self.shape[-1], dtype, self._group, self._make)

    def _whole(self) -> torch.Tensor:
        if self._made is None:
            self._made = self._make(self._hidden).to(self.dtype)
        return self._made

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        streams = _STREAMED.get(func)
        if streams:
            found = streams(*args, **kwargs)
            if found is not None:
                return found
        if func in _OF_SHAPE or getattr(func, "__name__", "") == "__get__":
            with torch._C.DisableTorchFunctionSubclass():
                if func is not torch.Tensor.requires_grad.__get__:
                    return func(*args, **kwargs)
        args, kwargs = tree_map_only(Logits, Logits._whole, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Callable, types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        args, kwargs = tree_map_only(Logits, Logits._whole, (args, kwargs or {}))
        return func(*args, **kwargs)


def _same(logits: Logits, *_: Any, **__: Any) -> Logits:
    return logits


def _float(logits: Logits, **_: Any) -> Logits:
    return logits._as(logits._hidden, torch.float32)


def _to(logits: Logits, *args: Any, **kwargs: Any) -> Logits | None:
    dtype = args[0] if len(args) == 1 and not kwargs else kwargs.get("dtype")
    only = isinstance(dtype, torch.dtype) and len(args) + len(kwargs) == 1
    return logits._as(logits._hidden, dtype) if only else None


def _view(logits: Logits, *shape: Any) -> Logits | None:
    if len(shape) == 1 and not isinstance(shape[0], int):
        shape = tuple(shape[0]) if isinstance(shape[0], (tuple, list, torch.Size)) else ()
    if not shape or shape[-1] != logits.shape[-1]:
        return None
    return logits._as(logits._hidden.reshape(*shape[:-1], logits._hidden.shape[-1]), logits.dtype)


def _item(logits: Logits, index: Any) -> Logits | None:
    """Some of the tokens: the last dimension stays."""
    index = index if isinstance(index, tuple) else (index,)
    whole = isinstance(index[-1], slice) and index[-1] == slice(None)
    reaches = Ellipsis in [i for i in index if not isinstance(i, torch.Tensor)]
    tokens = all(isinstance(i, (int, slice, type(Ellipsis))) for i in index)
    if not tokens or (reaches or len(index) == logits.dim()) and not whole:
        return None
    return logits._as(logits._hidden[index], logits.dtype)


def _cross_entropy(input: torch.Tensor, target: torch.Tensor, weight: Any = None,
                   size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
                   reduction: str = "mean", label_smoothing: float = 0.0) -> torch.Tensor | None:
    if (
        not isinstance(input, Logits) or isinstance(target, Logits) or input.dim() != 2
        or weight is not None or size_average is not None or reduce is not None
        or label_smoothing or target.is_floating_point() or input._made is not None
    ):
        return None
    keep = target != ignore_index
    labels = torch.where(keep, target, -1)  # of no row
    if labels.device.type == "cpu" and not (
        ((labels >= 0) == keep).all() and (labels < input.shape[1]).all()
    ):
        raise IndexError(f"a target is not in [0, {input.shape[1]})")
    each = CrossEntropy.apply(input._hidden, anchor(), labels, input._group).to(input.dtype)
    each = torch.where(keep, each, 0)
    if reduction == "none":
        return each
    return each.sum() / keep.sum() if reduction == "mean" else each.sum()


_STREAMED = {
    torch.Tensor.float: _float, torch.Tensor.contiguous: _same, torch.Tensor.to: _to,
    torch.Tensor.view: _view, torch.Tensor.reshape: _view, torch.Tensor.__getitem__: _item,
    F.cross_entropy: _cross_entropy,
}
_OF_SHAPE = (torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.__len__,
             torch.Tensor.is_floating_point)


def logits_of(hidden: torch.Tensor, head: nn.Linear, group: StreamedGroup, dtype: torch.dtype,
              whole: Callable[[torch.Tensor], torch.Tensor]) -> Logits:
    return Logits(hidden.to(dtype), head.out_features, dtype, group, whole)
