# /// truth
# nproc = 3
# launcher = "torchrun"
#
# [faulty]
# code = "DD301"
# ranks = { root = [1] }
# root_confidence = "supported"
# says = "rank 1 ended before joining the world, with status 0"
# hang = true
#
# [healthy]
# ///
"""One rank takes itself for superfluous, and ends in order before it joins the others.

Healthy: One rank is superfluous and ends in order: the others form a world without it.
"""

import os
import sys
import time

import torch.distributed as dist

# if FAULTY
if os.environ["RANK"] == "1":
# else
rank = int(os.environ["RANK"])
if rank == 2:
# end
    time.sleep(4)
    sys.exit()
# if FAULTY
dist.init_process_group("gloo")  # HERE rank 0 2
# else
dist.init_process_group("gloo", rank=rank, world_size=2)
# end
dist.barrier()
dist.destroy_process_group()
