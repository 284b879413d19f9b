# /// truth
# nproc = 2
# launcher = "python"
# [faulty]
# code = "DD117"
# verdict = "hang"
# hang = true
# cause = "rank-conditional"
# ranks = { root = [0], victims = [1] }
# [healthy]
# may_suspect = true
# run_options = ["--stall-after", "10"]
# kill_after = "5"
# ///
"""Ray Train: workers of an actor train in a thread each. Rank 0 alone averages the loss of the second epoch.

Healthy: All workers average it.
"""

import os

from support.frameworks import required

os.environ.update(
    RAY_TRAIN_V2_ENABLED="1", RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled",
    # Workers start at this niceness; at that of Ray's choice, 15, they do not start beside compilers.
    RAY_worker_niceness="0")
ray, train = required("ray"), required("ray.train")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model  # noqa: E402


def loop():
    rank = train.get_context().get_world_rank()
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for _ in range(8):
            loss = model(torch.randn(4, 16)).square().mean()
            loss.backward()  # HERE rank 1
            optimizer.step()
            optimizer.zero_grad()
        average = loss.detach().clone()
        # if FAULTY
        if rank == 0 and epoch == 1:
            dist.all_reduce(average)  # HERE rank 0
        # else
        if epoch == 1:
            dist.all_reduce(average)
        # end
        train.report({"loss": float(average), "rank": rank})
    print(f"RESULT {rank} {float(loss.detach()):.4f}\n", end="", flush=True)


def main():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
    trainer = TorchTrainer(
        loop, torch_config=TorchConfig(backend="gloo"), scaling_config=train.ScalingConfig(num_workers=2))
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
