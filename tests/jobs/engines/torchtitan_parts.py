# /// truth
# nproc = 2
# launcher = "torchrun"
# [faulty]
# code = "DD117"
# verdict = "hang"
# hang = true
# cause = "rank-conditional"
# ranks = { root = [0], victims = [1] }
# [healthy]
# run_options = ["--stall-after", "10"]
# kill_after = "5"
# ///
"""torchtitan's meshes, clipping and metrics around FSDP2. Rank 0 alone averages the loss that it prints.

Healthy: Both average it. torchtitan's own trainer requires an accelerator.
"""

from support.frameworks import required

required("torchtitan")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torchtitan.distributed import parallel_dims, utils  # noqa: E402

parallel_dims.device_type = "cpu"
dist.init_process_group("gloo")
rank = dist.get_rank()
dims = parallel_dims.ParallelDims(
    dp_replicate=1, dp_shard=2, cp=1, tp=1, pp=1, ep=1, world_size=2, spmd_backend="partial_dtensor")
dims.build_mesh()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=dims.get_mesh("fsdp"))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(12):
    loss = model(torch.randn(8, 16)).square().mean()  # HERE rank 1
    loss.backward()
    norm = utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    # if FAULTY
    if rank == 0 and step % 5 == 4:
        mean = utils.dist_mean(loss.detach(), dims.get_mesh("loss"))  # HERE rank 0
    # else
    if step % 5 == 4:
        mean = utils.dist_mean(loss.detach(), dims.get_mesh("loss"))
    # end
print(f"RESULT {rank} {mean:.4f} {float(norm):.4f}\n", end="", flush=True)
dist.destroy_process_group()
