# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py: files that fill a part of what is sharded."""

import json
import os
import shutil
import struct
import tempfile

import torch
from torch import nn

import slurm_zero as zero
from harness import WIDTH, Model, case, expect, rank, shard


def write_safetensors(path, tensors):
    """f32 tensors."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.numpy().tobytes())


@case
def load_of_a_part():
    first, second = shard(Model()), Model()
    before = [p.full_tensor() for p in first.parameters()]
    shard(second)
    values = {f"norm.{name}": torch.rand(WIDTH) for name in ("weight", "bias", "other")}
    path = [tempfile.mkdtemp() + "/x.safetensors" if rank == 0 else None]
    torch.distributed.broadcast_object_list(path)
    if rank == 0:
        write_safetensors(path[0], values)
    torch.distributed.barrier()
    missing, unexpected = zero.load(second, path[0], strict=False)
    assert "head.weight" in missing and "norm.bias" not in missing and unexpected == ["norm.other"]
    expect(zero.Error, "norm.other", lambda: zero.load(second, path[0]))
    for got, want in zip(first.parameters(), before):
        torch.testing.assert_close(got.full_tensor(), want, rtol=0, atol=0)
    torch.testing.assert_close(second.norm.bias.full_tensor(), values["norm.bias"], rtol=0, atol=0)
    missing, _ = zero.load(second.blocks[1].norm, path[0], strict=False)
    assert missing == ["weight", "bias"], missing
    expect(ValueError, "no parameter of this Linear", lambda: zero.load(nn.Linear(2, 2), path[0]))
    torch.distributed.barrier()
    if rank == 0:
        shutil.rmtree(os.path.dirname(path[0]))
