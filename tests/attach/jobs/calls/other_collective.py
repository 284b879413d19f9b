"""/// truth
nproc = 3
codes = ["DD103", "DD117"]
root = [1]
///"""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.group.WORLD
for step in range(100):
    loss = torch.ones(8)
    if step == 3 and dist.get_rank() == 1:
        dist.barrier()  # HERE rank 1
    else:
        dist.all_reduce(loss)  # HERE rank 0 2
