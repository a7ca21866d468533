# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of parameters and optimizers: an optimizer's tensors are named states beside the
library's parameters, so that they are saved from where they are, and restored for another number of
ranks, another stage and other groups."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from . import _device, _unsharded, _zero
from ._adamw import AdamW
from ._flat_shard import FlatShard

if TYPE_CHECKING:
    from ._param import Param
    from ._job import Job

_TORCH = {name: dtype for name, dtype in _unsharded.DTYPES.items() if hasattr(_zero, name)}
_DTYPES = {dtype: name for name, dtype in _TORCH.items()}
# States that are registered during a save or restore: [(handle, name, tensor)].
_kept: list[tuple[Any, str, torch.Tensor]] = []
# What a save in the background still writes.
_written: list[torch.Tensor] = []


@contextlib.contextmanager
def agreed() -> Iterator[None]:
    """What a rank cannot do within it is an error on all ranks, at its end."""
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    try:
        _zero.agree(error and (str(error) or repr(error)))
    except _zero.Error:
        if error:
            raise error from None
        raise


def _forget() -> None:
    while _kept:
        handle, name, _ = _kept.pop()
        _zero.state_unregister(handle, name)


def _register(handle: Any, name: str, tensor: torch.Tensor, whole: bool) -> None:
    address = tensor.data_ptr() if tensor.numel() else 0
    _zero.state_register(handle, name, getattr(_zero, _DTYPES[tensor.dtype]), whole, address)
    _kept.append((handle, name, tensor))


def _register_foreign(job: Job, param: str, name: str, dtype: torch.dtype, whole: bool) -> None:
    """A state of a parameter that this rank has no part of, if it is one."""
    if param in job.layout.foreign:
        _register(job.layout.foreign[param], name, torch.empty(0, dtype=dtype), whole)


def _states(job: Job, optimizers: list[Optimizer]) -> Iterator[
    tuple[Param, str, torch.Tensor, bool]
]:
    """(param, name of the state, local tensor, whether it is one value for the parameter)"""
    params = {p.sharded: p for group in job.groups for p in group.params}
    for index, optimizer in enumerate(optimizers):
        for sharded, states in optimizer.state.items():
            if sharded not in params:
                raise NotImplementedError(
                    "zero.save saves optimizers of sharded parameters only; this one has others too"
                )
            param = params[sharded]
            for key, value in states.items():
                if value is None:
                    continue
                what = f"state {key} of {param.name}"
                if not isinstance(value, torch.Tensor):
                    raise NotImplementedError(f"{what} is a {type(value).__name__}, not a tensor")
                if value.dtype not in _DTYPES:
                    raise NotImplementedError(f"{what} is {value.dtype}, which cannot be saved")
                name = f"{index}.{key}"
                if isinstance(value, FlatShard):
                    yield param, name, value._local_tensor, False
                elif value.dim() == 0:
                    yield param, name, value.cpu(), True
                else:
                    raise NotImplementedError(
                        f"{what} has the shape {tuple(value.shape)}; "
                        "it must be one value or sharded"
                    )


def states_to_shards(optimizer: Optimizer) -> None:
    """What Optimizer.load_state_dict was given as whole tensors or as even DTensors is sharded as
    the parameters are. All ranks call it."""
    for p, states in optimizer.state.items():
        if isinstance(p, FlatShard):
            for key, value in states.items():
                if key != "step" and isinstance(value, torch.Tensor) and value.shape == p.shape:
                    states[key] = p._shard_spec.to_shard(value)


def _user_bytes(job: Job, models: list[torch.nn.Module], optimizers: list[Optimizer],
                extra: Callable[[], Any]) -> bytes:
    """Registers the optimizers' states. Returns what the program saves beside them."""
    states = {}
    try:
        with agreed():
            hyper = [[_hyper(group) for group in o.param_groups] for o in optimizers]
            text = json.dumps({"optimizers": hyper, "extra": extra()}).encode() + b"\n"
            for param, name, tensor, whole in _states(job, optimizers):
                if not tensor.is_contiguous():
                    raise NotImplementedError(f"state {name} of {param.name} is not contiguous")
                _register(param.handle, name, tensor, whole)
                states[param.name, name] = tensor.dtype, whole
            unsharded = _unsharded.copies(models)
            dumped = _dump(unsharded)
        if job.layout.differs():
            states, unsharded = job.layout.merge(states), job.layout.merge(unsharded)
            with agreed():
                dumped = _dump(unsharded)
        for (param, name), (dtype, whole) in states.items():
            _register_foreign(job, param, name, dtype, whole)
    except Exception:
        _forget()
        raise
    return text + dumped


