"""Records how a process joins the world: how it finds the other ranks, and the settings that ranks
should have in common.

This is recorded before the process waits for other ranks, so that it is known of a rank that never
gets past the wait. Unknown and unset values are empty texts, since a process may join a second world in
another way.
"""

import os
import re
import sys
from urllib.parse import urlsplit

from .. import _backends, _box
from .._native import text

_LONGEST = 256
_MOST_VARIABLES = 128
# Settings of the host or of logging, which may differ between ranks.
_OWN = re.compile(r"IFNAME|_HCA|HOSTID|HOSTNAME|DEBUG|_GID_INDEX|_(FILE|DIR|PATH|DUMP|IP|PORT|ADDR)$")
# Settings of PyTorch that change the communication between ranks.
_COMMON = (
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_DIST_INIT_BARRIER",
    "TORCH_DIST_USE_NCCL2",
    "TORCH_GLOO_LAZY_INIT",
    "GLOO_DEVICE_TRANSPORT",
    "TORCH_NCCL_RANKS_PER_ROOT",
    "TORCH_NCCL_USE_COMM_NONBLOCKING",
    # 0 turns off the watchdog; ranks need not agree on it.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    # Whether the Flight Recorder can be asked; each rank has its own value.
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
)
# Variables that select the GPU of a rank, or allow several ranks on one GPU.
_DEVICES = ("CUDA_VISIBLE_DEVICES", "NCCL_HOSTID")

_SIOCGIFFLAGS = 0x8913
_SIOCGIFADDR = 0x8915
_IFF_UP = 1
_IFF_LOOPBACK = 8

_gpu_recorded = False


def _record_setting(name, value):
    _box.lib.setting(text(name), text("" if value is None else value, _LONGEST))


def _meeting(method, store):
    """How the ranks find each other: `(address, port)`, `(URL, "")`, or two empty texts if unknown."""
    if store is not None:
        return "", ""
    method = "env://" if method is None else str(method)
    if method.startswith("env://"):
        return os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if method.startswith("tcp://"):
        url = urlsplit(method)
        return url.hostname or "", url.port or ""
    address = method.partition("?")[0]
    scheme, separator, rest = address.partition("://")
    if not rest.startswith("/"):
        # The user and the password in an address are left out; a password may contain a slash.
        rest = rest.rpartition("@")[2]
    return scheme + separator + rest, ""


def _launcher():
    """Pid of the parent if it is a launcher that starts the ranks of one world only; otherwise empty."""
    if "TORCHELASTIC_RUN_ID" in os.environ and "GROUP_RANK" in os.environ:
        return os.getppid()
    return ""


