# /// truth
# nproc = 3
# launcher = "torchrun"
# environment = { DS_ACCELERATOR = "cpu" }
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# cause = "rank-conditional"
# ranks = { root = [0], victims = [1, 2] }
# [healthy]
# ///
"""DeepSpeed: rank 0 alone saves a checkpoint, which every rank has to.

Healthy: All ranks save it.
"""

import tempfile

from support.frameworks import required

deepspeed = required("deepspeed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

deepspeed.init_distributed(dist_backend="gloo", verbose=False)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 8))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
})
rank = dist.get_rank()
with tempfile.TemporaryDirectory() as folder:
    for step in range(4):
        loss = engine(torch.randn(4, 16)).square().mean()
        engine.backward(loss)  # HERE rank 1 2
        engine.step()
        if step == 1:
            # if FAULTY
            if rank == 0:
                engine.save_checkpoint(folder)  # HERE rank 0
            # else
            engine.save_checkpoint(folder)
            # end
    dist.barrier()
dist.destroy_process_group()
