# /// truth
# nproc = 2
# decisive = "stamp"
# [faulty]
# code = "DD103"
# cause = "uneven-inputs"
# verdict = "hang"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# headline = "rank 0 ran out of batches after 6, while rank 1 did not"
# [healthy]
# ///
"""A trainer that asks a data loader for its number of batches, and never for a batch more. It broadcasts whether to stop
before it draws one, and has a barrier at the end of an epoch. Rank 0 has two batches fewer.

Healthy: Both ranks have as many batches, for two epochs.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from support.stamp import stamp


class Trainer:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.asked_to_stop = False

    def should_stop(self):
        flag = torch.tensor([int(self.asked_to_stop)])
        dist.broadcast(flag, src=0)  # HERE rank 1
        return bool(flag)

    def training_step(self, batch):
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()

    def fit(self, loader, epochs):
        for _ in range(epochs):
            batches = iter(loader)
            for number in range(len(loader)):
                if self.should_stop():
                    return
                self.training_step(next(batches)[0])
            self.on_epoch_end()

    def on_epoch_end(self):
        stamp()
        dist.barrier()  # HERE rank 0


def main():
    dist.init_process_group("gloo")
    samples = 32
    # if FAULTY
    if dist.get_rank() == 0:
        samples = 24
    # end
    loader = DataLoader(TensorDataset(torch.randn(samples, 8)), batch_size=4, shuffle=True)
    Trainer(torch.nn.Linear(8, 2)).fit(loader, epochs=2)
    dist.destroy_process_group()


main()
