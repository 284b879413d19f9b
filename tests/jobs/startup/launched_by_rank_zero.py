# /// truth
# nproc = 2
# launcher = "python"
# quick = ["faulty"]
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [0], victims = [1] }
# [healthy]
# ///
"""Rank 0 starts rank 1 and has loaded an MPI library before, which set a PMIx namespace that is not the launcher's.

Both are one world. Rank 0 alone enters a barrier. Healthy: All ranks enter it.
"""

import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist


def launch():
    """Becomes rank 0; starts rank 1 with the environment that it has by now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2")
    os.environ["PMIX_NAMESPACE"] = f"singleton-{os.getpid()}"
    return subprocess.Popen([sys.executable, __file__], env={**os.environ, "LOCAL_RANK": "1"})


def train(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    os.environ["PMIX_NAMESPACE"] = f"singleton-{os.getpid()}"
    loss = torch.ones(8)
    for step in range(8):
        # if FAULTY
        if rank == 0 and step == 5:
            dist.barrier()  # HERE rank 0
        # else
        if step == 5:
            dist.barrier()
        # end
        dist.all_reduce(loss)  # HERE rank 1
    dist.destroy_process_group()


if "LOCAL_RANK" in os.environ:
    train(int(os.environ["LOCAL_RANK"]))
else:
    peer = launch()
    train(0)
    sys.exit(peer.wait())
