# SPDX-License-Identifier: Apache-2.0
"""What `import torch` calls in a task of --zero or zerorun, so that a program that nobody edits
starts, is watched, and has its fully_shard replaced. What torch calls may not
fail."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE by launcher. Slurm's plugin sets them itself.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
# Those of the launcher: {"fsdp": "auto", "master": "node1%3A20000", ...}
settings: dict[str, str] = {}


def tell(sentence: str) -> None:
    print(f"slurm-zero: {sentence}", file=sys.stderr, flush=True)


def require_torch() -> None:
    """Refuses a torch whose inner parts the package was not written for."""
    import torch  # which may be the one that calls begin, and is not complete

    if [int(number) for number in torch.__version__.split(".")[:2]] < [2, 10]:
        raise ImportError(
            f"slurm_zero needs torch 2.10 or later: {torch.__path__[0]} has {torch.__version__}"
        )


def begin() -> None:
    """The entry point of the group torch.backends. An exception here would be one of `import
    torch`."""
    isolated = sys.flags.isolated or sys.flags.no_site
    if isolated or "PMIX_RANK" not in os.environ or "ZERO_RESOLVED" not in os.environ:
        return
    try:
        words = (word.partition("=") for word in os.environ["ZERO_RESOLVED"].split())
        settings.update((name, value) for name, _, value in words)
        if settings.get("python") == "no":
            return
        require_torch()
        _set_ranks()
        for module, part, function in (
            ("torch.distributed.rendezvous", "_rendezvous", "replace_env"),
            ("torch.distributed.fsdp", "_overlay", "install_wrapper"),
            ("accelerate.state", "_overlay", "accelerate_on_cpus"),
            ("deepspeed", "deepspeed", "replace"),
        ):
            after_import(module, part, function)
    except Exception as error:
        tell(f"this program runs without it: {error}")


def _set_ranks() -> None:
    """As torchrun does. The port stands for one that the kernel chooses."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    launcher = next((names for names in _LAUNCHERS if names[0] in os.environ), None)
    if launcher and "RANK" not in os.environ:
        for name, source in zip(names, launcher):
            if source in os.environ:
                os.environ[name] = os.environ[source]
    if not settings.get("master"):
        alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
        settings["master"] = f"{'127.0.0.1' if alone else os.uname().nodename}:0"
        if "MASTER_PORT" not in os.environ:
            os.environ["MASTER_PORT"] = "0"
            os.environ.setdefault("MASTER_ADDR", settings["master"][:-2])


class _Finder:
    """Calls functions after each import of certain modules, which programs may ask for before
    without importing them, and reload."""

    def __init__(self) -> None:
        self.calls: dict[str, Callable[[ModuleType], None]] = {}
        self.asking: set[str] = set()  # for these the other finders are asked

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.calls or name in self.asking:
            return None
        self.asking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking.remove(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module
        if hasattr(execute, "_calls"):
            return spec  # of a module that is reloaded

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            self.calls[name](module)

        execute_and_call._calls = True
        spec.loader.exec_module = execute_and_call
        return spec


class _Executing(ModuleSpec):
    """Of a module that imports torch itself while it is executed. Python tells its spec when that
    has ended."""

    @property
    def _initializing(self) -> bool:
        return True

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__class__ = ModuleSpec
        self._initializing = value
        if not value and self.name in sys.modules:
            self._call(sys.modules[self.name])


_finder = _Finder()


def after_import(name: str, part: str, function: str) -> None:
    """Calls a function of a part of this package with a module, now or when it is imported."""
    call = functools.partial(_call, part, function)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.calls[name] = call
    if name in sys.modules:
        spec = sys.modules[name].__spec__
        if getattr(spec, "_initializing", False):
            spec.__class__, spec._call = _Executing, call
        else:
            call(sys.modules[name])


def _call(part: str, function: str, module: ModuleType) -> None:
    try:
        getattr(importlib.import_module(f"{__package__}.{part}"), function)(module)
    except Exception as error:
        tell(f"{module.__name__} is left as it is: {error}")
