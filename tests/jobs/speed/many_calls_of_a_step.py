# /// truth
# nproc = 2
# seconds = 18
#
# [healthy]
# ///
"""Steps of many calls that are as they should be: shards that are gathered and scattered layer by layer, DDP's buckets,
statistics that the next layer needs, small messages of a pipeline, a few metrics; and evaluations that reduce for every
batch.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LAYERS = 20

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 64), bucket_cap_mb=0.001)
shards = [torch.ones(1 << 16) for _ in range(LAYERS)]
whole = torch.empty(2 << 16)
begin = time.monotonic()
going = torch.ones(1)
matrix = torch.randn(160, 160)
step = 0


def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        matrix.matmul(matrix)


while going.item():
    for shard in shards:
        dist.all_gather_into_tensor(whole, shard)
    model(torch.randn(8, 64)).sum().backward()
    for shard in shards:
        dist.all_reduce(shard)
        shard /= 2
    for _ in range(LAYERS):
        statistics = torch.randn(16)
        work(0.004)
        dist.all_reduce(statistics)
    for number in range(LAYERS):
        if rank == 0:
            dist.send(torch.ones(8), 1, tag=number)
        else:
            dist.recv(torch.ones(8), 0, tag=number)
    for _ in range(6):
        dist.all_reduce(torch.ones(1))
    step += 1
    if step % 20 == 0:
        for _ in range(30):
            with torch.no_grad():
                model.module(torch.randn(8, 64))
            dist.all_reduce(torch.ones(1))
    # All stop in the same step.
    going[0] = time.monotonic() < begin + 16
    dist.broadcast(going, 0)
dist.destroy_process_group()
