# /// truth
# nproc = 4
# quick = ["healthy"]
# [healthy]
# ///
"""Rings of batch_isend_irecv, receives listed first, and objects sent around."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
left, right = (rank - 1) % world, (rank + 1) % world
for step in range(8):
    mine, theirs = torch.full((64,), float(rank)), torch.zeros(64)
    batch = [dist.P2POp(dist.irecv, theirs, left), dist.P2POp(dist.isend, mine, right)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert theirs[0] == left
for step in range(2):
    if rank % 2 == 0:
        dist.send_object_list([step, "even"], right)
    else:
        objects = [None, None]
        dist.recv_object_list(objects, left)
        assert objects == [step, "even"]
dist.destroy_process_group()
