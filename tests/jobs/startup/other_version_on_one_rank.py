# /// truth
# nproc = 3
# launcher = "torchrun"
#
# [faulty]
# code = "DD305"
# verdict = "healthy"
# root_confidence = "supported"
# says = "rank 1 has PyTorch 2.14.1"
# ranks = { root = [1], victims = [] }
# [healthy]
# ///
"""The PyTorch of one rank is another one, by its own word, and the job runs on all the same.

Healthy: All ranks have the same PyTorch, which calls itself otherwise than usual.
"""

import os
import time

import torch
import torch.distributed as dist

# if FAULTY
if os.environ["RANK"] == "1":  # stands for an installation of its own
    torch.__version__ = "2.14.1"
# else
torch.__version__ = "2.14.1"
# end
dist.init_process_group("gloo")  # HERE rank 0 1 2
for _ in range(10):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.1)
dist.destroy_process_group()
