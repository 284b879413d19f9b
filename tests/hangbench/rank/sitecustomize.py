"""Loaded by every Python process of a benchmark run without ddp-doctor.

HANGBENCH_TIMEOUT   seconds; replaces the default timeout of process groups (30 minutes for Gloo)
HANGBENCH_DUMPS     folder; each rank writes its Flight Recorder to FOLDER/rank_N once a second, since Gloo never does
"""

import importlib.abc
import importlib.util
import os
import sys
import threading
import time
from datetime import timedelta

CONSTANTS = "torch.distributed.constants"


class ShortTimeout(importlib.abc.MetaPathFinder):
    """Replaces the default timeout in the module that defines it, before others read it from there."""

    def __init__(self, seconds):
        self.timeout = timedelta(seconds=seconds)

    def find_spec(self, name, path, target=None):
        if name != CONSTANTS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.default_pg_timeout = self.timeout
            module.default_pg_nccl_timeout = self.timeout

        spec.loader.exec_module = exec_module
        return spec


def dump(folder):
    while True:
        time.sleep(1)
        # An import would load more of PyTorch than the program does.
        c10d = sys.modules.get("torch._C._distributed_c10d")
        if c10d is None:
            continue
        try:
            trace, file = c10d._dump_fr_trace(), f"{folder}/rank_{os.environ['RANK']}"
            with open(file + ".part", "wb") as part:
                part.write(trace)
            os.replace(file + ".part", file)
        except Exception as error:
            with open(f"{folder}/errors", "a") as errors:
                errors.write(f"{error!r}\n")
            return


def start_dumping(folder):
    threading.Thread(target=dump, args=(folder,), daemon=True).start()


def after_fork(folder):
    # A process that has a rank already is a rank's worker.
    if "RANK" not in os.environ:
        start_dumping(folder)


if "HANGBENCH_TIMEOUT" in os.environ:
    sys.meta_path.insert(0, ShortTimeout(float(os.environ["HANGBENCH_TIMEOUT"])))
if "HANGBENCH_DUMPS" in os.environ:
    folder = os.environ["HANGBENCH_DUMPS"]
    if "RANK" in os.environ:
        start_dumping(folder)
    else:
        os.register_at_fork(after_in_child=lambda: after_fork(folder))
