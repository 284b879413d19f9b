# /// truth
# nproc = 2
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# says = "waits for a process that waits for this rank"
# hang = true
# ranks = { root = [0], victims = [1] }
# [healthy]
# ///
"""Rank 0 passes its metrics to a program, and writes them all before it reads any of what the program writes.

Healthy: It reads and writes at the same time.
"""

import subprocess

import torch
import torch.distributed as dist

METRICS = b"loss 0.25\n" * 100_000


def report(metrics):
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    # if FAULTY
    process.stdin.write(metrics)  # HERE rank 0
    process.stdin.close()
    shown = process.stdout.read()
    # else
    shown, _ = process.communicate(metrics)
    # end
    process.wait()
    return len(shown)


dist.init_process_group("gloo")
loss = torch.ones(1)
for step in range(8):
    dist.all_reduce(loss)  # HERE rank 1
    if dist.get_rank() == 0 and step == 4:
        report(METRICS)
dist.destroy_process_group()
