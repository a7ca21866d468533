# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of parameters and optimizers: an optimizer's tensors are named states beside the
library's parameters, so that they are saved from where they are, and restored for another number of
ranks, another stage and other groups."""

import json
import os
import re

import torch
import torch.distributed as dist

from . import _unsharded, _zero
from ._adamw import AdamW
from ._tensor import FlatShard

_TORCH = {name: dtype for name, dtype in _unsharded.DTYPES.items() if hasattr(_zero, name)}
_DTYPES = {dtype: name for name, dtype in _TORCH.items()}
# States of a save in the background, which keeps them until the next save or restore: [(handle,
# name, tensor)].
_kept = []


def _optimizers(optimizer):
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]


def _forget():
    while _kept:
        handle, name, _ = _kept.pop()
        _zero.state_unregister(handle, name)


def _register(handle, name, tensor, whole):
    address = tensor.data_ptr() if tensor.numel() else 0
    _zero.state_register(handle, name, getattr(_zero, _DTYPES[tensor.dtype]), whole, address)
    _kept.append((handle, name, tensor))


def _states(job, optimizers):
    """Yields (param, name of the state, local tensor, whether it is one value for the parameter)."""
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
                elif value.dim() == 0 and value.device.type == "cpu":
                    yield param, name, value, True
                else:
                    raise NotImplementedError(
                        f"{what} has the shape {tuple(value.shape)}; it must be one value or sharded"
                    )


def recut(optimizer):
    """What Optimizer.load_state_dict was given as whole tensors or as even DTensors is cut as the
    parameters are. All ranks call it."""
    for p, states in optimizer.state.items():
        if isinstance(p, FlatShard):
            for key, value in states.items():
                if key != "step" and isinstance(value, torch.Tensor) and value.shape == p.shape:
                    states[key] = p._cut.recut(value)


def save(job, model, optimizer, folder, extra=None, keep_last=0, background=False):
    optimizers = _optimizers(optimizer)
    text = json.dumps(
        {
            "optimizers": [[_hyper(group) for group in o.param_groups] for o in optimizers],
            "extra": extra,
        }
    )
    _forget()
    error = None
    try:
        user = text.encode() + b"\n" + (_unsharded.dump(model) if dist.get_rank() == 0 else b"")
        for param, name, tensor, whole in _states(job, optimizers):
            if not tensor.is_contiguous():
                raise NotImplementedError(f"state {name} of {param.name} is not contiguous")
            _register(param.handle, name, tensor, whole)
    except Exception as raised:
        error = raised
    try:
        _zero.agree(error and str(error))
        _zero.save(os.fspath(folder), user, job.steps, keep_last, background)
    except _zero.Error:
        _forget()
        if error:
            raise error from None
        raise
    if not background:
        _forget()


def _find(path):
    """(folder of the checkpoint or None, {parameter: its named states}), found as the library does"""

    def is_one(folder):
        return os.path.exists(os.path.join(folder, "manifest.json"))

    folder = os.fspath(path)
    if not is_one(folder):
        folder = os.path.join(folder, "latest")
    if not is_one(folder):
        # The link is not there, or dangles.
        entries = os.listdir(path) if os.path.isdir(path) else []
        steps = [int(e[5:]) for e in entries if re.fullmatch("step-[0-9]{9,}", e) and is_one(os.path.join(path, e))]
        if not steps:
            return None, {}
        folder = os.path.join(path, f"step-{max(steps):09d}")
    folder = os.path.realpath(folder)
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        tensors = json.load(file)["tensors"]
    return folder, {t["name"]: t.get("named_states", []) for t in tensors}


def restore(job, model, optimizer, path, convert):
    optimizers = _optimizers(optimizer)
    _forget()
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
    # Without optimizers the library does not ask for their states.
    fresh = []
    try:
        error = _make(job, optimizers, named, fresh) if optimizers else None
        _zero.agree(error)
        _prepare(job, optimizers, named, convert)
        step, user = _zero.restore(folder)
        if convert:
            _prepare(job, optimizers, {}, False)
    finally:
        _forget()
    user, _, unsharded = user.partition(b"\n")
    said = json.loads(user) if user else {"optimizers": [], "extra": None}
    _unsharded.fill(model, unsharded)
    if optimizers:
        _options(optimizers, said["optimizers"])
        for o in optimizers:
            o.state.clear()
        for o, sharded, key, value in fresh:
            o.state[sharded][key] = value
    job.steps = step
    return {"path": folder, "step": step, "extra": said["extra"]}


def _prepare(job, optimizers, named, convert):
    """Makes the library's moments those of its optimizers; or of the checkpoint, if there are none or
    with `convert`."""
    own = [o for o in optimizers if isinstance(o, AdamW)]
    if own and not convert:
        states = next((o.states for o in own if o.states is not None), None)
        wanted = _zero.setting("states") == "8bit" if states is None else states
    else:
        wanted = any(state["name"] == "zero.exp_avg" for states in named.values() for state in states)
    for o in own:
        o.choose()
    for param in () if own else (p for group in job.groups for p in group.params):
        if any(state["name"] == "zero.momentum_buffer" for state in named.get(param.name, [])):
            _zero.param_muon(param.handle)
    _zero.set_states(int(wanted))


def _is_own(state):
    """Whether a named state is the library's: moments of 8 bits, or Muon's."""
    return state["name"].startswith("zero.")


def _make(job, optimizers, named, fresh):
    """Makes the tensors that the checkpoint has values for. Returns a sentence if it has some that
    none of the optimizers is for."""
    steps = [{p for group in o.param_groups for p in group["params"]} for o in optimizers]
    for param in (p for group in job.groups for p in group.params):
        for state in named.get(param.name, []):
            if _is_own(state):
                continue
            index, _, key = state["name"].partition(".")
            if not index.isdigit() or int(index) >= len(optimizers):
                return (
                    f"the checkpoint has state {state['name']} of {param.name}, of an optimizer that "
                    "was not passed"
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
                local = torch.zeros(param.sharded._local_tensor.shape, dtype=dtype, device="cpu")
                value = FlatShard.wrap(local, param.cut)
            _register(param.handle, state["name"], local, state["block"] is None)
            fresh.append((optimizers[int(index)], param.sharded, key, value))
    return None


def _hyper(group):
    """What a group of an optimizer has besides its parameters."""
    values = {k: v for k, v in group.items() if k not in ("params", "param_names")}
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            raise NotImplementedError(f"{key} of the optimizer is a tensor; it must be a number")
    return values


def _options(optimizers, saved):
    if [len(o.param_groups) for o in optimizers] != [len(groups) for groups in saved]:
        raise _zero.Error(
            f"the checkpoint has {[len(groups) for groups in saved]} groups of parameters in its "
            f"optimizers, but these have {[len(o.param_groups) for o in optimizers]}"
        )
    for o, groups in zip(optimizers, saved):
        for group, values in zip(o.param_groups, groups):
            for key, value in values.items():
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
