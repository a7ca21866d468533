# SPDX-License-Identifier: Apache-2.0
"""Puts fully_shard in the place of torch's, for programs and libraries that call that one."""

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import _start


def replace_fsdp2() -> None:
    """From now on torch.distributed.fsdp.fully_shard is this package's, also where another module
    has imported it already. So Accelerate in FSDP2 mode, the Trainer of Transformers and peft run
    on libzero. It opens the job. Call it once, before a model is sharded."""
    import torch.distributed.fsdp

    from . import _api, _zero

    _api.init()
    if torch.distributed.fsdp.fully_shard is _fully_shard:
        return
    patch_modules(torch.distributed.fsdp.fully_shard, _fully_shard)
    # Libraries take the ranks from here, whatever the launcher is.
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    os.environ.update((name, str(number)) for name, number in zip(names, _zero.place()))
    if importlib.util.find_spec("accelerate"):
        import accelerate.state

        _shard_on_cpus(accelerate.state)


def patch_modules(stock: Callable, ours: Callable) -> None:
    for module in list(sys.modules.values()):
        # By __dict__, since the attributes of lazy modules import others.
        if getattr(module, "__dict__", {}).get("fully_shard") is stock:
            module.fully_shard = ours


def _fully_shard(module: Any, **kwargs: Any) -> Any:
    from . import _api

    return _api.fully_shard(module, **kwargs)


def _state(module: Any) -> Any:
    from . import _api

    return _api.fully_shard.state(module)


_fully_shard.state = _state
_fully_shard._replaces = None

# ---- in programs that nobody edits -------------------------------------------------------------


def install_wrapper(fsdp: ModuleType) -> None:
    """The first call of fully_shard decides for the whole program whether it is ours, by
    --zero-fsdp."""
    if _start.settings.get("fsdp") == "keep" or hasattr(fsdp.fully_shard, "_replaces"):
        return
    stock, chosen = fsdp.fully_shard, None

    @functools.wraps(stock)
    def fully_shard(module: Any, **kwargs: Any) -> Any:
        nonlocal chosen
        if chosen is None:
            chosen = _choose(stock, module, kwargs)
            patch_modules(fully_shard, chosen)
        return chosen(module, **kwargs)

    fully_shard._replaces = stock
    fully_shard.state = lambda module: (chosen or stock).state(module)
    patch_modules(stock, fully_shard)


def _choose(stock: Callable, module: Any, kwargs: dict[str, Any]) -> Callable:
    from . import _api

    why = None if _start.settings["fsdp"] == "replace" else _on_gpus()
    if why is None:
        try:
            modules, _ = _api.check(module, **kwargs)
            _api.open_for(modules, kwargs.get("mesh"))
        except (NotImplementedError, TypeError, ValueError, _api.Error) as error:
            why = str(error)
    if os.environ.get("RANK", "0") == "0":
        whose = "slurm_zero's" if why is None else f"torch's: {why}"
        _start.tell(f"fully_shard is {whose} (--zero-fsdp={_start.settings['fsdp']})")
    return _fully_shard if why is None else stock


def _on_gpus() -> str | None:
    """Nobody's GPU job is to be the first test of doc/gpu.md's table."""
    return "the job has GPUs, which need --zero-fsdp=replace so far" if has_gpus() else None


def has_gpus() -> bool:
    import torch

    return torch.accelerator.is_available()


def accelerate_on_cpus(state: ModuleType) -> None:
    if _start.settings["fsdp"] != "keep" and not _on_gpus():
        _shard_on_cpus(state)


def _shard_on_cpus(state: ModuleType) -> None:
    """Accelerate shards for GPUs only: with processes on CPUs it ignores its FSDP plugin."""
    make = state.AcceleratorState.__init__

    @functools.wraps(make)
    def make_sharded(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        make(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == state.DistributedType.MULTI_CPU:
            self.distributed_type = state.DistributedType.FSDP
            state.PartialState._shared_state["distributed_type"] = self.distributed_type
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin

    state.AcceleratorState.__init__ = make_sharded
