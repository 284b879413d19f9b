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
# ///
"""A thread of rank 1 holds a lock while data-loader workers are forked; they wait for it for ever.

Healthy: A thread of rank 1 holds a lock while data-loader workers start; spawned, they do not inherit it.
"""

import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

cache_lock = threading.Lock()


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        with cache_lock:
            return torch.ones(16)


def refresh(rank, held):
    with cache_lock:
        held.set()
        if rank == 1:
            time.sleep(2)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    held = threading.Event()
    threading.Thread(target=refresh, args=(dist.get_rank(), held), daemon=True).start()
    held.wait()
    # if FAULTY
    loader = DataLoader(Samples(), batch_size=8, num_workers=1, multiprocessing_context="fork")
    # else
    loader = DataLoader(Samples(), batch_size=8, num_workers=1, multiprocessing_context="spawn")
    # end
    for batch in loader:  # HERE rank 1
        model(batch).sum().backward()  # HERE rank 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
