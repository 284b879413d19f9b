"""Two epochs of a small model with DDP; each rank prints a checksum of the parameters."""

import os
import zlib

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
batches = [torch.randn(8, 16) for _ in range(10)]
for _ in range(2):
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    dist.barrier()
values = [value.hex() for parameter in model.parameters() for value in parameter.flatten().tolist()]
checksum = zlib.crc32(",".join(values).encode())
# A single write, so that the lines of two ranks do not mix.
os.write(1, b"rank %d: checksum of the parameters %08x\n" % (dist.get_rank(), checksum))
dist.destroy_process_group()
