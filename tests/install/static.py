"""The static programs, each in a root directory without any other file."""

import contextlib
import os
import shutil
import subprocess

from support import ARCHITECTURES, CHROOT, DD102, TestCase, mount, run, run_directory, static_program


class StaticProgram(TestCase):
    def each(self):
        for arch in ARCHITECTURES:
            with self.subTest(arch), contextlib.ExitStack() as stack:
                root = self.folder()
                shutil.copy(static_program(arch, self.folder()), root)
                mount(stack, self.made(root, "proc"), "-t", "proc", "none")
                mount(stack, self.made(root, "dev/shm"), "-t", "tmpfs", "none")
                self.made(root, "tmp")
                start = ["/ddp-doctor"]
                if arch != "x86_64":
                    emulator = shutil.which("qemu-%s-static" % arch)
                    if not emulator:
                        self.skipTest("no qemu-%s-static" % arch)
                    shutil.copy(emulator, root / "emulator")
                    start = ["/emulator", *start]
                yield arch, root, lambda *words, start=start, root=root: run(
                    [CHROOT, root, *start, *words], env={"HOME": "/tmp"}, cwd=root
                )

    @staticmethod
    def made(root, name):
        (root / name).mkdir(parents=True)
        return root / name

    def test_commands_that_need_no_job(self):
        for arch, root, program in self.each():
            self.assertRegex(self.succeeds(program("--version")), r"%s-unknown-linux-musl\)" % arch)
            self.assertIn("early-exit", self.succeeds(program("explain", "DD102")))
            run_directory(root)
            analysis = program("analyze", "/run")
            self.assertEqual(analysis.returncode, 1, analysis.stdout)
            self.assertRegex(analysis.stdout, DD102)
            self.assertRegex(program("watch", "--once", "/run").stdout, "DD102")
            if arch == "x86_64":
                stack = self.succeeds(program("dump", "--pid", str(os.getpid())))
                self.assertIn("test_commands_that_need_no_job", stack)

    def test_coordinator(self):
        for arch, root, _ in self.each():
            start = ["/emulator", "/ddp-doctor"] if (root / "emulator").exists() else ["/ddp-doctor"]
            command = [CHROOT, root, *start, "coordinator", "--listen", "127.0.0.1:0", "--report-dir", "/tmp"]
            coordinator = subprocess.Popen(command, env={"HOME": "/tmp"}, stdout=subprocess.PIPE, text=True)
            try:
                self.assertRegex(coordinator.stdout.readline(), r"127\.0\.0\.1:\d+")
            finally:
                coordinator.terminate()
                coordinator.wait()
                coordinator.stdout.close()

    def test_run_states_what_is_missing_and_runs_the_job(self):
        for arch, root, program in self.each():
            if arch != "x86_64":
                continue  # the emulator does not start children of the program
            self.assertRegex(program("demo", "early-exit").stdout, DD102)
            job = program("run", "--", "/ddp-doctor", "explain", "DD102")
            self.assertEqual(job.returncode, 0, job.stdout)
            self.assertIn("early-exit", job.stdout)
            self.assertRegex(job.stdout, "package|library")
