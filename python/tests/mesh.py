# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: meshes of two dimensions and of some of the ranks, beside the same models
unsharded."""

import copy
import shutil
import tempfile

import spmd_types
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import (
    WIDTH, Block, Model, batches, device, expect, loss_of, rank, shard, train, world,
)
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_init
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module,
)

import slurm_zero as zero

PLACES = 2 if world % 2 == 0 else world  # of experts, or of parts of a tensor
size = world // 2 if world > 2 else 1
mesh = init_device_mesh(device.type, (world // size, size), mesh_dim_names=("replicate", "shard"))
expect(ValueError, "expects a 1D or 2D DeviceMesh", lambda: shard(
    Model(), mesh=init_device_mesh(device.type, (world, 1, 1))))
expect(AssertionError, "with mesh_dim_names", lambda: shard(
    Model(), mesh=init_device_mesh(device.type, (world, 1))))


def on_mesh(model):
    return shard(model, mesh=mesh)


train("AdamW", Model(), sharder=on_mesh)
train("zero.AdamW", Model(), sharder=on_mesh, clip=None, make=lambda ps: (
    zero.AdamW if isinstance(ps[0], zero.FlatShard) else torch.optim.AdamW)(ps, lr=1e-2, eps=1e-3))


def accumulate(model, data, scale, last):
    """Two backward passes of which the first sums within a row of the mesh alone."""
    for part, sums in ((data[:1], False), (data[1:], True)):
        if isinstance(model, zero.FullyShardedModule):
            model.set_requires_all_reduce(sums)
        (loss_of(model, part) * scale).backward()
        if isinstance(model, zero.FullyShardedModule) and world > 1:
            assert sums or all(p.grad is None for p in model.parameters())


train("all_reduce", Model(), sharder=on_mesh, backward=accumulate)

# Each parameter is owned once, in parts that together are all of it.
model = on_mesh(Model())
loss_of(model, batches(0)[rank]).backward()
for name, p in model.named_parameters():
    owned = torch.zeros(p.numel())
    first, end = p._shard_spec.range
    owned[first:end] = 1
    torch.distributed.all_reduce(owned)
    assert owned.eq(1).all(), name
    assert p.to_local().numel() == end - first, name


# Of all ranks, but in another order, with one dimension after there were two, and with three.
backwards = DeviceMesh(device.type, torch.arange(world).flip(0))
three = init_device_mesh(device.type, (1, world, 1), mesh_dim_names=("pp", "dp", "tp"))
by_rows = torch.arange(world).flip(0).reshape(-1, size)
rows = DeviceMesh(device.type, by_rows, mesh_dim_names=("a", "b"))
for name, other in ("backwards", backwards), ("three", three["dp"]), ("rows", rows):
    train(name, Model(), sharder=lambda m, mesh=other: shard(m, mesh=mesh))
    plain = nn.Linear(3, 5)
    weight = zero.fully_shard(copy.deepcopy(plain), mesh=other).weight
    assert torch.equal(weight.full_tensor(), plain.weight) and weight.device_mesh is other, name


def whole(p):
    return p.full_tensor() if isinstance(p, zero.FlatShard) else p


def check_same(what, model, single):
    for key, p in model.named_parameters():
        assert isinstance(p, zero.FlatShard), (what, key)
        want = single.get_parameter(key)
        torch.testing.assert_close(whole(p), want, rtol=2e-4, atol=2e-4, msg=f"{what} {key}")


def adamw(*models):
    params = dict.fromkeys(p for model in models for p in model.parameters())
    return torch.optim.AdamW(list(params), lr=1e-2, eps=1e-3)


def experts():
    """The middle block is of those ranks that have the same one."""
    places = PLACES
    mesh = init_device_mesh(device.type, (places, world // places), mesh_dim_names=("ep", "dp"))
    place = mesh.get_local_rank("ep")
    shared, blocks = Model(), [Block() for _ in range(places)]
    singles = [copy.copy(shared) for _ in blocks]
    for single, block in zip(singles, blocks):
        single._modules = dict(shared._modules)
        single.blocks = nn.ModuleList([shared.blocks[0], block, shared.blocks[2]])
    model = copy.deepcopy(singles[place])
    zero.fully_shard(model.blocks[1], mesh=mesh["dp"])
    for block in (model.blocks[0], model.blocks[2], model):
        zero.fully_shard(block)
    mine, other = adamw(model), adamw(*singles)
    for step in range(3):
        data = batches(step)
        loss_of(model, data[rank]).backward()
        for r in range(world):
            (loss_of(singles[r * places // world], data[r]) / world).backward()
        for p in (p for block in blocks for p in block.parameters()):
            p.grad *= places  # the mean over the ranks that have the expert
        for key, p in model.named_parameters():
            torch.testing.assert_close(
                whole(p.grad), singles[place].get_parameter(key).grad, rtol=2e-5, atol=2e-5)
        mine.step(), other.step()
        mine.zero_grad(), other.zero_grad()
        check_same(f"experts {step}", model, singles[place])


class Stack(nn.Module):
    """Experts of which this rank has some, and a mesh has all: the first of its own is used."""

    def __init__(self, experts):
        super().__init__()
        self.weight = nn.Parameter(experts)

    def forward(self, x, place=0):
        local = self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight
        return torch.tanh(x @ local[place])


def stacked_experts():
    places = PLACES
    mesh = init_device_mesh(device.type, (world // places, places), mesh_dim_names=("dp", "ep"))
    single = Stack(torch.randn(2 * places, WIDTH, WIDTH))
    model = copy.deepcopy(single)
    whole_weight = distribute_tensor(model.weight.detach(), mesh["ep"], [Shard(0)])
    model.weight = nn.Parameter(whole_weight)
    zero.fully_shard(model, mesh=mesh["dp"], shard_placement_fn=lambda p: Shard(1))
    model.set_gradient_divide_factor(world)
    mine, other = adamw(model), adamw(single)
    for step in range(3):
        data = torch.randn(world, 4, WIDTH, generator=torch.Generator().manual_seed(step))
        model(data[rank]).square().mean().backward()
        for r in range(world):
            (single(data[r], 2 * (r % places)).square().mean() / world).backward()
        torch.testing.assert_close(model.weight.grad.full_tensor(), single.weight.grad)
        mine.step(), other.step()
        mine.zero_grad(), other.zero_grad()
        check_same(f"stacked experts {step}", model, single)
    # torch.distributed.checkpoint has one tensor of all ranks.
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save(model.state_dict(), checkpoint_id=folder[0])
    with torch.no_grad():
        model.weight.fill_(7)
    plain = {"weight": torch.zeros_like(single.weight)}
    for state in (model.state_dict(), plain):
        dcp.load(state, checkpoint_id=folder[0])
    check_same("stacked experts loaded", model, single)
    torch.testing.assert_close(plain["weight"], model.weight.full_tensor())
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


class Mixed(nn.Module):
    """Experts beside what all ranks have alike."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.experts = Stack(torch.randn(2 * PLACES, WIDTH, WIDTH))

    def forward(self, x, place=0):
        return self.experts(self.dense(x), place)


