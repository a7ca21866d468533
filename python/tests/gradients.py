# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: gradients go to the library's buffer one by one as autograd makes them,
whichever micro-batch uses which parameter, and after a backward pass the library keeps no memory
of them but what .grad has."""

import copy

import torch
from torch import nn

import slurm_zero as zero
from harness import device, rank, world

LAYERS, WIDTH = 6, 640


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.seen = None

    def forward(self, x, used):
        for i in used:
            x = torch.tanh(self.layers[i](x))
            if self.seen and x.requires_grad:
                x.register_hook(lambda grad: self.seen())
        return x.square().mean()


def layers_of(r, used):
    """Ranks use some by others."""
    return [i ^ (r & 1) for i in used]


def whole_gradients():
    full = [p.full for group in job.layout.groups for p in group.params]
    return sum(f.grad is not None for f in full)


def arena_bytes():
    """Of the memory that the ranks of a node share. 0: they share none."""
    inside, kilobytes = False, 0
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            if not line.split()[0].endswith(":"):
                inside = line.split()[5:6] in (["/slurm-zero"], ["/memfd:slurm-zero"])
            elif inside and line.startswith("Pss:"):
                kilobytes += int(line.split()[1])
    total = torch.tensor(1024 * kilobytes)
    torch.distributed.all_reduce(total)
    return int(total)


chain = Chain()
single = copy.deepcopy(chain)
zero.fully_shard(chain)
root = zero.fully_shard(nn.Sequential(chain))  # whose own gradients, of none, come last
job = zero._api._job
most = []
chain(torch.ones(1, WIDTH, device=device), range(LAYERS))
before = arena_bytes()
chain.seen = lambda: most.append(whole_gradients())
generator = torch.Generator().manual_seed(5)
# Of each pass what its micro-batches use: some by a later one only, and some by none.
for passes in ([[0, 1, 2, 3, 4, 5]], [[0, 2], [1, 2], [2, 2, 0]], [[5]], [[3, 1], [4]]):
    for micro, used in enumerate(passes):
        data = torch.randn(world, 3, WIDTH, generator=generator)
        chain.set_requires_gradient_sync(micro == len(passes) - 1)
        chain(data[rank].to(device), layers_of(rank, used)).backward()
        sum(single(rows, layers_of(r, used)) for r, rows in enumerate(data)).backward()
    for (name, p), q in zip(chain.named_parameters(), single.parameters()):
        assert (p.grad is None) == (q.grad is None), f"{name}, {passes}"
        if q.grad is not None:
            torch.testing.assert_close(p.grad.full_tensor().cpu(), q.grad / world,
                                       rtol=1e-4, atol=1e-7, msg=lambda m: f"{name}: {m}")
    chain.zero_grad()
    single.zero_grad()
# A gradient of an activation comes before those of the layer's own parameters: all of the layers
# behind it have been taken by then.
assert len(most) == 17 and max(most) == 0, most
more, one = arena_bytes() - before, sum(p.numel() for p in single.parameters()) * 4
assert more < one / 4, f"{more} bytes are kept, where the gradients of a rank have {one}"
if rank == 0:
    print("ok", flush=True)
