# SPDX-License-Identifier: Apache-2.0
"""Runs on each of two or four ranks: two stages of a pipeline by torch.distributed.pipelining, each
of which is sharded over half of the ranks, beside the same model unsharded; and its checkpoints."""

import copy
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import WIDTH, Block, expect, rank, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import slurm_zero as zero

MICRO = 3
mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("pp", "dp"))
stage, replica, replicas = mesh.get_local_rank("pp"), mesh.get_local_rank("dp"), world // 2


def loss_of(output, target):
    return nn.functional.mse_loss(output, target)


def train(schedule_name):
    torch.manual_seed(3)
    stages = [nn.Sequential(Block(), nn.Tanh(), Block()) for _ in range(2)]
    model, single = copy.deepcopy(stages[stage]), nn.Sequential(*stages)
    for block in (model[0], model[2], model):
        zero.fully_shard(block, mesh=mesh["dp"])
    from torch.distributed import pipelining  # which may be imported after fully_shard

    schedule = getattr(pipelining, schedule_name)(
        pipelining.PipelineStage(model, stage, 2, torch.device("cpu"), group=mesh.get_group("pp")),
        MICRO, loss_fn=loss_of,
    )
    mine, other = (torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-3) for m in (model, single))
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        data, target = torch.randn(2, replicas, 2 * MICRO, 5, WIDTH, generator=generator)
        if stage == 0:
            schedule.step(data[replica])
        else:
            losses = []
            schedule.step(target=target[replica], losses=losses)
        want = []
        for r in range(replicas):
            parts = zip(data[r].chunk(MICRO), target[r].chunk(MICRO))
            want.append([loss_of(single(x), y) for x, y in parts])
            (sum(want[r]) / MICRO / replicas).backward()
        if stage == 1:
            torch.testing.assert_close(torch.stack(losses), torch.stack(want[replica]))
        for key, p in model.named_parameters():
            wanted = single[stage].get_parameter(key)
            torch.testing.assert_close(p.grad.full_tensor(), wanted.grad, rtol=1e-4, atol=1e-5,
                                       msg=lambda text: f"gradient of {key}: {text}")
        mine.step(), other.step()
        mine.zero_grad(), other.zero_grad()
        for key, p in model.named_parameters():
            torch.testing.assert_close(p.full_tensor(), single[stage].get_parameter(key),
                                       rtol=1e-4, atol=1e-4, msg=key)
    return model, mine


def compare(values):
    for key, value in whole().items():
        assert torch.equal(value, values[key]), key


def whole():
    """All values of this stage."""
    values = {k: b.clone() for k, b in models[1].named_buffers()}
    for i, (m, o) in enumerate(zip(models, optimizers)):
        for key, p in m.named_parameters():
            values[f"{i} {key}"] = p.full_tensor()
            for name, state in o.state[p].items():
                state = state.full_tensor() if name != "step" else state.clone()
                values[f"{i} {key} {name}"] = state
    return values


models, optimizers = zip(train("ScheduleGPipe"), train("Schedule1F1B"))
models[1].register_buffer(f"seen{stage}", torch.arange(5.0) + stage)
folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder)
values = whole()
zero.save(list(models), list(optimizers), folder[0] + "/ours", extra=7)
state = {f"{stage} {i} {k}": v for i, m in enumerate(models) for k, v in m.state_dict().items()}
dcp.save(state, checkpoint_id=folder[0] + "/dcp")
with torch.no_grad():
    for m, o in zip(models, optimizers):
        for p in m.parameters():
            p.add_(1)
            o.state[p]["exp_avg"].add_(1)
assert zero.restore(list(models), list(optimizers), folder[0] + "/ours")["extra"] == 7
compare(values)
with torch.no_grad():
    for p in (p for m in models for p in m.parameters()):
        p.add_(1)
dcp.load(state, checkpoint_id=folder[0] + "/dcp")
compare(values)
expect(NotImplementedError, "under one name", lambda: zero.export(list(models), folder[0] + "/x"))
if world > 2 or rank == 0:
    expect(NotImplementedError, "on a mesh of some", lambda: zero.AdamW(models[0].parameters()))
dist.barrier()
if rank == 0:
    shutil.rmtree(folder[0])
    print("1 passed, 0 failed", flush=True)
