"""A small training job with a bug: rank 1 has fewer batches than rank 0.

    ddp-doctor run --nproc-per-node 2 agent/python/examples/uneven_batches.py

Rank 1 reaches the end of its data and calls the barrier after the training; rank 0 is still in the
gradient synchronization of a batch that rank 1 does not have. Each waits for the other.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def train(model, loader, optimizer):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)

    # The bug: each rank has a shard of the data, and the shards differ in size.
    samples = 400 if rank == 0 else 360
    data = TensorDataset(torch.randn(samples, 32), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, batch_size=20, shuffle=True)

    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    train(model, loader, optimizer)
    dist.barrier()
    if rank == 0:
        print("trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
