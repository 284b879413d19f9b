# /// truth
# nproc = 2
#
# [faulty]
# code = "DD501"
# verdict = "crash"
# root_confidence = "proved"
# says = "asking for 256 PiB"
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""An allocation of rank 1 fails in the middle of the training, and nobody catches it.

Healthy: Every rank finds out how much it may allocate by trying, before the training and in the middle of it.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
# if FAULTY
rank = dist.get_rank()
# end
tensor = torch.ones(256)
for step in range(8):
    # if FAULTY
    if rank == 1 and step == 4:
        tensor = torch.empty(1 << 58, dtype=torch.uint8)  # HERE rank 1
    # else
    size = 1 << 58
    while True:
        try:
            torch.empty(size, dtype=torch.uint8)
            break
        except RuntimeError:
            size >>= 8
    # end
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
