# SPDX-License-Identifier: Apache-2.0
"""kept.py WHAT: what of DeepSpeed is left to DeepSpeed, and the hook of its import. One rank."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
what = sys.argv[1]
if what == "hook":
    import deepspeed  # imports torch itself
    import torch
else:
    import torch
from torch import nn


def make():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def settings(**others):
    return {"train_batch_size": 2, "zero_optimization": {"stage": 3}, "steps_per_print": 1000,
            "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}, **others}


def zero(**others):
    return settings(zero_optimization={"stage": 3, **others})


def optimizer(name, **params):
    return settings(optimizer={"type": name, "params": params})


# What the configuration has, and the sentence.
REFUSED = [
    (settings(nobody_knows=1), "nobody_knows is 1, which is not supported"),
    (settings(nobody_knows={"a": 1}), "nobody_knows is not supported"),
    (settings(hybrid_engine={"enabled": True}), "hybrid_engine is not supported"),
    (settings(compression_training={"a": {}}), "compression_training is not supported"),
    (settings(sparse_attention={"mode": "fixed"}), "sparse_attention is not supported"),
    (settings(data_efficiency={"enabled": True}), "data_efficiency is not supported"),
    (settings(curriculum_learning={"enabled": True}), "curriculum_learning is not supported"),
    (settings(torch_autocast={"enabled": True}), "torch_autocast is not supported"),
    (settings(flops_profiler={"enabled": True}), "flops_profiler is not supported"),
    (settings(tensor_parallel={"autotp_size": 2}), "tensor_parallel.autotp_size is 2"),
    (settings(sequence_parallel_size=2), "sequence_parallel_size is 2"),
    (settings(gradient_allreduce_op="sum"), "gradient_allreduce_op is 'sum'"),
    (settings(activation_checkpointing={"partition_activations": True}),
     "activation_checkpointing.partition_activations is True"),
    (settings(bf16={"enabled": True, "bf16_optimizer_states": True}),
     "bf16.bf16_optimizer_states is True"),
    (settings(checkpoint={"use_node_local_storage": True}),
     "checkpoint.use_node_local_storage is True"),
    (zero(zero_hpz_partition_size=2), "zero_optimization.zero_hpz_partition_size is 2"),
    (zero(mics_shard_size=2), "zero_optimization.mics_shard_size is 2"),
    (zero(zero_quantized_weights=True), "zero_optimization.zero_quantized_weights is True"),
    (zero(zero_quantized_gradients=True), "zero_optimization.zero_quantized_gradients is True"),
    (zero(zenflow={"topk_ratio": 0.1}), "zero_optimization.zenflow is not supported"),
    (zero(offload_optimizer={"device": "nvme", "nvme_path": "/x"}),
     "zero_optimization.offload_optimizer.device is 'nvme'"),
    (zero(offload_optimizer={"device": "cpu", "super_offload": True}),
     "zero_optimization.offload_optimizer.super_offload is True"),
    (zero(offload_param={"device": "nvme"}), "zero_optimization.offload_param.device is 'nvme'"),
    (optimizer("OneBitAdam"), "optimizer.type is 'OneBitAdam'"),
    (optimizer("Lamb"), "optimizer.type is 'Lamb'"),
    (optimizer("Lion"), "optimizer.type is 'Lion'"),
    (optimizer("Muon"), "optimizer.type is 'Muon'"),
    (optimizer("AdamW", amsgrad=True), "optimizer.params.amsgrad is True"),
    (optimizer("Adam", bias_correction=False), "optimizer.params.bias_correction is False"),
]
TAKEN = [
    settings(), settings(fp16={"enabled": "auto"}), settings(hybrid_engine={"enabled": False}),
    settings(sequence_parallel_size=1, flops_profiler={"enabled": False}),
    zero(offload_optimizer={"device": "cpu", "pin_memory": True}, reduce_bucket_size="auto",
         offload_param={"device": "none"}, zero_hpz_partition_size=1, mics_shard_size=-1),
    optimizer("SGD", lr=1.0), optimizer("adam", adam_w_mode=False), optimizer("Adagrad"),
]


def refused():
    import deepspeed
    from slurm_zero import _start
    from slurm_zero.deepspeed import config

    for given, sentence in REFUSED:
        why = config.why_not(given)
        assert why and sentence in why, (given, why)
    for given in TAKEN:
        assert config.why_not(given) is None, (given, config.why_not(given))
    moe = nn.Sequential(nn.Linear(2, 2))
    moe[0] = type("MoE", (nn.Linear,), {"__module__": "deepspeed.moe.layer"})(2, 2)
    assert config.why_not(settings(), moe) == "module 0 is DeepSpeed's MoE"
    assert config.why_not(settings(), mpu=object()) == "the argument mpu is not supported"
    own = type("DeepSpeedCPULion", (), {"__module__": "deepspeed.ops.lion"})()
    why = config.why_not(settings(), client_optimizer=own)
    assert why == "the optimizer DeepSpeedCPULion is not supported", why
    deepspeed.__version_minor__ += 100
    assert "was not tried; from 0.18 to before" in config.why_not(settings())
    deepspeed.__version_minor__ -= 100
    # The library's options of a configuration; that for the stage is a flag's.
    given = zero(stage3_max_live_parameters=1e6, stage3_allgather_sequential=True,
                 reduce_bucket_size=5e5)
    assert config.settings(given) == "allgather=single gather_limit=4000000 bucket=2000000"
    # What the site limits is not taken from it, a default neither.
    _start.settings["origins"] += ";bucket:default"
    assert config.settings(given) == "allgather=single gather_limit=4000000"


def whole():
    """A program whose configuration is refused."""
    import deepspeed

    engine, *_ = deepspeed.initialize(model=make(), config=settings(
        zero_optimization={"stage": 1}, flops_profiler={"enabled": True, "profile_step": 100}))
    assert type(engine).__module__.startswith("deepspeed."), type(engine)
    loss = engine(torch.ones(2, 3)).sum()
    engine.backward(loss)
    engine.step()
    # What zero.Init has taken cannot be left to DeepSpeed.
    with deepspeed.zero.Init(config_dict_or_path=settings()):
        model = make()
    try:
        deepspeed.initialize(model=model, config=settings(flops_profiler={"enabled": True}))
    except Exception as error:
        assert "this model was made by zero.Init of slurm_zero" in str(error), error
    else:
        raise AssertionError("initialize has left a model of zero.Init to DeepSpeed")
    torch.distributed.destroy_process_group()


def hook():
    assert deepspeed.initialize.__wrapped__.__module__ == "deepspeed"
    assert deepspeed.zero.Init.__module__ == "slurm_zero.deepspeed.init"
    ours = deepspeed.initialize
    for _ in range(2):
        assert importlib.util.find_spec("deepspeed").name == "deepspeed"
        importlib.reload(deepspeed)
        assert deepspeed.initialize is not ours
        assert deepspeed.initialize.__wrapped__.__module__ == "deepspeed"
        assert not hasattr(deepspeed.initialize.__wrapped__, "__wrapped__")
        assert deepspeed.zero.GatheredParameters.__module__ == "slurm_zero.deepspeed.init"


def after():
    """Torch first, and a question whether DeepSpeed is there."""
    assert importlib.util.find_spec("deepspeed") and "deepspeed" not in sys.modules
    import deepspeed

    assert deepspeed.initialize.__wrapped__.__module__ == "deepspeed"


def absent():
    find = importlib.machinery.PathFinder.find_spec

    def find_others(name, *args, **kwargs):
        return None if name == "deepspeed" else find(name, *args, **kwargs)

    importlib.machinery.PathFinder.find_spec = find_others
    assert importlib.util.find_spec("deepspeed") is None
    try:
        import deepspeed  # noqa: F401
    except ModuleNotFoundError:
        return
    raise AssertionError("deepspeed is there")


globals()[what]()
print("done", flush=True)
