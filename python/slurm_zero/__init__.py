# SPDX-License-Identifier: Apache-2.0
"""ZeRO sharding of PyTorch modules by libzero.

Importing the package imports no torch: that comes with the first use of a name, since `import
torch` itself imports the part that starts programs which nobody edits.
"""

__all__ = [
    "AdamW", "AdamW8bit", "Error", "FlatShard", "FullyShardedModule", "MixedPrecisionPolicy",
    "Muon", "export", "fully_shard", "init", "load", "memory", "meta", "no_sync", "plan", "protect",
    "replace_fsdp2", "reset", "restore", "save", "save_wait", "stop_on", "stopping", "traffic",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import _zero  # noqa: F401, for what is said if it fails
    except ImportError as error:
        if "undefined symbol: zero_" in str(error):
            with open("/proc/self/maps", encoding="utf-8") as file:
                loaded = {line.split()[-1] for line in file if "/libzero.so" in line}
            error.msg += (
                f": this process has loaded {' '.join(loaded)}, which is older: "
                "use both of one build"
            )
        raise
    from . import _start

    _start.require_torch()
    from . import _api, _overlay, _plan

    rooms = {"replace_fsdp2": _overlay, "plan": _plan}
    found = getattr(rooms.get(name, _api), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
