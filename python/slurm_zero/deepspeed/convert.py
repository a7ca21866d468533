# SPDX-License-Identifier: Apache-2.0
"""Whole f32 values of a checkpoint of DeepSpeed or slurm_zero, for programs that have neither. The
functions have the names and arguments of DeepSpeed's zero_to_fp32."""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import re
import struct
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .. import _checkpoint, _unsharded
from . import foreign
from .foreign_files import CheckpointError, find, latest

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "": 1}


class Own:
    """A checkpoint of zero.save, read as foreign.Checkpoint is."""

    def __init__(self, path: str):
        with open(os.path.join(path, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        self.path = path
        self.shapes = {t["name"]: tuple(t["shape"]) for t in manifest["tensors"]}
        self._dtypes = {t["name"]: _unsharded.DTYPES[t["dtype"]] for t in manifest["tensors"]}
        self._files = [_Safetensors(os.path.join(path, f["name"])) for f in manifest["files"]]
        with open(os.path.join(path, "user"), "rb") as file:
            extra = json.loads(file.readline())["extra"]
            self.buffers: dict[str, torch.Tensor] = torch.load(file, weights_only=True)
        extra = extra if isinstance(extra, dict) else {}
        self.shared: dict[str, str] = extra.get("shared_params", {})
        self.frozen = set(extra.get("frozen", ()))

    def read(self, name: str) -> torch.Tensor:
        """The flat parameter; of 16 bits as its f32 master."""
        keys = f"master/{name}", f"param/{name}"
        key = next((k for k in keys if any(k in f.header for f in self._files)), keys[-1])
        parts = [f.tensor(key) for f in self._files if key in f.header]
        found = torch.cat(parts) if parts else torch.empty(0)
        if found.numel() != math.prod(self.shapes[name]):
            raise CheckpointError(
                f"{self.path} has {found.numel()} elements of {name}, not "
                f"{math.prod(self.shapes[name])}"
            )
        return found

    def stored(self, name: str) -> torch.dtype:
        return self._dtypes[name]


class _Safetensors:
    def __init__(self, path: str):
        self.path = path
        with open(path, "rb") as file:
            self.header = _unsharded._header(file)
            self._begin = file.tell()
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def tensor(self, key: str) -> torch.Tensor:
        """Mapped"""
        entry = self.header[key]
        first, end = entry["data_offsets"]
        if self._begin + end > len(self._map):
            raise CheckpointError(f"{self.path} is truncated: {key} is not all there")
        dtype = _unsharded.DTYPES[entry["dtype"]]
        count = math.prod(entry["shape"])
        if not count:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=self._begin + first)


def described(module: nn.Module) -> dict[str, Any]:
    """What an Own finds in the `extra` of zero.save: the other names of tied parameters, and the
    parameters that are frozen."""
    first = {p: name for name, p in module.named_parameters()}
    named = dict(module.named_parameters(remove_duplicate=False))
    return {
        "shared_params": {name: first[p] for name, p in named.items() if first[p] != name},
        "frozen": [name for p, name in first.items() if not p.requires_grad],
    }


def open_checkpoint(folder: str, tag: str | None = None) -> Any:
    """A foreign.Checkpoint or an Own, by its tag or what the file `latest` says."""
    path = find(folder, tag)
    if path is not None:
        found = foreign.Checkpoint(path)
        found.verify()
        return found
    if tag is None:
        tag = latest(folder)
    path, _ = _checkpoint._find(os.path.join(folder, tag or ""))
    if path is None:
        raise CheckpointError(
            f"{os.path.join(folder, tag or '')} has no checkpoint, of DeepSpeed or slurm_zero"
        )
    return Own(path)


class Lazy:
    """A parameter that contiguous() reads."""

    def __init__(self, found: Any, name: str):
        self._found, self._name = found, name
        stored = found.stored(name)
        self.dtype = torch.float32 if stored.is_floating_point else stored
        self.shape = torch.Size(found.shapes[name])

    def contiguous(self) -> torch.Tensor:
        return self._found.read(self._name).to(self.dtype).view(self.shape)


def _named(found: Any, exclude_frozen: bool) -> dict[str, Any]:
    """{name: a Lazy, or a buffer}; tied parameters are one object."""
    named: dict[str, Any] = {
        name: value.float() if value.is_floating_point() else value
        for name, value in found.buffers.items()
    }
    for name in found.shapes:
        if not (exclude_frozen and name in found.frozen):
            named[name] = Lazy(found, name)
    named.update({n: named[of] for n, of in found.shared.items() if of in named})
    return named


def get_fp32_state_dict_from_zero_checkpoint(
        checkpoint_dir: str, tag: str | None = None, exclude_frozen_parameters: bool = False,
        lazy_mode: bool = False) -> dict[str, Any]:
    """{name: f32 tensor}; with `lazy_mode` of objects whose contiguous() reads the tensor."""
    named = _named(open_checkpoint(checkpoint_dir, tag), exclude_frozen_parameters)
    return named if lazy_mode else _read(named)


def _read(named: dict[str, Any]) -> dict[str, torch.Tensor]:
    made: dict[int, torch.Tensor] = {}
    for value in named.values():
        if id(value) not in made:
            made[id(value)] = value.contiguous()
    return {name: made[id(value)] for name, value in named.items()}


def load_state_dict_from_zero_checkpoint(model: nn.Module, checkpoint_dir: str,
                                         tag: str | None = None) -> nn.Module:
    """Fills a model that is not sharded, on the CPU."""
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag),
                          strict=False)
    return model


