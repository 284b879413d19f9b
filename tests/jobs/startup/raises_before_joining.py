# /// truth
# nproc = 3
# launcher = "torchrun"
#
# [faulty]
# code = "DD202"
# ranks = { root = [1] }
# root_confidence = "proved"
#
# [healthy]
# ///
"""Rank 1 raises before it joins the process group, and the others are already waiting for it.

Healthy: A helper of rank 1 raises before and after the process group is joined, and the rank goes on.
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

# if FAULTY
if os.environ["RANK"] == "1":
    time.sleep(1)  # the others are in init_process_group by now
    raise ValueError("no such data set")  # HERE rank 1
# else
def probe():
    """Asks for what may be missing in a process of its own, as probes of libraries do."""
    if os.environ["RANK"] == "1":
        command = [sys.executable, "-c", "raise ValueError('no such library')"]
        assert subprocess.run(command, check=False).returncode == 1


probe()
# end
dist.init_process_group("gloo")
# if FAULTY
dist.barrier()
# else
probe()
dist.all_reduce(torch.ones(8))
# end
dist.destroy_process_group()
