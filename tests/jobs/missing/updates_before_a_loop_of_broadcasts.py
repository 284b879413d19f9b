# /// truth
# nproc = 2
# [faulty]
# code = "DD103"
# cause = "uneven-inputs"
# why = "in a loop over `kept`"
# hang = true
# ranks = { root = [0, 1] }
# [healthy]
# ///
"""Each rank makes an update for every group that it keeps, and then sends the parameters, one by one. Rank 0 keeps fewer
groups in the second round: it is in the loop over the parameters while rank 1 has not reached it.

Healthy: All ranks keep as many groups as the rank with the fewest.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
parameters = [torch.ones(4), torch.ones(6), torch.ones(2)]
rewards = [[1, 2, 3], [1, 2, 3 * rank], [1, 2, 3]]


def update(reward):
    gradient = torch.full((12,), float(reward))
    dist.all_reduce(gradient)  # HERE rank 1


for groups in rewards:
    kept = [it for it in groups if it > 0]
    # if FAULTY
    # else
    fewest = torch.tensor([len(kept)])
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
    kept = kept[: fewest.item()]
    # end
    for reward in kept:
        update(reward)
    for own, other in zip(parameters, parameters):
        dist.broadcast(own, 0)  # HERE rank 0
dist.destroy_process_group()
