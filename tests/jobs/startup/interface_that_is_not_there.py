# /// truth
# nproc = 3
# launcher = "torchrun"
#
# [faulty]
# code = "DD308"
# verdict = "hang"
# root_confidence = "proved"
# says = "nope0"
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""One rank is told to use a network interface that its host does not have.

Healthy: All ranks are told to use an interface that there is, and one that only NCCL would look for.
"""

import os

import torch.distributed as dist

# if FAULTY
if os.environ["RANK"] == "1":
    os.environ["GLOO_SOCKET_IFNAME"] = "nope0"
# else
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
os.environ["NCCL_SOCKET_IFNAME"] = "nope0"
# end
dist.init_process_group("gloo")  # HERE rank 1
dist.barrier()
dist.destroy_process_group()
