# /// truth
# nproc = 2
#
# [faulty]
# code = "DD104"
# cause = "swapped-calls"
# verdict = "crash"
# root_confidence = "suspected"
# ranks = { root = [0, 1], victims = [] }
# [faulty.nccl]
# code = "DD109"
# verdict = "hang"
# hang = true
# [healthy]
# ///
"""The ranks reduce each metric, in the order in which they were added.

Healthy: The metrics are sorted.
"""

import torch
import torch.distributed as dist


class Metrics:
    def __init__(self):
        self.sums = {}

    def add(self, name, value):
        self.sums[name] = self.sums.get(name, 0) + value

    def reduce(self):
        # if FAULTY
        for name, value in self.sums.items():
            dist.all_reduce(value)  # HERE rank 0 1
        # else
        for name, value in sorted(self.sums.items()):
            dist.all_reduce(value)
        # end


dist.init_process_group("gloo")
rank = dist.get_rank()
metrics = Metrics()
for step in range(3):
    batch = torch.full((256,), float(step))
    names = ["pixels", "histogram"] if (batch + rank).sum() % 512 else ["histogram", "pixels"]
    for name in names:
        metrics.add(name, batch.abs() if name == "pixels" else batch.histc(300))
metrics.reduce()
dist.destroy_process_group()
