# /// truth
# nproc = 2
# launcher = "torchrun"
# [faulty]
# code = "DD103"
# verdict = "hang"
# hang = true
# cause = "local-decision"
# ranks = { root = [0, 1] }
# [healthy]
# may_suspect = true
# run_options = ["--stall-after", "10"]
# kill_after = "5"
# ///
"""accelerate: rank 0 reads a stream and dispatches its batches. Rank 1 stops early, by the loss of its own batches.

Healthy: Both stop by the same loss. The stream pauses once, for 15 s, while rank 1 waits for its batch.
"""

import time

from support.frameworks import required

accelerate = required("accelerate")

import torch  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(64):
            # if HEALTHY
            if index == 30:
                time.sleep(15)
            # end
            yield torch.full((8,), 0.01 * index)


def main():
    configuration = accelerate.DataLoaderConfiguration(dispatch_batches=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(Stream(), batch_size=4))
    seen = 0.0
    for batch in batches:  # HERE rank 0
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        # if FAULTY
        seen = max(seen, float(batch.mean()))
        # else
        seen = max(seen, float(accelerator.reduce(batch.mean(), "mean")))
        # end
        if seen > 0.2:
            break
    accelerator.wait_for_everyone()  # HERE rank 1
    weight = accelerator.unwrap_model(model)[0].weight
    print("RESULT", accelerator.process_index, round(float(weight.sum()), 4), flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
