# SPDX-License-Identifier: Apache-2.0
"""Puts fully_shard in the place of torch's, for programs and libraries that call that one."""

import functools
import importlib.util
import os
import sys

import torch.distributed.fsdp

from . import FullyShardedModule, _zero, fully_shard, init


def replace_fsdp2():
    """From now on torch.distributed.fsdp.fully_shard is this package's, also where another module has
    imported it already. So Accelerate in FSDP2 mode, the Trainer of Transformers and peft run on
    libzero. It opens the job. Call it once, before a model is sharded."""
    init()
    stock = torch.distributed.fsdp.fully_shard
    if stock is _fully_shard:
        return
    for module in list(sys.modules.values()):
        # By __dict__, since the attributes of lazy modules import others.
        if getattr(module, "__dict__", {}).get("fully_shard") is stock:
            module.fully_shard = _fully_shard
    # Libraries take the ranks from here, whatever the launcher is.
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    os.environ.update((name, str(number)) for name, number in zip(names, _zero.place()))
    if importlib.util.find_spec("accelerate"):
        _accelerate_on_cpus()


@functools.wraps(fully_shard)
def _fully_shard(module, **kwargs):
    if kwargs.pop("shard_placement_fn", None) is not None:
        raise NotImplementedError("shard_placement_fn is not supported")
    if kwargs.pop("dp_mesh_dims", None) is not None:
        raise NotImplementedError("dp_mesh_dims is not supported")
    return fully_shard(module, **kwargs)


def _state(module):
    return module._get_fsdp_state() if isinstance(module, FullyShardedModule) else None


_fully_shard.state = _state


def _accelerate_on_cpus():
    """Accelerate shards for GPUs only: with processes on CPUs it ignores its FSDP plugin."""
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    make = AcceleratorState.__init__

    @functools.wraps(make)
    def make_sharded(self, *args, fsdp_plugin=None, **kwargs):
        make(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = self.distributed_type
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = make_sharded
