# /// truth
# nproc = 2
# quick = ["healthy"]
# [healthy]
# ///
"""Batches come from two worker processes a rank, for two epochs."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    data = TensorDataset(torch.randn(64, 16))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (inputs,) in loader:
            model(inputs).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
