# SPDX-License-Identifier: Apache-2.0
"""The device of the job's tensors, and the stream that the program computes on."""

from __future__ import annotations

import os
import warnings

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from . import _zero

# Of the library's GPUs: torch's type of device, its number in DLPack, and what communicates.
GPU, DLPACK, BACKENDS = "cuda", 2, "cpu:gloo,cuda:nccl"
device = torch.device("cpu")  # of the job
_last: torch.Stream | None = None


def has_gpus() -> bool:
    return torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == GPU


def wanted(modules: list[nn.Module], mesh: DeviceMesh | None) -> torch.device | None:
    """Where the program wants these modules: on the device of the mesh, or else of the parameters.
    None: it does not say."""
    if mesh is not None and mesh.device_type == "cpu":
        return torch.device("cpu")
    found = (p.device for m in modules for p in m.parameters())
    default = None if mesh is None else torch.device(mesh.device_type)
    return next((d for d in found if d.type not in ("cpu", "meta")), default)


def is_gpu(where: torch.device | None) -> bool:
    return has_gpus() if where is None else where.type != "cpu"


def _user_wants_gpus() -> bool:
    resolved = os.environ.get("ZERO_RESOLVED", "").split()
    return "backend=cuda" in resolved or os.environ.get("ZERO_BACKEND") == "cuda"


def backend_setting(where: torch.device | None) -> str:
    """What zero_open is told. As in torch, what is on CPUs goes to GPUs where torch has some."""
    if where is None and not has_gpus() and _user_wants_gpus():
        return ""  # choose() says what is missing
    if not is_gpu(where):
        return "backend=host"
    # The library takes the GPU whose context is current, or else the one of its local rank.
    chosen = where is not None and where.index is not None
    if chosen:
        torch.accelerator.set_device_index(where.index)
    if chosen or has_gpus() and torch.accelerator.current_device_index():
        torch.empty(1, device=torch.accelerator.current_accelerator())
    return "" if where is None else "backend=cuda"


def choose() -> None:
    """The job is open."""
    global device
    index = _zero.device_index()
    if index >= 0 and not has_gpus():
        _zero.close()
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPUs"
        raise _zero.Error(
            f"the job is on GPUs, but PyTorch {torch.__version__}, {built}, finds none: install "
            "one that suits the driver, or set --zero-backend=host"
        )
    if index < 0 and has_gpus() and _zero.setting("backend") == "auto":
        warnings.warn(
            "PyTorch has GPUs, but slurm-zero's CUDA backend is not there or finds none: the job "
            "is on CPUs", stacklevel=4
        )
    if index >= 0:
        device = torch.device(GPU, index)
        torch.accelerator.set_device_index(index)
        _zero.on_device(DLPACK, index, stream, trim)


def on_gpu() -> bool:
    return device.type != "cpu"


def stream() -> int:
    """That of this thread. The library wants it to be ordered after the one that it knows."""
    global _last
    now = torch.accelerator.current_stream(device)
    if _last is not None and now != _last:
        now.wait_stream(_last)
    _last = now
    if hasattr(now, "native_handle"):
        return now.native_handle
    # Before torch 2.11
    return torch.get_device_module(device).current_stream(device).cuda_stream


def held() -> int:
    """What PyTorch's allocator holds of the present GPU."""
    return torch.get_device_module(GPU).memory_reserved() if has_gpus() else 0


def trim() -> str:
    """PyTorch's allocator keeps no more than its tensors, for which the library leaves room.
    Returns what it holds."""
    module = torch.get_device_module(device)
    module.empty_cache()
    _zero.holds(held())
    used = module.memory_allocated(device)
    return f"PyTorch's allocator holds {held()} bytes, of which {used} are of tensors"


def trim_host() -> None:
    """On CPUs the library keeps no memory for later: PyTorch's tensors may have it."""
    if not on_gpu():
        _zero.trim()


def memory() -> dict[str, tuple[int, int]]:
    """Bytes of this rank by kind: (now, most). "caller" is what PyTorch's allocator held of a GPU
    when the library was last told, and part of "total"; "torch" is what its tensors have now."""
    bytes_of = _zero.memory()
    if on_gpu():
        module = torch.get_device_module(device)
        bytes_of["torch"] = module.memory_allocated(device), module.max_memory_allocated(device)
    return bytes_of


def refuse_capture() -> None:
    if on_gpu() and torch.get_device_module(device).is_current_stream_capturing():
        raise NotImplementedError(
            "a step of sharded modules cannot be captured as a graph: in each the ranks agree over "
            "the network, which a graph does not repeat. What is within a module can be: "
            'torch.compile(module, mode="reduce-overhead")'
        )


def warn_whole(module: nn.Module, name: str, p: nn.Parameter) -> None:
    warnings.warn(
        f"{name} of {type(module).__name__}, of {p.nbytes} bytes, is gathered whole: what streams "
        "is torch's Linear and Embedding, and experts of Transformers", stacklevel=5
    )


def used(tensors: list[torch.Tensor]) -> None:
    """Their memory, which may be of another stream, was given to what is enqueued on this one."""
    if on_gpu():
        now = torch.accelerator.current_stream(device)
        for tensor in tensors:
            tensor.record_stream(now)


def move_buffers(modules: list[nn.Module]) -> None:
    """As FSDP2 does, to where the parameters will be."""
    for buffer in [b for m in modules for b in m.buffers()] if on_gpu() else ():
        if not buffer.is_meta and buffer.device != device:
            torch.utils.swap_tensors(buffer, buffer.to(device))  # it stays the same object
