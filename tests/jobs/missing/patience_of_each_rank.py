# /// truth
# nproc = 3
# [faulty]
# code = "DD103"
# cause = "local-decision"
# why = "is no longer reached once `patience.is_over(loss)` has been true"
# hang = true
# ranks = { root = [0], victims = [1, 2] }
# [healthy]
# ///
"""Each rank ends its epochs by its own loss. The loss of rank 0 stops falling first: it leaves the loop over the epochs,
and not the one over the batches, in which the others make their next call.

Healthy: The loss is averaged before the decision.
"""

import torch
import torch.distributed as dist


class Patience:
    def __init__(self):
        self.best, self.bad = float("inf"), 0

    def is_over(self, loss):
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(self.best, loss)
        return self.bad == 2


def epoch(batches, weights):
    for batch in batches:
        gradient = batch * 0.1
        dist.all_reduce(gradient)  # HERE rank 1 2
        weights -= gradient.sum(0)


dist.init_process_group("gloo")
rank = dist.get_rank()
weights = torch.ones(4)
batches = list(torch.ones(12, 4).split(4))
patience = Patience()
for number in range(9):
    epoch(batches, weights)
    loss = max(5.0 - number, 2.0) if rank == 0 else 9.0 - number
    # if FAULTY
    # else
    mean = torch.tensor(loss)
    dist.all_reduce(mean)
    loss = mean.item() / dist.get_world_size()
    # end
    if patience.is_over(loss):
        break
results = [None] * dist.get_world_size()
dist.all_gather_object(results, patience.best)  # HERE rank 0
dist.destroy_process_group()
