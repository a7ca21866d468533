# SPDX-License-Identifier: Apache-2.0
"""AdamW and Muon by the library, without a tensor for each state."""

import torch

from . import _zero
from ._tensor import Capsule, FlatShard


class AdamW(torch.optim.Optimizer):
    """As torch.optim.AdamW (Loshchilov and Hutter, arXiv 1711.05101) of sharded parameters. The library
    keeps the moments, which zero.save and zero.restore know, and no state_dict; parameters of 16 bits
    have f32 masters. A step whose gradients are not finite changes nothing. Groups of parameters may
    have lr and weight_decay of their own, but betas and eps are those of all."""

    states = None  # of the moments, as zero_states has them; None: those of --zero-states

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._prepared = False
        self._told = {}  # what the library knows of each parameter
        for group in self.param_groups:
            for p in group["params"]:
                if not isinstance(p, FlatShard):
                    raise ValueError(
                        f"zero.{type(self).__name__} steps parameters that fully_shard has sharded; this one, of shape "
                        f"{tuple(p.shape)}, is not"
                    )

    def prepare(self):
        """The moments get their type before the first step or a restore. All ranks call it."""
        if self._prepared:
            return
        self.choose()
        if self.states is not None:
            _zero.set_states(self.states)
        self._prepared = True

    def choose(self):
        """Tells the library which parameters are stepped by another rule than AdamW's."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        adamw, muon = self._settings()
        job = next((p._cut.job for group in self.param_groups for p in group["params"]), None)
        if job is None:
            return loss
        job.begin_step(self)
        self.prepare()
        stepped, given = {}, set()
        for group in self.param_groups:
            said = (float(group["lr"]), float(group["weight_decay"]))
            for p in group["params"]:
                param = p._cut.param
                if p.grad is not None:
                    stepped[param.group] = None
                    given.add(param)
                    self._tell(param, said)
                    self._give(param, p.grad)
        if not stepped:
            return loss
        # As in torch, a parameter without a gradient stays as it is, and so does one of another optimizer.
        unused = [p for group in stepped for p in group.params if p.can_train and p not in given]
        for param in unused:
            _zero.param_trainable(param.handle, False)
        try:
            job.take_step([g.handle for g in job.groups if g in stepped], adamw, muon)
        finally:
            for param in unused:
                _zero.param_trainable(param.handle, True)
        return loss

    def _same(self, groups, names):
        """The settings that these groups have in common."""
        first = groups[0]
        for name in names:
            if any(group[name] != first[name] for group in groups):
                raise ValueError(f"all groups of zero.{type(self).__name__} have the same {name}")
        return [first[name] for name in names]

    def _settings(self):
        """(betas and eps), and those of Muon."""
        betas, eps = self._same(self.param_groups, ("betas", "eps"))
        return (*betas, eps), None

    def _tell(self, param, said):
        if self._told.get(param) != said:
            self._told[param] = said
            _zero.param_scales(param.handle, *said)

    @staticmethod
    def _give(param, gradient):
        sums = _zero.gradient_shard(param.handle)
        if sums is not None:
            torch.from_dlpack(Capsule(sums)).copy_(gradient._local_tensor)
        elif gradient._local_tensor.numel():
            raise _zero.Error(
                f"zero.{type(self).__name__}: the gradient of {param.name} was not made by a backward pass, "
                "or another optimizer has stepped parameters of the same module since: give them to one"
            )


class AdamW8bit(AdamW):
    """AdamW whose moments take 2 bytes an element instead of 8 (Dettmers et al., arXiv 2110.02861): codes
    of 8 bits, with a scale for each 256 elements. Parameters of less than 4096 elements keep f32. All
    moments that the library keeps become so, also those of a zero.AdamW beside it."""

    states = 1


class Muon(AdamW):
    """As torch.optim.Muon (Jordan, 2024) of sharded matrices, each orthogonalised on one rank, in f32. A
    group with `use_muon` False is stepped by AdamW, with lr, betas, eps and weight_decay of its own:

        zero.Muon([{"params": matrices}, {"params": others, "use_muon": False, "lr": 3e-4}], lr=0.02)

    Parameters of three dimensions are stacks of matrices. What is no setting of a group of parameters in
    torch either (all but lr and weight_decay) is that of all groups of its kind."""

    _rates = ("original", "match_rms_adamw", "spectral_unclamped")
    _adamw = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}

    def __init__(self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True,
                 ns_coefficients=(3.4445, -4.7750, 2.0315), eps=1e-7, ns_steps=5, adjust_lr_fn=None):
        params = list(params)
        groups = params if params and isinstance(params[0], dict) else [{"params": params}]
        muon = {"weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov, "eps": eps,
                "ns_coefficients": tuple(ns_coefficients), "ns_steps": ns_steps,
                "adjust_lr_fn": adjust_lr_fn or "original"}
        for rate in [muon["adjust_lr_fn"], *(g.get("adjust_lr_fn") or "original" for g in groups)]:
            if rate not in self._rates:
                raise ValueError(f"adjust_lr_fn is {rate!r}; it must be one of {', '.join(self._rates)}")
        super().__init__([{**(muon if g.get("use_muon", True) else self._adamw), "use_muon": True, **g}
                          for g in groups], lr=lr)
        for p in self._matrices():
            if p.ndim not in (2, 3):
                raise ValueError(
                    "zero.Muon steps matrices and stacks of them, and this parameter has the shape "
                    f"{tuple(p.shape)}: put it in a group with use_muon=False"
                )

    def _matrices(self):
        return [p for group in self.param_groups if group["use_muon"] for p in group["params"]]

    def choose(self):
        for p in self._matrices():
            _zero.param_muon(p._cut.param.handle)

    def _settings(self):
        adamw, muon = ((0.9, 0.999, 1e-8), None)
        by_muon = [group for group in self.param_groups if group["use_muon"]]
        others = [group for group in self.param_groups if not group["use_muon"]]
        if others:
            betas, eps = self._same(others, ("betas", "eps"))
            adamw = (*betas, eps)
        if by_muon:
            names = ("momentum", "nesterov", "ns_steps", "ns_coefficients", "eps", "adjust_lr_fn")
            momentum, nesterov, steps, coefficients, eps, rate = self._same(by_muon, names)
            muon = (momentum, not nesterov, steps, tuple(coefficients), eps,
                    self._rates.index(rate or "original"))
        return adamw, muon
