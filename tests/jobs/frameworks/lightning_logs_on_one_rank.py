# /// truth
# nproc = 3
# launcher = "torchrun"
# [faulty]
# code = "DD117"
# verdict = "hang"
# root_confidence = "supported"
# hang = true
# cause = "rank-conditional"
# ranks = { root = [0], victims = [1, 2] }
# [healthy]
# ///
"""Lightning: rank 0 alone logs a metric that is reduced over all ranks.

Healthy: All ranks log it.
"""

from support.frameworks import required

lightning = required("lightning.pytorch")

import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 8)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean()
        # if FAULTY
        if self.global_rank == 0:
            self.log("loss", loss.detach(), on_step=True, sync_dist=True)  # HERE rank 0
        # else
        self.log("loss", loss.detach(), on_step=True, sync_dist=True)
        # end
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


torch.manual_seed(0)
batches = DataLoader(TensorDataset(torch.randn(96, 16)), batch_size=4)
trainer = lightning.Trainer(
    accelerator="cpu", devices=3, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Regression(), batches)  # HERE rank 1 2
