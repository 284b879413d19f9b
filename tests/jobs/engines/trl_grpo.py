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
# may_suspect = true
# run_options = ["--stall-after", "10"]
# kill_after = "5"
# ///
"""TRL: reinforcement learning with GRPO. The reward function averages its scores on the main process alone.

Healthy: All processes average them. Once, rank 1 generates for 20 s more than rank 0, and once the judge of rank 0 takes
20 s.
"""

import tempfile
import time

from support.frameworks import required

trl = required("trl")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from datasets import Dataset  # noqa: E402

from support.tiny_llama import model, sentences, tokenizer  # noqa: E402

judge = model()
calls = 0


def score(text):
    # if HEALTHY
    if calls == 2 and dist.get_rank() == 1:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            judge.generate(torch.full((4, 8), 5), max_new_tokens=64, do_sample=False)
    if calls == 3 and dist.get_rank() == 0:
        time.sleep(20)
    # end
    return [float(len(set(it.split()))) for it in text]


def reward(completions, **kwargs):
    global calls
    calls += 1
    scores = score(completions)
    # if FAULTY
    if dist.get_rank() == 0 and calls == 2:
        average = torch.tensor(scores).mean()
        dist.all_reduce(average)  # HERE rank 0
    # else
    average = torch.tensor(scores).mean()
    dist.all_reduce(average)
    # end
    return scores


with tempfile.TemporaryDirectory() as folder:
    arguments = trl.GRPOConfig(
        output_dir=folder, max_steps=4, per_device_train_batch_size=4, num_generations=4, max_completion_length=16,
        use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True, ddp_backend="gloo",
        gradient_checkpointing=False)
    trainer = trl.GRPOTrainer(
        model=model(), reward_funcs=reward, args=arguments, train_dataset=Dataset.from_dict({"prompt": sentences(64, 5)}),
        processing_class=tokenizer())
    out = trainer.train()  # HERE rank 1
print(f"RESULT {dist.get_rank()} {out.training_loss:.4f}\n", end="", flush=True)
dist.destroy_process_group()
