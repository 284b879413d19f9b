# /// truth
# nproc = 2
#
# [faulty]
# code = "DD402"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "supported"
# says = "rank 1 has no gradient for head.weight, head.bias"
# why = "Rank 1 had all of them in 3 backwards before: what the forward uses there changes from step to step."
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""The second of two models of a program, with views of its buckets for gradients, a layer that it uses twice and a hook of
the program's own for communication: in the fourth step rank 1 has nothing for its head to do.

Healthy: Two models of a program, the second one with views of its buckets for gradients, a layer that it uses twice and a hook
of the program's own for communication.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.second = torch.nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.head = torch.nn.Linear(16, 4)

    def forward(self, inputs, with_head):
        hidden = self.second(torch.relu(self.first(inputs)))
        return self.head(hidden) if with_head else hidden


def averaged(group, bucket):
    reduced = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
    return reduced.then(lambda done: done.value()[0].div_(2))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
critic = DistributedDataParallel(torch.nn.Linear(16, 1))
model = DistributedDataParallel(Model(), gradient_as_bucket_view=True)
model.register_comm_hook(None, averaged)
for step in range(6):
    critic(torch.randn(8, 16)).sum().backward()
    # if FAULTY
    loss = model(torch.randn(8, 16), not (rank == 1 and step == 3)).sum()
    # else
    loss = model(torch.randn(8, 16), True).sum()
    # end
    loss.backward()  # HERE rank 1
dist.barrier()  # a thread of Gloo's still lets go of the hook's last function: not while Python ends
dist.destroy_process_group()
