# /// truth
# nproc = 2
# quick = ["faulty"]
# [scenario.stuck.faulty]
# run_options = ["--stall-after", "12"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0] }
# [scenario.stuck.healthy]
# [scenario.ended.faulty]
# code = "DD102"
# verdict = "hang"
# root_confidence = "proved"
# ranks = { root = [1], victims = [0] }
# ///
"""A functional collective waits where its result is first used, and not where it is called.

Arguments: what keeps rank 1 away from the last of them, and the variant.
stuck: it takes a lock twice. Healthy: another thread releases the lock. ended: it leaves a step early.
"""

import sys
import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

KIND, VARIANT = sys.argv[1:3]


def mean(loss):
    return functional.all_reduce(loss, "sum", dist.group.WORLD) / dist.get_world_size()  # HERE rank 0 1


def stay_away(step):
    """Whether rank 1 leaves before this step; `stuck`: it stays in it."""
    if KIND == "ended":
        return step == 5
    if step == 5:
        lock = threading.Lock()
        lock.acquire()
        if VARIANT == "healthy":
            threading.Timer(1, lock.release).start()
        lock.acquire()  # HERE rank 1
    return False


def main():
    dist.init_process_group("gloo")
    loss = torch.ones(4)
    for step in range(6):
        if dist.get_rank() == 1 and stay_away(step):
            break
        loss = mean(loss).clone()
    # The result of the last call is used after further work.
    print(round(float(loss.sum()), 3))
    if KIND == "stuck":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
