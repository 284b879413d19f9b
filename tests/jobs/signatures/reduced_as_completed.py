# /// truth
# nproc = 2
#
# [faulty]
# code = "DD104"
# cause = "swapped-calls"
# verdict = "crash"
# root_confidence = "suspected"
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""The ranks reduce the result of each task as soon as it is ready; that of rank 1 is ready in another order once.

Healthy: The ranks wait for all results, and reduce them in the order of the tasks.
"""

import asyncio

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


async def fetch(size, seconds):
    await asyncio.sleep(seconds)
    return torch.ones(size)


def average(tensor):
    dist.all_reduce(tensor)  # HERE rank 0 1
    tensor /= dist.get_world_size()


async def main():
    for step in range(3):
        late = rank == 1 and step == 2
        tasks = [fetch(256, 0.6 if late else 0.1), fetch(300, 0.3)]
        # if FAULTY
        for task in asyncio.as_completed(tasks):
            average(await task)
        # else
        for result in await asyncio.gather(*tasks):
            average(result)
        # end


asyncio.run(main())
dist.destroy_process_group()
