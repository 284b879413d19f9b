"""A job in a container that has the package, with the program outside of it."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import socket
import subprocess
import time

from support import CHROOT, ROOT, STABLE, System, TestCase, environment, mount, pytorch, run, static_program

EXAMPLE = ROOT / "agent/python/examples/uneven_batches.py"


def own_address():
    """An address of this machine that is not the loopback; None if there is none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


class Container(TestCase):
    """Namespaces of processes, mounts, names and IPC, and another system's root directory."""

    def setUp(self):
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.system = System(STABLE, stack)
        (self.system.root / "dev/shm").mkdir()
        mount(stack, self.system.root / "dev/shm", "-t", "tmpfs", "none")
        python = pytorch()
        where = "import sys, sysconfig; print(sys.prefix, sys.base_prefix, sysconfig.get_path('purelib'), sep='\\n')"
        prefix, base, self.packages = run([python, "-c", where]).stdout.split()
        for folder in (prefix, base):
            inside = self.system.root / folder[1:]
            inside.mkdir(parents=True, exist_ok=True)
            mount(stack, inside, "--bind", folder)
        self.python = python
        shutil.copy(EXAMPLE, self.system.root / "train.py")
        # As container runtimes write it; torchrun looks these names up.
        (self.system.root / "etc/hosts").write_text("127.0.0.1 localhost %s\n" % socket.gethostname())
        self.program = static_program("x86_64", self.folder())

    def start(self, **changes):
        words = ["unshare", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", CHROOT, self.system.root]
        words += ["sh", "-c", "mount -t proc none /proc; exec \"$@\"", "sh"]
        words += ["/v/bin/python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "/train.py"]
        plain = {"PATH": "/v/bin:/usr/bin:/bin", "HOME": "/root", "OMP_NUM_THREADS": "1", **changes}
        job = subprocess.Popen([str(word) for word in words], env=plain, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job

    def make_environment(self):
        self.succeeds(self.system.run(self.python, "-m", "venv", "/v"))
        (packages,) = (self.system.root / "v/lib").glob("python3*/site-packages")
        (packages / "pytorch.pth").write_text(self.packages)

    def test_coordinator_outside(self):
        address = own_address()
        if not address:
            self.skipTest("this machine has only the loopback address")
        self.make_environment()
        self.succeeds(self.system.run("sh", "-c", "/v/bin/pip install --no-index /wheel/*.whl"))
        reports, token = self.folder(), secrets.token_hex(16)
        coordinator = subprocess.Popen(
            [self.program, "coordinator", "--listen", address + ":0", "--report-dir", reports],
            env=environment(DDP_DOCTOR_TOKEN=token),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(coordinator.stdout.close)
        self.addCleanup(coordinator.wait)
        self.addCleanup(coordinator.terminate)
        listening = re.search(r"[0-9.]+:\d+", coordinator.stdout.readline()).group()
        self.start(DDP_DOCTOR_COORDINATOR=listening, DDP_DOCTOR_TOKEN=token)
        codes = []
        for _ in range(240):
            time.sleep(0.5)
            found = [json.loads(file.read_text()) for file in pathlib.Path(reports).glob("*.json")]
            codes = [(finding["code"], finding["confidence"]) for report in found for finding in report["findings"]]
            if ("DD103", "proved") in codes:
                break
        self.assertIn(("DD103", "proved"), codes)

    def test_attach_from_outside(self):
        self.make_environment()
        self.start()
        text = ""
        for _ in range(6):
            time.sleep(15)
            text = run([self.program, "attach"], cwd=self.folder(), env=environment()).stdout
            if "error[" in text:
                break
        self.assertRegex(text, r"train\.py:19")
        self.assertRegex(text, r"error\[DD103\] op-mismatch: .*barrier of rank 1 at train\.py:\d+")
