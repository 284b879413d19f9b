# /// truth
# nproc = 3
# launcher = "torchrun"
# decisive = "stamp"
#
# [faulty]
# code = "DD303"
# verdict = "hang"
# root_confidence = "supported"
# says = "size of the world"
# hang = true
# ranks = { root = [2], victims = [0, 1] }
# [healthy]
# ///
"""One rank believes that the world is larger than the launcher has made it; the others may join without it.

Healthy: One rank says how large the world is, and the others leave it to the launcher.
"""

import os

import torch.distributed as dist

from support.stamp import stamp

rank = int(os.environ["RANK"])
stamp()
if rank == 2:
# if FAULTY
    dist.init_process_group("gloo", rank=rank, world_size=4)  # HERE rank 2
dist.init_process_group("gloo")  # HERE rank 0 1
# else
    dist.init_process_group("gloo", rank=rank, world_size=3)
else:
    dist.init_process_group("gloo")
# end
dist.barrier()  # HERE rank 0 1
dist.destroy_process_group()
