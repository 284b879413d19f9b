# /// truth
# nproc = 1
# launcher = "python"
# quick = ["healthy"]
# [healthy]
# ///
"""The ranks are started by torch.multiprocessing, not by a launcher."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    tensor = torch.ones(8)
    for _ in range(4):
        dist.all_reduce(tensor)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(os.path.join(folder, "store"),), nprocs=2)
