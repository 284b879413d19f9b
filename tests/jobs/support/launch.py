"""Starts the ranks of a job like torchrun, but imports PyTorch only once: launch.py RANKS PROGRAM [ARGUMENT...].

The parent imports PyTorch and forks one process per rank with torchrun's environment variables. It keeps the
store of the rendezvous, as torchrun's agent does. When a rank fails, the others get SIGTERM, and SIGKILL after
ten seconds; the exit status is then 1. It suits programs whose ranks need no command line of their own:
`/proc/PID/environ` shows the launcher's environment, because the ranks never call exec.

With LAUNCH_OUTPUT=FOLDER, the output of each rank goes to FOLDER/rank.N, and FOLDER/ends gets a line for each rank
that ends: rank, exit status, Unix time in ns. The SIGTERM then follows a second after the first failure, so that
the other ranks can print their own errors.

With LAUNCH_BACKEND=nccl, the program uses NCCL instead of Gloo, and its tensors are created on a GPU. Ranks may
share a GPU: NCCL takes each for a host of its own.
"""

import gc
import os
import signal
import socket
import sys
import time
import types
from datetime import timedelta

# Collections during the import take a fifth of its time.
gc.disable()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

GRACE_SECONDS = 10
OUTPUT = os.environ.get("LAUNCH_OUTPUT")
BACKEND = os.environ.get("LAUNCH_BACKEND", "gloo")
SHARE_GPU = dict(
    NCCL_SOCKET_IFNAME="lo",
    NCCL_IB_DISABLE="1",
    NCCL_P2P_DISABLE="1",
    NCCL_NVLS_ENABLE="0",
    NCCL_MAX_CTAS="2",
)


def run(code, program, arguments, rank, world_size, port):
    """Turns this process into a rank; returns when the program does."""
    if OUTPUT:
        file = os.open(f"{OUTPUT}/rank.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        GROUP_RANK="0",
        ROLE_RANK=str(rank),
        ROLE_NAME="default",
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        GROUP_WORLD_SIZE="1",
        ROLE_WORLD_SIZE=str(world_size),
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID="none",
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    if BACKEND == "nccl":
        os.environ.update(SHARE_GPU, NCCL_HOSTID=f"rank{rank}")
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.set_default_device(device)
    main = types.ModuleType("__main__")
    main.__file__ = program
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(program)
    exec(code, main.__dict__)


def supervise(ranks):
    """Waits for the ranks, whose numbers are given by process; returns the launcher's exit status."""
    terminate_at, kill_at = None, None
    while ranks:
        pid, status = os.waitpid(-1, 0 if kill_at is None else os.WNOHANG)
        if pid == 0:
            if terminate_at and time.monotonic() >= terminate_at:
                terminate_at = None
                for rank in ranks:
                    os.kill(rank, signal.SIGTERM)
            if time.monotonic() > kill_at:
                for rank in ranks:
                    os.kill(rank, signal.SIGKILL)
            time.sleep(0.02)
            continue
        rank, status = ranks.pop(pid, None), os.waitstatus_to_exitcode(status)
        if OUTPUT:
            with open(f"{OUTPUT}/ends", "a") as ends:
                ends.write(f"{rank} {status} {time.time_ns()}\n")
        if status != 0 and kill_at is None:
            terminate_at = time.monotonic() + (1 if OUTPUT else 0)
            kill_at = terminate_at + GRACE_SECONDS
    return int(kill_at is not None)


def main():
    world_size, program, arguments = int(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:]
    with open(program) as file:
        text = file.read().replace('"gloo"', f'"{BACKEND}"')
    code = compile(text, program, "exec")
    if "torch.optim" in text or "DistributedDataParallel" in text:
        # Otherwise every rank imports it, which takes as long as PyTorch.
        import torch._dynamo  # noqa: F401
    # Ranks may connect before the store serves: the socket listens already.
    listening = socket.create_server(("localhost", 0), backlog=128)
    port = listening.getsockname()[1]
    ranks = {}
    # The garbage collection at a rank's exit would otherwise copy all memory that the ranks share.
    gc.freeze()
    gc.enable()
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            listening.close()
            return run(code, program, arguments, rank, world_size, port)
        ranks[pid] = rank

    def forward(number, _):
        for rank in ranks:
            os.kill(rank, number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    options = dict(
        host_name="localhost",
        port=port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=300),
        master_listen_fd=listening.detach(),
    )
    try:
        store = dist.TCPStore(**options)
    except NotImplementedError:
        # Older versions accept a listening socket with their other implementation only.
        store = dist.TCPStore(use_libuv=False, **options)
    except BaseException:
        forward(signal.SIGKILL, None)
        raise
    status = supervise(ranks)
    del store
    os._exit(status)


main()
