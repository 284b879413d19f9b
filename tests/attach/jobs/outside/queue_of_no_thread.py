"""/// truth
nproc = 3
codes = ["DD204"]
root = [0]
///"""
import queue
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
requests = queue.Queue()
# The engine of idle_engine.py, but its only source of requests ends with the third one.
if dist.get_rank() == 0:
    threading.Thread(target=lambda: [requests.put(1) for _ in range(3)]).start()
while True:
    request = torch.ones(1)
    if dist.get_rank() == 0:
        request[0] = requests.get()  # HERE rank 0
    dist.broadcast(request, src=0)  # HERE rank 1 2
