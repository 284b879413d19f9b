"""/// truth
nproc = 3
codes = ["DD204"]
root = [2]
spawns = true
///

No variable numbers the ranks: `mp.spawn` passes the number as an argument.
"""
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def wait_for_operator():
    time.sleep(3600)  # HERE rank 2


def train(place, size):
    meeting = f"file://{os.environ['JOB_DIR']}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=place, world_size=size)
    for step in range(100):
        loss = torch.ones(8)
        if step == 3 and place == 2:
            wait_for_operator()
        dist.all_reduce(loss)  # HERE rank 0 1


if __name__ == "__main__":
    mp.spawn(train, args=(3,), nprocs=3)