def mixed_meshes():
    """One call that shards the parameters of a module over several meshes."""
    sizes = (world // PLACES, PLACES)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("dp", "ep"))
    single = Mixed()
    model = copy.deepcopy(single)
    stacked = distribute_tensor(model.experts.weight.detach(), mesh["ep"], [Shard(0)])
    model.experts.weight = nn.Parameter(stacked)
    all_ranks = init_device_mesh(device.type, (world,), mesh_dim_names=("all",))
    of_experts = _fsdp_common.ShardPlacementResult(Shard(1), _fsdp_init._get_mesh_info(mesh["dp"]))
    others = _fsdp_common.ShardPlacementResult(None, _fsdp_init._get_mesh_info(all_ranks))
    zero.fully_shard(model, mesh=all_ranks, shard_placement_fn=lambda p: (
        of_experts if p is model.experts.weight else others))
    assert model.dense.weight.device_mesh == all_ranks
    assert model.experts.weight.device_mesh.mesh_dim_names == ("dp", "ep")
    model.set_gradient_divide_factor(world)
    mine, other = adamw(model), adamw(single)
    for step in range(3):
        data = torch.randn(world, 4, WIDTH, generator=torch.Generator().manual_seed(step))
        model(data[rank]).square().mean().backward()
        for r in range(world):
            (single(data[r], 2 * (r % PLACES)).square().mean() / world).backward()
        for key, p in model.named_parameters():
            torch.testing.assert_close(p.grad.full_tensor(), single.get_parameter(key).grad)
        mine.step(), other.step()
        mine.zero_grad(), other.zero_grad()
        check_same(f"mixed meshes {step}", model, single)
    check_same("mixed meshes copied", copy.deepcopy(model), single)


def whole_mesh(sizes, names, **dims):
    """Parameters that are DTensors over a mesh of which some dimensions are those of data."""
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    single = nn.Sequential(nn.Linear(WIDTH, 28, bias=False), nn.Tanh(),
                           nn.Linear(28, WIDTH, bias=False), nn.LayerNorm(WIDTH))
    model = copy.deepcopy(single)
    of_tp = {"0.weight": Shard(0), "2.weight": Shard(1)}
    for key, p in list(model.named_parameters()):
        placements = [of_tp.get(key, Replicate()) if name == "tp" else Replicate()
                      for name in names]
        p = nn.Parameter(distribute_tensor(p.detach(), mesh, placements))
        module, _, attribute = key.rpartition(".")
        setattr(model.get_submodule(module), attribute, p)
    expect(ValueError, "Mesh dim name 'none' not found", lambda: zero.fully_shard(
        model, mesh=mesh, dp_mesh_dims=fsdp.DataParallelMeshDims(shard="none")))
    for module in (model[2], model):
        zero.fully_shard(module, mesh=mesh, dp_mesh_dims=fsdp.DataParallelMeshDims(**dims))
        module.set_gradient_divide_factor(1)  # the loss is the mean over all ranks already
    mine, other = adamw(model), adamw(single)
    for step in range(3):
        data = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(step))
        placements = [Replicate() if name == "tp" else Shard(0) for name in names]
        model(distribute_tensor(data, mesh, placements)).square().mean().backward()
        single(data).square().mean().backward()
        for key, p in model.named_parameters():
            torch.testing.assert_close(p.grad.full_tensor(), single.get_parameter(key).grad)
        norms = [torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (model, single)]
        torch.testing.assert_close(norms[0].full_tensor(), norms[1], rtol=1e-4, atol=1e-5)
        mine.step(), other.step()
        mine.zero_grad(), other.zero_grad()
        check_same(f"whole mesh {sizes} {step}", model, single)


