"""/// truth
nproc = 3
codes = ["DD204"]
root = [0]
///"""
import ctypes
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
threading.Thread(target=time.sleep, args=(0.01,), daemon=True).start()
for step in range(100):
    dist.all_reduce(torch.ones(8))  # HERE rank 1 2
    if step == 2 and dist.get_rank() == 0:
        ctypes.PyDLL(None).sleep(3600)  # HERE rank 0