def _launchers_store():
    """Address of the launcher's store if ranks must use it instead of creating their own; otherwise empty."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ""
    # The environment before the program could change it.
    with open("/proc/self/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
        started = {name: os.fsdecode(value) for name, _, value in pairs}
    address, port = started.get(b"MASTER_ADDR"), started.get(b"MASTER_PORT")
    return "%s:%s" % (address, port) if address and port else ""


def _common_settings():
    """Names of the variables that affect communication between ranks."""
    names = [name for name in os.environ if name.startswith("NCCL_") and not _OWN.search(name)]
    names.sort()
    return names[:_MOST_VARIABLES] + [name for name in _COMMON if name in os.environ]


def _interfaces():
    """The network interfaces visible to this process: "lo=up,loopback,ipv4 eth0=up,ipv4,ipv6"."""
    import fcntl
    import socket
    import struct

    with_ipv6 = set()
    try:
        with open("/proc/net/if_inet6") as file:
            with_ipv6.update(line.split()[-1] for line in file)
    except (OSError, IndexError):
        pass
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name)[:15])
            answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
            (flags,) = struct.unpack_from("H", answer, 16)
            facts = ["up"] if flags & _IFF_UP else []
            if flags & _IFF_LOOPBACK:
                facts.append("loopback")
            try:
                fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
                facts.append("ipv4")
            except OSError:
                pass
            if name in with_ipv6:
                facts.append("ipv6")
            found.append("%s=%s" % (name, ",".join(facts)))
    return " ".join(found)


def _nccl_version():
    torch = sys.modules.get("torch")
    if torch is None or getattr(getattr(torch, "version", None), "cuda", None) is None:
        return ""
    nccl = sys.modules.get("torch.cuda.nccl")
    return ".".join(str(part) for part in nccl.version()) if nccl is not None else ""


def _driver_version():
    try:
        with open("/proc/driver/nvidia/version") as file:
            found = re.search(r"\d+\.\d+(\.\d+)?", file.readline())
            return found.group() if found else ""
    except OSError:
        return ""


def record(rank, world_size, backend, method, store):
    """Records how this process joins the world, with versions and settings."""
    address, port = _meeting(method, store)
    for name, value in (
        ("init.rank", rank),
        ("init.world_size", world_size),
        ("init.address", address),
        ("init.port", port),
        ("init.backend", "" if backend is None else str(backend).lower()),
        ("init.launcher", _launcher()),
        ("init.launched_world_size", os.environ.get("WORLD_SIZE", "")),
        ("init.local_rank", os.environ.get("LOCAL_RANK", "")),
    ):
        _record_setting(name, value)
    launchers_store = ""
    if store is None and str(method or "env://").startswith("env://"):
        try:
            launchers_store = _launchers_store()
        except Exception:
            pass
    _record_setting("init.launchers_store", launchers_store)
    _record_settings()


def _record_versions():
    """Called when a black box was opened, also for a process that never joins the world."""
    versions = {"python": "%d.%d.%d" % sys.version_info[:3]}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = torch.__version__
        cuda = getattr(getattr(torch, "version", None), "cuda", None)
        if cuda:
            versions["torch.cuda"] = cuda
    for name, version in versions.items():
        _record_setting(name, version)


def _record_settings():
    from .. import __version__

    _record_setting("ddp-doctor", __version__)
    for name, find in (("nccl", _nccl_version), ("nvidia-driver", _driver_version)):
        try:
            version = find()
        except Exception:
            version = ""
        if version:
            _record_setting(name, version)
    for name in _common_settings():
        _record_setting("env." + name, os.environ.get(name))
    for name in _DEVICES:
        if name in os.environ:
            _record_setting("env." + name, os.environ.get(name))
    wanted = [name for name in _backends.INTERFACE_VARIABLES if os.environ.get(name)]
    for name in wanted:
        _record_setting("env." + name, os.environ.get(name))
    if wanted:
        try:
            _record_setting("interfaces", _interfaces())
        except Exception:
            pass


def _name_of_gpu(cuda, number):
    """A unique name of a GPU or of a MIG partition; empty: unknown."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if number < len(visible) and visible[number].strip().startswith("MIG-"):
        return visible[number].strip()
    properties = cuda.get_device_properties(number)
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        return "GPU-%s" % (uuid,)
    place = [getattr(properties, "pci_%s_id" % part, None) for part in ("domain", "bus", "device")]
    return "" if None in place else "pci %04x:%02x:%02x" % tuple(place)


def record_gpu(device):
    """Records once which GPU this process uses for communication.

    `device` is an index, a `torch.device` (without an index: the current device), or None if the program names
    no device; then nothing is recorded, since the current device may be unused. Devices other than CUDA devices are
    ignored. Does not initialize CUDA.
    """
    global _gpu_recorded
    if _gpu_recorded or device is None or not _box.is_open:
        return
    if isinstance(device, int):
        number = device
    elif getattr(device, "type", None) == "cuda":
        number = device.index
    else:
        return
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return
    try:
        number = cuda.current_device() if number is None else number
        name = _name_of_gpu(cuda, number)
        if name:
            _gpu_recorded = True
            _record_setting("gpu.number", number)
            _record_setting("gpu", name)
    except Exception:  # must not affect the call
        pass


def record_gpu_of(args):
    """Called before a call with a new signature. Records the GPU of its tensors."""
    if _gpu_recorded:
        return
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return
    tensors = args.input_tensors or args.output_tensors
    if tensors:
        record_gpu(tensors[0].device)


def _reset():
    global _gpu_recorded
    _gpu_recorded = False


_box.on_open.append(_record_versions)
_box.on_reset.append(_reset)
