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
"""TRL: supervised fine-tuning with PEFT's LoRA. A callback gathers a norm on the main process alone.

Healthy: All processes gather it.
"""

import tempfile

from support.frameworks import required

trl, peft = required("trl"), required("peft")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from support.tiny_llama import model, sentences, tokenizer  # noqa: E402


class Norm(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        norm = sum(it.detach().square().sum() for it in model.parameters() if it.requires_grad)
        # if FAULTY
        if state.is_world_process_zero and state.global_step == 3:
            dist.all_reduce(norm)  # HERE rank 0
        # else
        if state.global_step == 3:
            dist.all_reduce(norm)
        # end


with tempfile.TemporaryDirectory() as folder:
    arguments = trl.SFTConfig(
        output_dir=folder, max_steps=6, per_device_train_batch_size=2, use_cpu=True, bf16=False, report_to=[],
        save_strategy="no", disable_tqdm=True, ddp_backend="gloo", max_length=16, gradient_checkpointing=False)
    adapters = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = trl.SFTTrainer(
        model=model(), args=arguments, train_dataset=Dataset.from_dict({"text": sentences(64)}),
        processing_class=tokenizer(), peft_config=adapters, callbacks=[Norm()])
    out = trainer.train()  # HERE rank 1
print("RESULT", dist.get_rank(), round(out.training_loss, 4), flush=True)
dist.destroy_process_group()
