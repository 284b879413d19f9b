"""/// truth
nproc = 3
codes = ["DD103", "DD117"]
root = [0]
///"""
import torch
import torch.distributed as dist


def save(step):
    if dist.get_rank() == 0:
        dist.barrier()  # HERE rank 0


dist.init_process_group("gloo")
for step in range(100):
    if step == 5:
        save(step)
    loss = [torch.zeros(8) for _ in range(3)]
    dist.all_gather(loss, torch.ones(8))  # HERE rank 1 2
