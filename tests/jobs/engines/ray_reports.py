# /// truth
# nproc = 2
# launcher = "python"
# [faulty]
# code = "DD204"
# verdict = "hang"
# says = "it waits in a call that all workers have to make"
# ranks = { root = [0], victims = [1] }
# [healthy]
# may_suspect = true
# run_options = ["--stall-after", "10"]
# kill_after = "5"
# ///
"""Ray Train: the loop makes no call but those of DDP. Rank 0 alone reports the second epoch, and `report()` waits for all
workers: rank 1 gives up after 30 s.

Healthy: All workers report it.
"""

import os

from support.frameworks import required

os.environ.update(
    RAY_TRAIN_V2_ENABLED="1", RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled",
    # Workers start at this niceness; at that of Ray's choice, 15, they do not start beside compilers.
    RAY_worker_niceness="0")
ray, train = required("ray"), required("ray.train")

import torch  # noqa: E402
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
        # if FAULTY
        if rank == 0 or epoch != 1:
            train.report({"loss": float(loss), "rank": rank})  # HERE rank 0
        # else
        train.report({"loss": float(loss), "rank": rank})
        # end
    print(f"RESULT {rank} {float(loss.detach()):.4f}\n", end="", flush=True)


def main():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
    trainer = TorchTrainer(
        loop, torch_config=TorchConfig(backend="gloo", timeout_s=30), scaling_config=train.ScalingConfig(num_workers=2))
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
