# /// truth
# nproc = 2
#
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# says = "a lock"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 takes a lock that it holds already.

Healthy: Rank 1 takes a reentrant lock that it holds already, after another thread has let go of it.
"""

import threading
import time

import torch
import torch.distributed as dist

# if FAULTY
lock = threading.Lock()
# else
lock = threading.RLock()
# end
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)


def log(message):
    with lock:  # HERE rank 1
        print(message, flush=True)


# if HEALTHY
def hold(held):
    with lock:
        held.set()
        time.sleep(3)


# end
for step in range(8):
    if rank == 1 and step == 4:
        # if HEALTHY
        held = threading.Event()
        threading.Thread(target=hold, args=(held,)).start()
        held.wait()
        # end
        with lock:
            log("half way")
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
