# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's engine on libzero. It is a DeepSpeedEngine, whose configuration, getters, schedulers,
loss scaler, data loader and monitor it uses; all that has to do with parameters is replaced, so
that DeepSpeedEngine.__init__ is not called."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.monitor.monitor import MonitorMaster
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.engine import DeepSpeedEngine, EngineTimers
from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler
from deepspeed.runtime.zero import partition_parameters
from deepspeed.utils import groups
from deepspeed.utils.timer import SynchronizedWallClockTimer, ThroughputTimer
from torch import nn

from .. import _api, _device, _zero
from .._module import FullyShardedModule
from . import config as configuration
from . import init, optimizer, shard, tell
from .checkpoint import Checkpoints


class Engine(Checkpoints, DeepSpeedEngine):
    # What DeepSpeedEngine sets in its constructor and its methods, or programs, read.
    mpu = mesh_device = losses = loss_scaler = checkpoint_engine = random_ltd_scheduler = None
    optimizer = basic_optimizer = lr_scheduler = training_dataloader = None
    loaded_checkpoint_mp_world_size = loaded_checkpoint_dp_world_size = None
    all_to_all_group = local_all_to_all_group = scale_wrt_gas = _python_gc_generation = None
    _is_gradient_accumulation_boundary = _global_grad_norm = torch_autocast_z0_gradscaler = None
    enable_backward_allreduce = gradient_average = warn_unscaled_loss = True
    inside_no_sync_ctxt = has_moe_layers = zenflow = pipeline_parallelism = use_ds_comm = False
    optimized_linear_lora_enabled = optimized_linear_base_weight_sharding = False
    dont_change_device = _scaled = _step_applied = _running_engine_step = _is_compiled = False
    _deepcompile_active = _deepcompile_native_initialized = False
    global_steps = global_samples = micro_steps = skipped_steps = _unmanaged_backward_count = 0
    checkpoint_mp_rank = 0
    eigenvalue = block_eigenvalue = quantizer = progressive_layer_drop = None  # before 0.19
    mp_world_size = sequence_parallel_size = 1

    def __init__(self, config: Any, config_class: DeepSpeedConfig, wanted: dict[str, Any],
                 model: nn.Module, optimizer: Any = None, model_parameters: Any = None,
                 training_data: Any = None, lr_scheduler: Any = None, collate_fn: Any = None,
                 args: Any = None, **_: Any):
        nn.Module.__init__(self)
        self.config, self._config = config, config_class
        self.client_optimizer, self.client_lr_scheduler = optimizer, lr_scheduler
        self.training_data, self.collate_fn = training_data, collate_fn
        self.moe_layers, self.gate_modules, self.num_experts = [], [], []
        self.sparse_tensor_module_names: set[str] = set()
        self.expert_parallel_group, self.expert_data_parallel_group = {}, {}
        self.engine_timers_cache: dict[str, float] = {}
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._set_distributed_vars(args)
        self.data_parallel_group = self.seq_data_parallel_group = groups._get_data_parallel_group()
        self.dp_world_size = self.seq_dp_world_size = self.world_size
        self.dist_backend = dist.get_backend()
        self.timers, self.monitor = SynchronizedWallClockTimer(), MonitorMaster(
            self._config.monitor_config
        )
        self.tput_timer = ThroughputTimer(
            self._config.timers_config, batch_size=self.train_batch_size(),
            steps_per_output=self.steps_per_print(), monitor_memory=False,
        )
        self.engine_timers = self._make_timers()
        if model_parameters is not None:
            model_parameters = list(model_parameters)
        changed = self._shard(model, wanted)
        if training_data:
            self.training_dataloader = self.deepspeed_io(training_data)
        self._make_optimizer(changed, model_parameters)

    def _make_timers(self) -> EngineTimers:
        """The backward pass has the reductions in it, which have no timers of their own."""
        wanted = self.wall_clock_breakdown()
        made = EngineTimers(wanted, wanted)
        others = {*made.backward_inner_timers, *made.backward_reduce_timers}
        made.micro_timers = [name for name in made.micro_timers if name not in others]
        made.global_timers = [name for name in made.global_timers if name not in others]
        return made

    def _shard(self, model: nn.Module, wanted: dict[str, Any]) -> shard.Changed:
        changed = shard.shard(model, self.zero_optimization_stage(), configuration.settings(wanted),
                              configuration.dtype(wanted))
        self._modules["module"] = self.__dict__["module"] = model
        self.param_names = {p: name for name, p in model.named_parameters()}
        for m in model.modules() if self.zero_optimization_stage() < 3 else ():
            m.register_state_dict_post_hook(functools.partial(Engine._plain_values, self))
        return changed

    def _make_optimizer(self, changed: shard.Changed, parameters: list | None) -> None:
        if self.client_optimizer is not None:
            made = optimizer.of_client(self.client_optimizer, parameters, self.module, changed)
        elif self.optimizer_name():
            described = dict(self.optimizer_params() or {})
            made = optimizer.of_config(self.optimizer_name(), described, parameters, changed)
        else:
            return
        made.param_groups[:] = [group for group in made.param_groups if group["params"]]
        self.optimizer = self.basic_optimizer = made
        made.overflow, made._engine = False, self
        for p in (p for group in made.param_groups for p in group["params"]):
            p._stepped_by = weakref.ref(made)
        self._configure_lr_scheduler()
        if self.fp16_enabled():
            self.loss_scaler = CreateLossScaler(
                torch.float16, self.loss_scale(), self.dynamic_loss_scale(),
                self.dynamic_loss_scale_args(),
            )
            self._note_scale()

    def _note_scale(self) -> None:
        """Programs read it of the optimizer."""
        self.optimizer.cur_scale = self.optimizer.loss_scale = self.loss_scaler.cur_scale

    # -- a step

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.training_dataloader is None:
            self.tput_timer.start()
        if torch.is_grad_enabled():
            # For a backward without the engine's, whose loss is not divided.
            self._set_reduction(self.world_size * self.gradient_accumulation_steps())
        self._start_timers(self.engine_timers.forward_timers)
        outputs = self.module(*inputs, **kwargs)
        self._stop_timers(self.engine_timers.forward_timers)
        return outputs

    def _set_reduction(self, divide: int) -> None:
        """Whether gradients are reduced by the next backward pass, as the stage has it, or stay
        where they are, and what their sums are divided by."""
        reduces = self.zero_optimization_stage() >= 2 or self.is_gradient_accumulation_boundary()
        reduces = reduces or not self.managed_gradient_accumulation()
        for group in self.module._groups():
            group.sync = group.all_reduce = reduces and not self.inside_no_sync_ctxt
            group.divide = divide

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        self._scaled = True
        return loss if self.loss_scaler is None else loss.float() * self.loss_scaler.cur_scale

    def backward(self, loss: torch.Tensor, *_: Any, retain_graph: bool = False,
                 scale_wrt_gas: bool = True, **__: Any) -> torch.Tensor:
        assert self.optimizer is not None, (
            "must provide optimizer during init in order to use backward"
        )
        if scale_wrt_gas:
            loss = loss / self.gradient_accumulation_steps()
        if not self.managed_gradient_accumulation():
            self._unmanaged_backward_count += 1
        self._set_reduction(self.world_size)
        self._start_timers(self.engine_timers.backward_timers)
        self.scale(loss).backward(retain_graph=retain_graph)
        self._stop_timers(self.engine_timers.backward_timers)
        return loss

    @contextlib.contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """The gradients of the backward passes within it are reduced once, at its end."""
        assert not self.inside_no_sync_ctxt, "coalesce_grad_reduction cannot be nested"
        self.inside_no_sync_ctxt = True
        try:
            yield
        finally:
            self.inside_no_sync_ctxt = False
        groups = self.module._groups()
        for group in groups:
            group.sync = group.all_reduce = True
        _api.job().add_gradients(groups)

    def managed_gradient_accumulation(self) -> bool:
        return getattr(self._config, "managed_gradient_accumulation", True)

    def _params(self) -> list[torch.Tensor]:
        """Whose gradients are clipped together: at stage 0 also what no optimizer steps."""
        if self.zero_optimization_stage() == 0 and not (
            self.fp16_enabled() or self.bfloat16_enabled()
        ):
            return list(self.module.parameters())
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        assert not self.inside_no_sync_ctxt, "It is illegal to call Engine.step() inside no_sync"
        assert self.optimizer is not None, "must provide optimizer during init in order to use step"
        self._step_applied, self._running_engine_step = False, True
        boundary = self.is_gradient_accumulation_boundary()
        self._start_timers(self.engine_timers.step_timers)
        if boundary:
            self._take_model_step(lr_kwargs)
        self._stop_timers(self.engine_timers.step_timers)
        self.tput_timer.stop(global_step=boundary, report_speed=self.global_rank == 0)
        if boundary and self.monitor.enabled and self.global_rank == 0:
            self._tell_monitor()
        if self.wall_clock_breakdown():
            self._update_wall_clock_timers()
            self.timers.log(self.engine_timers.micro_timers)
            if boundary:
                self.timers.log(self.engine_timers.global_timers)
        self._running_engine_step = False
        self.micro_steps += 1

    def _tell_monitor(self) -> None:
        events = [("Train/Samples/lr", self.get_lr()[0], self.global_samples)]
        if self.loss_scaler is not None:
            events.append(
                ("Train/Samples/loss_scale", self.loss_scaler.cur_scale, self.global_samples)
            )
        self.monitor.write_events(events)

    @torch.no_grad()
    def _take_model_step(self, lr_kwargs: dict[str, Any] | None) -> None:
        if self.loss_scaler is not None and not self._scaled:
            raise RuntimeError(
                "Loss scaling is required for this configuration, but backward() was called "
                "directly: use engine.backward(loss) or engine.scale(loss).backward()"
            )
        self._scaled = False
        gradients = [p.grad._local_tensor for p in self._params() if p.grad is not None]
        gradients = [g for g in gradients if g.numel()]
        scale = 1.0 if self.loss_scaler is None else self.loss_scaler.cur_scale
        norm = self._norm(gradients) / scale
        overflow = not math.isfinite(norm) and self._skips()
        if overflow:
            self._global_grad_norm = math.inf
        else:
            factor, limit = 1 / scale, self.gradient_clipping()
            if limit > 0:
                factor /= max(1.0, (norm + 1e-6) / limit)
            if factor != 1 and gradients:
                torch._foreach_mul_(gradients, factor)
            self.optimizer.step()
            self._global_grad_norm = torch.tensor(norm, dtype=torch.float64)
        self.optimizer.overflow, self._step_applied = overflow, not overflow
        for p in self._params():
            p.grad = None
        if self.loss_scaler is not None:
            self.loss_scaler.update_scale(overflow)
            self._note_scale()
        if overflow:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step(**(lr_kwargs or {}))
        self._count_step()
        protection = _api.job().steps.protection
        if protection is not None and not overflow:
            protection.after_step(self)

    def _skips(self) -> bool:
        """Whether a step is left out if its gradients have an infinity or a NaN."""
        stage, bf16 = self.zero_optimization_stage(), self._config.bfloat16_config
        if stage in (1, 2) and bf16.enabled:
            return getattr(bf16, "check_grad_overflow", True)
        return bool(stage) or bf16.enabled or self.fp16_enabled()

    def _norm(self, gradients: list[torch.Tensor]) -> float:
        """Of all gradients of all ranks, some of which may have none."""
        square = torch.zeros((), dtype=torch.float64, device=_device.device)
        if gradients:
            norms = torch._foreach_norm(gradients, dtype=torch.float32)
            square += torch.stack(norms).double().square().sum()
        dist.all_reduce(square)
        return square.sqrt().item()

    def _count_step(self) -> None:
        steps = self.steps_per_print()
        if steps is not None and self.global_rank == 0 and (self.global_steps + 1) % steps == 0:
            self._report_progress(self.global_steps + 1)
        self.global_steps += 1
        samples = self.train_batch_size()
        if not self.managed_gradient_accumulation():
            samples = samples // self.gradient_accumulation_steps() * self._unmanaged_backward_count
            self._unmanaged_backward_count = 0
        self.global_samples += samples

    def allreduce_gradients(self, *_: Any, **__: Any) -> None:
        """The backward pass has reduced them."""

    def offload_states(self, *_: Any, **__: Any) -> None:
        """On CPUs they are where they are to go."""
        if _device.on_gpu():
            raise NotImplementedError(
                "offload_states is not supported on GPUs: use --zero-offload=optimizer"
            )

    def reload_states(self, *_: Any, **__: Any) -> None:
        """None were moved."""

    def _get_optimizer_loss_scale(self) -> float | None:
        return self.loss_scaler and self.loss_scaler.cur_scale

    def zero_grad(self, *_: Any, **__: Any) -> None:
        for p in self.module.parameters():
            p.grad = None

    def compile(self, backend: Any = "inductor", compile_kwargs: dict[str, Any] | None = None,
                **_: Any) -> None:
        self.module.compile(backend=backend, **(compile_kwargs or {}))
        self._is_compiled = True

    def destroy(self) -> None:
        """There is nothing of DeepSpeed's to be freed."""

    __del__ = destroy


