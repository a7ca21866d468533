# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of an engine, by the tags and with the client states of DeepSpeed's, in the format of
zero.save. Those of DeepSpeed are read, too."""

from __future__ import annotations

import base64
import io
import os
import shutil
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.utils import logger
from torch import nn

from .. import _api, _checkpoint
from .._flat_shard import FlatShard
from . import convert, foreign_files, moved

_COUNTS = ("global_steps", "global_samples", "skipped_steps")
_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def _state_file(folder: str, rank: int) -> str:
    return os.path.join(folder, f"engine_rank_{rank}.pt")


def _drop_states(folder: str, rank: int) -> None:
    """Those of this rank and later ones, which an earlier save by more ranks has left: a rank that
    read one would go on with another learning rate than the others."""
    while os.path.exists(_state_file(folder, rank)):
        os.remove(_state_file(folder, rank))
        rank += 1


def _write(path: str, state: Any) -> None:
    """There is never half of it."""
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def _models() -> list[nn.Module]:
    """All that are sharded, which a checkpoint of the library has, without those that the program
    has dropped."""
    layout = _api.job().layout
    if len(layout.roots) > 1:
        layout.drop()
    return layout.roots


class Checkpoints:
    """Methods of an engine."""

    # -- values of the module

    def _plain_values(self, module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        """At stages 0 to 2 a state dict has plain tensors, and a rank may make it alone."""
        for name, p in module._parameters.items():
            value = state.get(prefix + name)
            if isinstance(value, FlatShard) and value is not p:
                state[prefix + name] = self._value(p)

    def _value(self, p: FlatShard) -> torch.Tensor:
        whole = p._shard_spec.param.whole_value()
        return self._as_16_bits(p.full_tensor() if whole is None else whole)

    def _as_16_bits(self, value: torch.Tensor) -> torch.Tensor:
        if value.dtype is not torch.float32:
            return value
        if self.fp16_enabled():
            return value.half()
        return value.bfloat16() if self.bfloat16_enabled() else value

    def _consolidated(self, exclude_frozen: bool) -> dict[str, torch.Tensor]:
        """The whole model, on rank 0 alone. What is tied is one tensor under each of its names."""
        named = dict(self.module.named_parameters(remove_duplicate=False))
        made: dict[FlatShard, torch.Tensor | None] = {}
        found: dict[str, torch.Tensor] = {}
        for name, value in self.module.state_dict().items():
            p = named.get(name)
            if exclude_frozen and p is not None and not p.requires_grad:
                continue
            if isinstance(p, FlatShard):
                if p not in made:
                    whole = self._value(p)
                    made[p] = whole if dist.get_rank() == 0 else None
                value = made[p]
            if dist.get_rank() == 0:
                found[name] = value
        return found

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False
                                             ) -> dict[str, torch.Tensor] | None:
        if self.zero_optimization_stage() < 3:
            raise ValueError("this function requires ZeRO-3 mode")
        found = self._consolidated(exclude_frozen_parameters)
        return found if dist.get_rank() == 0 else None

    def save_16bit_model(self, save_dir: str, save_filename: str = "pytorch_model.bin",
                         exclude_frozen_parameters: bool = False) -> bool:
        path = os.path.join(save_dir, save_filename)
        if self.zero_optimization_stage() == 3 and (
            not self.zero_gather_16bit_weights_on_model_save()
        ):
            logger.info(f"Did not save the model {path} because "
                        "stage3_gather_16bit_weights_on_model_save is False")
            return False
        found = self._consolidated(exclude_frozen_parameters)
        with _checkpoint.agreed():
            if dist.get_rank() == 0:
                os.makedirs(save_dir, exist_ok=True)
                _write(path, found)
        return True

    # -- checkpoints

    def save_checkpoint(self, save_dir: str, tag: Any = None,
                        client_state: dict[str, Any] | None = None, save_latest: bool = True,
                        exclude_frozen_parameters: bool = False) -> bool:
        """All ranks call it. Frozen parameters are saved with the others."""
        if not save_dir:
            raise ValueError(f"save_dir must be a non-empty string, got {save_dir!r}")
        tag = str(tag) if tag is not None else f"global_step{self.global_steps}"
        self._checkpoint_tag_validation(tag)
        folder, first = os.path.join(save_dir, tag), self.global_rank == 0
        writers = self.world_size if self.zero_optimization_stage() == 3 else 1
        with _checkpoint.agreed():
            if first:
                os.makedirs(folder, exist_ok=True)
        _api.save(_models(), self.optimizer, folder, extra=convert.described(self.module),
                  keep_last=1)
        with _checkpoint.agreed():
            if self.global_rank < writers:
                _write(_state_file(folder, self.global_rank), self._own_state(client_state or {}))
            if first:
                _drop_states(folder, writers)
                shutil.copy(os.path.join(os.path.dirname(__file__), "zero_to_fp32.py"), save_dir)
        with _checkpoint.agreed():
            if first and save_latest:
                path = os.path.join(save_dir, "latest")
                with open(f"{path}.new", "w", encoding="utf-8") as file:
                    file.write(tag)
                os.replace(f"{path}.new", path)
        return True

    def _own_state(self, client_state: dict[str, Any]) -> dict[str, Any]:
        return {
            "client_state": client_state,
            "lr_scheduler": self.lr_scheduler and self.lr_scheduler.state_dict(),
            "loss_scaler": self.loss_scaler and {
                name: value for name, value in vars(self.loss_scaler).items() if name in _SCALER
            },
            **{name: getattr(self, name) for name in _COUNTS},
        }

    def load_checkpoint(self, load_dir: str, tag: Any = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False, custom_load_fn: Any = None
                        ) -> tuple[str | None, dict[str, Any] | None]:
        """All ranks call it. The number of ranks and the stage may be others than at the save."""
        if custom_load_fn is not None:
            raise NotImplementedError("load_checkpoint with custom_load_fn is not supported")
        folder, is_foreign = self._find(load_dir, None if tag is None else str(tag))
        if folder is None:
            return None, None
        if is_foreign:
            return folder, self._load_foreign(folder, load_module_strict, load_optimizer_states,
                                              load_lr_scheduler_states, load_module_only)
        with_optimizer = load_optimizer_states and not load_module_only
        if _api.restore(_models(), self.optimizer if with_optimizer else None, folder) is None:
            return None, None
        with _checkpoint.agreed():
            state = self._saved_state(folder)
        if not load_module_only:
            self._take_state(state, load_lr_scheduler_states)
        return folder, state["client_state"]

    def _find(self, load_dir: str, tag: str | None) -> tuple[str | None, bool]:
        """(folder, whether it is DeepSpeed's own), as rank 0 sees it."""
        found = [None, False]
        with _checkpoint.agreed():
            if self.global_rank == 0:
                path = foreign_files.find(load_dir, tag)
                if path is None and tag is None:
                    tag = self._latest(load_dir)
                found = [path or tag and os.path.join(load_dir, tag), path is not None]
        dist.broadcast_object_list(found)
        return tuple(found)

    def _saved_state(self, folder: str) -> dict[str, Any]:
        path = _state_file(folder, self.global_rank)
        return foreign_files.load_file(path if os.path.exists(path) else _state_file(folder, 0))

    def _load_foreign(self, path: str, strict: bool, with_optimizer: bool, with_scheduler: bool,
                      module_only: bool) -> dict[str, Any]:
        """A checkpoint of DeepSpeed's own."""
        optimizer = self.optimizer if with_optimizer and not module_only else None
        found = moved.load(path, self.module, optimizer, strict=strict)
        if not module_only:
            scaler = {name: found.scaler[name] for name in _SCALER if name in found.scaler}
            counts = {name: found.counts.get(name, 0) for name in _COUNTS}
            self._take_state({"lr_scheduler": found.scheduler, "loss_scaler": scaler, **counts},
                             with_scheduler)
        return found.client_state(self.global_rank)

    def _latest(self, load_dir: str) -> str | None:
        tag = foreign_files.latest(load_dir)
        if tag is None:
            path = os.path.join(load_dir, "latest")
            logger.warning(
                f"Unable to find latest file at {path}, if trying to load latest checkpoint please "
                "ensure this file exists or pass an explicit checkpoint tag when loading a "
                "checkpoint."
            )
        return tag

    def _take_state(self, state: dict[str, Any], with_scheduler: bool) -> None:
        if with_scheduler and self.lr_scheduler is not None and state["lr_scheduler"]:
            self.lr_scheduler.load_state_dict(state["lr_scheduler"])
        if self.loss_scaler is not None and state["loss_scaler"]:
            vars(self.loss_scaler).update(state["loss_scaler"])
            self._note_scale()
        for name in _COUNTS:
            setattr(self, name, state[name])

    # -- what zero.protect keeps beside the model and the optimizer

    def latest_folder(self, save_dir: str) -> str:
        """Where save_checkpoint has written last, or will."""
        if foreign_files.find(save_dir, None) is not None:
            raise foreign_files.CheckpointError(
                f"{save_dir} has a checkpoint of DeepSpeed's own: load it by load_checkpoint, and "
                "give zero.protect another folder"
            )
        tag = foreign_files.latest(save_dir)
        return os.path.join(save_dir, tag) if tag else save_dir

    def protected(self, extra: Any) -> dict[str, str]:
        """What JSON can hold."""
        file = io.BytesIO()
        torch.save(self._own_state(extra), file)
        return {"engine": base64.b64encode(file.getvalue()).decode()}

    def take_protected(self, found: dict[str, Any]) -> None:
        """Of what this engine has protected, or of a checkpoint in a folder."""
        extra = found["extra"]
        with _checkpoint.agreed():
            if isinstance(extra, dict) and "engine" in extra:
                state = foreign_files.load(io.BytesIO(base64.b64decode(extra["engine"])))
            else:
                state = self._saved_state(os.path.dirname(found["path"]))
        self._take_state(state, True)
        found.update(step=self.global_steps, extra=state["client_state"])
