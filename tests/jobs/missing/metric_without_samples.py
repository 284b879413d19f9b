# /// truth
# nproc = 2
# [faulty]
# code = "DD102"
# verdict = "hang"
# root_confidence = "proved"
# cause = "data-dependent-path"
# why = "is in a loop over `metrics.items()`"
# ranks = { root = [1], victims = [0] }
# [faulty.nccl]
# hang = true
# [healthy]
# ///
"""Metrics are averaged key by key. Rank 1 has seen no sample of a class, has no key for it, and ends first.

Healthy: All ranks have all keys.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
# if FAULTY
labels = [["bird", "cat", "dog"], ["bird", "cat"]][rank]
# else
labels = ["bird", "cat", "dog"]
# end
for epoch in range(3):
    metrics = {label: torch.ones(1) for label in labels}
    for name, value in metrics.items():
        dist.all_reduce(value)  # HERE rank 0
dist.destroy_process_group()