def convert_zero_checkpoint_to_fp32_state_dict(
        checkpoint_dir: str, output_dir: str, max_shard_size: str | int | None = "5GB",
        safe_serialization: bool = False, tag: str | None = None,
        exclude_frozen_parameters: bool = False) -> None:
    """Writes pytorch_model.bin, or model.safetensors, or several of them with an index if they are
    larger than max_shard_size, as Transformers reads them."""
    named = _named(open_checkpoint(checkpoint_dir, tag), exclude_frozen_parameters)
    stem, end = ("model", ".safetensors") if safe_serialization else ("pytorch_model", ".bin")
    limit = None if max_shard_size is None else _bytes(max_shard_size)
    files = list(_split(named, limit, safe_serialization))
    os.makedirs(output_dir, exist_ok=True)
    index: dict[str, str] = {}
    for number, shard in enumerate(files, 1):
        part = f"-{number:05d}-of-{len(files):05d}" if len(files) > 1 else ""
        index.update(dict.fromkeys(shard, f"{stem}{part}{end}"))
        path = os.path.join(output_dir, f"{stem}{part}{end}")
        if safe_serialization:
            _write_safetensors(shard, f"{path}.new")
        else:
            torch.save(_read(shard), f"{path}.new")
        os.replace(f"{path}.new", path)
    if len(files) > 1:
        total = sum(_size(value) for shard in files for value in shard.values())
        with open(os.path.join(output_dir, f"{stem}{end}.index.json"), "w",
                  encoding="utf-8") as file:
            json.dump({"metadata": {"total_size": total}, "weight_map": index}, file, indent=2,
                      sort_keys=True)


def _bytes(size: str | int) -> int:
    found = re.fullmatch(r"([0-9]+)\s*([KMGT]?B?)", str(size).upper())
    if not found or found[2] not in _UNITS:
        raise ValueError(f"max_shard_size is {size!r}; it must be a number of bytes, as 5GB")
    return int(found[1]) * _UNITS[found[2]]


def _size(value: Any) -> int:
    return math.prod(value.shape) * value.dtype.itemsize


def _split(named: dict[str, Any], limit: int | None, copied: bool) -> Iterator[dict[str, Any]]:
    """What is tied is in one file, and its bytes are there once unless they are `copied`."""
    names: dict[int, list[str]] = {}
    for name, value in named.items():
        names.setdefault(id(value), []).append(name)
    shard: dict[str, Any] = {}
    used = 0
    for own in names.values():
        size = _size(named[own[0]]) * (len(own) if copied else 1)
        if shard and limit is not None and used + size > limit:
            yield shard
            shard, used = {}, 0
        shard.update((name, named[name]) for name in own)
        used += size
    yield shard


def _write_safetensors(shard: dict[str, Any], path: str) -> None:
    of_dtype = {dtype: name for name, dtype in _unsharded.DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, value in shard.items():
        end = at + _size(value)
        header[name] = {"dtype": of_dtype[value.dtype], "shape": list(value.shape),
                        "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in shard.values():
            value = value.contiguous()
            if value.numel():
                file.write(memoryview(value.reshape(-1).view(torch.uint8).numpy()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(
        "Writes the f32 values of a checkpoint of DeepSpeed or slurm-zero, for Transformers, or "
        "torch.load and load_state_dict."
    ))
    parser.add_argument("checkpoint_dir", help="the folder that save_checkpoint was given")
    parser.add_argument("output_dir", help="where the files are written")
    parser.add_argument("--max_shard_size", default="5GB", help="bytes of a file at most")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors")
    parser.add_argument("-t", "--tag", help="that of the checkpoint, in the place of the latest")
    parser.add_argument("--exclude_frozen_parameters", action="store_true",
                        help="leave out what was not trained")
    parser.add_argument("-d", "--debug", action="store_true", help="ignored")
    options = vars(parser.parse_args())
    options.pop("debug")
    convert_zero_checkpoint_to_fp32_state_dict(**options)
