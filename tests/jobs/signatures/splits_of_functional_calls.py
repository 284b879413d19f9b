# /// truth
# nproc = 3
# decisive = "stamp"
# [faulty]
# code = "DD103"
# verdict = "hang"
# hang = true
# ranks = { root = [2], victims = [0, 1] }
# [healthy]
# ///
"""Tokens are exchanged by functional collectives with uneven splits. Rank 2 leaves out an exchange.

Healthy: All ranks exchange. The splits fit, and even ones would not.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from support.stamp import stamp

TOKENS = [[7, 30, 23], [14, 26, 20], [11, 28, 21]]


def exchange(rank, step):
    # if FAULTY
    if rank == 2 and step == 3:
        return
    # end
    sends = TOKENS[rank]
    takes = [row[rank] for row in TOKENS]
    tokens = torch.ones(sum(sends), 16)
    if hasattr(funcol, "all_to_all_single"):
        routed = funcol.all_to_all_single(tokens, takes, sends, dist.group.WORLD)  # HERE rank 0 1
    else:  # PyTorch 2.1
        routed = torch.empty(sum(takes), 16)
        dist.all_to_all_single(routed, tokens, takes, sends)  # HERE rank 0 1
    routed.sum().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(6):
        exchange(rank, step)
        stamp()
        dist.all_reduce(torch.ones(4))  # HERE rank 2
    dist.destroy_process_group()


main()
