# SPDX-License-Identifier: Apache-2.0
"""Gathers a group's parameters before its modules run, forward and backward, and reduces their
gradients afterwards. A module's parameters are FlatShards, but while it runs they are ordinary
parameters over the memory into which the library gathers, at addresses that never change."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from . import _device, _zero
from ._flat_shard import FlatShard, tensor_of
from ._param import Param, Part, from_types, param_dtype, require_filled

if TYPE_CHECKING:
    from ._job import Job

# Which imports torch._dynamo, a second, when it is first called: optimizers of torch do the same.
no_compile = torch._disable_dynamo


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """As torch.distributed.fsdp.MixedPrecisionPolicy, but gradients are summed in f32 unless
    reduce_dtype says otherwise."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True
    param_dtype_override_fn: Callable[[nn.Parameter], torch.dtype | None] | None = None


class GroupState(enum.Enum):
    SHARDED = enum.auto()
    PREFETCHED = enum.auto()  # its gather was begun, and nothing has used it yet
    UNSHARDED = enum.auto()
    BACKWARD = enum.auto()  # unsharded, until its gradients are complete; also without parameters


_TRANSITIONS = {
    GroupState.SHARDED: {GroupState.PREFETCHED, GroupState.UNSHARDED, GroupState.BACKWARD},
    GroupState.PREFETCHED: {GroupState.UNSHARDED, GroupState.SHARDED},
    GroupState.UNSHARDED: {GroupState.BACKWARD, GroupState.SHARDED},
    GroupState.BACKWARD: {GroupState.BACKWARD, GroupState.UNSHARDED, GroupState.SHARDED},
}


