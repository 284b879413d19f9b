# /// truth
# nproc = 2
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# says = "waits for a process that waits for this rank"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 simulates its environment in another process, which ignores one kind of message, and both wait for the other.

Healthy: It answers after four seconds.
"""

import multiprocessing
import time

import torch
import torch.distributed as dist


def simulate(connection):
    state = 0
    while True:
        command = connection.recv()
        if command == "close":
            return
        if command == "step":
            state += 1
            connection.send(state)
        # if HEALTHY
        if command == "reset":
            time.sleep(4)
            connection.send(0)
        # end


class Environment:
    def __init__(self):
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=simulate, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, command):
        self.connection.send(command)
        return self.connection.recv()  # HERE rank 1


# A fork beside threads of a process group may copy locks that they hold.
environment = Environment()
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(8):
    reward = torch.tensor([float(environment.ask("step"))])
    if rank == 1 and step == 4:
        environment.ask("reset")
    dist.all_reduce(reward)  # HERE rank 0
environment.connection.send("close")
environment.process.join()
dist.destroy_process_group()
