# /// truth
# nproc = 2
# alone = true
# seconds = 30
#
# [healthy]
# ///
"""A hook of the program's own averages the gradients, and after 100 steps it takes its time with the result, on all ranks:
DDP waits for it like for the network, which is as it was. DDP's search for unused parameters sends something of its own.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

takes = 0.0


def average(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    def decompress(future):
        time.sleep(takes)
        return future.value()[0] / 2

    return future.then(decompress)


torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = [torch.nn.Linear(512, 512) for _ in range(2)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), find_unused_parameters=True)
model.register_comm_hook(None, average)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(160):
    takes = 0.2 if step >= 100 else 0.0
    time.sleep(0.05)
    optimizer.zero_grad()
    model(torch.randn(8, 512)).sum().backward()
    optimizer.step()
dist.barrier()  # a thread of Gloo's still lets go of the hook's last function: not while Python ends
dist.destroy_process_group()
