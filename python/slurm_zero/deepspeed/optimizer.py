# SPDX-License-Identifier: Apache-2.0
"""The optimizer of an engine: of the configuration, or the client's with sharded parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._adamw import AdamW

if TYPE_CHECKING:
    from .shard import Changed


def _sharded(parameters: Any, changed: Changed) -> list:
    """Parameters, or groups of them, as they are now."""
    found = list(parameters)
    if found and isinstance(found[0], dict):
        for group in found:
            params = group["params"]
            group["params"] = _sharded([params] if isinstance(params, torch.Tensor) else params,
                                       changed)
        return found
    return [changed.get(p, p) for p in found]


def _adam(groups: list, decoupled: bool, options: dict[str, Any]) -> torch.optim.Optimizer:
    """AdamW of the library, unless groups have what it has no more than one of."""
    dicts = [g for g in groups if isinstance(g, dict)]
    alike = all(len({repr(g.get(k, options[k])) for g in dicts}) < 2 for k in ("betas", "eps"))
    decays = [g.get("weight_decay", options["weight_decay"]) for g in dicts]
    decays.append(options["weight_decay"])
    if not decoupled and any(decays):
        return torch.optim.Adam(groups, **options)
    for key in ("betas", "eps") if dicts and alike else ():
        options[key] = dicts[0].get(key, options[key])
    return (AdamW if alike else torch.optim.AdamW)(groups, **options)


def of_torch(name: str) -> type | None:
    """The class of torch.optim of that name. Muon of a configuration is DeepSpeed's."""
    classes = {k.lower(): v for k, v in vars(torch.optim).items() if isinstance(v, type)}
    return None if name.lower() == "muon" else classes.get(name.lower())


def of_config(name: str, options: dict[str, Any], parameters: list | None,
              changed: Changed) -> torch.optim.Optimizer:
    if parameters is None:
        parameters = list(changed)
    parameters = _sharded(parameters, changed)
    if name.lower() not in ("adam", "adamw"):
        return of_torch(name)(parameters, **options)
    decoupled = name.lower() == "adamw" or options.get("adam_w_mode", True)
    # DeepSpeed's own Adam has another default than torch's AdamW.
    decay = 0.01 if options.get("torch_adam") and decoupled else 0.0
    return _adam(parameters, decoupled, {
        "lr": options.get("lr", 1e-3), "betas": tuple(options.get("betas", (0.9, 0.999))),
        "eps": options.get("eps", 1e-8), "weight_decay": options.get("weight_decay", decay),
    })


def is_deepspeeds_adam(optimizer: Any) -> bool:
    own = type(optimizer).__module__.startswith("deepspeed.")
    return own and type(optimizer).__name__ in ("DeepSpeedCPUAdam", "FusedAdam")


def of_client(client: torch.optim.Optimizer | Callable, parameters: list | None,
              model: nn.Module, changed: Changed) -> torch.optim.Optimizer:
    if not isinstance(client, torch.optim.Optimizer):
        return client(_sharded(model.parameters() if parameters is None else parameters, changed))
    _sharded(client.param_groups, changed)
    for p in [p for p in client.state if p in changed]:
        client.state[changed[p]] = client.state.pop(p)
    if not is_deepspeeds_adam(client):
        return client
    # Its kernels take whole tensors. The groups stay the client's, which its schedulers change.
    first = client.param_groups[0]
    return _adam(client.param_groups, bool(client.adam_w_mode), {
        key: first[key] for key in ("lr", "betas", "eps", "weight_decay")
    })
