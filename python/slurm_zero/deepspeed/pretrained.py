# SPDX-License-Identifier: Apache-2.0
"""from_pretrained of Transformers under ZeRO-3: it reads the names of the files' tensors alone, and
parameters remember them. Each rank reads its part of the values when initialize shards the
model."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

import torch
from torch import nn

from . import init


def replace_loading(modeling: ModuleType) -> None:
    stock_load = modeling.load_state_dict
    stock_into = getattr(modeling, "_load_state_dict_into_zero3_model", None)
    if stock_into is None or hasattr(stock_load, "__wrapped__"):
        return  # an old one, or done before

    @functools.wraps(stock_load)
    def load_state_dict(checkpoint_file: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        file = os.fspath(checkpoint_file)
        if not (init.Init.used and modeling.is_deepspeed_zero3_enabled()
                and file.endswith(".safetensors")):
            return stock_load(checkpoint_file, *args, **kwargs)
        found = stock_load(checkpoint_file, map_location="meta")
        for key, tensor in found.items():
            tensor._zero_source = init.Source(file=file, key=key)
        return found

    @functools.wraps(stock_into)
    def load_into(model_to_load: nn.Module, state_dict: dict[str, torch.Tensor],
                  load_config: Any = None, *args: Any) -> Any:
        given = {name: t._zero_source for name, t in state_dict.items()
                 if hasattr(t, "_zero_source")}
        mapping = getattr(load_config, "weight_mapping", None) or []
        if len(given) < len(state_dict) or not all(_only_renames(m) for m in mapping):
            for file in dict.fromkeys(source.file for source in given.values()):
                state_dict.update(stock_load(file, "cpu"))
            return stock_into(model_to_load, state_dict, load_config, *args)
        if mapping:
            state_dict = _renamed(model_to_load, state_dict, mapping)
        return [], _note(model_to_load, state_dict)

    modeling.load_state_dict = load_state_dict
    modeling._load_state_dict_into_zero3_model = load_into


def _only_renames(mapping: Any) -> bool:
    """Others make a tensor of several."""
    return type(mapping).__name__ == "WeightRenaming"


def _renamed(model: nn.Module, state_dict: dict[str, Any], mapping: list) -> dict[str, Any]:
    from transformers.integrations import deepspeed

    model._weight_conversions = mapping  # by which Transformers saves
    found: dict[str, Any] = {}
    for part in deepspeed._apply_weight_conversions_to_state_dict(
        model, state_dict.copy(), mapping
    ):
        found.update(part)
    return found


def _note(model: nn.Module, state_dict: dict[str, Any]) -> set[str]:
    """Parameters remember where their values are, and buffers get them. Returns the names that the
    files do not have."""
    own = model.state_dict(keep_vars=True)
    missing, prefix = set(own), getattr(model, "base_model_prefix", "")
    for key, tensor in state_dict.items():
        names = (key, f"{prefix}.{key}", key.removeprefix(f"{prefix}."))
        name = next((n for n in names if n in own), None)
        if name is None:
            continue
        mine, source = own[name], tensor._zero_source
        missing.discard(name)
        mine._is_hf_initialized = True
        if init.source_of(mine) is not None:
            if tuple(tensor.shape) != tuple(mine.ds_shape):
                raise ValueError(
                    f"{source.file}: {key} has the shape {tuple(tensor.shape)}, but {name} of the "
                    f"model has {tuple(mine.ds_shape)}"
                )
            mine._zero_source = source
        else:
            with torch.no_grad():
                mine.copy_(init.read(source.file, source.key))
    return missing
