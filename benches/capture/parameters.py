"""Measures what observing a model's parameters costs, by their number, in a one-rank Gloo job.

Capture adds three things to a program with DDP: a query to its reducer after every backward pass, elements
read from two parameters before the next forward pass, and a description of the model when it is wrapped. They
are repeated on a real model of N parameters, and compared with the backward pass and the wrapping themselves.

    python benches/capture/parameters.py
    python benches/capture/parameters.py --parameters 10 1000

Needs PyTorch >= 2.14 and the release build.
"""

import argparse
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import PACKAGE, best, built, machine  # noqa: E402

NUMBERS = (10, 100, 1000, 10000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", nargs="*", type=int, default=NUMBERS)
    parser.add_argument("--quick", action="store_true", help="few rounds: a smoke test without meaningful results")
    options = parser.parse_args()
    repeat = 1 if options.quick else 7
    scratch = tempfile.TemporaryDirectory()
    os.environ.update(DDP_DOCTOR_JOB="bench", DDP_DOCTOR_BOX_DIR=scratch.name, OMP_NUM_THREADS="1")
    os.environ["DDP_DOCTOR_LIBRARY"] = built("libddp_doctor.so")
    sys.path.insert(0, PACKAGE)
    import ddp_doctor

    ddp_doctor.enable()
    import torch
    import torch.distributed as dist
    from ddp_doctor._ddp import _parameters, _replicas
    from torch.nn.parallel import DistributedDataParallel

    print(machine())
    titles = ("parameters", "question, us", "comparison, us", "backward, us", "description, ms", "wrapping, ms")
    print("%12s %22s %14s %14s %22s %14s" % titles)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + scratch.name + "/store", rank=0, world_size=1)
    for number in options.parameters:
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(number // 2)))
        begin = time.perf_counter_ns()
        wrapped = DistributedDataParallel(model)
        wrapping = (time.perf_counter_ns() - begin) / 1e6
        data = torch.ones(1, 4)

        def step():
            wrapped(data).sum().backward()

        step()
        step()
        frame = sys._getframe()

        def query():
            _parameters.backward_begins()
            _parameters.backward_ended(frame)

        asked = best(query, 5000 if repeat > 1 else 50, repeat)
        observed = _parameters._by_module[id(wrapped)]

        def read():
            observed.finished += 1
            _replicas.record(observed, wrapped, frame)

        compared = best(read, 5000 if repeat > 1 else 50, repeat)
        outputs = [wrapped(data).sum() for _ in range(1)]
        begin = time.perf_counter_ns()
        outputs.pop().backward()
        backward = (time.perf_counter_ns() - begin) / 1000
        listed = list(wrapped.module.parameters())

        def describe():
            _parameters._models.clear()
            _parameters._wrapped(wrapped, listed, frame)

        described = best(describe, 3, repeat) / 1000
        print("%12d %22.2f %14.2f %14.0f %22.2f %14.1f" % (number, asked, compared, backward, described, wrapping))
        del wrapped, model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
