# /// truth
# nproc = 2
# decisive = "stamp"
# quick = ["faulty"]
# [faulty]
# code = "DD103"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "suspected"
# hang = true
# ranks = { root = [0, 1], victims = [] }
# via = { 0 = "Trainer.save_checkpoint", 1 = "Trainer.average" }
# [healthy]
# ///
"""Rank 0 alone saves a checkpoint inside an installed framework, in the call of `fit` that all ranks make.

Healthy: All ranks save it.
"""

import os
import sys

import torch
import torch.distributed as dist

from support.stamp import stamp

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support", "site-packages"))
from trainer import Trainer  # noqa: E402

dist.init_process_group("gloo")
rank = dist.get_rank()
stamp()
# if FAULTY
trainer = Trainer(torch.nn.Linear(4, 4), saves=rank == 0)
# else
trainer = Trainer(torch.nn.Linear(4, 4))
# end
trainer.fit(3, on_step=lambda step: stamp())  # HERE rank 0 1
dist.destroy_process_group()
