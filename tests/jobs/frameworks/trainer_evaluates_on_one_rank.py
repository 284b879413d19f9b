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
"""Transformers: a callback evaluates on the main process alone.

Healthy: It evaluates on all processes.
"""

import tempfile

from support.frameworks import required

transformers = required("transformers")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def forward(self, x, labels):
        out = self.layer(x).squeeze(-1)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Evaluation(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        # if FAULTY
        if state.global_step == 2 and state.is_world_process_zero:
            trainer.evaluate()  # HERE rank 0
        # else
        if state.global_step == 2:
            trainer.evaluate()
        # end


torch.manual_seed(0)
rows = [{"x": torch.randn(16), "labels": torch.tensor(1.0)} for _ in range(96)]
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=4, max_steps=5, use_cpu=True, save_strategy="no", report_to=[],
        disable_tqdm=True, ddp_backend="gloo", remove_unused_columns=False)
    trainer = transformers.Trainer(Regression(), arguments, train_dataset=rows, eval_dataset=rows[:24], callbacks=[Evaluation()])
    trainer.train()  # HERE rank 1 2
    dist.barrier()
dist.destroy_process_group()
