# /// truth
# nproc = 2
# alone = true
# seconds = 12
#
# [faulty]
# code = "DD602"
# verdict = "slow"
# root_confidence = "supported"
# says = "data loader is slow"
# ranks = { root = [1], victims = [0] }
# ///
"""Rank 1 reads its samples from somewhere slower: its loader takes three times as long as a step."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.03 if dist.get_rank() == 1 else 0.002)
        return torch.randn(16)


dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(16, 4))
until = time.monotonic() + 8
going = torch.ones(1)
for batch in DataLoader(Samples(), batch_size=8):  # HERE rank 1
    loss = model(batch).sum()
    time.sleep(0.06)
    loss.backward()  # HERE rank 0
    # All stop in the same step.
    going[0] = time.monotonic() < until
    dist.broadcast(going, 0)
    if not going.item():
        break
dist.destroy_process_group()
