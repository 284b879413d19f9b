# /// truth
# nproc = 2
#
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# says = "a data-loader worker"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# seconds = 12
# ///
"""A data-loader worker of rank 1 never returns from __getitem__.

Healthy: A data-loader worker of rank 1 takes seconds for a sample.
"""

import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.rank == 1 and index == 40:
            # if FAULTY
            threading.Event().wait()
            # else
            time.sleep(12)
            # end
        return torch.ones(16)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    for batch in DataLoader(Samples(dist.get_rank()), batch_size=8, num_workers=1):  # HERE rank 1
        model(batch).sum().backward()  # HERE rank 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