def annotated(*sizes):
    """Parameters that are plain tensors in a forward, of which spmd_types says what they are."""
    names, kinds = ("dp", "tp")[: len(sizes)], (spmd_types.R, spmd_types.S(0))
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    known = {spmd_types.MeshAxis.of(mesh.get_group(n)): kind for n, kind in zip(names, kinds)}
    parts, place = (sizes[1], mesh.get_local_rank("tp")) if len(sizes) > 1 else (1, 0)
    single = nn.Linear(WIDTH, 28)
    model = copy.deepcopy(single)
    plain = copy.deepcopy(single)
    for key, p in list(model.named_parameters()):
        p = nn.Parameter(p.detach().chunk(parts)[place].clone())
        spmd_types.assert_type(p, known)
        setattr(model, key, p)
    dims = fsdp.DataParallelMeshDims(shard="dp")
    zero.fully_shard(model, mesh=mesh, dp_mesh_dims=dims)
    expect(ValueError, "Got plain tensor for parameter 'weight'",
           lambda: zero.fully_shard(plain, mesh=mesh, dp_mesh_dims=dims))
    mine, other = adamw(model), adamw(single)
    for step in range(3):
        data = torch.randn(sizes[0], 4, WIDTH, generator=torch.Generator().manual_seed(step))
        out = model(data[mesh.get_local_rank("dp")])
        assert type(out) is torch.Tensor and out.shape[1] == 28 // parts
        (out.square().mean() / parts).backward()
        single(data).square().mean().backward()
        for key, p in model.named_parameters():
            torch.testing.assert_close(p.grad.full_tensor(), single.get_parameter(key).grad)
        mine.step(), other.step()
        mine.zero_grad(), other.zero_grad()
        check_same(f"annotated {sizes} {step}", model, single)


