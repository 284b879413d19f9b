# /// truth
# nproc = 2
#
# [faulty]
# run_options = ["--stall-after", "8"]
# code = "DD204"
# verdict = "hang"
# root_confidence = "supported"
# says = "the network"
# hang = true
# ranks = { root = [1], victims = [0] }
# [healthy]
# ///
"""Rank 1 logs to a server that accepts the connection and never answers, without a timeout.

Healthy: Rank 1 logs to a server that never answers, and gives up after three seconds.
"""

import http.client
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.ones(256)
server = socket.create_server(("127.0.0.1", 0))


def log(step):
    # if FAULTY
    connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1])
    # else
    connection = http.client.HTTPConnection("127.0.0.1", server.getsockname()[1], timeout=3)
    # end
    connection.request("POST", "/log", body=str(step))
    # if FAULTY
    return connection.getresponse().status  # HERE rank 1
    # else
    try:
        return connection.getresponse().status
    except OSError:
        return None
    # end


for step in range(8):
    if rank == 1 and step == 4:
        log(step)
    dist.all_reduce(tensor)  # HERE rank 0
dist.destroy_process_group()
