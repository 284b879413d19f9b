# /// truth
# nproc = 4
#
# [faulty]
# code = "DD101"
# cause = "data-dependent-path"
# verdict = "hang"
# confidence = "supported"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0, 2, 3] }
# says = "rank 1 skipped"
# [faulty.nccl]
# lines = { 1 = ["if torch.isfinite(loss)", "dist.all_reduce(torch.ones(1))"] }
# [healthy]
# ///
"""Rank 1 leaves out the average of its gradients in step 6, because the loss of its own batch is not finite, and waits in the
next call, which is one of all ranks. Rank 0 waits for it in their pair.

Healthy: Both ranks of the pair leave it out.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
pair = pairs[rank // 2]
torch.manual_seed(rank)
# if FAULTY
broken = {1}
# else
broken = {0, 1}
# end
for step in range(1, 11):
    loss = torch.randn(8).mean()
    if step == 6 and rank in broken:
        loss = loss / 0
    if torch.isfinite(loss):
        dist.all_reduce(loss, group=pair)  # HERE rank 0
    dist.all_reduce(torch.ones(1))  # HERE rank 1
dist.destroy_process_group()
