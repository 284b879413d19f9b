# /// truth
# nproc = 3
#
# [healthy]
# ///
"""A server takes requests from whoever comes first, and answers with tensors of another size."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
request, answer = torch.ones(4), torch.zeros(64)
if rank == 0:
    for _ in range(8 * (world - 1)):
        source = dist.recv(request)
        dist.send(answer, source)
else:
    for _ in range(8):
        dist.send(request, 0)
        dist.recv(answer, 0)
        assert answer[0] == 0
dist.destroy_process_group()
