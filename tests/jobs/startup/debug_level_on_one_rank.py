# /// truth
# nproc = 3
# launcher = "torchrun"
#
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD306"
# ranks = { root = [1] }
# root_confidence = "supported"
# says = "rank 1 has TORCH_DISTRIBUTED_DEBUG=DETAIL"
# hang = true
#
# [healthy]
# ///
"""The environment of one rank asks for debugging in detail, which makes calls of its own: that rank waits for the others in
the group that it makes for them.

Healthy: Ranks have variables of their own: what they write and where, which devices they see, and what is for a backend that
nobody uses.
"""

import os

# if FAULTY
if os.environ["RANK"] == "1":  # as a profile of that host would have it
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
# else
rank = os.environ["RANK"]
os.environ["NCCL_DEBUG_FILE"] = "/tmp/nccl." + rank
os.environ["CUDA_VISIBLE_DEVICES"] = rank
os.environ["OMP_NUM_THREADS"] = str(1 + int(rank))
if rank == "1":
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
    os.environ["NCCL_ALGO"] = "Ring"
    os.environ["NCCL_IB_HCA"] = "mlx5_1"

import time
# end

import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # HERE rank 1
# if FAULTY
dist.all_reduce(torch.ones(4))
# else
for _ in range(10):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.1)
# end
dist.destroy_process_group()
