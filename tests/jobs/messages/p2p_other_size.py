# /// truth
# nproc = 2
# decisive = "stamp"
#
# [faulty]
# code = "DD113"
# verdict = "hang"
# root_confidence = "suspected"
# ranks = { root = [0, 1], victims = [] }
# [faulty.nccl]
# hang = true
# [healthy]
# [healthy.nccl]
# code = "DD113"
# verdict = "wrong"
# root_confidence = "suspected"
# ranks = { root = [0, 1], victims = [] }
# lines = { 0 = ["dist.send(torch.ones(sent, 16), 1)"], 1 = ["dist.recv(torch.zeros(room, 16), 0)"] }
# ///
"""The receiver expects the last batch to be as small as its own, the sender's is larger: Gloo aborts the receiver.

Healthy: Messages of different sizes, each as large as its receive; and one that is smaller than its receive.
"""

import torch
import torch.distributed as dist

from support.stamp import stamp

dist.init_process_group("gloo")
rank = dist.get_rank()
# if FAULTY
for batch in (32, 32, 8):
# else
for sent, room in ((32, 32), (8, 8), (8, 32)):
# end
    stamp()
    if rank == 0:
        # if FAULTY
        dist.send(torch.ones(32, 16), 1)  # HERE rank 0
        # else
        dist.send(torch.ones(sent, 16), 1)
        # end
    else:
        # if FAULTY
        dist.recv(torch.zeros(batch, 16), 0)  # HERE rank 1
        # else
        dist.recv(torch.zeros(room, 16), 0)
        # end
dist.destroy_process_group()
