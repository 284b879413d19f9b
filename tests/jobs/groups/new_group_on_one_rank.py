# /// truth
# decisive = "stamp"
#
# [faulty]
# nproc = 3
# code = "DD114"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [0], victims = [1, 2] }
# [faulty.nccl]
# harmless = true
# [healthy]
# nproc = 4
# ///
"""One rank alone makes a group of all; the others have gone on to a barrier.

Healthy: Only the members make their groups, every rank as many as the others; meshes and splits.
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
# if FAULTY
stamp()
if rank == 0:
    dist.new_group([0, 1, 2])  # HERE rank 0
# else
ranks = [0, 1] if rank < 2 else [2, 3]
pair = dist.new_group(ranks, use_local_synchronization=True)
dist.all_reduce(torch.ones(8), group=pair)
everybody = dist.new_group()
dist.all_reduce(torch.ones(8), group=everybody)
half = dist.split_group(None, [[0, 2], [1, 3]])
dist.all_reduce(torch.ones(8), group=half)
dist.split_group(None, [[0, 1]])
mine, _ = dist.new_subgroups(group_size=2)
dist.barrier(group=mine)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
for name in mesh.mesh_dim_names:
    dist.all_reduce(torch.ones(8), group=mesh.get_group(name))
# end
dist.barrier()  # HERE rank 1 2
dist.destroy_process_group()
