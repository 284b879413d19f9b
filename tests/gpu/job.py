"""A small DDP job for tests/gpu/run.py: job.py FAULT

Rank 1 makes the fault in step 10: `missing` comes no more, `shape` reduces another size, `exit` ends, `memory`
asks for more memory than there is, `none` does as the others. Rank 0 prints the median time of a step.
"""

import datetime
import os
import statistics
import sys
import time

BACKEND = os.environ.get("GPU_TEST_BACKEND", "nccl")
STEPS, FAULTY_STEP = int(os.environ.get("GPU_TEST_STEPS", "20")), 10
TIMEOUT = datetime.timedelta(seconds=int(os.environ.get("GPU_TEST_TIMEOUT", "600")))


def place(rank):
    """The device of a rank. Several ranks may share one: NCCL takes them for ranks of several hosts then."""
    import torch

    if BACKEND != "nccl":
        return torch.device("cpu")
    devices = torch.cuda.device_count()
    if devices < int(os.environ["WORLD_SIZE"]):
        os.environ.update(
            NCCL_HOSTID="rank%d" % rank,
            NCCL_SOCKET_IFNAME="lo",
            NCCL_IB_DISABLE="1",
            NCCL_P2P_DISABLE="1",
            NCCL_NVLS_ENABLE="0",
            NCCL_MAX_CTAS="2",
        )
    device = torch.device("cuda", rank % devices)
    torch.cuda.set_device(device)
    return device


def main():
    fault = sys.argv[1]
    rank = int(os.environ["RANK"])
    device = place(rank)

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group(BACKEND, timeout=TIMEOUT)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(256, 256).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(64, 256, device=device)

    def settle():
        if device.type == "cuda":
            torch.cuda.synchronize()

    took = []
    for step in range(STEPS):
        begin = time.perf_counter()
        size = 4
        if step == FAULTY_STEP and rank == 1:
            if fault == "missing":
                # Longer than the timeout of its peers: a shorter sleep is known to end.
                time.sleep(3600)
            elif fault == "exit":
                os._exit(0)
            elif fault == "memory":
                torch.empty(1 << 50, device=device)
            elif fault == "shape":
                size = 3
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        dist.all_reduce(torch.ones(size, device=device))
        settle()
        took.append(time.perf_counter() - begin)
    if device.type == "cuda" and fault == "none":
        # A capture is not disturbed by whoever watches.
        graph, values = torch.cuda.CUDAGraph(), torch.ones(4, device=device)
        dist.all_reduce(values)
        settle()
        with torch.cuda.graph(graph):
            dist.all_reduce(values)
        graph.replay()
        settle()
        graph.reset()  # NCCL destroys no communicator that a graph still uses
    if rank == 0:
        print("step %.6f" % statistics.median(took[2:]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
