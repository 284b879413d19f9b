"""A job of PyTorch's on NCCL, without a GPU: job.py SCENARIO faulty|healthy

Its backend is one in Python, as `nccl4py` is: it calls NCCL (the double of `tests/doubles`, by the names that the
program sees first), on the thread that made c10d's call and inside of it. Work is done by the stream, and waiting
for a Work waits for nothing, as on a GPU. What is wrong with the faulty ones, always on rank 1 of three, is at the
head of each scenario.
"""

import ctypes
import os
import sys
import time

FOLDER = os.environ["DOUBLES"]
# Before PyTorch loads the one that it comes with, and with what that one has besides.
ctypes.CDLL(os.path.join(FOLDER, "libcuda.so.1"), ctypes.RTLD_GLOBAL)
ctypes.CDLL(os.path.join(FOLDER, "later.so"), ctypes.RTLD_GLOBAL)
ctypes.CDLL(os.path.join(FOLDER, "libnccl.so.2"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._C._distributed_c10d import Backend as C10DBackend  # noqa: E402

scenario, kind = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
wrong = kind == "faulty" and rank == 1

class Nccl:
    """NCCL's functions as a program that is linked with it finds them: at whoever was loaded before it first."""

    def __init__(self):
        self._libraries = ctypes.CDLL(None), ctypes.CDLL(os.path.join(FOLDER, "libnccl.so.2"))

    def __getattr__(self, name):
        library = next(it for it in self._libraries if hasattr(it, name))
        self.__dict__[name] = function = getattr(library, name)
        return function


nccl = Nccl()
cuda = ctypes.CDLL(os.path.join(FOLDER, "libcuda.so.1"))
FLOAT = 7
OPS = {dist.ReduceOp.SUM: 0, dist.ReduceOp.PRODUCT: 1, dist.ReduceOp.MAX: 2, dist.ReduceOp.MIN: 3, dist.ReduceOp.AVG: 4}
P, S, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


nccl.ncclGetUniqueId.argtypes = [ctypes.POINTER(Id)]
nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(P), I, Id, I]
nccl.ncclAllReduce.argtypes = [P, P, S, I, I, P, P]
nccl.ncclBroadcast.argtypes = [P, P, S, I, I, P, P]
nccl.ncclCommAbort.argtypes = nccl.ncclCommDestroy.argtypes = [P]


def check(status):
    if status:
        raise RuntimeError("status %d" % status)


def begin():
    """A device, its context and a stream; gives the stream."""
    device, context, stream = I(), P(), P()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), int(os.environ["LOCAL_RANK"])))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuStreamCreate(ctypes.byref(stream), 0))
    return stream


def memory(count):
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), S(4 * count)))
    return address.value


stream = begin()
buffers = memory(4096), memory(4096)


def join(store, name, ranks, at):
    ident = Id()
    if at == 0:
        check(nccl.ncclGetUniqueId(ctypes.byref(ident)))
        store.set(name, ctypes.string_at(ctypes.addressof(ident), 128).hex())
    text = bytes.fromhex(store.get(name).decode())
    ctypes.memmove(ctypes.addressof(ident), text, 128)
    comm = P()
    check(nccl.ncclCommInitRank(ctypes.byref(comm), ranks, ident, at))
    return comm


class Work(dist._Work):
    def wait(self, timeout=None):
        return True


# A backend in Python was a whole process group before 2.14.
Base = C10DBackend if hasattr(dist.ProcessGroup, "register_pre_hook") else dist.ProcessGroup


class Doubled(Base):
    """Makes its communicator with its first call, as PyTorch's first one does."""

    def __init__(self, store, at, size):
        super().__init__(at, size)
        self.store, self.at, self.ranks, self.comm = store, at, size, None

    def getBackendName(self):
        return "nccl4py"

    def communicator(self):
        if self.comm is None:
            self.comm = join(self.store, "id", self.ranks, self.at)
        return self.comm

    def allreduce(self, tensors, opts):
        comm, count = self.communicator(), tensors[0].numel()
        check(nccl.ncclAllReduce(*buffers, count, FLOAT, OPS[opts.reduceOp.op], comm, stream))
        return Work()

    def broadcast(self, tensors, opts):
        comm, count = self.communicator(), tensors[0].numel()
        check(nccl.ncclBroadcast(*buffers, count, FLOAT, opts.rootRank, comm, stream))
        return Work()


def create(store, at, size, timeout):
    backend = Doubled(store, at, size)
    if scenario == "eager":
        backend.communicator()
    return backend


dist.Backend.register_backend("nccl4py", create, devices=["cpu"])
dist.init_process_group("nccl4py")
tensor = torch.ones(64)


def synchronize():
    """Waits for the stream, but not for ever: the launcher of a real job would end it."""
    for _ in range(2000):
        if cuda.cuStreamQuery(stream) == 0:
            return
        time.sleep(0.005)
    os._exit(1)


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
        time.sleep(30)
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


def crossed():
    """DD111: its stream has the work of two groups in another order."""
    first, second = (pair, dist.group.WORLD) if wrong else (dist.group.WORLD, pair)
    for group in (first, second):
        group.allreduce([tensor], dist.AllreduceOptions()).wait()


def own():
    """DD103: on a communicator of the program's own, another call."""
    if wrong:
        check(nccl.ncclBroadcast(*buffers, 64, FLOAT, 0, comm, stream))
    else:
        check(nccl.ncclAllReduce(*buffers, 64, FLOAT, 0, comm, stream))


if scenario == "crossed":
    pair = dist.new_group([0, 1, 2])
    pair.allreduce([tensor], dist.AllreduceOptions()).wait()
if scenario == "own":
    comm = join(dist.distributed_c10d._get_default_store(), "own", world, rank)

if scenario == "first" and wrong:
    time.sleep(30)
steps(globals()[scenario])
print("done", flush=True)
dist.destroy_process_group()
