# SPDX-License-Identifier: Apache-2.0
"""What slurm_zero supports of DeepSpeed's configuration, and what becomes of its keys. Whatever is
not in these tables is left to DeepSpeed, with a sentence that names it."""

from __future__ import annotations

import base64
import os
import urllib.parse
from collections.abc import Iterator
from typing import Any

import hjson  # which DeepSpeed needs
import torch

from .. import _overlay, _start
from . import optimizer

# Versions of DeepSpeed that the tests were run with: from the first to before the last.
VERSIONS = ((0, 18), (0, 20))

ANY = object()  # DeepSpeed's own code reads it, or it has no effect here
NOT = (None, False)
ON_HOST = ("none", "cpu", *NOT)

_OFFLOAD = {"device": ON_HOST, "super_offload": NOT, "ratio": (1,), "*": ANY}
# The values that are allowed for a key; a table for those of a section, in which "*" is any other
# key. A section with `enabled` false counts as absent.
SUPPORTED: dict[str, Any] = {
    **dict.fromkeys((
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
        "gradient_clipping", "scheduler", "steps_per_print", "dataloader_drop_last", "log_level",
        "dump_state", "memory_breakdown", "wall_clock_breakdown", "timers", "disable_python_gc",
        "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "disable_allgather",
        "communication_data_type", "seq_parallel_communication_data_type", "data_types",
        "prescale_gradients", "gradient_predivide_factor", "managed_gradient_accumulation",
        "tensorboard", "wandb", "comet", "csv_monitor", "aio",
    ), ANY),
    "gradient_allreduce_op": ("mean", "avg"),
    "optimizer": {"type": ANY, "params": ANY, "legacy_fusion": NOT},
    "fp16": {"fp16_master_weights_and_grads": NOT, "*": ANY},
    **dict.fromkeys(("bf16", "bfloat16"), {
        "bf16_master_weights_and_grads": NOT, "bf16_optimizer_states": NOT, "*": ANY,
    }),
    "checkpoint": {"use_node_local_storage": NOT, "writer": NOT, "*": ANY},
    "activation_checkpointing": {"partition_activations": NOT, "*": ANY},
    "zero_optimization": {
        "stage": (0, 1, 2, 3), "offload_optimizer": _OFFLOAD, "offload_param": _OFFLOAD,
        "cpu_offload": ANY, "cpu_offload_param": ANY,
        "zero_hpz_partition_size": (0, 1), "mics_shard_size": (-1, 0, 1),
        "mics_hierarchical_params_gather": NOT, "zero_quantized_weights": NOT,
        "zero_quantized_nontrainable_weights": NOT, "zero_quantized_gradients": NOT,
        "zeropp_loco_param": NOT, "zenflow": NOT, "compute_grad_norm": ANY, "*": ANY,
    },
    "tensor_parallel": {"autotp_size": (0, 1), "*": ANY},
    "sequence_parallel_size": (1,), "data_parallel_size": ANY,
}
# Adam's of the configuration; other optimizers are those of torch.optim.
ADAM = {
    "bias_correction": (True,), "amsgrad": NOT,
    **dict.fromkeys(("lr", "betas", "eps", "weight_decay", "torch_adam", "adam_w_mode", "fused",
                     "foreach", "fp32_optimizer_states", "set_grad_none"), ANY),
}


def read(config: Any, args: Any = None) -> dict[str, Any]:
    """The configuration as initialize and zero.Init take it. Raises no error for what DeepSpeed has
    a sentence for."""
    if config is None:
        config = getattr(args, "deepspeed_config", None)
    if isinstance(config, (str, os.PathLike)):
        try:
            if os.path.isfile(config):
                with open(config, encoding="utf-8") as file:
                    config = hjson.load(file)
            else:
                config = hjson.loads(base64.urlsafe_b64decode(config).decode())
        except (OSError, ValueError):
            return {}
    return dict(config) if isinstance(config, dict) else {}


