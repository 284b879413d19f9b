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
"""The program trains in a thread, as actors do, while the main thread waits for messages. Rank 1 takes a lock twice.

Healthy: Another thread releases the lock.
"""

import queue
import threading

import torch
import torch.distributed as dist


def train(done):
    dist.init_process_group("gloo")
    loss, lock = torch.ones(8), threading.Lock()
    for step in range(8):
        if dist.get_rank() == 1 and step == 4:
            lock.acquire()
            # if HEALTHY
            threading.Timer(1, lock.release).start()
            # end
            lock.acquire()  # HERE rank 1
        dist.all_reduce(loss)  # HERE rank 0
    dist.destroy_process_group()
    done.put(None)


messages = queue.Queue()
threading.Thread(target=train, args=(messages,)).start()
messages.get()
