"""Installs the wheel in dist/ where its users have it, and uses it there: `make test-install`, as root.

Systems are releases of Debian, with the oldest and the newest C library that debootstrap's default mirror has. debootstrap
(Debian's package of that name) stores each in $DDP_DOCTOR_CACHE, else $XDG_CACHE_HOME/ddp-doctor, else
~/.cache/ddp-doctor (0.3 GB each, once); a test changes a copy in memory. On this machine, pip, uv and pipx install the
wheel, and torchrun runs a job with it.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(
    os.environ.get("DDP_DOCTOR_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "ddp-doctor")
)
SYSTEMS = ("bullseye", "trixie")
INSTALLERS = ("uv==0.9.9", "pipx==1.8.0")
SECONDS = 600
DD102 = re.compile(r"error\[DD102\] early-exit")


def wheel():
    wheels = sorted((ROOT / "dist").glob("ddp_doctor-*x86_64.whl"))
    if len(wheels) != 1:
        sys.exit("dist/ contains %d wheels: run `make wheels`" % len(wheels))
    return wheels[0]


def environment(**changes):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_DOCTOR", "PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **changes}


def run(command, **options):
    options.setdefault("env", environment())
    return subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, **options
    )


class System:
    """A copy in memory of a release of Debian, with the wheel in `/wheel`."""

    def __init__(self, release, stack):
        stored = CACHE / "systems" / release
        if not (stored / "complete").exists():
            self._store(release, stored)
        self._scratch = pathlib.Path(tempfile.mkdtemp(prefix="ddp-doctor-install-"))
        stack.callback(shutil.rmtree, self._scratch)
        self._mount(stack, self._scratch, "-t", "tmpfs", "none")
        for name in ("upper", "work", "root"):
            (self._scratch / name).mkdir()
        self.root = self._scratch / "root"
        options = "lowerdir=%s,upperdir=%s/upper,workdir=%s/work" % (stored, self._scratch, self._scratch)
        self._mount(stack, self.root, "-t", "overlay", "none", "-o", options)
        self._mount(stack, self.root / "proc", "-t", "proc", "none")
        shutil.rmtree(self.root / "dev/shm", ignore_errors=True)
        (self.root / "wheel").mkdir()
        shutil.copy(wheel(), self.root / "wheel")
        user = self.root / "home/user"
        user.mkdir()
        os.chown(user, 1000, 1000)

    @staticmethod
    def _store(release, stored):
        print("storing Debian %s in %s" % (release, stored), file=sys.stderr)
        shutil.rmtree(stored, ignore_errors=True)
        stored.parent.mkdir(parents=True, exist_ok=True)
        packages = "--include=python3,python3-venv,python3-pip"
        subprocess.run(["debootstrap", "--variant=minbase", packages, release, stored], check=True, stdout=subprocess.DEVNULL)
        (stored / "complete").touch()

    @staticmethod
    def _mount(stack, target, *arguments):
        subprocess.run(["mount", *arguments, target], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", target], check=True)

    def run(self, *command, user=0, **changes):
        inside = ["chroot", "--userspec=%d:%d" % (user, user), self.root, *command]
        home = "/root" if user == 0 else "/home/user"
        return run(inside, env={"PATH": "/v/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, **changes})

    def files(self):
        found = set()
        for folder, _, names in os.walk(self.root / "v"):
            found.update(os.path.join(folder, name) for name in names if not name.endswith(".pyc"))
        return found

    def install(self):
        # debootstrap brings neither; the wheel must not need them.
        assert not any(shutil.which(tool, path=str(self.root / "usr/bin")) for tool in ("cargo", "rustc"))
        assert self.run("python3", "-m", "venv", "/v").returncode == 0
        before = self.files()
        done = self.run("sh", "-c", "/v/bin/pip install --no-index /wheel/*.whl")
        assert done.returncode == 0, done.stdout
        return before


class OtherSystems(unittest.TestCase):
    def each(self):
        for release in SYSTEMS:
            with self.subTest(release), contextlib.ExitStack() as stack:
                yield System(release, stack)

    def test_installed_program_diagnoses_a_job(self):
        for system in self.each():
            system.install()
            version = system.run("ddp-doctor", "--version")
            self.assertRegex(version.stdout, r"^ddp-doctor \d+\.\d+\.\d+ \([0-9a-f]{10}(-changed)?, x86_64-unknown-linux-gnu\)\n$")
            for program in (["ddp-doctor"], ["python", "-m", "ddp_doctor"]):
                demo = system.run(*program, "demo", "early-exit")
                self.assertRegex(demo.stdout, DD102)
            job = system.run("ddp-doctor", "run", "--", "sh", "-c", "echo trained; exit 7")
            self.assertEqual(job.returncode, 7, job.stdout)
            self.assertIn("trained", job.stdout)

    def test_libraries_load(self):
        load = "import ctypes, ddp_doctor, pathlib; [ctypes.PyDLL(str(it)) for it in pathlib.Path(ddp_doctor.__file__).parent.glob('*.so')]"
        for system in self.each():
            system.install()
            done = system.run("python", "-c", load)
            self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_user_without_shared_memory_and_with_a_read_only_home(self):
        for system in self.each():
            system.install()
            os.chmod(system.root / "home/user", 0o555)
            os.chown(system.root / "home/user", 0, 0)
            demo = system.run("sh", "-c", "cd && exec ddp-doctor demo early-exit", user=1000)
            self.assertRegex(demo.stdout, DD102)

    def test_job_runs_where_the_program_does_not_start(self):
        for system in self.each():
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
        for system in self.each():
            before = system.install()
            for page in ("share/man/man1/ddp-doctor-run.1", "share/bash-completion/completions/ddp-doctor"):
                self.assertTrue((system.root / "v" / page).exists(), page)
            (package,) = (system.root / "v/lib").glob("python3*/site-packages")
            self.assertIn("tokio", (package / "ddp_doctor/THIRD-PARTY.txt").read_text())
            licenses = [path.name for path in package.glob("ddp_doctor-*.dist-info/**/LICENSE-*")]
            self.assertEqual(sorted(licenses), ["LICENSE-APACHE", "LICENSE-MIT"])
            done = system.run("/v/bin/pip", "uninstall", "--yes", "ddp_doctor")
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(system.files() - before, set())


class ThisSystem(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ddp-doctor-install-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_torchrun_job(self):
        pytorch = run([ROOT / "scripts/pytorch-env"], env=dict(os.environ)).stdout.strip().splitlines()[-1]
        self.assertEqual(run([pytorch + "/bin/python", "-m", "venv", self.folder / "v"]).returncode, 0)
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        lender = run([pytorch + "/bin/python", "-c", where]).stdout
        package = run([self.folder / "v/bin/python", "-c", where]).stdout.strip()
        pathlib.Path(package, "pytorch.pth").write_text(lender)
        done = run([self.folder / "v/bin/pip", "install", "--no-index", wheel()])
        self.assertEqual(done.returncode, 0, done.stdout)
        words = "run --on-hang kill --kill-after 2 -- python -m torch.distributed.run --standalone --nproc-per-node 2"
        path = "%s:%s" % (self.folder / "v/bin", os.environ["PATH"])
        job = run(
            ["ddp-doctor", *words.split(), ROOT / "agent/python/examples/uneven_batches.py"],
            cwd=self.folder,
            env=environment(PATH=path, OMP_NUM_THREADS="1"),
        )
        self.assertEqual(job.returncode, 75, job.stdout)
        self.assertRegex(job.stdout, r"uneven_batches\.py:\d+")

    def test_installers(self):
        self.assertEqual(run([sys.executable, "-m", "venv", self.folder / "tools"]).returncode, 0)
        done = run([self.folder / "tools/bin/pip", "install", "--quiet", *INSTALLERS])
        self.assertEqual(done.returncode, 0, done.stdout)
        home = {"HOME": str(self.folder), "XDG_DATA_HOME": "", "XDG_BIN_HOME": "", "PIPX_HOME": "", "UV_TOOL_DIR": ""}
        home = environment(**{name: value for name, value in home.items() if value})
        for command in (["uv", "tool", "install", "--offline"], ["pipx", "install"]):
            with self.subTest(command[0]):
                done = run([self.folder / "tools/bin" / command[0], *command[1:], wheel()], env=home)
                self.assertEqual(done.returncode, 0, done.stdout)
                program = self.folder / ".local/bin/ddp-doctor"
                self.assertRegex(run([program, "demo", "early-exit"], env=home, cwd=self.folder).stdout, DD102)
                program.unlink()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_known_args()
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("the test of installations needs root and debootstrap")
    unittest.main(verbosity=2)
