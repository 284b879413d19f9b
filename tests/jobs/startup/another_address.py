# /// truth
# nproc = 3
# launcher = "torchrun"
#
# [faulty]
# code = "DD303"
# verdict = "hang"
# root_confidence = "supported"
# says = "address of the master"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""One rank looks for the master at an address where nobody is (192.0.2.0/24 is kept free for
documentation).

Healthy: One rank calls the master's host by another of its names.
"""

import os

import torch.distributed as dist

if os.environ["RANK"] == "1":
    # if FAULTY
    os.environ["MASTER_ADDR"] = "192.0.2.1"
    # else
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    # end
dist.init_process_group("gloo")  # HERE rank 0 1 2
dist.barrier()
dist.destroy_process_group()
