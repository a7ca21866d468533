# SPDX-License-Identifier: Apache-2.0
"""Gathers a group's parameters before its modules run, forward and backward, and reduces their
gradients afterwards. A module's parameters are FlatShards, but while it runs they are ordinary
parameters over the memory into which the library gathers, at addresses that never change."""

import dataclasses
import functools
import weakref

import torch
from torch import nn
from torch.autograd import Variable

from . import _checkpoint, _zero
from ._adamw import AdamW
from ._compare import require_same
from ._tensor import Capsule, Cut, FlatShard

_no_compile = functools.partial(torch._dynamo.disable, recursive=True)

DTYPES = {torch.float32: _zero.F32, torch.float16: _zero.F16, torch.bfloat16: _zero.BF16}


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """As torch.distributed.fsdp.MixedPrecisionPolicy, but gradients are summed in f32 unless
    reduce_dtype says otherwise."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True


class Param:
    """A parameter of a group."""

    def __init__(self, group, original, places):
        self.group, self.places = group, places  # [(module, attribute)]
        self.original = original
        self.trainable = original.requires_grad
        self.can_train = self.trainable  # what it was laid out with
        self.handle = self.full = self.name = None
        self.flag = False  # this rank has added a gradient since the last backward pass
        cut = Cut(places[0][1], tuple(original.shape), original.contiguous().stride(), group.job.mesh)
        cut.job, cut.param = group.job, self
        self.cut = cut
        empty = torch.empty(0, dtype=original.dtype, device="cpu")
        self.sharded = FlatShard.wrap(empty, cut, requires_grad=self.trainable)
        self.sharded._is_param = True
        cut.parameter = self.sharded

    def follow(self):
        """requires_grad was changed."""
        if not self.can_train:
            raise NotImplementedError(
                f"{self.name} was frozen when the sharded parameters were first used, and cannot be "
                "trained: freeze it after that"
            )
        self.trainable = self.sharded.requires_grad
        self.full.requires_grad_(self.trainable)

    def show(self, tensor):
        for module, attribute in self.places:
            module._parameters[attribute] = tensor


class Group:
    """What is gathered as one: the parameters of a module, or of a list of modules, that no other
    group has."""

    def __init__(self, job, modules, policy, reshard_after_forward, ignored):
        self.job, self.modules, self.policy = job, modules, policy
        self.reshard_after_forward = reshard_after_forward
        self.root = False
        self.handle = None
        self.gathered = self.prefetched = self.in_backward = False
        self.moves = False  # whether a gather sends or casts anything
        # By direction, forward and backward: the group that was gathered after this one the last
        # time, and the groups that the program wants to be prefetched instead.
        self.followed, self.wanted = [None, None], [None, None]
        self.sync = self.all_reduce = True
        self.divide = None
        self.to_run = set()
        self.params = self._collect(ignored)
        for module in modules:
            module.register_forward_pre_hook(self.pre_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(self.post_forward, always_call=True)

    def _collect(self, ignored):
        found = {}
        taken = {m for g in self.job.groups for root in g.modules for m in root.modules()}
        for root in self.modules:
            if root in taken:
                raise ValueError(
                    f"this {type(root).__name__} is in a group already: shard the parts before the whole"
                )
            for prefix, module in root.named_modules():
                if module in taken:
                    continue
                for attribute, p in module._parameters.items():
                    if p is None or p in ignored:
                        continue
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    if isinstance(p, FlatShard) or p in self.job.originals:
                        raise ValueError(
                            f"parameter {name} is in a group already; modules that share a parameter "
                            "must be one group: fully_shard([a, b])"
                        )
                    places = found.setdefault(p, [])
                    if (module, attribute) not in places:
                        places.append((module, attribute))
        params = [Param(self, p, places) for p, places in found.items()]
        for param in params:
            self.job.originals.add(param.original)
            param.show(param.sharded)
        return params

    # -- gathers

    def gather_as(self):
        want = self.policy.param_dtype
        return DTYPES[want] if want else _zero.PARAM

    def unshard(self):
        self.job.lay_out()
        if not self.params:
            return
        if not self.gathered:
            self.job.end_writes()
            _zero.gather(self.handle, self.gather_as())
            self.gathered, self.prefetched = True, False
            self.prefetch()
        for param in self.params:
            if param.sharded.requires_grad != param.trainable:
                param.follow()
            param.show(param.full)

    def prefetch(self):
        """Begins to gather what comes after this group. Ranks gather in the same order, so that they
        do this alike. What then is not used is released with all groups before the step."""
        job = self.job
        if job.last:
            job.last.followed[job.backward] = self
        job.last = self
        wanted = self.wanted[job.backward]
        for group in [self.followed[job.backward]] if wanted is None else wanted:
            if group and group.moves and not group.gathered and not group.prefetched:
                # The bound of memory may have it skipped, on all ranks.
                group.prefetched = _zero.prefetch(group.handle, group.params[0].handle, group.gather_as())

    def hide(self):
        for param in self.params:
            param.show(param.sharded)

    def reshard(self):
        self.hide()
        if self.gathered or self.prefetched:
            self.gathered = self.prefetched = False
            _zero.release(self.handle)

    # -- forward

    @_no_compile
    def pre_forward(self, module, args, kwargs):
        self.job.check_backward()
        if not self.in_backward:
            if self.root:
                self.job.end_pass()
            if module not in self.to_run:
                self.to_run = set(self.modules)
        self.unshard()
        if self.policy.cast_forward_inputs and self.policy.param_dtype:
            cast = functools.partial(_cast, dtype=self.policy.param_dtype)
            args, kwargs = _change(args, cast), _change(kwargs, cast)
        if torch.is_grad_enabled() and not self.in_backward:
            inputs = []
            _change((args, kwargs), lambda t: inputs.append(t) or t if t.requires_grad else t)
            if inputs:
                outputs = iter(PostBackward.apply(self, *inputs))
                args, kwargs = _change(
                    (args, kwargs), lambda t: next(outputs) if t.requires_grad else t
                )
        return args, kwargs

    @_no_compile
    def post_forward(self, module, args, output):
        if self.in_backward:
            return output
        self.to_run.discard(module)
        if not self.to_run:
            keep = self.reshard_after_forward
            keep = self.root if keep is None else not keep
            if keep and torch.is_grad_enabled():
                self.hide()
            else:
                self.reshard()
        if output is None:
            return output
        if self.policy.output_dtype:
            output = _change(output, functools.partial(_cast, dtype=self.policy.output_dtype))
        if torch.is_grad_enabled():
            _change(output, self._watch)
        return output

    def _watch(self, tensor):
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

    @_no_compile
    def pre_backward(self, grad):
        if torch.is_grad_enabled() and grad.requires_grad:
            raise NotImplementedError("create_graph=True is not supported for sharded modules")
        self.job.begin_backward()
        self.in_backward = True
        self.unshard()
        return grad

    def has_gradient(self):
        return any(p.full is not None and p.full.grad is not None for p in self.params)

    def post_backward(self):
        self.in_backward = False
        self.reshard()
        if self.sync and self.has_gradient():
            self.reduce()

    def reduce(self):
        """Copies the gradients to the group's buffer, and begins to sum them."""
        dtype = self.policy.reduce_dtype or torch.float32
        to, source = [], []
        with torch.no_grad():
            for p in self.params:
                if not p.can_train:
                    continue
                buffer = _zero.gradient(p.handle, DTYPES[dtype])
                if buffer is None:
                    continue
                buffer = torch.from_dlpack(Capsule(buffer))
                if p.full.grad is None:
                    buffer.zero_()
                else:
                    to.append(buffer.view(p.cut.shape))
                    source.append(p.full.grad)
            if to:
                torch._foreach_copy_(to, source)
        for p in self.params:
            if p.full.grad is not None:
                p.flag = True
                p.full.grad = None
        _zero.reduce(self.handle)


