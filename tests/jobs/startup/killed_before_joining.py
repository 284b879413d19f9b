# /// truth
# nproc = 3
# launcher = "torchrun"
#
# [faulty]
# code = "DD301"
# ranks = { root = [1] }
# root_confidence = "supported"
# says = "killed by SIGKILL"
#
# [healthy]
# seconds = 6
# ///
"""One rank is killed before it joins the others, and the launcher ends the rest.

Healthy: Before one rank joins, a helper that it had started is killed; the rank itself is late, and comes.
"""

import os
import signal
import subprocess
import time

import torch.distributed as dist

if os.environ["RANK"] == "1":
    # if HEALTHY
    helper = subprocess.Popen(["sleep", "60"])
    # end
    time.sleep(6)
    # if FAULTY
    os.kill(os.getpid(), signal.SIGKILL)
    # else
    helper.kill()
    helper.wait()
    # end
dist.init_process_group("gloo")  # HERE rank 0 2
dist.barrier()
dist.destroy_process_group()
