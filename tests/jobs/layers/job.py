# /// truth
# nproc = 3
# launcher = "torchrun"
# run_options = ["--stall-after", "4"]
# kill_after = "8"
# layers = ["c10d", "nccl"]
# faulty = { layer = "c10d" }
#
# [scenario.reduction]
# faulty = { code = "DD106", confidence = "proved", ranks = { root = [1] } }
# healthy = {}
# [scenario.root]
# faulty = { code = "DD107", confidence = "proved", ranks = { root = [1] }, hang = true }
# healthy = {}
# [scenario.missing]
# faulty = { code = "DD204", confidence = "supported", ranks = { root = [1] }, hang = true }
# healthy = {}
# [scenario.first]
# faulty = { code = "DD204", confidence = "supported", ranks = { root = [1] }, seq = 1, why = "are in ncclCommInitRank", hang = true }
# healthy = {}
# [scenario.exits]
# faulty = { code = "DD102", confidence = "proved", ranks = { root = [1] }, hang = true }
# healthy = {}
# [scenario.hangs]
# environment = { DDP_DOCTOR_NCCL_COMPLETION = "1" }
# faulty = { code = "DD116", confidence = "supported", environment = { NCCL_DOUBLE_FAULTS = "hang AllReduce 5 on *" }, seq = 5, says = "streams", hang = true }
# healthy = {}
# [scenario.crossed]
# environment = { DDP_DOCTOR_NCCL_COMPLETION = "1" }
# faulty = { code = "DD111", confidence = "supported", hang = true }
# healthy = {}
# [scenario.of_two]
# faulty = { code = "DD111", confidence = "supported", ranks = { root = [0, 1] }, why = "by rank 1 at job.py:", hang = true }
# healthy = {}
# [scenario.pipeline]
# faulty = { code = "DD112", confidence = "supported", ranks = { root = [1, 2] }, why = "by rank 1 at job.py:", hang = true }
# healthy = {}
# [scenario.first_message]
# faulty = { code = "DD112", confidence = "supported", ranks = { root = [1, 2] }, why = "by rank 1 at job.py:", hang = true }
# healthy = {}
# [scenario.ring]
# faulty = { code = "DD112", confidence = "supported", ranks = { root = [1, 2] }, why = "by rank 1 at job.py:", hang = true }
# healthy = {}
# [scenario.own]
# faulty = { code = "DD103", ranks = { root = [1] }, layer = "nccl", hang = true }
# healthy = {}
# ///
"""A job of PyTorch's on NCCL, without a GPU: job.py SCENARIO faulty|healthy

Its backend is `doubled`, beside this file. What is wrong with the faulty ones, always on rank 1 of three, is at the
head of each scenario.
"""

import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))

# Before PyTorch, which would load an NCCL of its own.
from doubled import FLOAT, buffers, check, cuda, join, nccl, register, stream  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

scenario, kind = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
wrong = kind == "faulty" and rank == 1

register(scenario == "eager")
dist.init_process_group("nccl4py")
tensor = torch.ones(64)


def synchronize():
    """Waits for the stream as `torch.cuda.synchronize` does, inside of the driver; but not for ever: the launcher of a
    real job would end it."""
    given_up = threading.Timer(60, os._exit, [1])
    given_up.daemon = True
    given_up.start()
    check(cuda.cuStreamSynchronize(stream))
    given_up.cancel()


def average(op=dist.ReduceOp.SUM):
    """As C++ does: nothing of Python's shows the operator."""
    options = dist.AllreduceOptions()
    options.reduceOp = op
    dist.group.WORLD.allreduce([tensor], options).wait()


def steps(fault):
    for step in range(1, 7):
        average()
        if step == 4:
            fault()
        synchronize()
        time.sleep(0.05)


def reduction():
    """DD106: another operator, which c10d does not show."""
    average(dist.ReduceOp.MAX if wrong else dist.ReduceOp.SUM)


def root():
    """DD107: another root."""
    dist.broadcast(tensor, src=1 if wrong else 0)


def missing():
    """DD101, DD204: it does not come."""
    if wrong:
        time.sleep(3600)
    average()


def first():
    """DD204: it does not come to the first call, in which the others make the communicator."""
    average()


def eager():
    """DD204: it does not come, to a communicator that was made with its group."""
    missing()


def exits():
    """DD102: it ends."""
    if wrong:
        os._exit(0)
    average()


def hangs():
    """DD116: the double never ends this call's work in any stream, by NCCL_DOUBLE_FAULTS."""
    average()


def of_two():
    """DD204: it does not come where one other waits for it, and goes on to where that one does not come."""
    if rank == 0 or rank == 1 and not wrong:
        pair.allreduce([tensor], dist.AllreduceOptions()).wait()


def crossed():
    """DD111: its stream has the work of two groups in another order."""
    first, second = (pair, dist.group.WORLD) if wrong else (dist.group.WORLD, pair)
    for group in (first, second):
        group.allreduce([tensor], dist.AllreduceOptions()).wait()


def pass_on(lacking):
    if rank > 0:
        dist.recv(tensor, src=rank - 1)
    if rank + 1 < world and not lacking:
        dist.send(tensor, dst=rank + 1)


def pipeline():
    """DD113: it does not pass on what it has got."""
    pass_on(wrong)


def first_message():
    """DD113: nor the first time, when the next one waits for the communicator of the two."""
    pass_on(wrong)


def ring():
    """DD113: its batch lacks the message to the next one."""
    following, previous = (rank + 1) % world, (rank - 1) % world
    messages = [dist.P2POp(dist.irecv, tensor, previous)]
    if not wrong:
        messages.append(dist.P2POp(dist.isend, tensor, following))
    for work in dist.batch_isend_irecv(messages):
        work.wait()


def own():
    """DD103: on a communicator of the program's own, another call."""
    if wrong:
        check(nccl.ncclBroadcast(*buffers, 64, FLOAT, 0, comm, stream))
    else:
        check(nccl.ncclAllReduce(*buffers, 64, FLOAT, 0, comm, stream))


if scenario == "crossed":
    pair = dist.new_group([0, 1, 2])
    pair.allreduce([tensor], dist.AllreduceOptions()).wait()
if scenario == "of_two":
    pair = dist.new_group([0, 1])
    if rank < 2:
        pair.allreduce([tensor], dist.AllreduceOptions()).wait()
if scenario == "own":
    comm = join(dist.distributed_c10d._get_default_store(), "own", world, rank)

if scenario == "pipeline":
    pass_on(False)

if scenario == "first" and wrong:
    time.sleep(3600)
steps(globals()[scenario])
print("done", flush=True)
dist.destroy_process_group()