def _unsupported(values: dict[str, Any], table: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in values.items():
        name, allowed = f"{path}{key}", table.get(key, table.get("*", NOT))
        if value == "auto" or allowed is ANY:
            continue
        if isinstance(value, dict):
            if value.get("enabled", bool(value)) in (False, "auto"):
                continue
            if isinstance(allowed, dict):
                yield from _unsupported(value, allowed, f"{name}.")
                continue
            yield f"{name} is not supported"
        elif isinstance(allowed, dict):
            if value not in NOT:
                yield f"{name} is not supported"
        elif value not in allowed:
            yield f"{name} is {value!r}, which is not supported"


def is_adam(config: dict[str, Any]) -> bool:
    return str((config.get("optimizer") or {}).get("type", "")).lower() in ("adam", "adamw")


def _optimizer(config: dict[str, Any]) -> Iterator[str]:
    described = config.get("optimizer") or {}
    if is_adam(config):
        yield from _unsupported(described.get("params") or {}, ADAM, "optimizer.params.")
    elif described.get("type") and optimizer.of_torch(described["type"]) is None:
        yield f"optimizer.type is {described['type']!r}, which is not supported"


def _model(model: torch.nn.Module) -> Iterator[str]:
    own = ("deepspeed.runtime.zero.", "deepspeed.ops.")
    for name, module in model.named_modules():
        where = type(module).__module__
        if where.startswith("deepspeed.") and not where.startswith(own):
            yield f"module {name or 'model'} is DeepSpeed's {type(module).__name__}"


def version() -> tuple[int, int]:
    import deepspeed

    return deepspeed.__version_major__, deepspeed.__version_minor__


def why_not(config: dict[str, Any], model: torch.nn.Module | None = None,
            client_optimizer: Any = None, **others: Any) -> str | None:
    """Why this is left to DeepSpeed; None if it is not. `others` are arguments, which are
    supported if they are None."""
    wanted = _start.settings.get("deepspeed", "keep")
    if wanted == "keep":
        return "so it was asked for"
    if not VERSIONS[0] <= version() < VERSIONS[1]:
        first, last, own = (".".join(map(str, v)) for v in (*VERSIONS, version()))
        return f"DeepSpeed {own} was not tried; from {first} to before {last}"
    if wanted == "auto" and _overlay.has_gpus():
        return "the job has GPUs, which need --zero-deepspeed=replace so far"
    reasons = [f"the argument {name} is not supported" for name, v in others.items()
               if v is not None]
    reasons += _unsupported(config, SUPPORTED)
    if client_optimizer is None:
        reasons += _optimizer(config)
    elif type(client_optimizer).__module__.startswith("deepspeed.") and (
        not optimizer.is_deepspeeds_adam(client_optimizer)
    ):
        reasons.append(f"the optimizer {type(client_optimizer).__name__} is not supported")
    if model is not None:
        reasons += _model(model)
    return reasons[0] if reasons else None


def stage(config: dict[str, Any]) -> int:
    return _number((config.get("zero_optimization") or {}).get("stage"))


def _number(value: Any) -> int:
    return 0 if isinstance(value, bool) or not isinstance(value, (int, float)) else int(value)


def settings(config: dict[str, Any]) -> str:
    """What a configuration sets of the library's options, where no flag, variable or file of the
    site does."""
    zero = config.get("zero_optimization") or {}
    size = 2 if dtype(config) is not torch.float32 else 4
    found = {"stage": stage(config)}
    if zero.get("stage3_allgather_sequential", zero.get("allgather_sequential")) is True:
        found["allgather"] = "single"
    if chunk := _number(zero.get("stage3_partition_stream_chunk_size")):
        found["stream_chunk"] = chunk
    if live := _number(zero.get("stage3_max_live_parameters", zero.get("max_live_parameters"))):
        found["gather_limit"] = live * size
    if bucket := _number(zero.get("reduce_bucket_size")):
        found["bucket"] = max(bucket * size, 64 << 10)
    offload = zero.get("offload_optimizer")
    if isinstance(offload, dict) and offload.get("device") == "cpu" and _overlay.has_gpus():
        found["offload"] = "optimizer"
    origins = urllib.parse.unquote(_start.settings.get("origins", ""))
    given = {entry.partition(":")[0] for entry in origins.split(";")}
    return " ".join(f"{name}={value}" for name, value in found.items() if name not in given)


def _enabled(config: dict[str, Any], *names: str) -> bool:
    return any((config.get(name) or {}).get("enabled") is True for name in names)


def dtype(config: dict[str, Any]) -> torch.dtype:
    if _enabled(config, "fp16"):
        return torch.float16
    return torch.bfloat16 if _enabled(config, "bf16", "bfloat16") else torch.float32
