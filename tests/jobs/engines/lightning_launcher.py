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
"""Lightning starts the second process itself, and imports mpi4py in both to find out whether they run under MPI.

Rank 0 alone logs a metric that is reduced over all ranks.

Healthy: Both log it. The first process waits for the second one, which imports for some seconds.
"""

from support.frameworks import required

required("mpi4py")
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
        if self.trainer.is_global_zero and index == 5:
            self.log("loss", loss.detach(), sync_dist=True)  # HERE rank 0
        # else
        if index == 5:
            self.log("loss", loss.detach(), sync_dist=True)
        # end
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    lightning.seed_everything(0, verbose=False)
    batches = DataLoader(TensorDataset(torch.randn(96, 16)), batch_size=4)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False)
    model = Regression()
    trainer.fit(model, batches)  # HERE rank 1
    print(f"RESULT {trainer.global_rank} {float(model.layer.weight.sum()):.4f}\n", end="", flush=True)


if __name__ == "__main__":
    main()
