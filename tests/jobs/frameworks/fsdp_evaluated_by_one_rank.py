# /// truth
# nproc = 3
# launcher = "torchrun"
# [faulty]
# code = "DD104"
# verdict = "crash"
# root_confidence = "supported"
# cause = "rank-conditional"
# ranks = { root = [0], victims = [1, 2] }
# [healthy]
# ///
"""FSDP2: rank 0 alone evaluates the sharded model.

Healthy: All ranks evaluate it.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 9))
mesh = init_device_mesh("cpu", (3,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    loss = model(torch.randn(4, 16)).square().mean()  # HERE rank 0
    loss.backward()  # HERE rank 1 2
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        # if FAULTY
        if rank == 0:
            with torch.no_grad():
                model(torch.randn(4, 16))
        # else
        with torch.no_grad():
            model(torch.randn(4, 16))
        # end
dist.destroy_process_group()
