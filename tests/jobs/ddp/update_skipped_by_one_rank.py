# /// truth
# nproc = 3
# quick = ["faulty"]
#
# [faulty]
# code = "DD701"
# verdict = "wrong"
# severity = "critical"
# confidence = "proved"
# root_confidence = "supported"
# says = "the parameters of rank 1 differ from those of ranks 0 and 2 after synchronized step 3"
# why = "All ranks agreed on the parameters that were compared after synchronized step 2"
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Rank 1 skips the update of its parameters in step 3, because the loss of its own batch is too large. Its replica
differs from the others from then on, and nothing fails.

Healthy: All ranks decide by the mean of their losses. The buffers of the batch norm and the frozen layer differ between
ranks, and two of three backwards only accumulate gradients.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
body = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
body[0].requires_grad_(False)
model = DistributedDataParallel(body, broadcast_buffers=False)
with torch.no_grad():
    body[0].weight.add_(rank)  # frozen: not a parameter that ranks share
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)

for step in range(1, 9):
    for micro in range(3):
        scale = 10_000.0 if (step, rank) == (3, 1) else 1.0
        inputs = torch.randn(8, 16)
        if micro < 2:
            with model.no_sync():
                model(inputs).square().mean().backward()  # HERE rank 0 1 2
        else:
            loss = scale * model(inputs).square().mean()
            loss.backward()
    # if FAULTY
    limit = loss.item()
    # else
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    limit = mean.item() / dist.get_world_size()
    # end
    if limit < 50:
        optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