def overlapping():
    """Models of some ranks, of which one is in two."""
    ranks = [[0, 1], list(range(1, world))] if world > 2 else [[r] for r in range(world)]
    meshes = [DeviceMesh(device.type, r) for r in ranks]
    singles = [Model() for _ in ranks]
    models = {i: copy.deepcopy(singles[i]) for i, r in enumerate(ranks) if rank in r}
    for i, model in models.items():
        shard(model, mesh=meshes[i])
    mine, other = adamw(*models.values()), adamw(*singles)
    for step in range(3):
        data = batches(step)
        for i, model in models.items():
            loss_of(model, data[rank]).backward()
        for single, of in zip(singles, ranks):
            for r in of:
                (loss_of(single, data[r]) / len(of)).backward()
        mine.step(), other.step()
        mine.zero_grad(), other.zero_grad()
        for i, model in models.items():
            check_same(f"overlapping {i} {step}", model, singles[i])
    outside = [m for m, r in zip(meshes, ranks) if rank not in r]
    if outside:
        expect(ValueError, "which is not in the mesh", lambda: shard(Model(), mesh=outside[0]))


def parallel(mesh):
    """Of sequences and of tensors, as torchtitan makes it of its models, below fully_shard."""
    torch.manual_seed(6)
    model = Model()
    model.embed, model.head = nn.Embedding(32, WIDTH), nn.Linear(WIDTH, 32, bias=False)
    for block in model.blocks:
        block.a, block.b = nn.Linear(WIDTH, 28), nn.Linear(28, WIDTH, bias=False)
    single = copy.deepcopy(model)
    layers = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
              "norm": SequenceParallel(),
              "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}
    parallelize_module(model, mesh["tp"], layers)
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {
            "norm": SequenceParallel(), "a": ColwiseParallel(input_layouts=Shard(1)),
            "b": RowwiseParallel(output_layouts=Shard(1))})
    replicas, place = mesh["dp"].size(), mesh.get_local_rank("dp")
    with torch.device("meta"):  # where a program that makes its model there may still be
        shard(model, mesh=mesh["dp"])
    mine, other = adamw(model), adamw(single)
    for step in range(3):
        data = batches(step)
        loss_of(model, data[place]).backward()
        for r in range(replicas):
            (loss_of(single, data[r]) / replicas).backward()
        for key, p in model.named_parameters():
            want = single.get_parameter(key).grad
            torch.testing.assert_close(whole(p.grad), want, rtol=2e-5, atol=2e-5, msg=key)
        norms = [torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (model, single)]
        torch.testing.assert_close(norms[0].full_tensor(), norms[1], rtol=1e-4, atol=1e-5)
        mine.step(), other.step()
        mine.zero_grad(), other.zero_grad()
        check_same(f"parallel {step}", model, single)
    with torch.no_grad():
        for m in (model, single):
            m.load_state_dict({k: v + 1 for k, v in single.state_dict().items()})
            m.head.weight.mul_(0.5)
    check_same("parallel written", model, single)
    loss = loss_of(model, batches(0)[0])
    torch.testing.assert_close(loss, loss_of(single, batches(0)[0]))
    p, want = model.head.weight, single.head.weight
    torch.testing.assert_close(p.sum().full_tensor(), want.sum())
    assert p.t().full_tensor().equal(p.full_tensor().t()), "a view"
    nn.init.normal_(p)
    nn.init.normal_(model.norm.weight)
    every = [torch.empty_like(model.norm.weight.full_tensor()) for _ in range(world)]
    dist.all_gather(every, model.norm.weight.full_tensor())
    assert all(e.equal(every[0]) for e in every), "random values"
    assert len(p.full_tensor().unique()) > 0.9 * p.numel(), "random values"


def cases_of_dtensors():
    stacked_experts()
    if hasattr(_fsdp_common, "ShardPlacementResult"):
        mixed_meshes()
    if hasattr(fsdp, "DataParallelMeshDims"):
        whole_mesh((world,), ("dp",), shard="dp")
        whole_mesh((world // PLACES, PLACES), ("dp", "tp"), shard="dp")
        annotated(world)
        annotated(world // PLACES, PLACES)
        whole_mesh((PLACES, world // PLACES, 1), ("copies", "dp", "tp"), shard="dp",
                   replicate="copies")
    overlapping()
    for sizes in [(world, 1), (world // 2, 2)] if world % 2 == 0 else [(world, 1)]:
        parallel(init_device_mesh(device.type, sizes, mesh_dim_names=("dp", "tp")))


experts()
if device.type == "cpu":  # the group of the test device has not the collectives of DTensors
    cases_of_dtensors()
print(f"{size} of {world} ranks store a copy")
