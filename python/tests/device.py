# SPDX-License-Identifier: Apache-2.0
"""What is of devices alone: streams, waits, and where tensors are."""

import types
from unittest import mock

import torch
from torch import nn

import standin
import slurm_zero as zero
from slurm_zero import _api
from slurm_zero import _device as product
from harness import Model, batches, device, expect, loss_of, rank, shard, train, world


def streams():
    """The forward on one stream, and the backward on another."""
    side = torch.Stream(device=device)

    def backward(model, data, scale, last):
        if next(model.parameters()).device != device:
            return (loss_of(model, data) * scale).backward()
        main = torch.accelerator.current_stream()
        side.wait_stream(main)
        with side:
            loss = loss_of(model, data) * scale
        main.wait_stream(side)
        loss.backward()

    train("streams", Model(), backward=backward)
    policy = zero.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    train("streams in bf16", Model(), backward=backward, tolerance=3e-2, clip=0,
          sharder=lambda m: shard(m, mp_policy=policy))
    # Nothing orders the two models, but that the library gathers into the same memory.
    one, other = shard(Model()), shard(Model())
    with torch.no_grad():
        for step in range(3):
            with side:
                one(batches(step)[rank].to(device))
            other(batches(step)[rank].to(device))
    torch.accelerator.current_stream().wait_stream(side)


def waits():
    """No step waits for the device, by torch's optimizers or the library's, and its ranks wait for
    each other once: at the end of the backward pass."""
    for make in (lambda ps: torch.optim.AdamW(ps, lr=1e-2, foreach=True),
                 lambda ps: zero.AdamW(ps, lr=1e-2)):
        model = shard(Model())
        optimizer = make(list(model.parameters()))
        for step in range(6):
            data = batches(step)[rank].to(device)
            before, agreed = standin.waits(), zero.traffic()["agreements"]
            loss_of(model, data).backward()
            optimizer.step()
            optimizer.zero_grad()
            waited = standin.waits() - before
            agreed = zero.traffic()["agreements"] - agreed
        assert waited == 0, f"{type(optimizer).__name__}: a step waited {waited} times"
        assert agreed == 1, f"{type(optimizer).__name__}: the ranks agreed {agreed} times"


def memory():
    """A group that finds no memory is gathered once PyTorch's allocator has given back what it does
    not use; or else the error says what that holds, and the program can go on."""
    model = zero.fully_shard(nn.Sequential(nn.Linear(1500, 1500), nn.Linear(1500, 1500)))
    _api._job.settle()
    module, held, trims = torch.get_device_module(device), [], []

    def trim():
        trims.append(len(held))
        if len(trims) > 1:
            held.clear()

    empty, module.empty_cache = module.empty_cache, trim
    held.append(torch.empty(standin.free_bytes() - (1 << 20), dtype=torch.uint8, device=device))
    x = torch.ones(1, 1500, device=device)
    want = module.memory_allocated()
    expect(zero.Error,
           f"PyTorch's allocator holds {want} bytes, of which {want} are of tensors",
           lambda: model(x))
    model(x).sum().backward()
    assert trims == [1, 1], trims
    module.empty_cache = empty
    now = zero.memory()
    assert now["torch"][0] == module.memory_allocated() < want == now["caller"][1]


def account():
    """What PyTorch's allocator holds counts in the budget, from the layout on."""
    module = torch.get_device_module(device)
    kept = torch.empty(3 << 20, dtype=torch.uint8, device=device)
    zero.fully_shard(nn.Linear(3, 3))(torch.ones(1, 3, device=device))
    bytes_of = zero.memory()
    assert kept.nbytes <= bytes_of["caller"][0] <= module.memory_allocated() + 4096, bytes_of
    assert bytes_of["total"][0] > bytes_of["caller"][0]


class OldStream:
    """Of torch before 2.11: it has no native_handle."""

    def wait_stream(self, _):
        pass


def older_torch():
    handle, last = product.stream(), product._last
    stream = types.SimpleNamespace(cuda_stream=handle)
    with mock.patch.object(torch.accelerator, "current_stream", lambda _: OldStream()), \
            mock.patch.object(torch.get_device_module(device), "current_stream", lambda _: stream):
        assert product.stream() == handle
    product._last = last


def captures():
    """A whole step is refused, before anything is done."""
    model = shard(Model())
    module = torch.get_device_module(device)
    capturing, module.is_current_stream_capturing = module.is_current_stream_capturing, lambda: True
    expect(NotImplementedError, "cannot be captured as a graph",
           lambda: model(batches(0)[rank].to(device)))
    module.is_current_stream_capturing = capturing
    loss_of(model, batches(0)[rank].to(device)).backward()


def optimizers():
    """Torch's optimizers and clipping take all parameters in a few operations."""
    model = shard(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss_of(model, batches(0)[rank]).backward()
    optimizer.step()
    with torch.profiler.profile() as profile:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    calls = {event.key: event.count for event in profile.key_averages()}
    assert calls.get("aten::_foreach_norm") and calls.get("aten::_foreach_addcdiv_"), calls


def places():
    """Parameters and buffers of CPUs are moved, also those that begin on meta."""
    model = Model()
    model.register_buffer("counts", torch.arange(3))
    model.blocks[0].register_buffer("shared", model.counts)
    shard(model)
    assert all(p.device == device for p in model.parameters())
    assert model.counts.device == device and model.counts is model.blocks[0].shared
    whole = model.head.weight.full_tensor()
    assert whole.device == device
    with torch.device("meta"):
        empty = Model()
    shard(empty)
    assert next(empty.parameters()).is_meta
    empty.to_empty(device=device)
    for module in empty.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    loss_of(empty, batches(0)[rank]).backward()
    on_device = shard(Model().to(device))
    loss_of(on_device, batches(0)[rank]).backward()
    offload = torch.distributed.fsdp.CPUOffloadPolicy()
    expect(NotImplementedError, "CPUOffloadPolicy is not supported on GPUs",
           lambda: zero.fully_shard(nn.Linear(2, 2), offload_policy=offload))
    expect(NotImplementedError, "cannot be moved or converted to torch.float32 on cpu",
           lambda: on_device.to("cpu"))
    wrong = torch.distributed.device_mesh.init_device_mesh("cpu", (world,))
    expect(NotImplementedError, f"the mesh is of cpu; the job is on {device}",
           lambda: zero.fully_shard(nn.Linear(2, 2), mesh=wrong))


def main():
    cases = (places, memory, account, older_torch, captures, optimizers, waits, streams)
    for case in cases:
        case()
    if rank == 0:
        print(f"{len(cases)} passed", flush=True)


if __name__ == "__main__":
    main()
