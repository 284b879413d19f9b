"""/// truth
nproc = 3
codes = ["DD301"]
root = [2]
///"""
import os
import time
from datetime import timedelta

import torch.distributed as dist


def download_weights():
    time.sleep(3600)  # HERE rank 2


if os.environ["RANK"] == "2":
    download_weights()
dist.init_process_group("gloo", timeout=timedelta(hours=1))  # HERE rank 0 1
