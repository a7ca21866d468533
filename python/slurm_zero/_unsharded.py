# SPDX-License-Identifier: Apache-2.0
"""What a model has besides its sharded parameters, whole on each rank: persistent buffers, and
parameters that fully_shard ignores or was not given. Rank 0's are saved, as the program's own
bytes."""

import io
import json
import os
import struct
from typing import IO, Any

import torch
from torch import nn

from . import _zero

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}


def tensors(models: list[nn.Module]) -> dict[str, torch.Tensor]:
    """{name: tensor}. Classes of tensors have rules of their own, and are left out."""
    found = {}
    for index, top in enumerate(models):
        for path, module in top.named_modules():
            path = (f"{index}:" if index else "") + (f"{path}." if path else "")
            for name, tensor in (*module._buffers.items(), *module._parameters.items()):
                plain = type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_meta
                if plain and name not in module._non_persistent_buffers_set:
                    found[path + name] = tensor
    return found


def copies(models: list[nn.Module]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors(models).items()}


def dump(found: dict[str, torch.Tensor]) -> bytes:
    """Bytes that fill() reads."""
    file = io.BytesIO()
    torch.save(found, file)
    return file.getvalue()


def fill(models: list[nn.Module], dumped: bytes, partly: bool) -> None:
    """`partly`: other ranks have other modules."""
    mine = tensors(models)
    saved = torch.load(io.BytesIO(dumped), weights_only=True) if dumped else {}
    if partly:
        saved = {name: value for name, value in saved.items() if name in mine}
    for name, value in saved.items():
        if name not in mine or mine[name].shape != value.shape:
            has = "is not there, or is sharded"
            if name in mine:
                has = f"is {tuple(mine[name].shape)} there"
            raise _zero.Error(
                f"the checkpoint has {name} of {tuple(value.shape)}, which {has} in this model"
            )
    with torch.no_grad():
        for name, value in saved.items():
            mine[name].copy_(value)


# -- safetensors


def names_in(path: str) -> dict[str, str]:
    """{tensor: its file} of a safetensors file or folder; empty if the library has to say what is
    wrong."""
    index = path
    if not path.endswith(".index.json"):
        index = os.path.join(path, "model.safetensors.index.json")
    try:
        if os.path.exists(index):
            with open(index, encoding="utf-8") as file:
                folder = os.path.dirname(index)
                files = json.load(file)["weight_map"]
                return {name: os.path.join(folder, of) for name, of in files.items()}
        if os.path.isdir(path):
            path = os.path.join(path, "model.safetensors")
        with open(path, "rb") as file:
            return dict.fromkeys(_header(file).keys() - {"__metadata__"}, path)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, struct.error):
        return {}


def _header(file: IO[bytes]) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", file.read(8))
    return json.loads(file.read(min(length, 1 << 27)))


def read(path: str, name: str, tensor: torch.Tensor) -> None:
    """Fills it from a file, whose header the library has checked."""
    with open(path, "rb") as file:
        entry = _header(file)[name]
        begin, end = entry["data_offsets"]
        data = bytearray(end - begin)
        file.seek(begin, os.SEEK_CUR)
        if entry["dtype"] not in DTYPES:
            raise ValueError(
                f"{path}: {name} is {entry['dtype']}; what is not sharded must be one of "
                f"{', '.join(DTYPES)}"
            )
        if file.readinto(data) < len(data):
            raise ValueError(f"{path}: {name} reaches beyond the end of the file")
    value = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]]) if data else torch.empty(0)
    if list(tensor.shape) != entry["shape"]:
        raise ValueError(
            f"{path}: {name} is {entry['shape']}, and {list(tensor.shape)} in the model"
        )
    tensor.copy_(value.view(entry["shape"]))
