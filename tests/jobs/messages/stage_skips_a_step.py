# /// truth
# nproc = 3
# decisive = "stamp"
# [faulty]
# code = "DD102"
# cause = "rank-conditional"
# ranks = { root = [2] }
# verdict = "hang"
# headline = "rank 2 skipped stage_skips_a_step.py:55 (`if step == SKIPPED and rank == world - 1`, line 52)"
# [healthy]
# ///
"""Three pipeline stages that send activations forward and gradients back. The last one skips a step, since it has no
labels, and ends while the others wait for its gradients.

Healthy: No stage skips a step.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

STEPS, SKIPPED = 6, 3


class Stage:
    def __init__(self, rank, world):
        self.before = rank - 1 if rank > 0 else None
        self.after = rank + 1 if rank < world - 1 else None
        self.layer = torch.nn.Linear(8, 8)

    def run(self):
        x = torch.randn(4, 8)
        if self.before is not None:
            dist.recv(x, self.before)
        y = self.layer(x.requires_grad_())
        gradient = torch.ones(4, 8)
        if self.after is not None:
            dist.send(y.detach(), self.after)  # HERE rank 1
            dist.recv(gradient, self.after)  # HERE rank 1
        y.backward(gradient)
        if self.before is not None:
            dist.send(x.grad, self.before)  # HERE rank 2


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = Stage(rank, world)
    for step in range(STEPS):
        # if FAULTY
        if step == SKIPPED and rank == world - 1:
            continue
        # end
        stage.run()
    if rank == world - 1:
        stamp()
    dist.destroy_process_group()  # HERE rank 2


main()
