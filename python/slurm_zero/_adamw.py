# SPDX-License-Identifier: Apache-2.0
"""AdamW by the library, in one pass over what a rank owns, without a tensor for each state."""

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
                        "zero.AdamW steps parameters that fully_shard has sharded; this one, of shape "
                        f"{tuple(p.shape)}, is not"
                    )

    def prepare(self):
        """The moments get their type before the first step or a restore. All ranks call it."""
        if self.states is not None and not self._prepared:
            _zero.set_states(self.states)
        self._prepared = True

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first = self.param_groups[0]
        for group in self.param_groups:
            if group["betas"] != first["betas"] or group["eps"] != first["eps"]:
                raise ValueError("all groups of zero.AdamW have the same betas and eps")
        job = first["params"][0]._cut.job
        job.begin_step(self)
        self.prepare()
        stepped, unused = {}, []
        for group in self.param_groups:
            said = (float(group["lr"]), float(group["weight_decay"]))
            for p in group["params"]:
                param = p._cut.param
                if p.grad is not None:
                    stepped[param.group] = None
                    self._tell(param, said)
                    self._give(param, p.grad)
                elif param.trainable:
                    unused.append(param)
        if not stepped:
            return loss
        # As in torch, a parameter without a gradient stays as it is.
        unused = [param for param in unused if param.group in stepped]
        for param in unused:
            _zero.param_trainable(param.handle, False)
        try:
            job.take_step([g.handle for g in job.groups if g in stepped], *first["betas"], first["eps"])
        finally:
            for param in unused:
                _zero.param_trainable(param.handle, True)
        return loss

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
                f"zero.AdamW: the gradient of {param.name} was not made by a backward pass"
            )


class AdamW8bit(AdamW):
    """AdamW whose moments take 2 bytes an element instead of 8 (Dettmers et al., arXiv 2110.02861): codes
    of 8 bits, with a scale for each 256 elements. Parameters of less than 4096 elements keep f32. All
    moments that the library keeps become so, also those of a zero.AdamW beside it."""

    states = 1
