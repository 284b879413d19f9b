# /// truth
# nproc = 3
# launcher = "torchrun"
#
# [faulty]
# code = "DD304"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""One rank joins with another backend, one that needs no peers, and goes on by itself.

Healthy: Ranks name their backends differently, and mean the same one.
"""

import os
import time

import torch.distributed as dist

# if FAULTY
if os.environ["RANK"] == "1":
    dist.init_process_group("fake", rank=1, world_size=3)  # HERE rank 1
    dist.barrier()
    time.sleep(1000)
dist.init_process_group("gloo")  # HERE rank 0 2
# else
dist.init_process_group("gloo" if os.environ["RANK"] == "1" else "cpu:gloo")
# end
dist.barrier()
dist.destroy_process_group()
