# /// truth
# nproc = 3
# launcher = "torchrun"
# [faulty]
# code = "DD102"
# cause = "local-decision"
# verdict = "hang"
# root_confidence = "proved"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# ///
"""Lightning: the loss of rank 1 is good enough, so it alone stops the training.

Healthy: The ranks stop together.
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
        if index == 2 and self.global_rank == 1:
            self.trainer.should_stop = True
        # else
        if index == 2:
            self.trainer.should_stop = True
        # end
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


torch.manual_seed(0)
batches = DataLoader(TensorDataset(torch.randn(96, 16)), batch_size=4)
trainer = lightning.Trainer(
    accelerator="cpu", devices=3, strategy="ddp", max_epochs=1, min_epochs=0, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Regression(), batches)  # HERE rank 0 1 2
