"""Calls NCCL through PyTorch, as far as possible without a GPU: pytorch.py HELPER

Without a GPU process groups fail before they reach NCCL; this program calls the functions that they would call.
"""

import ctypes
import os
import sys

import torch
import torch.cuda.nccl as nccl

print("version", list(nccl.version()), flush=True)
ident = ctypes.create_string_buffer(nccl.unique_id(), 128)
library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so"))
comm_init_rank = library._ZN5torch4cuda4nccl14comm_init_rankEiRKNS1_12ncclUniqueIdEi
helper = ctypes.CDLL(sys.argv[1])
helper.attempt(ctypes.cast(comm_init_rank, ctypes.c_void_p), ident)
