"""/// truth
nproc = 3
codes = ["DD204"]
root = [2]
blocked_on = "child"
says = "data_loader.py"
///"""
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 9 and dist.get_rank() == 2:
            time.sleep(3600)  # WORKER
        return torch.ones(4)


dist.init_process_group("gloo")
for batch in DataLoader(Samples(), batch_size=4, num_workers=1):  # HERE rank 2
    loss = batch.sum()
    dist.all_reduce(loss)  # HERE rank 0 1
