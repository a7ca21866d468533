#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint with the safetensors package alone, and compares it with an export.

usage: checkpoint_interop.py CHECKPOINT EXPORT.safetensors     (needs numpy and safetensors)

The slices of a tensor, concatenated in the order of the ranks, are the tensor.
"""
import json
import os
import sys

try:
    import numpy  # noqa: F401: the package needs it
    import safetensors
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


SIZES = {"F32": 4, "BF16": 2, "U8": 1, "I64": 8}


def read(path):
    """{name: (dtype, shape, bytes)}"""
    with open(path, "rb") as file:
        tensors = safetensors.deserialize(file.read())
    return {name: (info["dtype"], list(info["shape"]), bytes(info["data"]))
            for name, info in tensors}


def main():
    folder, export = sys.argv[1:]
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    assert manifest["format"] == "slurm-zero checkpoint" and manifest["version"] == 2
    joined = {}
    for entry in manifest["files"]:
        path = os.path.join(folder, entry["name"])
        assert os.path.getsize(path) == entry["bytes"], path
        tensors = read(path)
        sums = tensors.pop("checksums")
        blocks = sum((len(data) + 65535) // 65536 for _, _, data in tensors.values())
        assert sums[:2] == ("I64", [blocks]), sums[:2]
        for name, (dtype, shape, data) in tensors.items():
            assert len(shape) == 1, name
            before = joined.get(name, (dtype, b""))
            assert before[0] == dtype, name
            joined[name] = (dtype, before[1] + data)
    exported = read(export)
    assert len(exported) == len(manifest["tensors"])
    states = named = 0
    for tensor in manifest["tensors"]:
        name, shape = tensor["name"], tensor["shape"]
        dtype, data = joined.pop("param/" + name, (tensor["dtype"], b""))
        assert exported[name] == (dtype, shape, data), name
        assert tensor["dtype"] == dtype, name
        count = 1
        for dim in shape:
            count *= dim
        for state in tensor.get("named_states", []):
            block, kind = state["block"], f"state/{state['name']}/"
            values = (count + block - 1) // block if block else 1
            of, data = joined.pop(kind + name, (state["dtype"], b""))
            assert of == state["dtype"] and len(data) == SIZES[of] * values, kind + name
            named += 1
        if not (tensor["trainable"] and manifest["states"] and count):
            continue
        kinds = ["exp_avg/", "exp_avg_sq/"] + (["master/"] if dtype != "F32" else [])
        for kind in kinds:
            dtype, data = joined.pop(kind + name)
            assert dtype == "F32" and len(data) == 4 * count, kind + name
            states += 1
    assert not joined, sorted(joined)
    assert named and (states or not manifest["states"])
    print(f"{len(exported)} tensors, {states} states and {named} named ones in "
          f"{len(manifest['files'])} files")


if __name__ == "__main__":
    main()