def _dump(unsharded: dict[str, torch.Tensor]) -> bytes:
    return _unsharded.dump(unsharded) if dist.get_rank() == 0 else b""


def save(job: Job, models: list[torch.nn.Module], optimizers: list[Optimizer], folder: str,
         extra: Any, keep_last: int, background: bool) -> None:
    user = _user_bytes(job, models, optimizers, lambda: extra)
    tensors = [tensor for _, _, tensor in _kept]
    try:
        _zero.save(folder, user, job.steps.count, keep_last, background)
    finally:
        _forget()
        _written[:] = tensors if background else []


def protect(job: Job, models: list[torch.nn.Module], optimizers: list[Optimizer], every: int,
            extra: Callable[[], Any], own: bytes) -> list[torch.Tensor]:
    """Returns the tensors that have to stay until the next one: they are written meanwhile."""
    user = _user_bytes(job, models, optimizers, extra)
    try:
        _zero.protect(user, own, job.steps.count, every)
        return [tensor for _, _, tensor in _kept]
    finally:
        _forget()


def _find(path: str) -> tuple[str | None, dict[str, list[dict[str, Any]]]]:
    """(folder of the checkpoint or None, {parameter: its named states}), as the library finds it"""

    def is_one(folder: str) -> bool:
        return os.path.exists(os.path.join(folder, "manifest.json"))

    folder = path if is_one(path) else os.path.join(path, "latest")
    if not is_one(folder):
        # The link is not there, or dangles.
        entries = os.listdir(path) if os.path.isdir(path) else []
        folders = [e for e in entries if re.fullmatch("step-[0-9]{9,}", e)]
        folders = [f for f in (os.path.join(path, e) for e in folders) if is_one(f)]
        if not folders:
            return None, {}
        folder = max(folders, key=lambda f: int(f.rpartition("-")[2]))
    folder = os.path.realpath(folder)
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        return folder, _named(file.read())


def _named(manifest: str | bytes) -> dict[str, list[dict[str, Any]]]:
    """{parameter: its named states}"""
    return {t["name"]: t.get("named_states", []) for t in json.loads(manifest)["tensors"]}


