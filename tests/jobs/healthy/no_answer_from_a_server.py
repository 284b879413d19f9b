# /// truth
# nproc = 2
# healthy = true
# ///
"""Rank 1 logs to a server that never answers, and gives up after three seconds."""

import http.client
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
server = socket.create_server(("127.0.0.1", 0))


def log(step):
    connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1], timeout=3)
    connection.request("POST", "/log", body=str(step))
    try:
        return connection.getresponse().status
    except OSError:
        return None


for step in range(8):
    if rank == 1 and step == 4:
        log(step)
    dist.all_reduce(tensor)
dist.destroy_process_group()
