"""A job in stages: rank 1 waits for the pipe `go` while rank 0 waits for it; then both go on until the file `end`
exists, at which rank 1 ends and rank 0 stays."""
import os
import pathlib
import time

import torch
import torch.distributed as dist

here = pathlib.Path(os.environ["JOB_DIR"])
rank = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])


def wait_for_operator():
    with open(here / "go") as pipe:
        pipe.read()


dist.init_process_group("gloo", rank=rank, world_size=2)
dist.all_reduce(torch.ones(8))
(here / f"stuck-{rank}").touch()
if rank == 1:
    wait_for_operator()
dist.barrier()
while not (here / "end").exists():
    time.sleep(0.02)
if rank == 1:
    os._exit(0)
time.sleep(3600)
