"""The wheel for AArch64, with qemu-user and the libraries of a system for AArch64."""

import os
import pathlib
import shutil
import zipfile

from support import DD102, VERSION, TestCase, environment, run, run_directory, wheel


class AArch64(TestCase):
    def setUp(self):
        self.root = os.environ.get("DDP_DOCTOR_TEST_AARCH64")
        self.emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
        if not self.root or not self.emulator:
            self.skipTest("no qemu-aarch64, or DDP_DOCTOR_TEST_AARCH64 is not set")
        self.scratch = self.folder()
        with zipfile.ZipFile(wheel("aarch64")) as archive:
            archive.extractall(self.scratch)
        self.package = self.scratch / "ddp_doctor"
        (self.package / "bin/ddp-doctor").chmod(0o755)

    def emulated(self, program, *words):
        command = [self.emulator, "-L", self.root, program, *words]
        return run(command, env=environment(PYTHONPATH=str(self.scratch)), cwd=self.scratch)

    def test_commands(self):
        program = self.package / "bin/ddp-doctor"
        version = self.succeeds(self.emulated(program, "--version"))
        self.assertRegex(version, r"^ddp-doctor %s \(.*, aarch64-unknown-linux-gnu\)" % VERSION)
        self.assertIn("early-exit", self.succeeds(self.emulated(program, "explain", "DD102")))
        run_directory(self.scratch)
        # Evidence of another architecture.
        self.assertRegex(self.emulated(program, "analyze", self.scratch / "run").stdout, DD102)

    def test_python_package(self):
        python = next(pathlib.Path(self.root, "usr/bin").glob("python3.*[0-9]"))
        load = "import ctypes, ddp_doctor, pathlib; [ctypes.PyDLL(str(it)) for it in pathlib.Path(ddp_doctor.__file__).parent.glob('*.so')]"
        self.assertEqual(self.succeeds(self.emulated(python, "-c", load)), "")
        job = self.emulated(python, "-m", "ddp_doctor", "run", "--", "/bin/sh", "-c", "echo trained; exit 7")
        self.assertIn("trained", job.stdout)
        self.assertEqual(job.returncode, 7, job.stdout)
