# /// truth
# nproc = 2
# [faulty]
# code = "DD104"
# cause = "unknown"
# why = "`counts = torch.bincount(labels)`"
# ranks = { root = [0, 1] }
# [healthy]
# ///
"""The number of classes that a rank counts is that of its largest label, and rank 1 has no sample of the last class.

Healthy: The counts have a fixed length.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
labels = torch.arange(9 - rank)
# if FAULTY
counts = torch.bincount(labels)
# else
counts = torch.bincount(labels, minlength=9)
# end
dist.all_reduce(counts)  # HERE rank 0 1
dist.destroy_process_group()
