"""Training with torch.distributed in two Ray workers, reported to a coordinator.

    python train.py COORDINATOR [--hang]

COORDINATOR is the HOST:PORT of `ddp-doctor coordinator`. Ray starts the workers, so that there is no command to
put `ddp-doctor run` before: variables of `runtime_env` activate the capture in each worker.
"""

import os
import socket
import sys

import ray


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Worker:
    def address(self):
        with socket.socket() as listener:
            listener.bind(("", 0))
            return ray.util.get_node_ip_address(), listener.getsockname()[1]

    def train(self, rank, world_size, address, port, hang):
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world_size))
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        torch.manual_seed(rank)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        # With --hang, rank 1 has fewer batches than rank 0: each waits for the other.
        for _ in range(18 if hang and rank == 1 else 20):
            optimizer.zero_grad()
            model(torch.randn(20, 32)).square().mean().backward()
            optimizer.step()
        dist.barrier()
        dist.destroy_process_group()
        return f"rank {rank} has trained"


def main():
    coordinator, hang = sys.argv[1], "--hang" in sys.argv
    # The directory of the Python package activates the capture; a token from the environment of this program.
    variables = {"DDP_DOCTOR_COORDINATOR": coordinator, "DDP_DOCTOR_JOB": "ray-train"}
    variables |= {name: os.environ[name] for name in ("DDP_DOCTOR_TOKEN", "PYTHONPATH") if name in os.environ}
    ray.init(runtime_env={"env_vars": variables}, include_dashboard=False)
    workers = [Worker.remote() for _ in range(2)]
    address, port = ray.get(workers[0].address.remote())
    results = [worker.train.remote(rank, 2, address, port, hang) for rank, worker in enumerate(workers)]
    print(*ray.get(results), sep="\n")


if __name__ == "__main__":
    main()
