"""Runs programs in forks of an interpreter that has imported PyTorch.

Each line of standard input is a request: {"file", "folder", "ranks": [{"env", "output"}], "timeout"}. The response
on standard output is the list of exit statuses, as in `subprocess`; null for a rank that was killed at the timeout.
"""

import gc
import json
import os
import signal
import sys
import time
import types

# Collections during the import take a fifth of its time.
gc.disable()
import torch  # noqa: E402
import torch.distributed  # noqa: E402


def prepare(file):
    """Imports and compiles what the ranks of a program would each import and compile."""
    with open(file) as program:
        text = program.read()
    if "torch.optim" in text or "DistributedDataParallel" in text:
        import torch._dynamo  # noqa: F401
    return compile(text, file, "exec")


def become(code, file, folder, env, output):
    """Runs the program of a rank in this fork; returns when the program does."""
    gc.enable()
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    main = types.ModuleType("__main__")
    main.__file__ = file
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [file]
    sys.path[0] = os.path.dirname(file)
    exec(code, main.__dict__)


def wait(pid, deadline):
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.01)


def main():
    for line in sys.stdin:
        request = json.loads(line)
        pids = []
        code = prepare(request["file"])
        # The garbage collection at a rank's exit would otherwise copy all memory that the ranks share.
        gc.freeze()
        for rank in request["ranks"]:
            pid = os.fork()
            if pid == 0:
                return become(code, request["file"], request["folder"], rank["env"], rank["output"])
            pids.append(pid)
        deadline = time.monotonic() + request["timeout"]
        print(json.dumps([wait(pid, deadline) for pid in pids]), flush=True)
    gc.unfreeze()


main()
