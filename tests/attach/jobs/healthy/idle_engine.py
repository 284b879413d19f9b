"""/// truth
nproc = 3
healthy = true
idle = [0]
///"""
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
server = socket.create_server(("127.0.0.1", 0)) if dist.get_rank() == 0 else None
weight = torch.ones(64, 64)
while True:
    request = torch.ones(1)
    if server:
        server.accept()  # HERE rank 0
    dist.broadcast(request, src=0)
    dist.all_reduce(weight @ weight)
