# /// truth
# nproc = 3
# healthy = true
# ///
"""All ranks make the same groups in the same order, and come at different times."""

import time

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
for ranks in [0, 1], [0, 1, 2], [1, 2]:
    time.sleep(0.3 * rank)
    dist.new_group(ranks)
dist.barrier()
dist.destroy_process_group()
