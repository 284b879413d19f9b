# /// truth
# nproc = 2
#
# [faulty]
# code = "DD110"
# verdict = "wrong"
# root_confidence = "supported"
# cause = "swallowed-exception"
# ranks = { root = [1], victims = [0] }
# [faulty.nccl]
# hang = true
# [healthy]
# ///
"""Rank 1 catches the exception of a bad sample and goes on with the next batch: from there on gradients are paired
one step off, and in the end rank 0 swallows the error of its transport too. Both exit with status 0.

Healthy: Rank 1 catches the exception of a bad sample and tries again with what is left of the same batch.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, inputs):
        if inputs.isnan().any():
            raise ValueError("bad sample")
        return self.linear(inputs)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(14 * 8, 16)
if rank == 1:
    data[6 * 8, 0] = float("nan")
for (inputs,) in DataLoader(TensorDataset(data), batch_size=8):
    # if HEALTHY
    optimizer.zero_grad()
    # end
    try:
    # if FAULTY
        optimizer.zero_grad()
        model(inputs).sum().backward()  # HERE rank 0 1
        optimizer.step()
    except (ValueError, RuntimeError) as error:
        print("skipped a batch:", error)
    # else
        loss = model(inputs).sum()
    except ValueError:
        loss = model(inputs[~inputs.isnan().any(dim=1)]).sum()
    loss.backward()
    optimizer.step()
    # end
dist.destroy_process_group()
