"""Lets `ddp-doctor run` ask PyTorch's Flight Recorder over NCCL which calls the device has completed.

With a prefix in `TORCH_NCCL_DEBUG_INFO_PIPE_FILE`, PyTorch creates a FIFO for each rank, and writes a dump once a byte
arrives. The variables are set here and not by `run`, since PyTorch raises if it cannot create the FIFO: on another host
or in a container, the folder of the run may not exist. What the user has set is not changed.
"""

import os
import re
import stat

_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
# Variables for size of the buffer and file, in PyTorch from 2.8 on, and before.
_NEW = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
_OLD = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# Number of calls that PyTorch keeps by default from 2.6 on.
_CALLS = "2000"


def variables(version, environ, folder, pid):
    """Variables to set for this version of PyTorch, so that FIFO and dump are in the folder; empty: the recorder is off,
    or the user has set its FIFO.

    The names begin with the process id: PyTorch raises if another process creates a FIFO of one name at the same time.
    """
    ours = os.path.join(folder, "")
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None or not environ.get(_PIPE, ours).startswith(ours):
        return {}
    number = tuple(map(int, number.groups()))
    sizes = [environ.get(names[0]) for names in (_NEW, _OLD)]
    size = next((it for it in sizes if it), None)
    # Up to 2.8 the FIFO needs the size under its old name. Before 2.6 that turns the recorder on, at a cost for each
    # call, and 2.8 warns of the name.
    if size == "0" or (number < (2, 9) and not sizes[1]):
        return {}
    prefix = "%s%d_" % (ours, pid)
    found = {_PIPE: prefix}
    if all(environ.get(names[1], ours).startswith(ours) for names in (_NEW, _OLD)):
        found[(_NEW if number >= (2, 8) else _OLD)[1]] = prefix
    if size is None:
        found[_NEW[0]] = _CALLS
    return found


def _folder(value):
    """The folder that a value names with its device and inode numbers: "DEVICE:INODE:PATH". `None`: another one is at its
    path, as on another host, or others can enter it, or this process cannot create files in it.
    """
    device, _, rest = value.partition(":")
    inode, _, path = rest.partition(":")
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    is_it = (device, inode) == (str(status.st_dev), str(status.st_ino)) and os.path.isabs(path)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    is_private = is_own and status.st_mode & 0o077 == 0
    return path if is_it and is_private and os.access(path, os.W_OK | os.X_OK) else None


def prepare(version):
    """Sets the variables before PyTorch reads them, while it creates its first process group."""
    folder = _folder(os.environ.get("DDP_DOCTOR_RECORDERS", ""))
    if folder is not None:
        os.environ.update(variables(str(version), os.environ, folder, os.getpid()))
