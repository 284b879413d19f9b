# /// truth
# nproc = 3
# [faulty]
# code = "DD113"
# cause = "rank-conditional"
# why = "`length = TOKENS - (step >= 2 and rank == world - 1)`"
# ranks = { root = [1, 2] }
# [healthy]
# ///
"""Keys and values go around a ring, and each rank receives into a tensor like its own. The block of the last rank is one
token shorter from the third step on.

Healthy: The blocks have equal lengths.
"""

import torch
import torch.distributed as dist

TOKENS = 8


def exchange(block):
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(block)
    operations = [
        dist.P2POp(dist.isend, block, (rank + 1) % world),
        dist.P2POp(dist.irecv, received, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(operations):  # HERE rank 1 2
        work.wait()
    return received


def attention(queries, block, world):
    result = torch.zeros_like(queries)
    for hop in range(world):
        result += torch.softmax(queries @ block.T, -1) @ block
        if hop < world - 1:
            block = exchange(block)
    return result


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(4):
    # if FAULTY
    length = TOKENS - (step >= 2 and rank == world - 1)
    # else
    length = TOKENS
    # end
    output = attention(torch.randn(length, 16), torch.randn(length, 16), world)
dist.destroy_process_group()