class PostBackward(torch.autograd.Function):
    """Passes a module's inputs through: its backward runs when their gradients are complete, which
    is after those of the module's parameters."""

    @staticmethod
    def forward(ctx, group, *inputs):
        ctx.group = group
        return inputs

    @staticmethod
    def backward(ctx, *grads):
        ctx.group.job.begin_backward()
        ctx.group.post_backward()
        return (None, *grads)


class Job:
    """The groups of this process's job."""

    def __init__(self):
        self.groups, self.originals = [], set()
        self.mesh = None
        self.laid_out = 0  # of the groups
        self.names = set()
        self.roots = []
        self.optimizers = weakref.WeakSet()  # that have stepped
        self.backward = self.stepping = False
        self.written = {}  # groups that the program has changed outside of a step
        self.last = None  # the group that was gathered last in this forward or backward pass
        self.stage = 3
        self.shard = None  # ranks that store a copy, if a mesh says it
        self.replicated = False  # in a grid: other ranks store what this one owns, too
        self.stopping = False  # what the last step was told of signals
        self.steps = 0  # that were taken, for the names of checkpoints

    def begin_write(self, group):
        """The program changes parameters, as all ranks do. What others store of them follows before
        anything is computed with them."""
        if self.stepping or group in self.written:
            return
        group.reshard()
        _zero.write_begin(group.handle)
        self.written[group] = None

    def end_writes(self):
        while self.written:
            group = next(iter(self.written))
            _zero.write_end(group.handle)
            del self.written[group]

    def lay_out(self):
        new = self.groups[self.laid_out :]
        if not new:
            return
        tops = [m for g in new for m in g.modules]
        inside = {m for top in tops for m in top.modules() if m is not top}
        tops = [top for top in tops if top not in inside]
        self.roots += [top for top in tops if top not in self.roots]
        names = {}
        for index, top in enumerate(self.roots):
            # The first model's names are its own, those of others have a number before them.
            prefix = f"{index}:" if index else ""
            for path, module in top.named_modules():
                for attribute in module._parameters:
                    names.setdefault((module, attribute), prefix + (f"{path}." if path else "") + attribute)
        for number, group in enumerate(new, self.laid_out):
            group.root = any(m in tops for m in group.modules)
            if not group.params:
                continue
            group.handle = _zero.group_new(f"group {number}")
            if group.policy.reduce_dtype:
                _zero.group_gradient_dtype(group.handle, DTYPES[group.policy.reduce_dtype])
            for p in group.params:
                p.trainable = p.can_train = p.sharded.requires_grad
                p.name = p.cut.name = names[p.places[0]]
                p.handle = _zero.param_new(
                    group.handle, p.name, DTYPES[p.original.dtype], tuple(p.original.shape), p.trainable
                )
        require_same(
            f"{'' if p.trainable else 'frozen '}{p.name} of {p.original.dtype} {tuple(p.original.shape)}"
            f"{' on meta' if p.original.is_meta else ''} in group {number}"
            for number, group in enumerate(new, self.laid_out) for p in group.params
        )
        _zero.layout()
        self.laid_out = len(self.groups)
        if self.stage == 3:
            ranks = int(_zero.setting("shard"))
            self.replicated = ranks < _zero.place()[1]
            # Ranks of a team prefetch alike, though one of its nodes may have another number of ranks.
            sends = any(_zero.exchange(bytes([int(_zero.setting("share")) % ranks != 0])))
        else:
            sends = False
        for group in new:
            as_dtype = group.policy.param_dtype
            casts = as_dtype and any(p.original.dtype != as_dtype for p in group.params)
            group.moves = bool(group.params and (sends or casts))
        for group in new:
            for p in group.params:
                self._take(group, p)

    def _take(self, group, p):
        cut, dtype = p.cut, p.original.dtype
        cut.ranges = _zero.owned(group.handle, p.handle)
        data = _zero.shard(p.handle, *cut.range)
        local = torch.empty(0, dtype=dtype, device="cpu") if data is None else torch.from_dlpack(Capsule(data))
        p.sharded._local_tensor = local
        if p.original.device.type != "meta":
            values = p.original.detach().contiguous()
            _zero.load_from(p.handle, values.data_ptr())
        as_dtype = group.policy.param_dtype or dtype
        full = _zero.address(p.handle, group.gather_as(), DTYPES[as_dtype])
        if full is None:
            full = torch.empty(cut.shape, dtype=as_dtype, device="cpu")
        else:
            full = torch.from_dlpack(Capsule(full))
        with torch.inference_mode(False):
            p.full = nn.Parameter(full, requires_grad=p.trainable)
        self.originals.discard(p.original)
        p.original._sharded_as = p.name  # for an optimizer that still has it
        p.original = None

    def end_pass(self):
        if self.last:
            self.last.followed[self.backward] = None
        self.last = None

    def begin_backward(self):
        if not self.backward:
            self.end_pass()
            self.backward = True
            Variable._execution_engine.queue_callback(self.end_backward)

    @_no_compile
    def end_backward(self):
        """Ends a backward pass: reduces what is left, and adds the sums to .grad of the shards."""
        # A group may have no parameters, if its parts have them all.
        for group in self.groups[: self.laid_out]:
            if group.gathered or group.prefetched or group.in_backward:
                group.post_backward()
        self.end_pass()
        groups = [g for g in self.groups[: self.laid_out] if g.params]
        self.backward = False
        synced = [g for g in groups if g.sync]
        if not synced:
            return
        # Ranks may have used different parameters.
        mine = bytearray()
        for group in synced:
            mine.append(group.has_gradient())
            for p in group.params:
                mine.append(p.flag or p.full.grad is not None)
        world = _zero.place()[1]
        every = torch.frombuffer(bytearray(_zero.exchange(bytes(mine))), dtype=torch.uint8)
        any_rank = every.view(world, -1).any(0).tolist()
        at = 0
        for group in synced:
            if any_rank[at]:
                group.reduce()
            at += 1 + len(group.params)
        summed = [g for g in synced if g.all_reduce]
        if self.replicated:
            _zero.reduce_replicas([g.handle for g in summed])
        at = 0
        for group in synced:
            at += 1
            for p in group.params:
                if group.all_reduce or not self.replicated:
                    p.flag = False
                    if any_rank[at] and p.trainable:
                        self._add(group, p, world)
                at += 1

    @staticmethod
    def _add(group, p, world):
        sums = _zero.gradient_shard(p.handle)
        with torch.no_grad():
            if sums is None:
                value = torch.empty(0, dtype=p.sharded.dtype, device="cpu")
            else:
                sums = torch.from_dlpack(Capsule(sums))
                value = (sums / (group.divide or world)).to(p.sharded.dtype)
                sums.zero_()  # what a later reduce adds to
            if p.sharded.grad is None:
                p.sharded.grad = FlatShard.wrap(value, p.cut)
            else:
                p.sharded.grad._local_tensor.add_(value)

    # -- steps

    def check_backward(self):
        if self.backward and torch._C._current_graph_task_id() == -1:
            raise _zero.Error(
                "an exception ended a backward pass: call slurm_zero.reset() on all ranks before the next"
            )

    def _meet(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if hasattr(p, "_sharded_as"):
                    raise _zero.Error(
                        f"this {type(optimizer).__name__} was built before fully_shard, with "
                        f"{p._sharded_as} as it was before: build it after fully_shard"
                    )
        _checkpoint.recut(optimizer)
        optimizer.register_load_state_dict_post_hook(_checkpoint.recut)
        self.optimizers.add(optimizer)

    def begin_step(self, optimizer):
        """Whatever steps. Returns the groups that the optimizer has parameters of."""
        if optimizer not in self.optimizers:
            self._meet(optimizer)
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        groups = [g for g in self.groups if any(id(p.sharded) in mine for p in g.params)]
        if groups:
            self.check_backward()
            self.lay_out()
            self.end_writes()
            for group in self.groups:
                group.reshard()
        return groups

    def step_begin(self, optimizer, args, kwargs):
        if isinstance(optimizer, AdamW):
            return
        groups = self.begin_step(optimizer)
        if not groups:
            return
        if kwargs.get("closure") is not None or any(a is not None for a in args[1:]):
            raise NotImplementedError("an optimizer's step with a closure is not supported")
        _zero.step_begin([g.handle for g in groups])
        self.stepping = True

    def step_end(self, optimizer, args, kwargs):
        if self.stepping:
            self.stepping = False
            self.stopping = _zero.step_end()
            self.steps += 1

    def take_step(self, groups, adamw, muon):
        self.stopping = _zero.step_groups(groups, adamw, muon)
        self.steps += 1

    def reset(self):
        _zero.reset()
        self.backward = self.stepping = False
        self.written.clear()
        self.last = None
        for group in self.groups[: self.laid_out]:
            group.gathered = group.prefetched = group.in_backward = False
            group.to_run = set()
            group.hide()
            for p in group.params:
                p.flag = False
                p.full.grad = None
                p.sharded.grad = None


def _cast(tensor, dtype):
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _change(value, change):
    """The same structure with its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = {k: _change(v, change) for k, v in value.items()}
        if all(changed[k] is value[k] for k in value):
            return value
        if type(value) is dict:
            return changed
        for k, v in changed.items():
            value[k] = v
        return value
    if isinstance(value, (list, tuple)):
        changed = [_change(v, change) for v in value]
        if all(a is b for a, b in zip(changed, value)):
            return value
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        changed = {k: _change(v, change) for k, v in fields.items()}
        if all(changed[k] is fields[k] for k in fields):
            return value
        return dataclasses.replace(value, **changed)
    return value
