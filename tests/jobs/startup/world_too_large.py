# /// truth
# nproc = 2
# launcher = "torchrun"
# run_options = ["--stall-after", "4"]
#
# [faulty]
# code = "DD301"
# verdict = "hang"
# root_confidence = "supported"
# says = "no process of rank 2 was seen"
# hang = true
# ranks = { root = [2], victims = [0, 1] }
# [healthy]
# ///
"""The program is told of more ranks than the launcher starts.

Healthy: The program is told of as many ranks as the launcher starts, and joins its world three times.
"""

import os

import torch.distributed as dist

# if FAULTY
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=3)  # HERE rank 0 1
dist.barrier()
dist.destroy_process_group()
# else
rank = int(os.environ["RANK"])
for time in range(3):
    port = 10000 + int(os.environ["MASTER_PORT"]) % 20000 + time
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    dist.barrier()
    dist.destroy_process_group()
# end
