# /// truth
# nproc = 2
# launcher = "torchrun"
# [faulty]
# code = "DD104"
# ranks = { root = [0, 1] }
# [healthy]
# run_options = ["--stall-after", "10"]
# kill_after = "5"
# ///
"""megatron-core: an embedding, layers and a loss that two ranks share. Each rank draws batches of its own length.

Healthy: Both draw the same batches, as ranks that share a model must. Megatron's gradient buffers, gradient norm and
pipelines require an accelerator.
"""

from support.frameworks import required

required("megatron.core")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import ModelParallelConfig, parallel_state  # noqa: E402
from megatron.core.tensor_parallel import (  # noqa: E402
    ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding, vocab_parallel_cross_entropy)

dist.init_process_group("gloo")
rank = dist.get_rank()
parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
config = ModelParallelConfig(
    tensor_model_parallel_size=2, use_cpu_initialization=True, gradient_accumulation_fusion=False)
options = dict(config=config, init_method=torch.nn.init.xavier_normal_)
torch.manual_seed(0)
words = VocabParallelEmbedding(64, 32, **options)
up = ColumnParallelLinear(32, 64, gather_output=False, **options)
down = RowParallelLinear(64, 32, bias=True, input_is_parallel=True, skip_bias_add=False, **options)
head = ColumnParallelLinear(32, 64, bias=False, gather_output=False, **options)
model = torch.nn.ModuleList([words, up, down, head])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# if FAULTY
drawn = torch.Generator().manual_seed(rank)
# else
drawn = torch.Generator().manual_seed(parallel_state.get_data_parallel_rank())
# end
for step in range(12):
    length = int(torch.randint(8, 64, (), generator=drawn))
    tokens = torch.randint(0, 64, (length, 4), generator=drawn)
    hidden = words(tokens)  # HERE rank 0 1
    changed, _ = down(torch.tanh(up(hidden)[0]))
    logits, _ = head(hidden + changed)
    loss = vocab_parallel_cross_entropy(logits.float(), tokens).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"RESULT {rank} {float(loss.detach()):.4f}\n", end="", flush=True)
dist.destroy_process_group()
