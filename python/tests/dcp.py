# SPDX-License-Identifier: Apache-2.0
"""dcp.py stock|zero save|load FOLDER: checkpoints of torch.distributed.checkpoint, which torch's
FSDP2 and this package write and read alike, for other numbers of ranks. With zero, also torch's
functions for state dicts. What is saved, and the loss of the step after it, is compared with what
is loaded."""

import copy
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict,
    set_model_state_dict, set_optimizer_state_dict, set_state_dict,
)

import slurm_zero as zero

kind, what, folder = sys.argv[1:]
torch.set_num_threads(1)
zero.init()
rank, world = dist.get_rank(), dist.get_world_size()
shard = torch.distributed.fsdp.fully_shard if kind == "stock" else zero.fully_shard
FULL = StateDictOptions(full_state_dict=True)
RANK0 = StateDictOptions(full_state_dict=True, cpu_offload=True)
BROADCAST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(31, 7)
        self.blocks = nn.ModuleList(nn.Conv1d(7, 7, 3, padding=1) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(7), nn.Linear(7, 5)
        self.row = nn.Parameter(torch.rand(1, 4000))  # one rank has the middle of it

    def forward(self, ids):
        x = self.embed(ids).mT + self.row.square().mean()
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.head(self.norm(x.mT))


def make(seed):
    torch.manual_seed(seed)
    model = Model()
    for block in model.blocks:
        shard(block)
    shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)


def step(model, optimizer, number):
    """The mean loss over all ranks."""
    ids = torch.randint(0, 31, (6, 4), generator=torch.Generator().manual_seed(number))
    loss = model(ids.chunk(world)[rank]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = loss.detach()
    dist.all_reduce(loss)
    return loss / world


def whole(model, optimizer):
    """All values, of the parameters and of the optimizer's states."""
    values = {k: p.full_tensor().clone() for k, p in model.named_parameters()}
    names = {p: k for k, p in model.named_parameters()}
    for p, states in optimizer.state.items():
        for key, value in states.items():
            value = value.full_tensor() if hasattr(value, "full_tensor") else value
            values[f"{names[p]} {key}"] = value.clone()
    return values


def same(values, wanted, what):
    assert values.keys() == wanted.keys(), (what, values.keys() ^ wanted.keys())
    for key, value in values.items():
        assert torch.equal(value, wanted[key]), (what, key)


def save(model, optimizer, to, background):
    for number in range(3):
        step(model, optimizer, number)
    values = whole(model, optimizer)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    if background:
        # It has taken copies when it returns, and its thread needs a group of its own.
        writing = dcp.async_save(state, checkpoint_id=to, process_group=dist.new_group())
        loss = step(model, optimizer, 3)
        writing.result()
    else:
        dcp.save(state, checkpoint_id=to)
        loss = step(model, optimizer, 3)
    if rank == 0:
        torch.save((values, loss), f"{to}/expected")
    dist.barrier()


def load(model, optimizer, source):
    values, loss = torch.load(f"{source}/expected")
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(state, checkpoint_id=source)
    set_state_dict(model, optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])
    same(whole(model, optimizer), values, "loaded")
    torch.testing.assert_close(step(model, optimizer, 3), loss, rtol=1e-6, atol=1e-6)


def state_dicts():
    """Each way to take states out of a model, and to put them into another one."""
    model, optimizer = make(3)
    for number in range(2):
        step(model, optimizer, number)
    values = whole(model, optimizer)

    full, full_optimizer = get_state_dict(model, optimizer, options=FULL)
    for key, value in full.items():
        assert type(value) is torch.Tensor and torch.equal(value, values[key]), key
    for key, states in full_optimizer["state"].items():
        assert torch.equal(states["exp_avg"], values[f"{key} exp_avg"]), key
    of_rank0, of_rank0_optimizer = get_state_dict(model, optimizer, options=RANK0)
    assert bool(of_rank0) == (rank == 0)

    def given(options, m, o):
        other, other_optimizer = make(4)
        # The state dicts are the caller's, but torch takes from them.
        set_model_state_dict(other, copy.copy(m), options=options)
        set_optimizer_state_dict(other, other_optimizer, copy.deepcopy(o), options=options)
        same(whole(other, other_optimizer), values, options)
        return other, other_optimizer

    other, other_optimizer = given(FULL, full, full_optimizer)
    given(BROADCAST, of_rank0, of_rank0_optimizer)
    given(StateDictOptions(), get_model_state_dict(model),
          get_optimizer_state_dict(model, optimizer))
    offload = StateDictOptions(cpu_offload=True)
    given(offload, get_model_state_dict(model, options=offload),
          get_optimizer_state_dict(model, optimizer, options=offload))
    # States that the optimizer was given whole are changed by its steps.
    assert torch.equal(step(other, other_optimizer, 2), step(model, optimizer, 2))
    same(whole(other, other_optimizer), whole(model, optimizer), "a step later")

    # The plain ones of torch, with whole tensors, and with parameters to be replaced.
    values = whole(model, optimizer)
    plain = {k: p.full_tensor() for k, p in model.state_dict().items()}
    by_number = copy.deepcopy(optimizer.state_dict())
    for states in by_number["state"].values():
        states.update({k: v.full_tensor() for k, v in states.items() if k != "step"})
    for assign in (False, True):
        other, other_optimizer = make(5)
        parameters = list(other.parameters())
        other.load_state_dict(plain, assign=assign)
        assert all(a is b for a, b in zip(parameters, other.parameters())), assign
        other_optimizer.load_state_dict(copy.deepcopy(by_number))
        step(other, other_optimizer, 3)
        if not assign:
            step(model, optimizer, 3)
        same(whole(other, other_optimizer), whole(model, optimizer), f"assign {assign}")

    # torch.save of a rank's part.
    torch.save(model.state_dict(), f"{folder}/part{rank}")
    back = torch.load(f"{folder}/part{rank}", weights_only=False)
    other.load_state_dict(back)
    for key, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[key].full_tensor(), value.full_tensor()), key


made = make(1 if what == "save" else 2)
if what == "save":
    save(*made, f"{folder}/{kind}", kind == "zero")
else:
    load(*made, f"{folder}/{'stock' if kind == 'zero' else 'zero'}")
if kind == "zero":
    save(*made, f"{folder}/zero", True)
    state_dicts()
print("ok")
