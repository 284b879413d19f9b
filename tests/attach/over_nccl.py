"""A job of PyTorch over the double of NCCL: what FAULT names happens at its fifth step, in rank 1. The double of RAS in
rank 0 answers with what each rank has launched."""
import json
import os
import pathlib
import socketserver
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/jobs/layers/site-packages"))

# Before PyTorch, which would load an NCCL of its own.
from doubled import Doubled, check, cuda, register, stream  # noqa: E402

import ctypes  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

HERE = pathlib.Path(os.environ["JOB_DIR"])
FAULT = os.environ["FAULT"]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
launched = {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 0}


def count(name):
    """RAS counts what was launched."""
    launched[name] += 1
    new = HERE / f"launched-{RANK}.new"
    new.write_text(json.dumps({"rank": RANK, "pid": os.getpid(), "collective_counts": launched}))
    new.rename(HERE / f"launched-{RANK}")


class Counted(Doubled):
    def allreduce(self, *arguments):
        work = super().allreduce(*arguments)
        count("AllReduce")
        return work

    def broadcast(self, *arguments):
        work = super().broadcast(*arguments)
        count("Broadcast")
        return work


class Ras(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if line.startswith(b"VERBOSE STATUS"):
                ranks = [json.loads((HERE / f"launched-{rank}").read_text()) for rank in range(WORLD)]
                answer = {"communicators": [{"hash": "0x1", "size": WORLD, "ranks": ranks}]}
                self.wfile.write(json.dumps(answer).encode())
                return
            self.wfile.write(b"SERVER PROTOCOL 2\n" if line.startswith(b"CLIENT") else b"OK\n")


def watch():
    """Stands for the thread that c10d starts with NCCL."""
    ctypes.CDLL(None).prctl(15, b"pt_nccl_watchdg", 0, 0, 0)  # PR_SET_NAME
    threading.Event().wait()


def average(tensor):
    dist.all_reduce(tensor)
    check(cuda.cuStreamSynchronize(stream))


def oversleep():
    time.sleep(3600)


register(False)
dist.Backend.register_backend("counted", lambda store, at, size, timeout: Counted(store, at, size), devices=["cpu"])
dist.init_process_group("counted", rank=RANK, world_size=WORLD)
threading.Thread(target=watch, daemon=True).start()
if RANK == 0 and "NO_RAS" not in os.environ:
    host, port = os.environ["NCCL_RAS_ADDR"].rsplit(":", 1)
    ras = socketserver.ThreadingTCPServer((host, int(port)), Ras)
    ras.daemon_threads = True
    threading.Thread(target=ras.serve_forever, daemon=True).start()

gradients = torch.ones(64)
for step in range(1, 1_000_000):
    if step == 5:
        (HERE / f"ready-{RANK}").touch()
    if RANK == 1 and FAULT == "slow":
        time.sleep(0.3)
    if RANK == 1 and step == 5 and FAULT == "asleep":
        oversleep()
    if RANK == 1 and step == 5 and FAULT == "other_collective":
        dist.broadcast(gradients, src=0)
        check(cuda.cuStreamSynchronize(stream))
    average(gradients)