def restore(job: Job, models: list[torch.nn.Module], optimizers: list[Optimizer], path: str,
            convert: bool) -> dict[str, Any] | None:
    # One rank looks, so that all of them restore the same checkpoint.
    found = [None]
    if dist.get_rank() == 0:
        try:
            found = [(*_find(path), None)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as raised:
            found = [(None, {}, f"{path}: the checkpoint's manifest cannot be read: {raised}")]
    dist.broadcast_object_list(found, src=0)
    folder, named, error = found[0]
    if error:
        raise _zero.Error(error)
    if folder is None:
        return None
    return restore_found(job, models, optimizers, folder, named, convert)


def restore_protected(job: Job, models: list[torch.nn.Module], optimizers: list[Optimizer],
                      path: str | None) -> tuple[dict[str, Any] | None, bytes | None]:
    """What restore returns, of the memory of the nodes or of the checkpoint, which is newer; and
    the bytes of this rank."""
    folder, manifest, own = _zero.protect_find(path)
    if folder is None:
        return None, None
    if manifest is None:
        return restore(job, models, optimizers, folder, False), None
    return restore_found(job, models, optimizers, folder, _named(manifest), False), own


def restore_found(job: Job, models: list[torch.nn.Module], optimizers: list[Optimizer],
                  folder: str, named: dict, convert: bool) -> dict[str, Any]:
    # Without optimizers the library does not ask for their states.
    fresh: list[tuple[Optimizer, FlatShard, str, torch.Tensor]] = []
    try:
        error = _make(job, optimizers, named, fresh) if optimizers else None
        _zero.agree(error)
        for param, states in named.items() if optimizers else ():
            for state in states:
                if not state["name"].startswith("zero."):
                    _register_foreign(job, param, state["name"], _TORCH[state["dtype"]],
                                      state["block"] is None)
        _prepare(job, optimizers, named, convert)
        step, user = _zero.restore(folder)
        if convert:
            _prepare(job, optimizers, {}, False)
    finally:
        _forget()
    for param in (p for group in job.groups for p in group.params):
        param.fill()
    user, _, unsharded = user.partition(b"\n")
    said = json.loads(user) if user else {"optimizers": [], "extra": None}
    _unsharded.fill(models, unsharded, job.layout.differs())
    if optimizers:
        _options(optimizers, said["optimizers"])
        for o in optimizers:
            o.state.clear()
        for o, sharded, key, value in fresh:
            o.state[sharded][key] = value.to(_device.device) if _on_device(o) else value
    job.steps.count = step
    return {"path": folder, "step": step, "extra": said["extra"]}


def _prepare(job: Job, optimizers: list[Optimizer], named: dict, convert: bool) -> None:
    """Makes the library's moments those of its optimizers; or of the checkpoint, if there are none
    or with `convert`."""
    own = [o for o in optimizers if isinstance(o, AdamW)]
    if own and not convert:
        states = next((o.states for o in own if o.states is not None), None)
        wanted = _zero.setting("states") == "8bit" if states is None else states
    else:
        wanted = any(s["name"] == "zero.exp_avg" for states in named.values() for s in states)
    for o in own:
        o.choose()
    for param in () if own else (p for group in job.groups for p in group.params):
        if any(state["name"] == "zero.momentum_buffer" for state in named.get(param.name, [])):
            _zero.param_muon(param.handle, True)
    _zero.set_states(int(wanted))


def _make(job: Job, optimizers: list[Optimizer], named: dict, fresh: list) -> str | None:
    """Makes the tensors that the checkpoint has values for. Returns a sentence if it has some that
    none of the optimizers is for."""
    steps = [{p for group in o.param_groups for p in group["params"]} for o in optimizers]
    for param in (p for group in job.groups for p in group.params):
        for state in named.get(param.name, []):
            if state["name"].startswith("zero."):
                continue  # the library's own: moments of 8 bits, or Muon's
            index, _, key = state["name"].partition(".")
            if not index.isdigit() or int(index) >= len(optimizers):
                return (
                    f"the checkpoint has state {state['name']} of {param.name}, of an optimizer "
                    "that was not passed"
                )
            if param.sharded not in steps[int(index)]:
                return (
                    f"the checkpoint has state {key} of {param.name}, which optimizer {index} does "
                    "not step"
                )
            dtype = _TORCH[state["dtype"]]
            if state["block"] is None:
                value = local = torch.zeros((), dtype=dtype, device="cpu")
            else:
                shape = param.sharded._local_tensor.shape
                local = torch.zeros(shape, dtype=dtype, device=_device.device)
                value = FlatShard.wrap(local, param.spec)
            _register(param.handle, state["name"], local, state["block"] is None)
            fresh.append((optimizers[int(index)], param.sharded, key, value))
    return None


def _on_device(optimizer: Optimizer) -> bool:
    """Whether its counts of steps are where the parameters are, as torch has them."""
    return any(g.get("fused") or g.get("capturable") for g in optimizer.param_groups)


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    """What a group of an optimizer has besides its parameters."""
    values = {k: v for k, v in group.items() if k not in ("params", "param_names")}
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            raise NotImplementedError(f"{key} of the optimizer is a tensor; it must be a number")
    return values


def _options(optimizers: list[Optimizer], saved: list[list[dict[str, Any]]]) -> None:
    if [len(o.param_groups) for o in optimizers] != [len(groups) for groups in saved]:
        raise _zero.Error(
            f"the checkpoint has {[len(groups) for groups in saved]} groups of parameters in its "
            f"optimizers, but these have {[len(o.param_groups) for o in optimizers]}"
        )
    for o, groups in zip(optimizers, saved):
        for group, values in zip(o.param_groups, groups):
            for key, value in values.items():
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