class Group:
    """The parameters of a module, or of a list of modules, that no other group has. They are
    gathered for these modules."""

    takes_modules = True  # what else they have is no other group's
    slice_bytes = 0  # of a parameter that is used slice by slice

    def __init__(self, job: Job, modules: list[nn.Module], mesh: DeviceMesh,
                 policy: MixedPrecisionPolicy, reshard_after_forward: bool | None,
                 ignored: set[nn.Parameter], info: Any = None):
        self.job, self.modules, self.policy = job, modules, policy
        self.mesh, self.team = mesh, job.team_of(mesh)
        # Of a larger mesh, over which the parameters are DTensors: torch's description of it, and
        # the names of those of its dimensions that are of `mesh`.
        dims = info and info.dp_mesh_dims
        self.info = info if dims else None
        self.dims = {*dims.shard_names, *dims.replicate_names} if dims else set()
        self.reshard_after_forward = reshard_after_forward
        self.reshard_after_backward = self.unshard_in_backward = True
        self.all_reduce_hook: Callable[[torch.Tensor], None] | None = None
        self.root = False
        self.parts: list[Part] = []  # once it is laid out
        self.state = GroupState.SHARDED
        # By direction, forward and backward: the group that was gathered after this one the last
        # time, and the groups that the program wants to be prefetched instead.
        self.next_gathered: list[Group | None] = [None, None]
        self.wanted: list[list[Group] | None] = [None, None]
        self.sync = self.all_reduce = True
        self.second_order = False  # there was a backward pass with create_graph
        self.manual = False  # finalize_backward() says when gradients are added
        self.divide: float | None = None
        self.to_run: set[nn.Module] = set()
        # Whose parameters this group's modules have, too; and which groups need this one's now.
        self.lenders: dict[Group, None] = {}
        self.held_by: set[Group] = set()
        self.params = self._collect(ignored)
        self._watch_modules()

    def _watch_modules(self) -> None:
        for module in self.modules:
            module.register_forward_pre_hook(self.pre_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(self.post_forward, always_call=True)

    def _collect(self, ignored: set[nn.Parameter]) -> list[Param]:
        found: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
        made: dict[nn.Parameter, nn.Parameter] = {}
        taken = self.job.taken()
        for root in self.modules:
            if root in taken:
                raise ValueError(
                    f"this {type(root).__name__} is in a group already: shard the parts "
                    "before the whole"
                )
            for prefix, module in root.named_modules():
                if module in taken:
                    continue
                for attribute, p in module._parameters.items():
                    if p is None or p in ignored:
                        continue
                    if self.info and not isinstance(p, DTensor):
                        if p not in made:
                            made[p] = from_types(p, attribute, self.info)
                        p = module._parameters[attribute] = made[p]
                    places = found.setdefault(p, [])
                    if (module, attribute) not in places:
                        places.append((module, attribute))
        owners = {p: self.job.owner(p) for p in found}
        dtypes = {p: param_dtype(self.policy, p) for p, owner in owners.items() if not owner}
        params = []
        for p, places in found.items():
            owner = owners[p]
            if owner:
                lender = self if owner.group.takes_modules else owner.group
                for module, attribute in places:
                    module._parameters[attribute] = owner.sharded
                    lender.borrow(owner, (module, attribute))
            else:
                params.append(Param(self, p, places, dtypes[p]))
        return params

    def begin_copy(self, memo: dict[int, Any]) -> Group:
        """A group for a copy of the modules, which gets them by end_copy."""
        new = memo[id(self)] = copy.copy(self)
        new.parts, new.state, new.root = [], GroupState.SHARDED, False
        new.next_gathered, new.wanted = [None, None], [None, None]
        new.to_run, new.lenders, new.held_by = set(), {}, set()
        new.params = []
        for p in self.params:
            values = p.original if p.handle is None else p.sharded
            values = nn.Parameter(values.detach().clone(), values.requires_grad)
            param = Param(new, values, [], p.dtype, p.places[0][1] if p.places else "")
            param.types = p.types
            memo[id(p.sharded)] = param.sharded
            new.params.append(param)
        return new

    def end_copy(self, new: Group, memo: dict[int, Any]) -> None:
        new.modules = [copy.deepcopy(m, memo) for m in self.modules]
        new.lenders = {memo.get(id(g), g): None for g in self.lenders}
        for old, param in zip(self.params, new.params):
            param.places = [(copy.deepcopy(m, memo), a) for m, a in old.places]
        self.job.groups.append(new)

    def borrow(self, owner: Param, place: tuple[nn.Module, str]) -> None:
        """A module of this group has a parameter of another one, or twice one of its own."""
        owner.places.append(place)
        if owner.group is not self:
            self.lenders[owner.group] = None

    def follow(self) -> None:
        """Takes what the program has put in the place of sharded parameters, as torch does: another
        parameter, or one that is sharded already. All ranks call it."""
        for param in list(self.params):
            for place in list(param.places):
                present = place[0]._parameters.get(place[1])
                # Tensors that are no parameters are for one call, of torch.func.functional_call.
                if not (
                    present is param.sharded or present is param.full and present is not None
                    or isinstance(present, torch.Tensor) and not isinstance(present, nn.Parameter)
                ):
                    self._replace(param, place, present)

    def _replace(self, param: Param, place: tuple[nn.Module, str],
                 present: nn.Parameter | None) -> None:
        module, attribute = place
        owner = self.job.owner(present)
        if present is None or owner or param.handle is None:
            param.places.remove(place)
            if not param.places and param.handle is None:
                self.params.remove(param)
                self.job.originals.pop(param.original)
            if owner:
                module._parameters[attribute] = owner.sharded
                self.borrow(owner, place)
            elif present is not None:
                self.params.append(
                    Param(self, present, [place], param_dtype(self.policy, present))
                )
            return
        what = f"{param.name} was replaced after it was first used, by a parameter"
        if present.shape != param.spec.shape:
            raise NotImplementedError(
                f"{what} of shape {tuple(present.shape)}; it must be {tuple(param.spec.shape)}"
            )
        if any(m._parameters.get(a) is not present for m, a in param.places):
            raise NotImplementedError(f"{what}, in one of the modules that share it only")
        if not present.is_meta:
            param.fill()
        with torch.no_grad():
            param.sharded.copy_(present)
        param.sharded.requires_grad_(present.requires_grad)
        param.sharded.grad = None
        present._sharded_as = param.name
        param.swap(present, param.sharded)

    def new_part(self, handle: Any, dtype: torch.dtype | None) -> Part:
        self.parts.append(Part(self, handle, dtype))
        return self.parts[-1]

    # -- what functions of torch.distributed.fsdp ask of a module's state

    _comm_ctx, _fsdp_param_groups = None, ()

    @property
    def _is_root(self) -> bool:
        self.job.layout.update()
        return self.root

    def _pre_forward(self, *args: Any) -> tuple[tuple, dict]:
        return self.pre_forward(*args)

    def _post_forward(self, *args: Any) -> Any:
        return self.post_forward(*args)

    # -- gathers

    def become(self, state: GroupState) -> None:
        assert state in _TRANSITIONS[self.state], f"a group that is {self.state} became {state}"
        self.state = state

    def unshard(self) -> None:
        self.job.layout.update()
        if self.state is not GroupState.BACKWARD:
            self.follow()
        for lender in self.lenders:
            if self not in lender.held_by:
                lender.held_by.add(self)
                lender.unshard()
        if not self.params:
            return
        if self.state in (GroupState.SHARDED, GroupState.PREFETCHED):
            require_filled(self.params)
            self.job.writes.end()
            for part in self.parts:
                part.gather()
            self.become(GroupState.UNSHARDED)
            self.prefetch()
        self.use_full()

    def begin_unshard(self) -> None:
        self.job.layout.update()
        if self.state is GroupState.SHARDED and any(part.needs_gather for part in self.parts):
            self.job.writes.end()
            for part in self.parts:
                part.prefetch()
            if any(part.gathered for part in self.parts):
                self.become(GroupState.PREFETCHED)

    def prefetch(self) -> None:
        """Begins to gather what comes after this group. Ranks gather in the same order, so that
        they do this alike. What then is not used is released with all groups before the step."""
        backward = self.job.in_backward()
        if self.job.last:
            self.job.last.next_gathered[backward] = self
        self.job.last = self
        wanted = self.wanted[backward]
        for group in [self.next_gathered[backward]] if wanted is None else wanted:
            if group:
                group.begin_unshard()

    def use_full(self) -> None:
        for param in self.params:
            if param.sharded.requires_grad != param.trainable:
                param.update_requires_grad()
            param.swap(param.sharded, param.full)
            if param.types:
                param.types.restore(param.full)

    def use_sharded(self) -> None:
        for param in self.params:
            param.swap(param.full, param.sharded)

    def give_back(self) -> None:
        """Lenders are released that nothing else needs."""
        for lender in self.lenders:
            if self in lender.held_by:
                lender.held_by.remove(self)
                if not lender.to_run and lender.state is not GroupState.BACKWARD:
                    lender.reshard()

    def reshard(self) -> None:
        self.give_back()
        if self.held_by:
            if self.state is GroupState.BACKWARD:
                self.become(GroupState.UNSHARDED)
            return
        self.use_sharded()
        if self.state is not GroupState.SHARDED:
            self.become(GroupState.SHARDED)
            for part in self.parts:
                part.release()

    def forget(self) -> None:
        """The library has dropped all that was under way."""
        self.state = GroupState.SHARDED
        self.to_run = set()
        self.held_by.clear()
        for part in self.parts:
            part.gathered = False
            part.kept.clear()
        self.use_sharded()
        for p in self.params:
            p.has_grad = False
            if p.full is not None:
                p.full.grad = None
            p.sharded.grad = None

    # -- forward

    @no_compile
    def pre_forward(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        self.job.check_backward()
        recomputes = self.state is GroupState.BACKWARD
        if not recomputes:
            _device.refuse_capture()
            if self.root:
                self.job.end_pass()
            if module not in self.to_run:
                self.to_run = set(self.modules)
        self.unshard()
        if self.root and _device.on_gpu():
            move = functools.partial(torch.Tensor.to, device=_device.device)
            args, kwargs = _change(args, move), _change(kwargs, move)
        if self.policy.cast_forward_inputs and self.policy.param_dtype:
            cast = functools.partial(_cast, dtype=self.policy.param_dtype)
            args, kwargs = _change(args, cast), _change(kwargs, cast)
        if torch.is_grad_enabled() and not recomputes:
            inputs: list[torch.Tensor] = []
            _change((args, kwargs), lambda t: inputs.append(t) or t if t.requires_grad else t)
            if inputs:
                outputs = iter(PostBackward.apply(self, *inputs))
                args, kwargs = _change(
                    (args, kwargs), lambda t: next(outputs) if t.requires_grad else t
                )
        if not recomputes:
            self.job.saved.begin(module)
        return args, kwargs

    @no_compile
    def post_forward(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if self.state is GroupState.BACKWARD:
            return self._cast_output(output)
        self.job.saved.end(module)
        self.to_run.discard(module)
        if not self.to_run:
            keep = self.reshard_after_forward
            keep = self.root if keep is None else not keep
            if keep and torch.is_grad_enabled():
                self.use_sharded()
                self.give_back()
            else:
                self.reshard()
        if output is None:
            return output
        output = self._cast_output(output)
        if torch.is_grad_enabled():
            _change(output, self._watch)
        return output

    def _cast_output(self, output: Any) -> Any:
        if self.policy.output_dtype:
            output = _change(output, functools.partial(_cast, dtype=self.policy.output_dtype))
        return output

    def _watch(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            if any(p.full is not None and p.full is tensor for p in self.params) or (
                tensor._is_view() and any(tensor._base is p.full for p in self.params)
            ):
                raise NotImplementedError(
                    "a module returned its parameter or a view of it, which is not there after the "
                    "forward: return a copy"
                )
            tensor.register_hook(self.pre_backward)
        return tensor

    # -- backward

    def use_in_backward(self) -> None:
        self.job.begin_backward(self)
        if self.unshard_in_backward or self.state is not GroupState.SHARDED:
            self.unshard()
            self.become(GroupState.BACKWARD)

    @no_compile
    def pre_backward(self, grad: torch.Tensor) -> torch.Tensor:
        self.use_in_backward()
        if self.job.creates_graph and not self.second_order:
            # A backward pass of this one need not come to an output.
            self.second_order = True
            for p in self.params:
                if p.trainable:
                    p.full.register_post_accumulate_grad_hook(self._begin_backward)
        return grad

    @no_compile
    def _begin_backward(self, _: torch.Tensor) -> None:
        self.job.begin_backward(self)

    def post_backward(self) -> None:
        if self.reshard_after_backward and not self.job.creates_graph:
            self.reshard()
        elif self.state is GroupState.BACKWARD:
            self.use_sharded()
            self.become(GroupState.UNSHARDED)
        self.keep_gradients()
        if self.sync and any(part.kept for part in self.parts):
            # Also parts that this rank has not used, since another may have.
            for part in self.parts:
                if any(p.trainable for p in part.params):
                    part.reduce()

    def keep_gradients(self) -> None:
        for part in self.parts:
            part.keep_gradients()

    @torch.no_grad()
    def add_gradients(self, params: list[Param], world: int) -> None:
        """Adds the mean gradients to .grad of these parameters, and calls the program's hooks, in
        which an optimizer may step."""
        if not params:
            return
        sums = [tensor_of(_zero.gradient_shard(p.handle), torch.float32) for p in params]
        _device.trim_host()
        values = torch._foreach_div(sums, self.divide or world)
        del sums
        for part in dict.fromkeys(p.part for p in params):
            _zero.gradient_sums(part.handle, False)
        if self.all_reduce_hook:
            flat = torch.cat(values)
            self.all_reduce_hook(flat)
            values = flat.split([value.numel() for value in values])
        for p, value in zip(params, values):
            grad = FlatShard.wrap(value.to(p.sharded.dtype), p.spec)
            for hook in (p.sharded._backward_hooks or {}).values():
                changed = hook(grad)
                grad = grad if changed is None else p.spec.to_shard(changed)
            if p.sharded.grad is None:
                p.sharded.grad = grad
            else:
                p.sharded.grad._local_tensor.add_(grad._local_tensor)
        for p in params:
            for hook in (p.sharded._post_accumulate_grad_hooks or {}).values():
                hook(p.sharded)


class PostBackward(torch.autograd.Function):
    """Passes a module's inputs through: its backward runs when their gradients are complete, which
    is after those of the module's parameters."""

    @staticmethod
    def forward(ctx: Any, group: Group, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.group = group
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.group.job.begin_backward(ctx.group)
        ctx.group.post_backward()
        return (None, *grads)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _change(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with its tensors changed, and the same object if none of them was."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        old = value
    elif isinstance(value, (list, tuple)):
        old = dict(enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    else:
        return value
    new = {k: _change(v, change) for k, v in old.items()}
    if all(new[k] is old[k] for k in old):
        return value
    if type(value) is dict:
        return new
    if isinstance(value, dict):
        for k, v in new.items():
            value[k] = v
        return value
    if isinstance(value, (list, tuple)):
        items: Iterable = new.values()
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return dataclasses.replace(value, **new)
