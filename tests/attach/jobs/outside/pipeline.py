"""/// truth
nproc = 3
codes = ["DD204"]
root = [1]
///"""
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        if dist.get_rank() == 1 and step == 2:
            time.sleep(3600)  # HERE rank 1
        return self.inner(x)


dist.init_process_group("gloo")
rank = dist.get_rank()
stage = PipelineStage(Layer(), rank, 3, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
inputs, targets = torch.ones(16, 8), torch.zeros(16, 8)
for step in range(5):
    if rank == 2:
        schedule.step(target=targets)  # HERE rank 2
    else:
        schedule.step(*[inputs] if rank == 0 else [])  # HERE rank 0
