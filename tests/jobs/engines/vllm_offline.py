# /// truth
# nproc = 2
# launcher = "python"
# [faulty]
# code = "DD117"
# verdict = "hang"
# hang = true
# cause = "rank-conditional"
# ranks = { root = [1], victims = [0] }
# [healthy]
# seconds = 120
# run_options = ["--stall-after", "10"]
# kill_after = "5"
# ///
"""vLLM, offline, with a model that two workers share. A function that both workers run adds up a norm on one of them.

Healthy: Both add it up. Between two batches of prompts the engine is idle for a minute; then vLLM ends its workers, by
SIGKILL where they are slow.
"""

import os
import tempfile
import time

from support.frameworks import required

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1", VLLM_TARGET_DEVICE="cpu",
    VLLM_ALLOW_INSECURE_SERIALIZATION="1", VLLM_WORKER_MULTIPROC_METHOD="spawn", VLLM_LOGGING_LEVEL="WARNING")
vllm = required("vllm")

import torch.distributed as dist  # noqa: E402

from support.tiny_llama import save  # noqa: E402


def norm(worker):
    weights = list(worker.get_model().parameters())
    total = weights[0].detach().float().square().sum()
    # if FAULTY
    if dist.get_rank() == 1:
        dist.all_reduce(total)  # HERE rank 1
    # else
    dist.all_reduce(total)
    # end
    dist.barrier()  # HERE rank 0
    return float(total)


def main():
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        engine = vllm.LLM(
            folder, tensor_parallel_size=2, enforce_eager=True, dtype="float32", max_model_len=64,
            distributed_executor_backend="mp", max_num_seqs=4)
        greedy = vllm.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        for round in range(2):
            answers = engine.generate(["the cat sees a", "one two"], greedy, use_tqdm=False)
            tokens = [it.outputs[0].token_ids for it in answers]
            if round == 0:
                engine.collective_rpc(norm)
                # if HEALTHY
                time.sleep(60)
                # end
    print(f"RESULT {tokens}\n", end="", flush=True)


if __name__ == "__main__":
    main()
