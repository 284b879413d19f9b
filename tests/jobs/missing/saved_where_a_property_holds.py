# /// truth
# nproc = 3
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# cause = "rank-conditional"
# hang = true
# ranks = { root = [0], victims = [1, 2] }
# [healthy]
# ///
"""A trainer saves on rank 0 alone, and saving contains a barrier. The test on the rank is in a property.

Healthy: All ranks call the function, and rank 0 alone writes.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Arguments:
    def __init__(self):
        self.process_index, self.save_steps = dist.get_rank(), 4

    @property
    def is_saving(self):
        return self.process_index == 0


class Trainer:
    def __init__(self, model, arguments):
        self.model, self.arguments, self.step = model, arguments, 0

    def train_step(self, inputs):
        self.model(inputs).sum().backward()  # HERE rank 1 2
        self.step += 1
        if self.step % self.arguments.save_steps == 0:
            # if FAULTY
            if self.arguments.is_saving:
                self.save()
            # else
            self.save()
            # end

    def save(self):
        if self.arguments.is_saving:
            print("saved", len(self.model.state_dict()))
        dist.barrier()  # HERE rank 0


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
trainer = Trainer(DistributedDataParallel(torch.nn.Linear(16, 4)), Arguments())
for step in range(8):
    trainer.train_step(torch.randn(8, 16))
dist.destroy_process_group()
