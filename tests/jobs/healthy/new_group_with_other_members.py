# /// truth
# nproc = 3
# healthy = true
# ///
"""Every rank makes a group of its own, in which nobody waits for anybody; then all make one."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
alone = dist.new_group([rank])
dist.all_reduce(torch.ones(64), group=alone)
group = dist.new_group([2, 0, 1] if rank == 1 else [0, 1, 2])
dist.all_reduce(torch.ones(64), group=group)
dist.destroy_process_group()
