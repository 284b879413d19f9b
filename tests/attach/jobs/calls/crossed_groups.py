"""/// truth
nproc = 2
codes = ["DD111"]
root = [0, 1]
///"""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor_group, data_group = dist.new_group([0, 1]), dist.new_group([0, 1])
for step in range(10):
    dist.all_reduce(torch.ones(8), group=tensor_group)
    dist.all_reduce(torch.ones(8), group=data_group)
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(8), group=tensor_group)  # HERE rank 0
    dist.all_reduce(torch.ones(8), group=data_group)
else:
    dist.all_reduce(torch.ones(8), group=data_group)  # HERE rank 1
    dist.all_reduce(torch.ones(8), group=tensor_group)
