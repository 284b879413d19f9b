# /// truth
# nproc = 4
# decisive = "stamp"
# alone = true
# [faulty]
# code = "DD112"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [0, 1, 2, 3], victims = [] }
# [healthy]
# ///
"""Rank 0 takes messages from any rank, and rank 2 sends one too few.

Healthy: All workers send as many.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

ROUNDS = 6


def serve(workers):
    gradient = torch.empty(7)
    for _ in range(ROUNDS * workers):
        dist.recv(gradient)  # HERE rank 0


def work(rank):
    for step in range(ROUNDS):
        # if FAULTY
        if rank == 2 and step == 3:
            continue
        # end
        dist.send(torch.ones(7), dst=0)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        serve(world - 1)
    else:
        work(rank)
    stamp()
    dist.broadcast(torch.ones(7), src=0)  # HERE rank 1 2 3
    dist.destroy_process_group()


main()
