# /// truth
# nproc = 2
# launcher = "python"
# code = "DD901"
# verdict = "insufficient"
# ranks = { root = [] }
# [faulty]
# [healthy]
# ///
"""JAX: two processes add over Gloo. Process 1 skips a sum, and exits 20 s later. Calls of JAX are not captured.

Healthy: Both add all.
"""

import os
import socket
import subprocess
import sys
import time

from support.frameworks import required

jax = required("jax")


def work(port, index):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, index)
    from jax.experimental.multihost_utils import process_allgather

    total = 0.0
    for step in range(8):
        # if FAULTY
        if step == 4 and index == 1:
            time.sleep(20)
            os._exit(0)
        # end
        total += float(process_allgather(jax.numpy.ones(4) * (step + index)).sum())
    print(f"RESULT {index} {total}\n", end="", flush=True)


def main():
    if len(sys.argv) > 1:
        return work(int(sys.argv[1]), int(sys.argv[2]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [subprocess.Popen([sys.executable, __file__, str(port), str(index)]) for index in range(2)]
    return max(abs(it.wait()) for it in processes)


if __name__ == "__main__":
    sys.exit(main())
