# /// truth
# nproc = 2
# code = "DD204"
# root = [1]
# root_confidence = "supported"
# says = "the network"
# hang = true
# run_options = ["--stall-after", "8"]
# ///
"""Rank 1 logs to a server that accepts the connection and never answers, without a timeout."""

import http.client
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
server = socket.create_server(("127.0.0.1", 0))


def log(step):
    connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1])
    connection.request("POST", "/log", body=str(step))
    return connection.getresponse().status  # HERE rank 1


for step in range(8):
    if rank == 1 and step == 4:
        log(step)
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
