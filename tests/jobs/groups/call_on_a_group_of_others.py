# /// truth
# nproc = 4
# [faulty]
# code = "DD111"
# verdict = "hang"
# root_confidence = "proved"
# cause = "local-decision"
# why = "Rank 1 passed a group that it does not belong to, at call_on_a_group_of_others.py:{line}"
# hang = true
# ranks = { root = [0, 1], victims = [2, 3] }
# [faulty.nccl]
# root_confidence = "supported"
# [healthy]
# ///
"""Rank 1 passes the group of the other pair once. PyTorch warns and makes no call, so rank 0 waits for it at the end.

Healthy: All ranks make a call on either group in each step, and PyTorch ignores those of the other pair.
"""

import warnings

import torch
import torch.distributed as dist

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
tensor = torch.ones(64)
for step in range(6):
    # if FAULTY
    pair = 1 if rank == 1 and step == 3 else rank // 2
    for group in pairs[pair : pair + 1]:
    # else
    for group in pairs:
    # end
        dist.all_reduce(tensor, group=group)  # HERE rank 0  # LINE
dist.barrier()  # HERE rank 1
dist.destroy_process_group()
