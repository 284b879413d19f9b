"""/// truth
nproc = 3
codes = ["DD103", "DD117", "DD205", "DD202"]
root = [2]
///"""
import torch
import torch.distributed as dist


def step_of(step):
    if step == 4 and dist.get_rank() == 2:
        raise ValueError("label out of range")
    dist.all_reduce(torch.ones(8))  # HERE rank 0 1


dist.init_process_group("gloo")
try:
    for step in range(100):
        step_of(step)
finally:
    dist.barrier()  # HERE rank 2
