# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py: files, and values of rank 0, that fill what is sharded."""

import json
import os
import shutil
import struct
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

import slurm_zero as zero
from harness import WIDTH, Model, batches, case, expect, loss_of, rank, shard


DTYPES = {torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + tensor.element_size() * tensor.numel()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())


def on_rank_0(make):
    """Calls make(path) on rank 0, with the path of a file in a new folder, which all ranks get."""
    path = [tempfile.mkdtemp() + "/x.safetensors" if rank == 0 else None]
    torch.distributed.broadcast_object_list(path)
    if rank == 0:
        make(path[0])
    torch.distributed.barrier()
    return path[0]


@case
def load_of_f8():
    """As DeepSeek-V3's: a scale for each block of 128 rows and columns, of a model in bf16."""
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        weight = (torch.randn(300, 260) * 3).to(dtype)
        scale, plain = torch.rand(3, 3) + 0.1, torch.randn(5, 300).to(dtype)
        path = on_rank_0(lambda path: write_safetensors(path, {
            "0.weight": weight, "0.weight_scale_inv": scale, "1.weight": plain}))
        layers = nn.Linear(260, 300, bias=False), nn.Linear(300, 5, bias=False)
        model = nn.Sequential(*layers).bfloat16()
        zero.fully_shard(model)
        assert zero.load(model, path) == ([], [])
        blocks = scale.repeat_interleave(128, 0)[:300].repeat_interleave(128, 1)[:, :260]
        for p, want in zip(model.parameters(), (weight.float() * blocks, plain.float())):
            torch.testing.assert_close(p.full_tensor(), want.bfloat16(), rtol=0, atol=0)
        torch.distributed.barrier()
        if rank == 0:
            shutil.rmtree(os.path.dirname(path))


@case
def load_of_tied_parameters():
    """Files may have both names of a tied parameter, or one of them."""
    weight, other = torch.randn(31, WIDTH), torch.randn(2, 31)
    for tied in ({"0.weight", "1.weight"}, {"1.weight"}):
        names = {name: weight for name in sorted(tied)} | {"2.weight": other}
        path = on_rank_0(lambda path: write_safetensors(path, names | {"x": other}))
        model = nn.Sequential(
            nn.Embedding(31, WIDTH), nn.Linear(WIDTH, 31, bias=False), nn.Linear(31, 2, bias=False))
        model[1].weight = model[0].weight
        zero.fully_shard(model)
        expect(zero.Error, "'x'" if len(tied) > 1 else "x", lambda: zero.load(model, path))
        assert zero.load(model, path, strict=False) == ([], ["x"])
        for p, want in zip(model.parameters(), (weight, other)):
            torch.testing.assert_close(p.full_tensor(), want, rtol=0, atol=0)
        torch.distributed.barrier()
        if rank == 0:
            write_safetensors(path, names)
        torch.distributed.barrier()
        assert zero.load(model, path) == ([], [])
        torch.distributed.barrier()
        if rank == 0:
            shutil.rmtree(os.path.dirname(path))


@case
def load_of_buffers():
    """Persistent buffers, and a parameter that is not sharded, of another type in the file."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4, affine=False),
                          nn.Linear(4, 2, bias=False))
    model.register_buffer("cache", torch.ones(2), persistent=False)
    free = model[2].weight
    zero.fully_shard(model, ignored_params={free})
    values = {"0.weight": torch.randn(4, 3),
              "1.running_mean": torch.randn(4), "1.running_var": torch.rand(4),
              "1.num_batches_tracked": torch.tensor(7.0), "2.weight": torch.randn(2, 4)}
    path = on_rank_0(lambda path: write_safetensors(path, values))
    assert zero.load(model, path) == ([], [])
    for name, value in model.state_dict().items():
        value = value.full_tensor() if isinstance(value, zero.FlatShard) else value
        torch.testing.assert_close(value.float(), values[name], rtol=0, atol=0)
    torch.distributed.barrier()
    if rank == 0:
        write_safetensors(path, {"0.weight": values["0.weight"], "1.running_mean": torch.zeros(5)})
    torch.distributed.barrier()
    expect(zero.Error, "only the model has ['1.running_var'", lambda: zero.load(model, path))
    expect(zero.Error, "1.running_mean is [5], and [4] in the model",
           lambda: zero.load(model, path, strict=False))
    torch.distributed.barrier()
    if rank == 0:
        shutil.rmtree(os.path.dirname(path))


@case
def load_of_a_part():
    first, second = shard(Model()), Model()
    before = [p.full_tensor() for p in first.parameters()]
    shard(second)
    values = {f"norm.{name}": torch.rand(WIDTH) for name in ("weight", "bias", "other")}
    path = on_rank_0(lambda path: write_safetensors(path, values))
    missing, unexpected = zero.load(second, path, strict=False)
    assert "head.weight" in missing and "norm.bias" not in missing and unexpected == ["norm.other"]
    expect(zero.Error, "norm.other", lambda: zero.load(second, path))
    for got, want in zip(first.parameters(), before):
        torch.testing.assert_close(got.full_tensor(), want, rtol=0, atol=0)
    torch.testing.assert_close(second.norm.bias.full_tensor(), values["norm.bias"], rtol=0, atol=0)
    missing, _ = zero.load(second.blocks[1].norm, path, strict=False)
    assert missing == ["weight", "bias"], missing
    expect(ValueError, "no parameter of this Linear", lambda: zero.load(nn.Linear(2, 2), path))
    torch.distributed.barrier()
    if rank == 0:
        shutil.rmtree(os.path.dirname(path))


@case
def values_of_rank_0():
    """What rank 0 alone has goes to the ranks that keep it, and no tensor is sent whole."""
    sent = []

    def recorded(tensor, *args, **kwargs):
        sent.append(tensor.numel())
        return broadcast(tensor, *args, **kwargs)

    for dtype, given in ((torch.float32, torch.float32), (torch.bfloat16, torch.float32)):
        torch.manual_seed(3)
        single = Model()
        single.register_buffer("counts", torch.arange(5))
        values = {k: v.to(given if v.is_floating_point() else v.dtype)
                  for k, v in single.state_dict().items()}
        with torch.device("meta"):
            model = Model().to(dtype)
        model.register_buffer("counts", torch.zeros(5, dtype=torch.int64))
        shard(model)
        broadcast, dist.broadcast = dist.broadcast, recorded
        try:
            set_model_state_dict(model, dict(values) if rank == 0 else {}, options=StateDictOptions(
                full_state_dict=True, broadcast_from_rank0=True))
        finally:
            dist.broadcast = broadcast
        assert sent == [5], sent
        sent.clear()
        for name, p in model.named_parameters():
            assert torch.equal(p.full_tensor().cpu(), values[name].to(dtype)), name
        assert torch.equal(model.counts.cpu(), values["counts"])
        loss_of(model, batches(0)[rank]).backward()
