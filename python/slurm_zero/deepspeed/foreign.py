# SPDX-License-Identifier: Apache-2.0
"""Reads the checkpoints that DeepSpeed itself writes: of ZeRO's stages 0 to 3, by any number of
ranks, and universal ones. Files are mapped, so that a range of a parameter costs as much and no
more, and DeepSpeed need not be installed."""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import torch

from .foreign_files import (  # noqa: F401, find is for callers
    MODEL, OPTIMIZER, CheckpointError, find, load_file, verify_file, written,
)

Tensors = list[torch.Tensor]  # flat, one behind the other

# Of a file of the model; all others are the program's own.
_OWN = {
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd", "skipped_steps",
    "sparse_tensor_module_names", "global_steps", "global_samples", "dp_world_size",
    "mp_world_size", "checkpoint_parallel_dimensions", "ds_config", "ds_version",
    "universal_checkpoint_info",
}


def _attributes(read: Any) -> dict[str, Any]:
    """Of an object of DeepSpeed, if it is one."""
    return dict(vars(read)) if hasattr(read, "__dict__") else {}


def _count(shape: Any) -> int:
    return math.prod(shape)


class Checkpoint:
    """A checkpoint of DeepSpeed. `path` is its folder, as find returns it. That of stage 0
    names no parameters of its optimizer: `order` has the names of each of its groups.

    shapes: {parameter: shape}; frozen: those that no optimizer steps; shared: {name: the name under
    which that parameter is}; buffers: {name: tensor}; states: the optimizer's, as exp_avg; step: of
    the optimizer; groups: its settings, with the key "names"; scheduler: its state_dict or None;
    scaler: the loss scaler's attributes; counts: global_steps and the like"""

    def __init__(self, path: str, order: list[list[str]] | None = None):
        self.path, self.order = path, order
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.frozen: set[str] = set()
        self.states: list[str] = []
        self.step = 0
        self.groups: list[dict[str, Any]] = []
        self.scaler: dict[str, Any] = {}
        self._parts: dict[tuple[str, str], Tensors] = {}
        self.universal = os.path.isdir(os.path.join(path, "zero"))
        try:
            self._read()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} has something else than DeepSpeed writes there: {error!r}"
            ) from error

    def _read(self) -> None:
        path = self.path
        self._model_files = written(path, MODEL)
        if not self._model_files:
            raise CheckpointError(f"{path} has no file *{MODEL}")
        self._models = [load_file(file) for file in self._model_files]
        self._check_models()
        model = self._models[0]
        buffers = set(model["buffer_names"] or ())
        self.buffers = {n: v for n, v in model["module"].items() if n in buffers}
        self.shared: dict[str, str] = dict(model.get("shared_params") or {})
        self.scheduler = model.get("lr_scheduler")
        self.counts = {key: model[key] for key in (
            "global_steps", "global_samples", "skipped_steps"
        ) if key in model}
        self._optimizer_files = [] if self.universal else written(path, OPTIMIZER)
        if self.universal:
            self._read_universal()
        elif model.get("param_shapes") is None:
            self._read_unsharded(model)
        else:
            self._read_shards()
        self._read_others(model)

    def read(self, name: str, what: str = "fp32", first: int = 0,
             end: int | None = None) -> torch.Tensor:
        """The elements [first, end) of the flat parameter or of a state; of 16 bits as f32."""
        end = _count(self.shapes[name]) if end is None else end
        if (name, what) not in self._parts:
            raise CheckpointError(f"{self.path} has no {what} of {name}")
        found, at = [], 0
        for part in self._parts[name, what]:
            low, high = max(first, at), min(end, at + part.numel())
            if low < high:
                found.append(part[low - at : high - at])
            at += part.numel()
        made = torch.cat(found) if found else torch.empty(0)
        if made.numel() != end - first:
            raise CheckpointError(
                f"{self.path} has {at} elements of {what} of {name}, not {end}"
            )
        return made.float() if made.dtype in (torch.float16, torch.bfloat16) else made

    def stored(self, name: str) -> torch.dtype:
        return next((part.dtype for part in self._parts[name, "fp32"]), torch.float32)

    def has(self, name: str, what: str) -> bool:
        return (name, what) in self._parts

    def client_state(self, rank: int = 0) -> dict[str, Any]:
        """What the program has saved beside the model, by the rank or, if that had no file, 0."""
        model = self._models[rank if rank < len(self._models) else 0]
        return {key: value for key, value in model.items() if key not in _OWN}

    def verify(self, rank: int = 0, world: int = 1) -> None:
        """Reads all files, of which this rank takes its part, and compares their sums."""
        files = self._model_files + self._optimizer_files
        if self.universal:
            files += sorted(glob.glob(os.path.join(glob.escape(self.path), "zero", "**", "*.pt"),
                                      recursive=True))
        for file in files[rank::world]:
            verify_file(file)

    # -- what all formats have

    def _check_models(self) -> None:
        first = self._models[0]
        for file, model in zip(self._model_files, self._models):
            if not isinstance(model, dict) or "module" not in model:
                raise CheckpointError(f"{file} has no model")
            if model.get("mp_world_size", 1) != 1 or "mp_rank_00" not in os.path.basename(file):
                raise CheckpointError(
                    f"{file} is of a model that is split over ranks (mp_world_size is "
                    f"{model.get('mp_world_size')}), which is not supported"
                )
            for key in ("global_steps", "param_shapes", "dp_world_size"):
                if model.get(key) != first.get(key):
                    raise CheckpointError(
                        f"{file} is of another checkpoint than {self._model_files[0]}: their {key} "
                        "differ"
                    )
        by_ranks = os.path.basename(self._model_files[0]).startswith("zero_pp_rank")
        ranks = first.get("dp_world_size", len(self._models)) if by_ranks else 1
        if len(self._models) != ranks:
            raise CheckpointError(
                f"{self.path} has {len(self._models)} files *{MODEL}, but {ranks} ranks wrote it"
            )

    def _add(self, name: str, shape: Any, what: str, parts: Tensors) -> None:
        self.shapes[name] = tuple(shape)
        self._parts[name, what] = parts
        if what != "fp32" and what not in self.states:
            self.states.append(what)

    def _read_others(self, model: dict[str, Any]) -> None:
        """Parameters that the optimizer does not step, as they are stored."""
        shapes = dict(model.get("frozen_param_shapes") or {})
        if not shapes:
            shapes = {n: v.shape for n, v in model["module"].items() if isinstance(v, torch.Tensor)}
        known = [*self.shapes, *self.shared, *self.buffers]
        shapes = {name: shape for name, shape in shapes.items() if name not in known}
        for name, shape in shapes.items():
            if len(self._models) == 1:
                whole = (model.get("frozen_param_fragments") or {}).get(name)
                whole = model["module"].get(name) if whole is None else whole
                parts = [] if whole is None else [whole.reshape(-1)]
            else:
                parts = [m["frozen_param_fragments"][name].reshape(-1) for m in self._models]
            if sum(p.numel() for p in parts) < _count(shape):
                raise CheckpointError(f"{self._model_files[0]} has not all of {name}")
            self._add(name, shape, "fp32", parts)
            self.frozen.add(name)

    def _take_groups(self, optimizer: dict[str, Any], names: list[Any]) -> None:
        """The settings of the optimizer's groups. Each of its parameters has all of names[i]."""
        self.groups = [
            {**group, "names": [name for i in group["params"] for name in names[i]]}
            for group in optimizer["param_groups"]
        ]

    # -- shards of a stage

    def _read_shards(self) -> None:
        states = [load_file(file) for file in self._optimizer_files]
        if not states:
            raise CheckpointError(f"{self.path} has no file *{OPTIMIZER}")
        shards = [state["optimizer_state_dict"] for state in states]
        key = "fp32_flat_groups" if "fp32_flat_groups" in shards[0] else (
            "single_partition_of_fp32_groups")
        bases = [s.get("base_optimizer_state") or s["optimizer_state_dict"] for s in shards]
        flats = [s[key] for s in shards]
        ranks = shards[0]["partition_count"]
        ranks = set(ranks) if isinstance(ranks, (list, tuple)) else {ranks}
        if ranks != {len(shards)}:
            raise CheckpointError(
                f"{self.path} has {len(shards)} files *{OPTIMIZER}, but {max(ranks)} ranks wrote "
                "it: one is missing, or one is of an earlier save"
            )
        for number, file in enumerate(self._optimizer_files):
            if not re.search(f"zero_pp_rank_{number}_mp_rank_00_", os.path.basename(file)):
                raise CheckpointError(f"{self.path} has no file of rank {number}: it has {file}")
        if not all(isinstance(base, dict) for base in bases):
            raise CheckpointError(
                f"{self._optimizer_files[0]} is an elastic checkpoint, which is not supported: "
                "convert it with ds_to_universal.py"
            )
        self._same_steps(bases)
        self.scaler = _attributes(shards[0].get("loss_scaler"))
        shapes = self._models[0]["param_shapes"]
        if any(len(flat) != len(shapes) for flat in flats):
            raise CheckpointError(
                f"{self._optimizer_files[0]} has {len(flats[0])} groups, and the model's file has "
                f"{len(shapes)}"
            )
        self._take_groups(bases[0], shapes)
        for g, of_group in enumerate(shapes):
            every = {"fp32": [flat[g].reshape(-1) for flat in flats]}
            kept = [base["state"].get(g, {}) for base in bases]
            for what, value in kept[0].items():
                if isinstance(value, torch.Tensor) and value.numel() > 1 or what in (
                    "exp_avg", "exp_avg_sq"
                ):
                    every[what] = [k[what].reshape(-1) for k in kept]
            if key == "fp32_flat_groups":
                self._cut_stage3(g, of_group, every)
            else:
                self._cut_group(g, of_group, every, shards)

    def _same_steps(self, bases: list[dict[str, Any]]) -> None:
        steps = {}
        for file, base in zip(self._optimizer_files, bases):
            found = {int(s["step"]) for s in base["state"].values() if "step" in s}
            found |= {int(g["step"]) for g in base["param_groups"] if "step" in g}
            steps[file] = found
            self.step = max(found, default=self.step)
        first = steps[self._optimizer_files[0]]
        for file, found in steps.items():
            if found != first:
                raise CheckpointError(
                    f"{file} is of step {sorted(found)}, and {self._optimizer_files[0]} of "
                    f"{sorted(first)}: they are of different saves"
                )

    def _cut_stage3(self, group: int, shapes: dict[str, Any], every: dict[str, Tensors]) -> None:
        """Each rank has an even part of each parameter, one behind the other."""
        ranks, at = len(every["fp32"]), 0
        for name, shape in shapes.items():
            size = -(-_count(shape) // ranks)
            for what, parts in every.items():
                self._add(name, shape, what, [p[at : at + size] for p in parts])
            at += size
        for parts in every.values():
            for file, part in zip(self._optimizer_files, parts):
                if part.numel() != at:
                    raise CheckpointError(
                        f"{file} has {part.numel()} elements of group {group}, not {at}"
                    )

    def _cut_group(self, group: int, shapes: dict[str, Any], every: dict[str, Tensors],
                   shards: list[dict[str, Any]]) -> None:
        """Ranks have even parts of a group's parameters, which lie one behind the other."""
        size = self._part_size(group, every, shards)
        paddings = (shards[0].get("param_alignment_paddings") or {group: [0] * len(shapes)})[group]
        at = 0
        for (name, shape), padding in zip(shapes.items(), paddings, strict=True):
            end = at + _count(shape)
            ranges = [(r, max(at, r * size) - r * size, min(end, (r + 1) * size) - r * size)
                      for r in range(at // size, -(-end // size))]
            for rank, low, high in ranges:
                self._check_place(rank, group, name, low, high, shards[rank])
            for what, parts in every.items():
                self._add(name, shape, what, [parts[r][low:high] for r, low, high in ranges])
            at = end + padding
        if at > size * len(shards) or any(
            sum(p.numel() for p in self._parts[name, what]) != _count(shape)
            for name, shape in shapes.items() for what in every
        ):
            raise CheckpointError(
                f"{self._optimizer_files[0]} and the other ranks' have not all elements of group "
                f"{group}, of which each rank has {size}"
            )

    def _part_size(self, group: int, every: dict[str, Tensors],
                   shards: list[dict[str, Any]]) -> int:
        """Elements of each rank. f32 values may be without the padding at the end."""
        if "exp_avg" in every:
            return max(1, every["exp_avg"][0].numel())
        sizes = [part.numel() for part in every["fp32"]]
        padded = [n + shard["group_paddings"][group] for n, shard in zip(sizes, shards)]
        return max(1, (padded if len(set(padded)) == 1 else sizes)[0])

    def _check_place(self, rank: int, group: int, name: str, low: int, high: int,
                     shard: dict[str, Any]) -> None:
        mappings = shard.get("param_slice_mappings")
        if not mappings:
            return
        place = mappings[group].get(name)
        found = None if place is None else (place.start, place.start + place.numel)
        if found != (low, high) and low < high:
            raise CheckpointError(
                f"{self._optimizer_files[rank]} has elements {found} of {name}, where rank {rank} "
                f"has {(low, high)}: it has another rank's data, or is of another save"
            )

    # -- other formats

    def _read_unsharded(self, model: dict[str, Any]) -> None:
        """Of stage 0: the model as it is computed with, and the optimizer's states by number."""
        for name, value in model["module"].items():
            if name not in self.buffers and isinstance(value, torch.Tensor):
                self._add(name, value.shape, "fp32", [value.reshape(-1)])
        optimizer = model.get("optimizer")
        if not optimizer or self.order is None:
            return
        if "fp32_groups_flat" in optimizer:
            raise CheckpointError(
                f"{self._model_files[0]} has the masters of a fused optimizer at stage 0, which "
                "are not supported"
            )
        base = optimizer.get("optimizer_state_dict", optimizer)
        if "cur_scale" in optimizer:
            self.scaler = {k: v for k, v in optimizer.items() if not isinstance(v, (dict, list))}
        groups, masters = base["param_groups"], optimizer.get("fp32_groups")
        if [len(names) for names in self.order] != [len(group["params"]) for group in groups]:
            raise CheckpointError(
                f"{self._model_files[0]} has groups of {[len(g['params']) for g in groups]} "
                f"parameters in its optimizer, not of {[len(names) for names in self.order]}"
            )
        self.groups = [{**group, "names": names} for group, names in zip(groups, self.order)]
        for g, group in enumerate(self.groups):
            for i, name in enumerate(group["names"]):
                found = dict(base["state"].get(group["params"][i], {}))
                self.step = max(self.step, int(found.pop("step", 0)))
                if masters:
                    found["fp32"] = masters[g][i]
                for what, value in found.items():
                    if tuple(value.shape) != self.shapes[name]:
                        raise CheckpointError(
                            f"{self._model_files[0]} has {what} of the shape {tuple(value.shape)} "
                            f"for {name}: its optimizer has another order"
                        )
                    self._add(name, value.shape, what, [value.reshape(-1)])

    def _read_universal(self) -> None:
        folder = os.path.join(self.path, "zero")
        shapes = {n: s for g in self._models[0].get("param_shapes") or () for n, s in g.items()}
        frozen = self._models[0].get("frozen_param_shapes") or {}
        for name, files in _universal_folders(folder):
            if name in self.shared or name in self.buffers:
                continue
            shape = shapes.get(name, frozen.get(name))
            if name not in shapes:
                self.frozen.add(name)
            for what, file in files.items():
                if what == "step":
                    self.step = max(self.step, int(load_file(file)))
                    continue
                value = load_file(file)
                value = value["param"] if isinstance(value, dict) else value
                shape = value.shape if shape is None else shape
                if value.numel() != _count(shape):
                    raise CheckpointError(
                        f"{file} has {value.numel()} elements of {name}, not {_count(shape)}"
                    )
                self._add(name, shape, what, [value.reshape(-1)])
        lost = [name for name in shapes if not self.has(name, "fp32")]
        if lost:
            raise CheckpointError(f"{folder} has no fp32.pt of {lost[0]}")
        path = os.path.join(folder, "optimizer_state.pt")
        if not os.path.exists(path):
            return
        state = load_file(path)
        base = state.get("base_optimizer_state") or state.get("optimizer_state_dict") or state
        for found in base.get("state", {}).values():
            self.step = max(self.step, int(found.get("step", 0)))
        self.scaler = _attributes(state.get("loss_scaler"))
        self._take_groups(base, self._models[0]["param_shapes"])


def _universal_folders(folder: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(parameter, {"fp32": file, ...})"""
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield name, {
                file.removesuffix(".pt"): os.path.join(path, file)
                for file in sorted(os.listdir(path)) if file.endswith(".pt")
            }
