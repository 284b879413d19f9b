"""A job of one rank per node that continues when a node joins or leaves: elastic.py joins|hangs|leaves

joins: alone, a rank computes until its launcher ends it; two ranks finish.
hangs: the same, but rank 1 of two leaves the other one waiting.
leaves: two ranks compute until one of them is gone; the other one finishes alone.
"""

import itertools
import os
import sys
import time

import torch
import torch.distributed as dist

scenario = sys.argv[1]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
lasts = size == (2 if scenario == "leaves" else 1) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
dist.init_process_group("gloo")
tensor = torch.ones(64)
for step in itertools.count() if lasts else range(8):
    if scenario == "hangs" and rank == 1 and step == 3:
        os._exit(0)
    dist.all_reduce(tensor)
    if step == 3:
        print("computes", flush=True)
    time.sleep(0.05)
dist.destroy_process_group()
