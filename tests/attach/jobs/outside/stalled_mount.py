"""/// truth
nproc = 3
codes = ["DD204"]
root = [1]
blocked_on = "file"
says = "fuse"
privileged = true
///

The mount is a FUSE file system whose server answers nothing but the handshake, as a network file system does
whose server is gone.
"""
import ctypes
import os
import struct
import threading

import torch
import torch.distributed as dist


def mount_without_server(directory):
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"server:/data", directory.encode(), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")

    def serve():
        while True:
            request = os.read(device, 1 << 20)
            _, opcode, unique = struct.unpack_from("<IIQ", request)
            if opcode == 26:
                body = struct.pack("<IIIIHHIIHHIIIIII", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0)
                os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)

    threading.Thread(target=serve, daemon=True).start()


dist.init_process_group("gloo")
data = os.path.join(os.environ["JOB_DIR"], "data")
if dist.get_rank() == 0:
    os.mkdir(data)
    mount_without_server(data)
dist.barrier()
if dist.get_rank() == 1:
    with open(os.path.join(data, "shard-17.tar"), "rb") as shard:  # HERE rank 1
        shard.read()
dist.all_reduce(torch.ones(8))  # HERE rank 0 2
