# /// truth
# nproc = 2
# [faulty]
# code = "DD104"
# cause = "rank-conditional"
# why = "`rows = ROWS if step < 3 else ROWS + place`"
# ranks = { root = [0, 1] }
# [healthy]
# ///
"""A layer that adds up the parts of all ranks, as in tensor parallelism, gets one row more on rank 1 from the fourth step
on.

Healthy: All ranks have as many rows.
"""

import torch
import torch.distributed as dist

ROWS = 8


class RowParallel(torch.nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = torch.nn.Linear(inside, outside, bias=False)

    def forward(self, x):
        part = self.linear(x).detach()
        dist.all_reduce(part)  # HERE rank 0 1
        return part


def train(model, place):
    generator = torch.Generator().manual_seed(place)
    for step in range(6):
        # if FAULTY
        rows = ROWS if step < 3 else ROWS + place
        # else
        rows = ROWS
        # end
        batch = torch.randn(rows, 4, generator=generator)
        loss = model(batch).square().mean()
    return loss


dist.init_process_group("gloo")
rank = dist.get_rank()
place = rank % 2
train(RowParallel(4, 3), place)
dist.destroy_process_group()
