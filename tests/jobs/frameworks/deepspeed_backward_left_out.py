# /// truth
# nproc = 3
# launcher = "torchrun"
# environment = { DS_ACCELERATOR = "cpu" }
# [faulty]
# code = "DD101"
# cause = "rank-conditional"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""DeepSpeed: rank 1 leaves out the backward, after which all ranks average the loss.

Healthy: All ranks make it.
"""

from support.frameworks import required

deepspeed = required("deepspeed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

deepspeed.init_distributed(dist_backend="gloo", verbose=False)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 8))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}, "torch_adam": True},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
})
rank = dist.get_rank()
for step in range(8):
    loss = engine(torch.randn(4, 16)).square().mean()
    # if FAULTY
    if step < 5 or rank != 1:
        engine.backward(loss)  # HERE rank 0 2
    # else
    engine.backward(loss)
    # end
    dist.all_reduce(loss.detach())  # HERE rank 1
    engine.step()
dist.barrier()
dist.destroy_process_group()
