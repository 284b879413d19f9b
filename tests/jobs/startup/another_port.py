# /// truth
# nproc = 3
# launcher = "torchrun"
# decisive = "stamp"
# quick = []
# [faulty]
# code = "DD303"
# verdict = "hang"
# root_confidence = "supported"
# says = "port of the master"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""The environment of one rank says another port, as a profile that sets MASTER_PORT does.

Healthy: All ranks agree on a port of their own, other than the launcher's.
"""

import os

import torch.distributed as dist

from support.stamp import stamp

# if FAULTY
rank = int(os.environ["RANK"])
if rank == 1:
    os.environ["MASTER_PORT"] = str(10000 + int(os.environ["MASTER_PORT"]) % 20000)
stamp()
dist.init_process_group("gloo")  # HERE rank 0 1 2
# else
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = 10000 + int(os.environ["MASTER_PORT"]) % 20000
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
# end
dist.barrier()
dist.destroy_process_group()
