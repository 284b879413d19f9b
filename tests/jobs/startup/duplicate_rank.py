# /// truth
# nproc = 3
# launcher = "python"
#
# [faulty]
# code = "DD302"
# verdict = "hang"
# root_confidence = "proved"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""A launch script gives one rank to two processes, and nobody is rank 2.

Healthy: A launch script gives each process a rank of its own, and starts all of them twice, one world after
the other at one port.
"""

import os
import socket
import subprocess
import sys

import torch.distributed as dist


def train():
    dist.init_process_group("gloo")  # HERE rank 0 1
    dist.barrier()
    dist.destroy_process_group()


# if FAULTY
def launch(ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
# else
def launch(ranks, port):
# end
    world = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, __file__]
    processes = [subprocess.Popen(command, env={**os.environ, **world, "RANK": rank}) for rank in ranks]
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        # if FAULTY
        sys.exit(launch(["0", "1", "1"]))
        # else
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        sys.exit(launch(["0", "1", "2"], port) or launch(["2", "1", "0"], port))
        # end
