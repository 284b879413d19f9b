"""/// truth
nproc = 3
codes = ["DD301"]
root = [1]
spawns = true
///

Processes of the standard library, one of which does not join. RANK is the number of the node, as in Kubernetes, and
ranks state where they meet only when they join.
"""
import multiprocessing
import os
import socket
from datetime import timedelta

import torch.distributed as dist


def download_weights():
    reader, _writer = os.pipe()
    os.read(reader, 1)  # HERE rank 1


def train(rank, world_size, port):
    if rank == 1:
        download_weights()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timedelta(hours=1))  # HERE rank 0 2


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(RANK="0", WORLD_SIZE="1")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=train, args=(rank, 3, port)) for rank in range(3)]
    for process in ranks:
        process.start()
    ranks[0].join()
