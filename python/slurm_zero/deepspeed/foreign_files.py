# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save that others have written: mapped, without running code of theirs."""

from __future__ import annotations

import argparse
import glob
import os
import re
import zipfile
from typing import Any

import numpy
import torch

from .. import _zero

MODEL, OPTIMIZER = "_model_states.pt", "_optim_states.pt"


class CheckpointError(_zero.Error):
    """A checkpoint of DeepSpeed cannot be read. The sentence names the file."""


class _Attributes:
    """What an object of a class of DeepSpeed is read as."""


_multiarray = getattr(numpy, "_core", None) or numpy.core  # whose name numpy 2 has changed
# (what it is read as, its name in the file)
_STAND_INS: list[tuple[Any, str]] = [
    *((_Attributes, f"deepspeed.{name}") for name in (
        "runtime.fp16.loss_scaler.DynamicLossScaler", "runtime.fp16.loss_scaler.LossScaler",
        "utils.tensor_fragment.fragment_address",
    )),
    (int, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (argparse.Namespace, "argparse.Namespace"),
    # States of generators, which programs keep beside their steps.
    (numpy.ndarray, "numpy.ndarray"), (numpy.dtype, "numpy.dtype"),
    *((getattr(_multiarray.multiarray, name), f"numpy.{core}.multiarray.{name}")
      for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((kind, f"numpy.dtypes.{kind.__name__}") for kind in (
        type(numpy.dtype(code)) for code in "?bBhHiIlLqQefdSU"
    )),
]


def _allowed(path: str) -> str:
    """A part of the sentence about a file that was refused."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:
        return ""
    known = {name for _, name in _STAND_INS}
    return ", ".join(name for name in names if name not in known)


def load(file: Any, weights_only: bool = True, **options: Any) -> Any:
    """torch.load, which knows what is read as something else."""
    with torch.serialization.safe_globals(_STAND_INS):
        return torch.load(file, map_location="cpu", weights_only=weights_only, **options)


def load_file(path: str) -> Any:
    """What a file of torch.save has, mapped. No code of it runs, unless torch's own variable
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD allows it, which programs that load such files have set."""
    forced = os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0")
    trusted = forced.lower() in ("1", "y", "yes", "true")
    if not os.path.isfile(path):
        raise CheckpointError(f"{path} is missing")
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is truncated, or no file of torch.save")
    try:
        return load(path, mmap=True, weights_only=not trusted)
    except Exception as error:
        classes = _allowed(path)
        if trusted or not classes:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        raise CheckpointError(
            f"{path} is refused, since reading it would run code: it has {classes}. If it is "
            "yours, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the environment allows it"
        ) from None


def verify_file(path: str) -> None:
    """Reads all of a file, and compares the sums that torch.save has written."""
    stem = os.path.basename(path).removesuffix(".pt")
    with zipfile.ZipFile(path) as archive:
        folder = archive.namelist()[0].partition("/")[0]
        if folder not in (stem, "archive"):
            raise CheckpointError(f"{path} was written as {folder}.pt: it has another rank's data")
        if archive.testzip() is not None and not _without_sums(archive):
            raise CheckpointError(f"{path} is damaged: {archive.testzip()} has another sum")


def _without_sums(archive: zipfile.ZipFile) -> bool:
    """torch.serialization.set_crc32_options(False) leaves them out."""
    name = next((n for n in archive.namelist() if n.endswith("/version")), None)
    try:
        return name is not None and archive.read(name) is None
    except zipfile.BadZipFile:
        return True


def written(folder: str, kind: str) -> list[str]:
    """The files whose names end so, by the ranks that have written them."""
    def numbers(path: str) -> list[int]:
        return [int(n) for n in re.findall("[0-9]+", os.path.basename(path))]

    return sorted(glob.glob(os.path.join(glob.escape(folder), f"*{kind}")), key=numbers)


def latest(folder: str, name: str = "latest") -> str | None:
    """The tag that such a file says."""
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def find(folder: str, tag: str | None = None) -> str | None:
    """The folder of a checkpoint of DeepSpeed, by its tag or the file `latest`, or None."""
    if tag is None:
        tag = latest(folder) or latest(folder, "latest_universal")
    path = os.path.join(folder, tag or "")
    universal = os.path.isdir(os.path.join(path, "zero"))
    return path if universal or written(path, MODEL) or written(path, OPTIMIZER) else None
