# /// truth
# nproc = 2
# [faulty]
# code = "DD102"
# verdict = "hang"
# root_confidence = "proved"
# cause = "uneven-inputs"
# ranks = { root = [1], victims = [0] }
# [faulty.nccl]
# hang = true
# [healthy]
# ///
"""Each rank reads its share of seven files in a loop of its own, without a data loader. Rank 1 ends first.

Healthy: The last file is left out.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
files = [f"part-{i}.bin" for i in range(7)]
# if HEALTHY
files = files[:6]
# end
share = iter(files[rank::world_size])
weights = torch.ones(32)
while True:
    try:
        name = next(share)
    except StopIteration:
        break
    dist.all_reduce(weights)  # HERE rank 0
dist.destroy_process_group()
