# /// truth
# nproc = 2
#
# [faulty]
# code = "DD109"
# verdict = "hang"
# root_confidence = "suspected"
# cause = "swapped-calls"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# [healthy]
# ///
"""The calls of a step come out of a dict, which rank 1 fills in another order once.

Healthy: The calls of a step come out of a dict, whose order changes on all ranks at once.
"""

import torch
import torch.distributed as dist


def reduce_loss():
    return dist.all_reduce(loss, async_op=True)  # HERE rank 0


def share_mask():
    return dist.broadcast(mask, src=0, async_op=True)  # HERE rank 1


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(5):
    loss, mask = torch.ones(4), torch.ones(4)
    calls = {"loss": reduce_loss, "mask": share_mask}
    # if FAULTY
    if rank == 1 and step == 3:
    # else
    if step >= 3:
    # end
        calls = {"mask": share_mask, "loss": reduce_loss}
    works = [call() for call in calls.values()]
    for work in works:
        work.wait()
dist.destroy_process_group()
