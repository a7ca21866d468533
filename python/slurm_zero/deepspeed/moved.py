# SPDX-License-Identifier: Apache-2.0
"""A run of DeepSpeed goes on in slurm_zero: a sharded model and its optimizer get the values,
moments and steps of its checkpoint, of which each rank reads what it has."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from .. import _api, _checkpoint, _device, _zero
from .._adamw import AdamW, Muon
from .._flat_shard import FlatShard
from .._param import Param
from . import foreign
from .foreign_files import CheckpointError

_CHUNK = 1 << 22  # elements


def load(path: str, module: nn.Module, optimizer: Optimizer | None, *,
         strict: bool = True) -> foreign.Checkpoint:
    """Fills the sharded module and its optimizer, torch's or zero.AdamW, or with None the module
    alone, from the folder of a checkpoint of DeepSpeed, as foreign.find returns it. Returns
    what else that has. With `strict` the names must be the same. All ranks call it; nothing is
    changed if one of them finds a fault."""
    job = _api.job()
    job.layout.update()
    job.settle()
    with _checkpoint.agreed():
        found = foreign.Checkpoint(path, optimizer and _order(module, optimizer))
        found.verify(dist.get_rank(), dist.get_world_size())
        names = _match(found, module, strict)
        if optimizer is not None:
            _check_states(found, optimizer, names)
    with torch.no_grad():
        _fill(found, module, names)
        job.writes.end()
        if optimizer is not None:
            _fill_states(found, optimizer, names)
            _take_settings(found, optimizer, names)
            job.steps.count = found.step
    return found


def _order(module: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    names = {p: name for name, p in module.named_parameters()}
    return [[names[p] for p in group["params"] if p in names] for group in optimizer.param_groups]


def _match(found: foreign.Checkpoint, module: nn.Module, strict: bool) -> dict[torch.Tensor, str]:
    """{parameter or buffer: its name in the checkpoint}"""
    names: dict[torch.Tensor, str] = {}
    missing, known = [], set()
    for name, p in module.named_parameters(remove_duplicate=False):
        name = found.shared.get(name, name)
        known.add(name)
        if name not in found.shapes:
            missing.append(name)
        elif tuple(p.shape) != found.shapes[name]:
            raise CheckpointError(
                f"{found.path} has {name} of the shape {found.shapes[name]}, not {tuple(p.shape)}"
            )
        else:
            names.setdefault(p, name)
    # A file may have what is tied under one name, or under each.
    missing = [name for name in missing if module.get_parameter(name) not in names]
    unexpected = sorted(set(found.shapes) - known - set(found.shared))
    if strict and (missing or unexpected):
        what = f"no {missing[0]}" if missing else f"{unexpected[0]}, which the model has not"
        raise CheckpointError(f"{found.path} has {what}")
    return names


def _check_states(found: foreign.Checkpoint, optimizer: Optimizer,
                  names: dict[torch.Tensor, str]) -> None:
    if isinstance(optimizer, Muon):
        raise NotImplementedError("the states of Muon are not restored from DeepSpeed's")
    wanted = ("exp_avg", "exp_avg_sq") if isinstance(optimizer, AdamW) else found.states
    if not found.step:
        return
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        for what in wanted:
            if p in names and not found.has(names[p], what):
                raise CheckpointError(
                    f"{found.path} has no {what} of {names[p]}, which the optimizer steps"
                )


def _ranges(first: int, end: int) -> Iterator[tuple[int, int]]:
    for at in range(first, end, _CHUNK):
        yield at, min(end, at + _CHUNK)


def _read(found: foreign.Checkpoint, p: FlatShard, name: str, what: str,
          local: torch.Tensor) -> None:
    first, end = p._shard_spec.range
    for low, high in _ranges(first, end):
        local[low - first : high - first] = found.read(name, what, low, high).to(local.dtype)


def _fill(found: foreign.Checkpoint, module: nn.Module, names: dict[torch.Tensor, str]) -> None:
    for p, name in names.items():
        if isinstance(p, FlatShard):
            param: Param = p._shard_spec.param
            param.fill()
            param.group.job.writes.begin(param.part)
            _read(found, p, name, "fp32", p._local_tensor)
        else:
            p.copy_(found.read(name).view(p.shape))
    buffers = dict(module.named_buffers())
    for name, value in found.buffers.items():
        if name in buffers:
            buffers[name].copy_(value)


def _fill_states(found: foreign.Checkpoint, optimizer: Optimizer,
                 names: dict[torch.Tensor, str]) -> None:
    params = [p for group in optimizer.param_groups for p in group["params"] if p in names]
    if isinstance(optimizer, AdamW):
        _zero.set_states(0)
        for p in params if found.step else ():
            _set_moments(found, p, names[p])
        parts = dict.fromkeys(p._shard_spec.param.part for p in params)
        _zero.set_steps([part.handle for part in parts], found.step)
        _zero.set_states(int(
            _zero.setting("states") == "8bit" if optimizer.states is None else optimizer.states
        ))
        return
    optimizer.state.clear()
    for p in params if found.step else ():
        states = optimizer.state[p]
        device = _device.device if _checkpoint._on_device(optimizer) else "cpu"
        states["step"] = torch.tensor(float(found.step), device=device)
        for what in found.states:
            states[what] = FlatShard.wrap(torch.zeros_like(
                p._local_tensor, dtype=p.dtype), p._shard_spec)
            _read(found, p, names[p], what, states[what]._local_tensor)


def _set_moments(found: foreign.Checkpoint, p: FlatShard, name: str) -> None:
    """The library takes those that this rank steps, which at stage 0 are all."""
    param: Param = p._shard_spec.param
    whole = param.group.job.stage == 0
    for low, high in _ranges(*((0, p.numel()) if whole else p._shard_spec.range)):
        moments = [found.read(name, what, low, high) for what in ("exp_avg", "exp_avg_sq")]
        _zero.set_moments(param.handle, low, high - low, *(m.data_ptr() for m in moments))


def _take_settings(found: foreign.Checkpoint, optimizer: Optimizer,
                   names: dict[torch.Tensor, str]) -> None:
    """Of the group that had the first parameter of this one."""
    of_name = {name: group for group in found.groups for name in group["names"]}
    for group in optimizer.param_groups:
        first = next((names[p] for p in group["params"] if p in names), None)
        for key, value in of_name.get(first, {}).items():
            if key in group and key != "params":
                group[key] = tuple(value) if isinstance(group[key], tuple) else value
