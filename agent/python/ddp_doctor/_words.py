"""Numbers of ops, types and kinds, as in `ddpdoctor/v1/vocabulary.proto`."""

# Operations.
ALL_REDUCE = 1
ALL_GATHER = 2
REDUCE_SCATTER = 3
ALL_TO_ALL = 4
BARRIER = 5
BROADCAST = 6
REDUCE = 7
GATHER = 8
SCATTER = 9
SEND = 10
RECV = 11
ALL_REDUCE_COALESCED = 12
ALL_GATHER_COALESCED = 13
REDUCE_SCATTER_COALESCED = 14
INIT_PROCESS_GROUP = 32
NEW_GROUP = 33
DESTROY_PROCESS_GROUP = 34
MONITORED_BARRIER = 35
SPLIT_GROUP = 36
OTHER = 63

# Names of PyTorch's dtypes.
DTYPES = {
    "float32": 1,
    "float64": 2,
    "float16": 3,
    "bfloat16": 4,
    "int8": 5,
    "int16": 6,
    "int32": 7,
    "int64": 8,
    "uint8": 9,
    "uint16": 10,
    "uint32": 11,
    "uint64": 12,
    "bool": 13,
    "float8_e4m3fn": 14,
    "float8_e5m2": 15,
    "complex64": 16,
    "complex128": 17,
}

REDUCE_OPS = {
    "SUM": 1,
    "AVG": 2,
    "PRODUCT": 3,
    "MIN": 4,
    "MAX": 5,
    "BAND": 6,
    "BOR": 7,
    "BXOR": 8,
    "PREMUL_SUM": 9,
}

# Flags of a call.
ASYNC = 1
HIDDEN = 2
NUMEL = 8
SHAPE = 16
ROOT = 32
TAG = 64
BORROWED_SITE = 128

# Flags of a forward.
REPEATED = 1024
UNSYNCHRONISED = 2048
UPDATED = 8192
SEES_UPDATES = 16384

# Kinds of exceptions.
UNCAUGHT = 1
LEFT_FORWARD = 2
LEFT_BACKWARD = 3
LEFT_COLLECTIVE = 4
IN_FLIGHT = 5
UNCAUGHT_IN_THREAD = 6
IGNORED_CALL = 7

# Kinds of notes.
NO_HOOKS = 1

# Facts about parameters.
LAYOUT = 1
WITHOUT_GRADIENT = 2
COMPLETE = 3
READY_TWICE = 4
GRAPH_CHANGED = 5
OUTSIDE = 6
NEVER_UNUSED = 7
USED_AT = 8
VALUES = 9
THAWED = 10

# What time was spent on.
INPUT = 1
GARBAGE = 2
BUCKETS = 3

# Results of ddp_doctor_open().
OK = 0
ALREADY_OPEN = 1

ABI_VERSION = 1
MAX_DIMS = 10
