# /// truth
# nproc = 2
# [faulty]
# code = "DD112"
# hang = true
# headline = "suspected: `rank == 0`"
# ranks = { root = [0, 1] }
# why = "rank 0 has sent 8 messages to rank 1"
# [healthy]
# ///
"""A pipeline of two stages. The first stage cuts the last batch, which is smaller, into two micro-batches; the second one
expects three, as of every batch.

Healthy: Both stages compute the number from the batch.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
rows = [12, 12, 8]
for count in rows:
    # if FAULTY
    micro_batches = count // 4 if rank == 0 else 3
    # else
    micro_batches = count // 4
    # end
    for _ in range(micro_batches):
        if rank == 0:
            dist.send(torch.randn(4, 2), 1)
        else:
            dist.recv(torch.empty(4, 2), 0)  # HERE rank 1
    for _ in range(micro_batches):
        if rank == 0:
            dist.recv(torch.empty(4, 2), 1)  # HERE rank 0
        else:
            dist.send(torch.randn(4, 2), 0)
dist.destroy_process_group()
