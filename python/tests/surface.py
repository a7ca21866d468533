# SPDX-License-Identifier: Apache-2.0
"""surface.py STAGE: what programs, and methods of DeepSpeed that are not replaced, find on
DeepSpeed's engine is on ours, and its getters return the same. It tells what another release of
DeepSpeed would break. Both engines are in one program."""

import ast
import inspect
import os
import sys
import textwrap

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
from torch import nn

stage = int(sys.argv[1])
deepspeed.init_distributed("gloo")
torch.set_num_threads(1)
deepspeed.utils.logger.setLevel("ERROR")

# Of DeepSpeed's forward pass, of its reductions, of the files that it writes, of ZenFlow, of
# compression, and of eigenvalues.
ABSENT = {"module_forward_pre_hook", "module_forward_post_hook", "flatten",
          "unflatten", "checkpoint_engine", "save_zero_checkpoint", "save_non_zero_checkpoint",
          "_is_zenflow_update_boundary", "compression_scheduler", "gas_boundary_ctr"}
# No getters, or ours has another result.
DIFFERENT = {
    "backward", "step", "destroy", "clip_fp32_gradients", "random_ltd_initialize",
    "collect_python_gc",
    "allreduce_gradients", "buffered_allreduce_fallback",  # which backward has done
    "config", "optimizer_params",  # of which older releases of DeepSpeed take keys out
    "offload_states", "reload_states",  # DeepSpeed's refuse some optimizers, and some stages
    *(["get_global_grad_norm"] if stage == 0 else []),  # DeepSpeed's has none
}


def train(initialize):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    engine, *_ = initialize(model=model, config={
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0, "steps_per_print": 1000, "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
    })
    for _ in range(2):
        loss = engine(torch.ones(2, 3)).square().sum()
        engine.backward(loss)
        engine.step()
    return engine


def public(engine):
    return {name for name in dir(engine) if not name.startswith("_")
            and not hasattr(nn.Module, name) and name not in nn.Module().__dict__}


def attributes(function):
    """What it reads of self."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name) and node.value.id == "self"}


def read_by_methods(engine):
    """{attribute: a method that reads it}, of the public methods and those that they call."""
    found, names = {}, [name for name in public(engine) if name not in DIFFERENT]
    while names:
        name = names.pop()
        function = inspect.getattr_static(type(engine), name, None)
        function = inspect.unwrap(getattr(function, "fget", function))
        for attribute in attributes(function) if inspect.isfunction(function) else ():
            if attribute not in found:
                found[attribute] = name
                names.append(attribute)
    return found


def text(value):
    """Of plain values, which both engines are to have."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return f"tensor {value.item():.4g}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{text(k)}: {text(v)}' for k, v in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text, value))}]"
    plain = value is None or isinstance(value, (int, str, torch.dtype))
    return repr(value) if plain else "an object"


def get(engine, name):
    try:
        value = getattr(engine, name)
        if inspect.isroutine(value) and hasattr(type(engine), name):
            needed = [p for p in inspect.signature(value).parameters.values()
                      if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
            return "a method" if needed or name in DIFFERENT else text(value())
        return text(value)
    except Exception as error:
        return f"raises {type(error).__name__}"


ours, stock = train(deepspeed.initialize), train(deepspeed.initialize.__wrapped__)
assert type(ours) is not type(stock) and isinstance(ours, type(stock))
faults = [f"it has no {name}" for name in public(stock) - set(dir(ours)) - ABSENT]
faults += [f"{reader} reads {name}, which it has not"
           for name, reader in read_by_methods(ours).items()
           if name not in ABSENT and hasattr(stock, name) and not hasattr(ours, name)]
names = public(stock) - DIFFERENT - ABSENT
for name in sorted(names):
    wanted, found = get(stock, name), get(ours, name)
    if wanted != found:
        faults.append(f"{name}: {found}, and DeepSpeed's {wanted}")
torch.distributed.barrier()
assert not faults, "\n".join(faults)
assert len(names) > 100
print(f"{len(names)} public names of the engine")
