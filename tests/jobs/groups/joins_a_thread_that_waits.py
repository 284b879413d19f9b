# /// truth
# nproc = 2
# decisive = "stamp"
# alone = true
# [faulty]
# run_options = ["--stall-after", "12"]
# code = "DD111"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# headline = "in a separate thread"
# why = "that thread has made 4 so far"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""A thread of each rank sums metrics in a group of its own. That of rank 1 ends early, and rank 0 joins its own before the last barrier.

Healthy: The threads make equally many calls.
"""

import threading

import torch
import torch.distributed as dist

from support.stamp import stamp


def count(group, rounds):
    for _ in range(rounds):
        dist.all_reduce(torch.ones(1), group=group)  # HERE rank 0


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group()
    rounds = 5
    # if FAULTY
    rounds -= rank
    # end
    metrics = threading.Thread(target=count, args=(group, rounds))
    metrics.start()
    for step in range(20):
        dist.all_reduce(torch.ones(8))
    stamp()
    metrics.join()
    dist.barrier()  # HERE rank 1
    dist.destroy_process_group()


main()
