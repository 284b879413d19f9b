# /// truth
# nproc = 3
# healthy = true
# ///
"""A helper of rank 1 raises before and after the process group is joined, and the rank goes on."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist


def probe():
    """Asks for what may be missing in a process of its own, as probes of libraries do."""
    if os.environ["RANK"] == "1":
        command = [sys.executable, "-c", "raise ValueError('no such library')"]
        assert subprocess.run(command, check=False).returncode == 1


probe()
dist.init_process_group("gloo")
probe()
dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
