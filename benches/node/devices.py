"""Measures what sampling GPUs and network ports costs `ddp-doctor run`, per second.

    python benches/node/devices.py
    python benches/node/devices.py --pairs 40 --seconds 10

Three jobs that only sleep run at the same time: one on a host without devices, one with eight GPUs, and one with
eight InfiniBand ports. Compared is the processor time of their `ddp-doctor run` over the same seconds, which other load
affects alike. The library of the GPUs is `nvml.c`, which answers at once: what NVML itself takes comes on top. The ports
are files in memory. All three have a time scale of 0.1, by which ports are read every second, as while a rank waits.
Needs a C compiler and the release build, or another one with --program.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common import built, interval, machine  # noqa: E402

DEVICES = 8
NOTHING, GPUS, PORTS = KINDS = ("no device", "%d GPUs" % DEVICES, "%d ports" % DEVICES)
COUNTERS = (
    "counters/link_downed",
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/port_rcv_remote_physical_errors",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "counters/port_xmit_data",
    "counters/port_rcv_data",
    "hw_counters/rx_icrc_encapsulated",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/packet_seq_err",
    "hw_counters/implied_nak_seq_err",
    "hw_counters/out_of_sequence",
    "hw_counters/rnr_nak_retry_err",
)


def ports(folder):
    """A tree of files as the kernel shows it."""
    for number in range(DEVICES):
        port = os.path.join(folder, "class", "infiniband", "mlx5_%d" % number, "ports", "1")
        files = {name: "0\n" for name in COUNTERS}
        files.update({"state": "4: ACTIVE\n", "link_layer": "InfiniBand\n"})
        for name, text in files.items():
            path = os.path.join(port, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
    return folder


def used(pid):
    """Processor time of all threads of a process, in seconds."""
    total = 0
    for thread in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/schedstat" % (pid, thread)) as file:
            total += int(file.read().split()[0])
    return total / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--program", help="instead of the release build")
    parser.add_argument("--quick", action="store_true", help="a smoke test without meaningful results")
    options = parser.parse_args()
    if options.quick:
        options.pairs, options.seconds = 2, 2
    program = options.program or built("ddp-doctor")
    print(machine())
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        library = os.path.join(folder, "libnvidia-ml.so.1")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        empty = os.path.join(folder, "empty")
        os.mkdir(empty)
        common = dict(os.environ, DDP_DOCTOR_TIME_SCALE="0.1", DDP_DOCTOR_SYSFS=empty)
        environments = {
            NOTHING: common,
            GPUS: dict(common, DDP_DOCTOR_NVML_LIBRARY=library, NVML_GPUS=str(DEVICES)),
            PORTS: dict(common, DDP_DOCTOR_SYSFS=ports(os.path.join(folder, "ports"))),
        }
        length = 2 * (options.pairs * options.seconds + 10)
        jobs = {}
        try:
            for kind, environment in environments.items():
                run_dir = os.path.join(folder, "run " + kind)
                command = [program, "run", "-q", "--run-dir", run_dir, "--", "sleep", str(length)]
                jobs[kind] = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            time.sleep(3)
            turns = {kind: [] for kind in KINDS}
            for _ in range(options.pairs):
                before = {kind: used(job.pid) for kind, job in jobs.items()}
                begin = time.monotonic()
                time.sleep(options.seconds)
                wall = time.monotonic() - begin
                for kind, job in jobs.items():
                    turns[kind].append((used(job.pid) - before[kind]) / wall)
        finally:
            for job in jobs.values():
                job.terminate()
            for job in jobs.values():
                job.wait()
    print("%s: %.2f ms of processor time a second" % (NOTHING, 1e3 * statistics.median(turns[NOTHING])))
    for kind in (GPUS, PORTS):
        pairs = list(zip(turns[kind], turns[NOTHING]))
        more = interval([1e6 * (it - without) / DEVICES for it, without in pairs])
        ratio = interval([it / without for it, without in pairs])
        print("%s: +%.0f us a second for each (95 %%: %.0f to %.0f), ratio %.2f (%.2f to %.2f)" % ((kind,) + more + ratio))


if __name__ == "__main__":
    main()
