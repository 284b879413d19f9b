"""What it costs to read PyTorch's own recorder of collectives from outside: one rank, Gloo.

A PyTorch without hooks is read by its Flight Recorder: a server of PyTorch's in the rank writes all that
its ring holds whenever it is asked. For rings of several lengths, full: what one question takes by the
clock and of the processor, how long the answer is, and what that comes to at the pace at which
`ddp-doctor run` asks. Beside it: what the server takes to start, and its threads.

    python benches/recorder.py
    python benches/recorder.py --entries 512

Needs PyTorch >= 2.10, and no build.
"""

import argparse
import http.client
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from common import machine

ENTRIES = (64, 512, 2000)
# As src/node/recorder asks: after so many times what the last answer took, within these bounds in seconds.
SPARING, LEAST, MOST = 50, 0.2, 2.0


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def processor():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rank(entries, questions):
    import torch
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as scratch:
        before = len(os.listdir("/proc/self/task"))
        path = os.path.join(scratch, "fr")
        begin = time.perf_counter()
        server = torch._C._distributed_c10d._WorkerServer(path, -1)  # noqa: F841 (lives as long as we do)
        started = time.perf_counter() - begin
        dist.init_process_group("gloo", init_method="file://" + scratch + "/store", rank=0, world_size=1)
        tensor = torch.ones(4)
        for _ in range(entries):
            dist.all_reduce(tensor)
        took, used, length = [], [], 0
        for _ in range(questions):
            time.sleep(0.02)
            first, begin = processor(), time.perf_counter()
            connection = Connection(path)
            connection.request("POST", "/handler/fr_trace_json", headers={"Connection": "close"})
            length = len(connection.getresponse().read())
            took.append(time.perf_counter() - begin)
            used.append(processor() - first)
            connection.close()
        took, used = statistics.median(took), statistics.median(used)
        pause = min(max(SPARING * took, LEAST), MOST)
        threads = len(os.listdir("/proc/self/task")) - before
        print(
            "%8d %10.0f %14.1f %14.1f %12.1f %12.1f %10.1f %8d"
            % (entries, length / 1000, 1e3 * took, 1e3 * used, pause, 100 * used / (pause + took), 1e3 * started, threads),
            flush=True,
        )
        dist.destroy_process_group()
        # The server's threads are not waited for.
        os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", nargs="*", type=int, default=ENTRIES)
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not what it costs")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    questions = 3 if options.quick else 41
    if options.rank:
        return rank(options.rank, questions)
    print(machine())
    print("%8s %10s %14s %14s %12s %12s %10s %8s" % ("entries", "body, kB", "question, ms", "processor, ms", "every, s", "of a core, %", "start, ms", "threads"))
    sys.stdout.flush()
    for entries in options.entries:
        environment = dict(os.environ, TORCH_FR_BUFFER_SIZE=str(entries), OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
        command = [sys.executable, os.path.abspath(__file__), "--rank", str(entries)]
        subprocess.run(command + (["--quick"] if options.quick else []), env=environment, check=True)


if __name__ == "__main__":
    main()
