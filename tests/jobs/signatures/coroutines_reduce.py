# /// truth
# nproc = 2
#
# [faulty]
# code = "DD103"
# cause = "swapped-calls"
# hang = true
# root_confidence = "suspected"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""Two coroutines make a call each once their data is ready, which is in another order on rank 1.

Healthy: The calls are made after both coroutines, in one order.
"""

import asyncio

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


async def loss(seconds):
    await asyncio.sleep(seconds)
    total = torch.ones(8)
    # if FAULTY
    dist.all_reduce(total)  # HERE rank 0
    # end
    return total


async def vocabulary(seconds):
    await asyncio.sleep(seconds)
    words = torch.ones(8)
    # if FAULTY
    dist.broadcast(words, src=0)  # HERE rank 1
    # end
    return words


async def main():
    total, words = await asyncio.gather(loss(0.6 if rank == 1 else 0.1), vocabulary(0.3))
    # if HEALTHY
    dist.all_reduce(total)
    dist.broadcast(words, src=0)
    # end


asyncio.run(main())
dist.destroy_process_group()
