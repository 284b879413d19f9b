# /// truth
# nproc = 2
# [faulty]
# code = "DD103"
# cause = "uneven-inputs"
# why = "in a loop over `kept` (line"
# hang = true
# ranks = { root = [0, 1] }
# [healthy]
# ///
"""Each rank drops groups of samples that carry no signal and makes an update for each of the others, without DDP. In
the second iteration rank 0 keeps two groups and rank 1 three.

Healthy: All ranks make as many updates as the rank with the fewest groups has.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
REWARDS = [[1, 2, 3], [1, 2, 3 * rank], [1, 2, 3]]
weights = torch.ones(4)
for rewards in REWARDS:
    kept = [it for it in rewards if it > 0]
    # if FAULTY
    # else
    fewest = torch.tensor([len(kept)])
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
    kept = kept[: fewest.item()]
    # end
    for reward in kept:
        gradient = torch.full((4,), float(reward))
        dist.all_reduce(gradient)  # HERE rank 1
        weights -= 0.1 * gradient
    dist.broadcast(weights, 0)  # HERE rank 0
dist.destroy_process_group()
