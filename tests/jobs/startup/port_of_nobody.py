# /// truth
# nproc = 2
# launcher = "torchrun"
#
# [faulty]
# run_options = ["--stall-after", "4"]
# code = "DD301"
# ranks = { root = [0, 1] }
# root_confidence = "suspected"
# says = "all ranks of the world have reached"
# hang = true
#
# [healthy]
# ///
"""The program sets another port for all ranks: the launcher keeps the store, and keeps it elsewhere.

Healthy: The program sets another port for all ranks, and has rank 0 keep the store there, not the launcher.
"""

import os

import torch.distributed as dist

os.environ["MASTER_PORT"] = str(10000 + int(os.environ["MASTER_PORT"]) % 20000)
# if HEALTHY
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
# end
dist.init_process_group("gloo")  # HERE rank 0 1
dist.barrier()
dist.destroy_process_group()
