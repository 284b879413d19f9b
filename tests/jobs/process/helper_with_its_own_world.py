# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Each rank has a helper that joins the helpers' own world under the same rank, as a background
checkpoint does, and is ended with its parent while it waits for work.
"""

import multiprocessing
import os
import tempfile
import time

import torch
import torch.distributed as dist


def help(rank, world, file, ready):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    dist.barrier()
    ready.set()
    time.sleep(1000)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    file = [os.path.join(tempfile.mkdtemp(), "store") if rank == 0 else None]
    dist.broadcast_object_list(file, src=0)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    helper = context.Process(target=help, args=(rank, world, file[0], ready), daemon=True)
    helper.start()
    tensor = torch.ones(8)
    while not ready.wait(0.1):
        pass
    for step in range(8):
        dist.all_reduce(tensor)
    dist.destroy_process_group()
