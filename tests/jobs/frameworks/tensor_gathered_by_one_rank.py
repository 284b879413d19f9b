# /// truth
# nproc = 3
# launcher = "torchrun"
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# cause = "rank-conditional"
# ranks = { root = [0], victims = [1, 2] }
# [healthy]
# ///
"""DTensor: rank 0 alone prints a sharded tensor as a whole, which gathers it.

Healthy: All ranks gather it, and rank 0 prints it.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (3,))
torch.manual_seed(0)
weights = distribute_tensor(torch.randn(9, 4), mesh, [Shard(0)])
for step in range(3):
    total = (weights * weights).sum().full_tensor()  # HERE rank 1 2
    if step == 1:
        # if FAULTY
        if rank == 0:
            print(weights.full_tensor().mean().item())  # HERE rank 0
        # else
        mean = weights.full_tensor().mean().item()
        if rank == 0:
            print(mean)
        # end
dist.destroy_process_group()
