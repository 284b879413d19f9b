# /// truth
# nproc = 2
# decisive = "stamp"
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# cause = "rank-conditional"
# hang = true
# ranks = { root = [0], victims = [1] }
# via = { 0 = "gather", 1 = "PartialState.wait_for_everyone" }
# [healthy]
# ///
"""accelerate: the main process alone gathers a metric, while the other waits for everyone.

Healthy: Both gather it.
"""

import torch

from support.stamp import stamp

try:
    from accelerate import Accelerator
except ImportError:
    print("SKIPPED: accelerate is not installed", flush=True)
    raise SystemExit from None

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(16, 8)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))

for step in range(4):
    loss = model(torch.randn(8, 16)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
stamp()
# if FAULTY
if accelerator.is_main_process:
    accelerator.gather(loss.detach())  # HERE rank 0
# else
accelerator.gather(loss.detach())
# end
stamp()
accelerator.wait_for_everyone()  # HERE rank 1
accelerator.end_training()
