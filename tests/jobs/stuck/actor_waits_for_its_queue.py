# /// truth
# nproc = 3
# decisive = "stamp"
# alone = true
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [0], victims = [1, 2] }
# [healthy]
# ///
"""Rank 0 learns and broadcasts its weights, the others act. Rank 0 stands still before a broadcast on its own branch.

Healthy: Rank 0 is a second late.
"""

import queue
import time

import torch
import torch.distributed as dist

from support.stamp import stamp


def learn(weights):
    episodes = queue.Queue()
    for step in range(8):
        if step == 4:
            # if FAULTY
            stamp()
            episodes.get()  # HERE rank 0
            # else
            time.sleep(1)
            # end
        dist.broadcast(weights, src=0)
        score = torch.zeros(4)
        dist.all_reduce(score)
        weights += score.mean()


def act(weights):
    for step in range(8):
        dist.broadcast(weights, src=0)  # HERE rank 1 2
        score = torch.ones(4) * weights.mean()
        dist.all_reduce(score)


def main():
    dist.init_process_group("gloo")
    weights = torch.ones(16)
    if dist.get_rank() == 0:
        learn(weights)
    else:
        act(weights)
    dist.destroy_process_group()


main()
