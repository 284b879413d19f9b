"""What the capture has to know of backends. The table of all that differs between them is
`src/diagnosis/input/backends.rs`; a test compares the two.
"""

import os

# Variables that select network interfaces.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# Backends whose groups connect while they are created, and the variable that defers it to their first call.
_DEFERS_CONNECTING = {"gloo": "TORCH_GLOO_LAZY_INIT"}


def connects_at_creation(backend):
    """Whether creating a group of this backend blocks until all members take part."""
    return any(name in str(backend) and not os.environ.get(variable) for name, variable in _DEFERS_CONNECTING.items())
