# /// truth
# nproc = 3
#
# [scenario.single]
# quick = ["faulty"]
# [scenario.single.faulty]
# code = "DD108"
# cause = "rank-conditional"
# verdict = "crash"
# confidence = "proved"
# root_confidence = "suspected"
# ranks = { root = [0, 1] }
# says = "rank 1 sends 9 elements to rank 0"
# headline = "rank 1 sends 9 elements to rank 0"
# [scenario.single.faulty.nccl]
# verdict = "hang"
# hang = true
# [scenario.single.healthy]
# [scenario.even]
# [scenario.even.faulty]
# code = "DD108"
# cause = "rank-conditional"
# verdict = "crash"
# confidence = "proved"
# root_confidence = "supported"
# ranks = { root = [1], victims = [0, 2] }
# [scenario.even.faulty.nccl]
# verdict = "hang"
# hang = true
# [scenario.even.healthy]
# ///
"""Rank 1 exchanges other sizes than its peers expect: splits_do_not_fit.py SCENARIO faulty|healthy

`single`: it sends one row more to rank 0. `even`: its tensors, which are divided evenly or in lists, are longer.

Healthy: Ranks exchange uneven sizes that fit, and equal ones.
"""

import sys

import torch
import torch.distributed as dist

scenario, kind = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
wrong = kind == "faulty" and rank == 1


def sends(sender, receiver):
    """Rows that a rank sends to another one."""
    return 2 * sender + receiver


for step in range(4):
    to = [sends(rank, peer) for peer in range(world)]
    of = [sends(peer, rank) for peer in range(world)]
    fails = wrong and step == 2
    if scenario == "single":
        to[0] += fails
        source, target = torch.ones(sum(to), 3), torch.empty(sum(of), 3)
        dist.all_to_all_single(target, source, of, to)
    else:
        sources = torch.ones(world, 3 if fails else 2)
        if step < 2:
            dist.all_to_all(list(torch.empty_like(sources)), list(sources))
        dist.all_to_all_single(torch.empty_like(sources).flatten(), sources.flatten())
    dist.barrier()
dist.destroy_process_group()
