"""A job whose `ddp-doctor` does not start on this system runs without it."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent


class JobAlone(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program = self.folder / "ddp-doctor"
        (self.folder / "torchrun").write_text('#!/bin/sh\necho "torchrun $*"\n')
        (self.folder / "torchrun").chmod(0o755)

    def run_program(self, content, *arguments, mode=0o755):
        if content is not None:
            self.program.write_bytes(content)
            self.program.chmod(mode)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DDP_DOCTOR")}
        environment.update(
            DDP_DOCTOR_PROGRAM=str(self.program),
            PATH="%s:%s" % (self.folder, environment["PATH"]),
            PYTHONPATH=str(PACKAGE),
            DDP_DOCTOR_TOKEN="the-token",
            DDP_DOCTOR_METRICS_TOKEN="the-token-of-its-metrics",
            DDP_DOCTOR_WEBHOOK="https://host/secret",
        )
        return subprocess.run(
            [sys.executable, "-m", "ddp_doctor", *arguments], env=environment, capture_output=True, text=True, timeout=60
        )

    def assert_runs_alone(self, done, reason, output):
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertTrue(lines[0].startswith("ddp-doctor: the job runs without ddp-doctor: "), lines)
        self.assertIn(reason, lines[0])
        self.assertEqual((done.stdout, done.returncode), (output, 0))

    def test_program_for_a_newer_c_library(self):
        # What the loader of libraries does with such a program: a line, and status 1.
        said = b"#!/bin/sh\necho \"$0: version 'GLIBC_9.99' not found\" >&2\nexit 1\n"
        done = self.run_program(said, "run", "--on-hang", "kill", "--", "echo", "--", "trained")
        self.assert_runs_alone(done, "version 'GLIBC_9.99' not found", "-- trained\n")

    def test_program_for_another_architecture(self):
        header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf3\x00" + bytes(44)
        done = self.run_program(header, "run", "--report=r.json", "echo", "--run-dir", "trained")
        self.assert_runs_alone(done, "Exec format error", "--run-dir trained\n")

    def test_missing_interpreter_of_the_program(self):
        done = self.run_program(b"#!/no/such/loader\n", "run", "--nproc-per-node", "2", "train.py", "--lr", "1")
        self.assert_runs_alone(done, "No such file", "torchrun --nproc-per-node 2 train.py --lr 1\n")

    def test_program_without_permission_to_execute(self):
        done = self.run_program(b"#!/bin/sh\n", "--color", "never", "run", "--", "echo", "trained", mode=0o644)
        self.assert_runs_alone(done, "Permission denied", "trained\n")

    def test_missing_program(self):
        done = self.run_program(None, "run", "--", "sh", "-c", "echo trained; exit 7")
        self.assertEqual((done.stdout, done.returncode), ("trained\n", 7))

    def test_job_does_not_inherit_secrets(self):
        done = self.run_program(b"#!/no/such/loader\n", "run", "--", "env")
        self.assertIn("DDP_DOCTOR_PROGRAM=", done.stdout)
        for name in ["DDP_DOCTOR_TOKEN", "DDP_DOCTOR_METRICS_TOKEN", "DDP_DOCTOR_WEBHOOK"]:
            self.assertNotIn(name, done.stdout)

    def test_status_of_a_job_that_cannot_start(self):
        done = self.run_program(b"#!/no/such/loader\n", "run", "--", "/no/such/job")
        self.assertEqual(done.returncode, 127)

    def test_commands_without_a_job_fail(self):
        for arguments in [["status"], ["run"], ["run", "--help"], ["run", "--on-hang", "kill"], ["--color", "run"]]:
            done = self.run_program(b"#!/no/such/loader\n", *arguments)
            self.assertEqual((done.stdout, done.returncode), ("", 1), arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_program_in_the_working_directory_is_not_executed(self):
        self.program.write_text("#!/bin/sh\necho planted\n")
        self.program.chmod(0o755)
        for path in ["/usr/bin:/bin:", ":/usr/bin:/bin", ".:/usr/bin:/bin", "/usr/bin:/bin"]:
            environment = {"PATH": path, "PYTHONPATH": str(PACKAGE), "PYTHONSAFEPATH": "1"}
            done = subprocess.run(
                [sys.executable, "-m", "ddp_doctor", "--version"],
                env=environment,
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertNotIn("planted", done.stdout, path)

    def test_working_program_gets_all_arguments(self):
        said = b'#!/bin/sh\n[ "$1" = --version ] || echo "$@"\n'
        done = self.run_program(said, "run", "--job", "j", "--", "echo", "trained")
        self.assertEqual((done.stdout, done.stderr), ("run --job j -- echo trained\n", ""))


if __name__ == "__main__":
    unittest.main()