def replace(module: ModuleType) -> None:
    """deepspeed.initialize decides whose the engine is, before anything is sharded."""
    stock: Callable = module.initialize
    parameters = inspect.signature(stock)

    @functools.wraps(stock)
    def initialize(*args: Any, **kwargs: Any) -> tuple:
        given = parameters.bind(*args, **kwargs).arguments
        model, config = given.get("model"), given.get("config")
        if config is None:
            config = given.get("config_params")
        wanted = configuration.read(config, given.get("args"))
        why = _why_not(wanted, given)
        tell(why)
        if why is None:
            return _initialize(wanted, given)
        if model is not None and any(init.source_of(p) for p in model.parameters()):
            raise _zero.Error(
                f"this model was made by zero.Init of slurm_zero, and initialize is left to "
                f"DeepSpeed, since {why}: give zero.Init the same configuration, or use "
                "--zero-deepspeed=keep"
            )
        return stock(*args, **kwargs)

    module.initialize = initialize


def _why_not(wanted: dict[str, Any], given: dict[str, Any]) -> str | None:
    model, job = given.get("model"), _api.job()
    if not wanted or not isinstance(model, nn.Module):
        return "it has a sentence for these arguments"
    why = configuration.why_not(
        wanted, model, given.get("optimizer"), mpu=given.get("mpu"),
        mesh_param=given.get("mesh_param"),
    )
    stage = configuration.stage(wanted)
    words = job.settings.split() if job else []
    if why is None and "stage=" in "".join(words) and f"stage={stage}" not in words:
        why = f"another model of this job is at another stage ({job.settings})"
    if why is None and not isinstance(model, FullyShardedModule):
        try:
            _api.check(model)
        except (NotImplementedError, TypeError, ValueError, AssertionError) as error:
            why = str(error)
    return why


def _initialize(wanted: dict[str, Any], given: dict[str, Any]) -> tuple:
    partition_parameters.shutdown_init_context()
    init.open_comm()
    options = {k: v for k, v in given.items() if k not in ("config", "config_params")}
    engine = Engine(wanted, DeepSpeedConfig(wanted), wanted, **options)
    partition_parameters.restore_init_context()
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler
