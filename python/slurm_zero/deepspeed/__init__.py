# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed programs that nobody edits: its engine, zero.Init and GatheredParameters on libzero."""

from __future__ import annotations

import os
from types import ModuleType

from .. import _start

_told: set[str] = set()


def tell(why: str | None) -> None:
    """Whose the engine is, once."""
    whose = "slurm_zero's" if why is None else f"DeepSpeed's own: {why}"
    if whose not in _told and os.environ.get("RANK", "0") == "0":
        option = f"--zero-deepspeed={_start.settings['deepspeed']}"
        _start.tell(f"DeepSpeed's engine is {whose} ({option})")
    _told.add(whose)


def replace(deepspeed: ModuleType) -> None:
    """Called when DeepSpeed has been imported, or reloaded."""
    if _start.settings.get("deepspeed", "keep") == "keep":
        return
    from . import engine, fragments, init

    init.replace(deepspeed)
    fragments.replace(deepspeed)
    engine.replace(deepspeed)
