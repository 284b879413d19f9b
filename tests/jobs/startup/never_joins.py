# /// truth
# nproc = 3
# launcher = "torchrun"
# quick = ["faulty"]
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD301"
# ranks = { root = [1] }
# root_confidence = "supported"
# says = "rank 1 is alive"
# hang = true
#
# [healthy]
# run_options = ["--stall-after", "20"]
# ///
"""One rank waits for something else before it joins the others.

Healthy: One rank prepares something for a while before it joins the others.
"""

import os
import time

import torch.distributed as dist

# if FAULTY
def wait_for_the_data_set():
    while not os.path.exists("/nonexistent/data-set"):
        time.sleep(0.5)  # HERE rank 1


# end
if os.environ["RANK"] == "1":
    # if FAULTY
    wait_for_the_data_set()
    # else
    time.sleep(8)
    # end
dist.init_process_group("gloo")  # HERE rank 0 2
dist.barrier()
dist.destroy_process_group()
