# SPDX-License-Identifier: Apache-2.0
"""checkpoint.py save|restore FOLDER: saves in the middle of training and goes on, or restores and
does the same. What both end with is compared, also between numbers of ranks and stages."""

import os
import sys

import torch
from torch import nn

import slurm_zero as zero

what, folder = sys.argv[1:]
torch.set_num_threads(1)
# Other first values where they are restored.
torch.manual_seed(1 if what == "save" else 2)
model = nn.Sequential(nn.Linear(7, 19), nn.Tanh(), nn.Linear(19, 5, bias=False), nn.Tanh(),
                      nn.Linear(5, 3))
unused = nn.Parameter(torch.ones(5))
model.register_parameter("unused", unused)
model.register_buffer("seen", torch.zeros(2))
if what == "save":
    zero.fully_shard(model[0])
zero.fully_shard(model)
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
lr = 1e-2 if what == "save" else 7.0
first = torch.optim.AdamW(model[:4].parameters(), lr=lr, eps=1e-3)
second = torch.optim.SGD([*model[4].parameters(), model.unused], lr=lr, momentum=0.9)
# Its moments are the library's: 8 bits of the weight, and f32 of the bias.
other = zero.fully_shard(nn.Linear(7, 640))
third = zero.AdamW8bit(other.parameters(), lr=lr, eps=1e-3)
matrices = zero.fully_shard(nn.Sequential(nn.Linear(7, 30), nn.Linear(30, 3, bias=False)))
fourth = zero.Muon([{"params": [matrices[0].weight, matrices[1].weight]},
                    {"params": [matrices[0].bias], "use_muon": False, "eps": 1e-3}], lr=lr)
models, optimizers = [model, other, matrices], [first, second, third, fourth]


def step(number):
    model.seen += number + 1
    x = torch.randn(6, 7, generator=torch.Generator().manual_seed(number)).chunk(world)[rank]
    sum(m(x).square().mean() for m in models).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def now():
    names = {p: f"{i}.{k}" for i, m in enumerate(models) for k, p in m.named_parameters()}
    values = {k: p.full_tensor().clone() for p, k in names.items()}
    for optimizer in optimizers:
        for p, states in optimizer.state.items():
            for key, value in states.items():
                if value is not None:
                    whole = value.full_tensor() if isinstance(value, zero.FlatShard) else value
                    values[f"{names[p]} {key}"] = whole.clone()
    values["seen"] = model.seen.clone()
    return values


if what == "save":
    for number in range(3):
        step(number)
    at_save = now()
    zero.save(models, optimizers, folder, extra={"batch": 3}, background=True)
    step(3)  # changes what may not be written yet
    zero.save_wait()
    at_end = now()
    if rank == 0:
        torch.save((at_save, at_end), folder + "/expected")
    torch.distributed.barrier()
else:
    assert zero.restore(models, None, folder + "/nothing") is None
    try:
        zero.restore(model, optimizers, folder)
        raise AssertionError("one of two models was restored")
    except ValueError as error:
        assert "pass all sharded models" in str(error), error
    try:
        zero.restore(models, first, folder)
        raise AssertionError("one of two optimizers was restored")
    except zero.Error as error:
        assert "was not passed" in str(error), error
    # Moments of another type are converted where it is said.
    plain = [first, second, zero.AdamW(other.parameters(), lr=lr), fourth]
    try:
        zero.restore(models, plain, folder)
        raise AssertionError("moments of 8 bits were restored as f32")
    except zero.Error as error:
        assert "are 8bit, and those of this job states=f32" in str(error), error
    assert zero.restore(models, plain, folder, convert=True)["step"] == 12
    assert zero.memory()["optimizer"][0] > 2 * 4480 * 4 / torch.distributed.get_world_size()
    # The link to the latest one is lost, as where a folder is copied without links.
    moved = f"{folder}/moved"
    if rank == 0 and not os.path.exists(moved):
        os.mkdir(moved)
        os.symlink("../step-000000012", f"{moved}/step-000000012")
        os.symlink("nowhere", f"{moved}/latest")
    torch.distributed.barrier()
    found = zero.restore(models, optimizers, moved)
    assert found["step"] == 12 and found["extra"] == {"batch": 3}, found
    assert first.param_groups[0]["lr"] == 1e-2 and first.param_groups[0]["betas"] == (0.9, 0.999)
    at_save, at_end = torch.load(folder + "/expected")
    assert at_save.keys() == now().keys(), now().keys()
    for key, value in now().items():
        assert torch.equal(value, at_save[key]), key
    step(3)
    for key, value in now().items():
        torch.testing.assert_close(value, at_end[key], rtol=1e-5, atol=1e-6, msg=key)
print("ok")
