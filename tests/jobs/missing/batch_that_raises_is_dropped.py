# /// truth
# nproc = 2
# [faulty]
# code = "DD103"
# cause = "swallowed-exception"
# why = "depends on whether an exception is caught"
# hang = true
# ranks = { root = [0, 1] }
# [healthy]
# ///
"""The loop catches the exception of a malformed record and continues with the next one. Rank 1 has such a record, and
makes one call less.

Healthy: All records can be read.
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
records = ["1", "2", "3", "4"]
# if FAULTY
if rank == 1:
    records[2] = "three"
# end
for record in records:
    try:
        gradient = torch.full((4,), float(record))
    except ValueError:
        continue
    dist.all_reduce(gradient)  # HERE rank 0
dist.barrier()  # HERE rank 1
dist.destroy_process_group()
