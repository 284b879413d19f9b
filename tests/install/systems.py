"""Systems with other C libraries and Pythons, without a compiler, and users without a home or shared memory."""

import os
import re
import subprocess

from support import CHROOT, DD102, VERSION, TestCase, is_release

SHARED = ("share/man/man1/ddp-doctor-run.1", "share/bash-completion/completions/ddp-doctor")


class OtherSystems(TestCase):
    def test_installed_program_diagnoses_a_job(self):
        for system in self.each_system():
            system.install()
            version = system.run("ddp-doctor", "--version")
            if is_release():
                build = r"\([0-9a-f]{10}(-changed)?, x86_64-unknown-linux-gnu\)"
                self.assertRegex(version.stdout, r"^ddp-doctor %s %s\n$" % (re.escape(VERSION), build))
            for program in (["ddp-doctor"], ["python", "-m", "ddp_doctor"]):
                demo = system.run(*program, "demo", "early-exit")
                self.assertRegex(demo.stdout, DD102)
            job = system.run("ddp-doctor", "run", "--", "sh", "-c", "echo trained; exit 7")
            self.assertEqual(job.returncode, 7, job.stdout)
            self.assertIn("trained", job.stdout)

    def test_libraries_load(self):
        load = "import ctypes, ddp_doctor, pathlib; [ctypes.PyDLL(str(it)) for it in pathlib.Path(ddp_doctor.__file__).parent.glob('*.so')]"
        for system in self.each_system():
            system.install()
            done = system.run("python", "-c", load)
            self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_user_without_shared_memory_and_with_a_read_only_home(self):
        for system in self.each_system():
            system.install()
            os.chmod(system.root / "home/user", 0o555)
            os.chown(system.root / "home/user", 0, 0)
            demo = system.run("sh", "-c", "cd && exec ddp-doctor demo early-exit", user=1000)
            self.assertRegex(demo.stdout, DD102)

    def test_job_runs_where_the_program_does_not_start(self):
        for system in self.each_system():
            system.install()
            (program,) = (system.root / "v/lib").glob("python3*/site-packages/ddp_doctor/bin/ddp-doctor")
            # A program for the loader of another system, as for a newer C library.
            content = program.read_bytes()
            program.write_bytes(content.replace(b"/lib64/ld-linux-x86-64.so.2", b"/lib64/ld-linux-x86-64.so.9", 1))
            job = system.run("ddp-doctor", "run", "--on-hang", "kill", "--", "sh", "-c", "echo trained; exit 7")
            self.assertEqual(job.returncode, 7, job.stdout)
            self.assertIn("the job runs without ddp-doctor", job.stdout)
            self.assertIn("trained", job.stdout)

    def test_uninstallation_leaves_nothing(self):
        for system in self.each_system():
            before = system.install()
            for page in SHARED if is_release() else ():
                self.assertTrue((system.root / "v" / page).exists(), page)
            (package,) = (system.root / "v/lib").glob("python3*/site-packages")
            if is_release():
                self.assertIn("tokio", (package / "ddp_doctor/THIRD-PARTY.txt").read_text())
            licenses = [path.name for path in package.glob("ddp_doctor-*.dist-info/**/LICENSE-*")]
            self.assertEqual(sorted(licenses), ["LICENSE-APACHE", "LICENSE-MIT"])
            done = system.run("/v/bin/pip", "uninstall", "--yes", "ddp_doctor")
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(system.files() - before, set())

    def test_installation_in_the_home_of_a_user(self):
        for system in self.each_system():
            # Debian's pip asks for the option in systems whose packages manage Python.
            install = "pip install --user --no-index $(pip install --help | grep -o -m 1 -e --break-system-packages) /wheel/*.whl"
            self.succeeds(system.run("sh", "-c", install, user=1000))
            demo = system.run("sh", "-c", "cd && exec .local/bin/ddp-doctor demo early-exit", user=1000)
            self.assertRegex(demo.stdout, DD102)

    def test_stacks_of_the_system_s_python(self):
        for system in self.each_system():
            system.install()

            def start(words):
                command = [CHROOT, system.root, "/usr/bin/python3", *words]
                return subprocess.Popen(command, stdout=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"})

            self.reads_stack(start, lambda pid: system.run("ddp-doctor", "dump", "--pid", str(pid)))
