# /// truth
# nproc = 2
#
# [healthy]
# ///
"""Several models at once, with shared parameters, a static graph, views of buckets for gradients, a hook of the program for
communication, and a group of their own.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Shared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(16, 16)
        self.decoder = torch.nn.Linear(16, 16)
        self.decoder.weight = self.encoder.weight
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, inputs):
        return self.decoder(self.encoder(inputs))


def half(group, bucket):
    reduced = dist.all_reduce(bucket.buffer().half(), group=group, async_op=True).get_future()
    return reduced.then(lambda done: bucket.buffer().copy_(done.value()[0] / 2))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
group = dist.new_group([0, 1])
models = [
    DistributedDataParallel(Shared(), static_graph=True, gradient_as_bucket_view=True),
    DistributedDataParallel(Shared(), find_unused_parameters=True, process_group=group),
    DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8))),
    DistributedDataParallel(torch.nn.Linear(16, 4), gradient_as_bucket_view=True),
]
models[3].register_comm_hook(None, half)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
for step in range(6):
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
dist.barrier()  # a thread of Gloo's still lets go of the hook's last function: not while Python ends
dist.destroy_process_group()
