"""/// truth
nproc = 3
codes = ["DD301"]
root = [2]
///"""
import os
import threading
from datetime import timedelta

import torch.distributed as dist


def download_weights():
    threading.Event().wait()  # HERE rank 2


if os.environ["RANK"] == "2":
    download_weights()
dist.init_process_group("gloo", timeout=timedelta(hours=1))  # HERE rank 0 1
