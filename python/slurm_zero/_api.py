# SPDX-License-Identifier: Apache-2.0
"""What the package offers to programs that import it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from . import _checkpoint, _device, _from_rank0  # noqa
from . import _start, _streamed, _unsharded, _watch, _zero
from ._adamw import AdamW, AdamW8bit, Muon
from ._flat_shard import FlatShard, install_dispatch
from ._group import Group, MixedPrecisionPolicy
from ._job import Job
from ._module import FullyShardedModule, become_sharded
from ._param import DTYPES, STORED, require_filled
from ._protect import Protection
from ._rendezvous import make_store

Error = _zero.Error
memory = _device.memory
traffic = _zero.traffic  # what this rank has sent and read
# Waits until a save in the background is complete, and raises its error. All ranks call it.
save_wait = _zero.save_wait
_job: Job | None = None
_failed = False

NOTHING_SHARDED = ("no model is sharded here: slurm_zero.fully_shard comes first, or FSDP2's with "
                   "--zero-fsdp=replace")


def init(settings: str = "", device: str | torch.device | None = None) -> None:
    """Opens the job, and torch.distributed with it. fully_shard does it where it was not done. A
    second call does nothing. `settings` are those of zero(3): "stage=3". `device` is "cpu" or
    "cuda"; without it the job is on GPUs where torch has some."""
    global _job
    if _job is not None:
        if settings and settings != _job.settings:
            raise Error(
                f"the job was opened with the settings '{_job.settings}' already, not "
                f"'{settings}': call slurm_zero.init before all else"
            )
        return
    _watch.leave()
    where = settings
    if "backend=" not in settings:
        where = _device.backend_setting(device and torch.device(device))
        where = f"{where} {settings}".strip()
    _zero.open(where, _device.held())
    _device.choose()
    _watch.show_stacks()
    rank, world, _, local_world = _zero.place()
    if world == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _zero.close()
        raise Error(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but no launcher that slurm-zero knows "
            "started this process: use `zerorun -n N` or `srun`"
        )
    job = Job(settings)
    if not dist.is_initialized():
        store = make_store(rank, world, local_world == world, _zero.exchange)
        dist.init_process_group(
            _device.BACKENDS if _device.on_gpu() else "gloo", store=store, rank=rank,
            world_size=world,
        )
    elif dist.get_world_size() != world or dist.get_rank() != rank:
        _zero.close()
        raise Error(
            f"torch.distributed was initialised as rank {dist.get_rank()} of "
            f"{dist.get_world_size()}, but the launcher says rank {rank} of {world}"
        )
    FullyShardedModule.job = job
    job.mesh = init_device_mesh(_device.device.type, (world,))
    install_dispatch(job.mesh)
    torch_optimizer.register_optimizer_step_pre_hook(job.steps.begin)
    torch_optimizer.register_optimizer_step_post_hook(job.steps.end)
    hook = sys.excepthook

    def failed(*args: Any) -> None:
        global _failed
        _failed = True
        hook(*args)

    sys.excepthook = failed
    atexit.register(_close)
    _start.after_import("torch.distributed.pipelining.schedules", "_api", "wrap_schedules")
    _start.after_import("accelerate.utils.fsdp_utils", "_from_rank0", "replace_accelerates")
    _job = job


def job() -> Job | None:
    """Once it is open."""
    return _job


def open_for(modules: list[nn.Module], mesh: DeviceMesh | None) -> None:
    """init, on the device that these modules want."""
    if _job is None:
        init(device=_device.wanted(modules, mesh))


def _close() -> None:
    # A rank that failed ends without zero_close, so that the library names it and ends the others.
    if not _failed:
        if dist.is_initialized():
            dist.destroy_process_group()
        # Ranks that still wait for this one in a collective of torch learn that it is gone, and not
        # only once all have come to zero_close: meshes would keep the connections.
        for mesh in (o for o in gc.get_objects() if type(o) is DeviceMesh):
            getattr(mesh, "_pg_registry", {}).clear()
        _zero.close()
        _watch.watch_end()


def _as_list(value: Any) -> list:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def check(module: nn.Module | list[nn.Module], *, mesh: DeviceMesh | None = None,
          reshard_after_forward: bool | None = None, mp_policy: Any = None,
          offload_policy: Any = None, ignored_params: Any = None,
          shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
          dp_mesh_dims: Any = None, **others: Any) -> tuple[list[nn.Module], Any]:
    """Raises what is wrong with arguments of fully_shard, before anything is done. Returns the
    modules and the policy."""
    modules = _as_list(module)
    if not modules or not all(isinstance(m, nn.Module) for m in modules):
        raise ValueError("fully_shard takes a module or a list of modules")
    for name, value in others.items():
        if value is not None:
            raise NotImplementedError(f"{name} is not supported")
    if mesh is not None:
        _check_mesh(mesh, dp_mesh_dims)
    elif dp_mesh_dims is not None:
        raise ValueError("mesh must have mesh_dim_names when dp_mesh_dims is provided")
    known = ("NoneType", "OffloadPolicy", "CPUOffloadPolicy")
    if type(offload_policy).__name__ not in known:
        raise NotImplementedError("offload_policy is not supported")
    where = _device.device if _job else _device.wanted(modules, mesh)
    if type(offload_policy).__name__ == "CPUOffloadPolicy" and _device.is_gpu(where):
        raise NotImplementedError(
            "CPUOffloadPolicy is not supported on GPUs; --zero-offload=optimizer keeps the states "
            "of zero.AdamW in host memory"
        )
    ranks = mesh.size(-1) if mesh else dist.get_world_size() if dist.is_initialized() else None
    if not isinstance(reshard_after_forward, (int, type(None))):
        raise ValueError(
            "reshard_after_forward should be a bool or an int representing the group size to "
            f"reshard to, not {reshard_after_forward}"
        )
    if type(reshard_after_forward) is int and ranks and (
        reshard_after_forward < 1 or ranks % reshard_after_forward
    ):
        raise ValueError(
            "If passing reshard_after_forward as an int, it should be a factor of "
            f"{ranks}, not {reshard_after_forward}"
        )
    policy = mp_policy or MixedPrecisionPolicy()
    for dtype in (policy.param_dtype, policy.reduce_dtype):
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"mp_policy has {dtype}; float32, float16 and bfloat16 are supported")
    for m in modules:
        if isinstance(m, FullyShardedModule):
            raise AssertionError(
                "Each distinct composable distributed API can only be applied to a module once. "
                f"fully_shard was called for this {type(m).__name__} before"
            )
        containers = (nn.ModuleList, nn.ModuleDict)
        if isinstance(m, containers) and type(m).forward is nn.Module.forward:
            raise ValueError(
                f"fully_shard does not support containers that do not implement forward: {m}"
            )
        for name, p in m.named_parameters():
            if p in (ignored_params or ()) or isinstance(p, FlatShard):
                continue
            placement = shard_placement_fn(p) if shard_placement_fn else None
            if (info := getattr(placement, "mesh_info", None)) is not None:
                _check_mesh(info.mesh)
                placement = placement.placement
            if not isinstance(placement, (Shard, type(None))):
                raise NotImplementedError(
                    f"shard_placement_fn returns {placement} for {name}; only a Shard is supported"
                )
            if placement and not -p.dim() <= placement.dim < p.dim():
                raise AssertionError(
                    f"Shard dim {placement.dim} is invalid for {p.dim()}D tensor: {p.shape}"
                )
            if isinstance(p, DTensor) and any(type(x) not in (Shard, Replicate)
                                              for x in p.placements):
                raise NotImplementedError(
                    f"parameter {name} has the placements {p.placements}; Shard and Replicate are "
                    "supported"
                )
            if isinstance(p, DTensor) and p.device_mesh.ndim > 1 and (
                p.device_mesh.mesh_dim_names is None
            ):
                raise NotImplementedError(
                    f"parameter {name} is a DTensor of a mesh of {p.device_mesh.ndim} dimensions "
                    "without names: give it mesh_dim_names"
                )
            if not p.dim():
                raise ValueError(
                    "fully_shard doesn't support scalar parameters. Change "
                    f"{name.rpartition('.')[2]} to a 1D tensor with numel equal to 1."
                )
            if not p.is_contiguous():
                raise NotImplementedError(
                    f"FSDP does not support non-contiguous parameters yet: {name} of shape "
                    f"{tuple(p.shape)} and stride {p.stride()}"
                )
            if p.dtype not in (DTYPES if p.requires_grad else STORED):
                raise ValueError(
                    f"parameter {name} is {p.dtype}; float32, float16 and bfloat16 can be trained, "
                    f"and what needs no gradient may also be {', '.join(map(str, STORED))}"
                )
            inner = p._local_tensor if isinstance(p, DTensor) else p.data
            if hasattr(p, "fsdp_pre_all_gather") or hasattr(inner, "fsdp_pre_all_gather"):
                raise NotImplementedError(
                    f"parameter {name} is a {type(inner).__name__}, whose fsdp_pre_all_gather "
                    "gathers in a form of its own: what is gathered is float32, float16 or bfloat16"
                )
            if p.device.type not in ("cpu", "meta", _device.GPU):
                raise NotImplementedError(
                    f"parameter {name} is on {p.device}; cpu, {_device.GPU} and meta are supported"
                )
            if p.device.type == _device.GPU and p.device != where:
                raise NotImplementedError(
                    f"parameter {name} is on {p.device}, and others of the job are on {where}"
                )
    return modules, policy


def _check_mesh(mesh: DeviceMesh, dp_mesh_dims: Any = None) -> None:
    if dp_mesh_dims is not None:
        for name in (*dp_mesh_dims.shard_names, *dp_mesh_dims.replicate_names):
            if name not in (mesh.mesh_dim_names or ()):
                raise ValueError(
                    f"Mesh dim name '{name}' not found in mesh.mesh_dim_names "
                    f"{mesh.mesh_dim_names}"
                )
    elif mesh.ndim not in (1, 2):
        raise ValueError(f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}")
    elif mesh.ndim == 2 and mesh.mesh_dim_names is None:
        raise AssertionError(
            "Please init the 2D mesh for HSDP with mesh_dim_names specified"
        )
    supported = (_device.device.type,) if _job else ("cpu", _device.GPU)
    if mesh.device_type not in supported:
        raise NotImplementedError(
            f"the mesh is of {mesh.device_type}; " + (
                f"the job is on {_device.device}" if _job else
                f"{' and '.join(supported)} are supported"
            )
        )
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"fully_shard is called by rank {dist.get_rank()}, which is not in the mesh "
            f"{mesh.mesh.tolist()}"
        )


def _take_copies(mesh: DeviceMesh) -> None:
    """The first mesh of all ranks that has two dimensions, replicas and shards, is what
    --zero-shard is. Others are sharded over all of their ranks."""
    world = list(range(dist.get_world_size()))
    if _job.layout.handles or any(len(g.team.ranks) == len(world) for g in _job.groups):
        return
    if mesh.ndim == 2 and mesh.mesh.flatten().tolist() == world:
        _zero.set_shard(mesh.size(1))


def wrap_schedules(schedules: types.ModuleType) -> None:
    """A stage of a pipeline waits for the one before it, which may not wait for the layout then,
    as that is made by all ranks together."""
    for cls in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        cls.step = _after_layout(cls.step)


def _after_layout(step: Callable) -> Callable:
    @functools.wraps(step)
    def step_after_layout(*args: Any, **kwargs: Any) -> Any:
        _job.layout.update()
        return step(*args, **kwargs)

    return step_after_layout


def fully_shard(module: Any, *, mesh: DeviceMesh | None = None,
                reshard_after_forward: bool | None = None, mp_policy: Any = None,
                offload_policy: Any = None, ignored_params: Any = None,
                shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
                dp_mesh_dims: Any = None, streamed: bool | int | str | None = None,
                **others: Any) -> Any:
    """Shards the parameters of a module, or of a list of modules, that no earlier call has. Call it
    for the layers first and for the whole model last, with the same arguments on all ranks of the
    mesh, or of the job. `streamed` has parameters used slice by slice, and never whole: "auto"
    those above stream_threshold, in slices of stream_chunk; True all that can be; a number is the
    bytes of a slice."""
    ignored = set(ignored_params or ())
    modules, policy = check(
        module, mesh=mesh, reshard_after_forward=reshard_after_forward, mp_policy=mp_policy,
        offload_policy=offload_policy, ignored_params=ignored,
        shard_placement_fn=shard_placement_fn, dp_mesh_dims=dp_mesh_dims, **others,
    )
    open_for(modules, mesh)
    mesh, info = mesh or _job.mesh, None
    if dp_mesh_dims is not None:
        from torch.distributed.fsdp._fully_shard import _fsdp_init

        info = _fsdp_init._get_mesh_info(mesh, dp_mesh_dims)
        mesh = info.mesh
    _take_copies(mesh)
    if type(reshard_after_forward) is int:  # 1: each rank keeps all
        reshard_after_forward = reshard_after_forward > 1
    groups: list[Group] = []
    for other, (of, params) in _other_meshes(modules, mesh, ignored, shard_placement_fn).items():
        rest = {p for m in modules for p in m.parameters()} - params
        groups.append(Group(_job, modules, other, policy, reshard_after_forward, rest, of))
    _streamed.note_heads(modules)
    if streamed is None and _zero.setting("stream") == "auto":
        streamed = "auto"
    if streamed:
        groups += _stream(modules, mesh, policy, ignored, streamed)
    ignored.update(p.sharded for group in groups for p in group.params)
    groups.insert(0, Group(_job, modules, mesh, policy, reshard_after_forward, ignored, info))
    _job.groups += groups
    become_sharded(modules, groups)
    _device.move_buffers(modules)
    return module


def _stream(modules: list[nn.Module], mesh: DeviceMesh, policy: Any, ignored: set[nn.Parameter],
            streamed: bool | int | str) -> list[Group]:
    if not isinstance(streamed, (bool, int)) and streamed != "auto":
        raise ValueError(f'streamed is {streamed!r}; it is True, False, "auto" or bytes of a slice')
    if type(streamed) is int and streamed < 1:
        raise ValueError(f"streamed is {streamed}; a slice has 1 byte or more")
    chunk = int(_zero.setting("stream_chunk")) if isinstance(streamed, (bool, str)) else streamed
    threshold = int(_zero.setting("stream_threshold")) if streamed == "auto" else chunk
    found = _streamed.find(modules, _job.taken(), ignored, threshold)
    return [
        _streamed.StreamedGroup(_job, p, places, mesh, policy, chunk)
        for p, places in found.items()
    ]


def _other_meshes(modules: list[nn.Module], mesh: DeviceMesh, ignored: set[nn.Parameter],
                  shard_placement_fn: Callable[[nn.Parameter], Any] | None
                  ) -> dict[DeviceMesh, tuple[Any, set[nn.Parameter]]]:
    """Parameters that the program has sharded over another mesh, with what torch knows of it."""
    found: dict[DeviceMesh, tuple[Any, set[nn.Parameter]]] = {}
    for p in (p for m in modules for p in m.parameters() if shard_placement_fn):
        if p not in ignored and not isinstance(p, FlatShard):
            info = getattr(shard_placement_fn(p), "mesh_info", None)
            if info is not None and info.mesh != mesh:
                found.setdefault(info.mesh, (info, set()))[1].add(p)
    return found


def _state(module: nn.Module) -> Group | None:
    return module._get_fsdp_state() if isinstance(module, FullyShardedModule) else None


fully_shard.state = _state


@contextlib.contextmanager
def no_sync(module: FullyShardedModule) -> Iterator[None]:
    """Within it gradients are kept by each rank, and reduced by the first backward after it."""
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


@contextlib.contextmanager
def meta() -> Iterator[None]:
    """Parameters that are made within it are on the device meta. Buffers are real."""
    register = nn.Module.register_parameter

    def on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and param.device.type != "meta":
            empty = type(param)(param.to("meta"), requires_grad=param.requires_grad)
            self._parameters[name] = empty

    nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def _bar() -> Callable[[str | None, int, int], None]:
    """A bar by tqdm if it is installed, else a line for each tenth. It is of what rank 0 keeps; the
    other ranks have as much."""
    shown = None

    def show(param: str | None, done: int, total: int) -> None:
        nonlocal shown
        try:
            from tqdm import tqdm
        except ImportError:
            if total and done * 10 // total > (shown or 0):
                shown = done * 10 // total
                print(f"load: {shown}0 %", file=sys.stderr, flush=True)
            return
        if shown is None:
            shown = tqdm(total=total, unit="B", unit_scale=True, desc="load")
        shown.update(done - shown.n)
        if done == total:
            shown.close()

    return show


def load(model: nn.Module, path: str | os.PathLike, *, strict: bool = True,
         progress: bool | Callable | None = None) -> tuple[list[str], list[str]]:
    """Fills the parameters of a model, or of a part of one, from a safetensors file or folder. Each
    byte is read once, by the rank that keeps it. Returns the names that only the model has, and
    those that only the files have. A tied parameter may be there under each of its names.
    Persistent buffers, and parameters that are not sharded, are read by all ranks. `progress` is
    True for a bar, which rank 0 shows, or is called with (parameter, bytes done, bytes of all) on
    each rank, of what it keeps."""
    if _job is None:
        raise Error(NOTHING_SHARDED)
    _job.settle()
    paths = {m: f"{path}." if path else "" for path, m in model.named_modules()}
    prefix = getattr(model, "base_model_prefix", "")
    keep = os.fspath(path)
    files = _unsharded.names_in(keep)

    def with_prefix(names: list[str]) -> list[str]:
        # Files of a headless model, or the other way around.
        if not prefix:
            return names
        names = names + [n[len(prefix) + 1 :] for n in names if n.startswith(prefix + ".")]
        return names + [f"{prefix}.{n}" for n in names if not n.startswith(prefix + ".")]

    names: dict[str, str] = {}  # what is not in it stays as it is
    used: set[str] = set()
    for p in (p for group in _job.groups for p in group.params):
        wanted = with_prefix([paths[m] + attribute for m, attribute in p.places if m in paths])
        if wanted:
            names[p.name] = next((w for w in wanted if w in files), wanted[0])
            used.update(w for w in wanted if w in files and w != names[p.name])
    if not names:
        raise ValueError(f"no parameter of this {type(model).__name__} is sharded")
    mine, others = _unsharded.tensors([model]), {}
    for name, tensor in mine.items():
        others.update({w: tensor for w in with_prefix([name]) if w in files})
    filled = {id(tensor) for tensor in others.values()}
    absent = [name for name, tensor in mine.items() if id(tensor) not in filled]
    used.update(others)
    names = _job.layout.merge(names)
    used = set(_job.layout.merge(dict.fromkeys(used)))
    absent = list(_job.layout.merge(dict.fromkeys(absent)))
    if progress is True or progress is False:
        progress = _bar() if progress and dist.get_rank() == 0 else None
    # The library knows neither those names, nor what each rank has whole.
    strictly = strict and not used and not absent
    missing, unexpected = _zero.load_model(keep, names, progress, strictly)
    for p in (p for group in _job.groups for p in group.params):
        if p.name in names and p.name not in missing:
            p.fill()
    missing = [names[name] for name in missing] + absent
    unexpected = [name for name in unexpected if name not in used]
    if strict and (missing or unexpected):
        raise Error(
            f"{keep}: only the model has {missing}, and only the files have {unexpected}; "
            "strict=False allows it"
        )
    error = None
    try:
        with torch.no_grad():
            for name, tensor in others.items():
                _unsharded.read(files[name], name, tensor)
    except (OSError, ValueError, KeyError, RuntimeError) as raised:
        error = str(raised)
    _zero.agree(error)
    return missing, unexpected


def _require_all(model: Any) -> list[nn.Module]:
    """The models, as a list. The library saves all that is sharded: the caller has to know it."""
    if _job is None:
        raise Error(NOTHING_SHARDED)
    _job.layout.update()
    models = _as_list(model)
    mine = {m for top in models for m in top.modules()}
    for p in (p for group in _job.groups for p in group.params):
        if not any(m in mine for m, _ in p.places):
            raise ValueError(
                f"{p.name} is sharded, too, but not of the model that was passed: pass all sharded "
                "models, as a list"
            )
    _job.settle()
    return models


def _require_filled() -> None:
    require_filled([p for group in _job.groups for p in group.params])


def export(model: Any, path: str | os.PathLike) -> None:
    """Writes the sharded parameters of the model, or of a list of all sharded models, as
    safetensors, which Transformers reads. A warning names what else they have. All ranks call
    it."""
    others = _unsharded.tensors(_require_all(model))
    if _job.layout.split:
        raise NotImplementedError(
            "zero.export writes whole tensors, and ranks have different ones of this model under "
            "one name: use torch.distributed.checkpoint"
        )
    _require_filled()
    if others and dist.get_rank() == 0:
        warnings.warn(f"{path} is without what is not sharded: {', '.join(others)}")
    _zero.export(os.fspath(path))


def save(model: Any, optimizer: Optimizer | list[Optimizer] | None, folder: str | os.PathLike, *,
         extra: Any = None, keep_last: int = 0, background: bool = False) -> None:
    """Writes the checkpoint folder/step-N of the model, or of a list of all sharded models, with
    rank 0's persistent buffers and what is not sharded, and of the optimizer, or of a list of them,
    or None. N is the number of steps that were taken. `extra` is what JSON can hold: rank 0's is
    saved, and restore returns it. `keep_last` deletes all but so many checkpoints. With
    `background` it is written while training goes on; save_wait waits for it. All ranks call it."""
    models, optimizers = _require_all(model), _as_list(optimizer)
    _require_filled()
    _checkpoint.save(_job, models, optimizers, os.fspath(folder), extra, keep_last, background)


def restore(model: Any, optimizer: Optimizer | list[Optimizer] | None, path: str | os.PathLike, *,
            convert: bool = False) -> dict[str, Any] | None:
    """Fills the model and the optimizers that save was called with from a checkpoint, or the latest
    one of a folder. With None for the optimizer only the model. The number of ranks, the stage and
    the groups may be others than when it was saved. With `convert` the moments of an AdamW may be
    those of an AdamW8bit, and the other way round, which is else an error. Returns {path, step,
    extra}, or None, with nothing changed, if there is no checkpoint. All ranks call it."""
    models, optimizers = _require_all(model), _as_list(optimizer)
    return _checkpoint.restore(_job, models, optimizers, os.fspath(path), convert)


def protect(model: Any, optimizer: Optimizer | list[Optimizer], *, every: int = 1,
            extra: Callable[[], Any] | None = None, folder: str | os.PathLike | None = None,
            ) -> dict[str, Any] | None:
    """Called once, before the first step. Restores what an attempt of this run before has left in
    the memory of the nodes, or the latest checkpoint of the folder if that is newer, and returns
    what restore returns: {path, step, extra}, or None if there is neither. After every `every`-th
    step, each rank's part of the model and of the optimizer is then copied to the memory of its
    node and of another, while training goes on, so that the loss of a node costs a step; see
    zerorun --max-restarts, which starts the job again. 0 for `every`: as often as that takes. The
    option protect overrides it. Of several optimizers the last of the list ends an iteration.

    `extra` is called at the end of the optimizer's step, and returns what JSON can hold: rank 0's
    is kept. What the program does after it, as the step of a scheduler, it has to do once after a
    restore. The states of the random generators of torch, Python and numpy are kept and restored,
    at the same number of ranks. All ranks call it.

    The model may be an engine of DeepSpeed, with its optimizer: then an iteration ends with the
    engine's step, the engine's scheduler, loss scale and counts are kept too, and the folder is
    that of save_checkpoint."""
    models, optimizers = _require_all(model), _as_list(optimizer)
    if not isinstance(every, int) or every < 0:
        raise ValueError(f"every is {every!r}; it must be a whole number, 0 or more")
    if not optimizers:
        raise ValueError("zero.protect needs the optimizer, after whose steps it protects")
    if _job.steps.protection is not None:
        raise Error("zero.protect was called before: it is called once")
    protection = Protection(_job, models, optimizers, every, extra)
    found = protection.restore(None if folder is None else os.fspath(folder))
    _job.steps.protection = protection
    return found


def stop_on(signal: int) -> None:
    """Catches a signal as a request to stop, such as that of sbatch --signal=USR1@120: stopping()
    tells. Call it after init or fully_shard."""
    _zero.stop_on(signal)


def stopping() -> bool:
    """Whether a rank had received a signal of stop_on when the last optimizer step ended; the same
    on all ranks. A program then saves and ends, with status 75 to be started again."""
    return _job is not None and _job.steps.stopping


def reset() -> None:
    """Makes the job ready for the next step after an exception. All ranks must call it. Gradients
    are dropped, parameters and states of optimizers are kept."""
    if _job is not None and _job.layout.count:
        _job.reset()
