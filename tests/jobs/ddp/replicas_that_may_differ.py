# /// truth
# nproc = 3
#
# [healthy]
# ///
"""Models whose replicas differ by intention: averaged by a hook over fewer ranks, trained without synchronisation and averaged
later, perturbed for a second forward, of a group of each rank, and not wrapped at all. Uneven inputs are joined.
"""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def alone(_, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def train(model, steps, after=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)

local = DistributedDataParallel(torch.nn.Linear(16, 4))
local.register_comm_hook(None, alone)
train(local, 4)

own = [dist.new_group([one]) for one in range(3)][rank]
train(DistributedDataParallel(torch.nn.Linear(16, 4), process_group=own), 4)
train(torch.nn.Linear(16, 4), 4)

periodic = DistributedDataParallel(torch.nn.Linear(16, 4))
train(periodic, 2)
for _ in range(2):
    with periodic.no_sync():
        train(periodic, 3)
    for parameter in periodic.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= 3
    train(periodic, 2)

sharp = DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(sharp.parameters(), lr=0.1)
for _ in range(4):
    inputs = torch.randn(8, 16)
    with sharp.no_sync():
        sharp(inputs).square().mean().backward()
    before = [parameter.detach().clone() for parameter in sharp.parameters()]
    with torch.no_grad():
        for parameter in sharp.parameters():
            parameter.add_(parameter.grad, alpha=0.5)
    optimizer.zero_grad()
    sharp(inputs).square().mean().backward()
    with torch.no_grad():
        for parameter, saved in zip(sharp.parameters(), before):
            parameter.copy_(saved)
    optimizer.step()
    optimizer.zero_grad()

joined = DistributedDataParallel(torch.nn.Linear(16, 4))
for _ in range(2):
    with Join([joined]):
        train(joined, 3 + rank)
dist.barrier()  # a thread of Gloo's still lets go of the hook's last function: not while Python ends
dist.destroy_process_group()
