"""The files under test, and systems to install them in."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = pathlib.Path(
    os.environ.get("DDP_DOCTOR_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "ddp-doctor")
)
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)
ARCHITECTURES = ("x86_64", "aarch64")
OLDEST, STABLE, NEWEST = "bullseye", "trixie", "sid"
SYSTEMS = [OLDEST, STABLE, NEWEST]
DD102 = re.compile(r"error\[DD102\] early-exit")
SECONDS = 600
CHROOT = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin")
# A program whose stack is read from outside.
SLEEPER = """\
import time

def waits_for_long():
    time.sleep(60)

print("ready", flush=True)
waits_for_long()
"""

_built = None


def wheel(arch="x86_64"):
    wheels = [_built] if _built else sorted((ROOT / "dist").glob("ddp_doctor-%s-*%s.whl" % (VERSION, arch)))
    if len(wheels) != 1:
        raise AssertionError("dist/ contains %d wheels of %s for %s: run `make wheels`" % (len(wheels), VERSION, arch))
    return wheels[0]


def build_wheel(files, folder):
    """Makes the wheel under test of files that were built for this system, and need its C library or a later one."""
    global _built
    venv = folder / "venv"
    commands = (
        [sys.executable, "-m", "venv", venv],
        [venv / "bin/pip", "install", "--quiet", "setuptools>=77.0.3"],
        [venv / "bin/pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT / "agent/python"],
    )
    for command in commands:
        done = run(command, env=environment(DDP_DOCTOR_BUILT=str(files)))
        if done.returncode:
            sys.exit(done.stdout)
    (_built,) = folder.glob("*.whl")
    SYSTEMS[:] = [STABLE]


def is_release():
    return _built is None


def static_program(arch, folder):
    name = "ddp-doctor-%s-%s-unknown-linux-musl" % (VERSION, arch)
    archive = ROOT / "dist" / (name + ".tar.gz")
    if not archive.exists():
        raise AssertionError("%s is missing: run `make wheels`" % archive)
    subprocess.run(["tar", "-C", folder, "-xzf", archive], check=True)
    return pathlib.Path(folder, name, "ddp-doctor")


def run_directory(folder):
    """`folder`/run, what a demonstration on this machine left."""
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-install-") as scratch:
        run([static_program("x86_64", scratch), "demo", "early-exit"], cwd=scratch)
        (left,) = pathlib.Path(scratch, "ddp-doctor-runs").iterdir()
        shutil.move(left, folder / "run")


def environment(**changes):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_DOCTOR", "PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **changes}


def run(command, **options):
    options.setdefault("env", environment())
    return subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=SECONDS, **options
    )


def pytorch():
    """The Python of the environment with PyTorch."""
    lines = run([ROOT / "scripts/pytorch-env"], env=dict(os.environ)).stdout.strip().splitlines()
    return lines[-1] + "/bin/python"


def mount(stack, target, *arguments):
    subprocess.run(["mount", *map(str, arguments), str(target)], check=True)
    stack.callback(subprocess.run, ["umount", "--lazy", str(target)], check=True)


class System:
    """A copy in memory of a release of Debian, with the wheel in `/wheel`."""

    def __init__(self, release, stack):
        try:
            self._mount(release, stack)
        except (OSError, subprocess.SubprocessError) as error:
            if is_release():
                raise
            # A machine for CI may have neither the right to mount nor a mirror of Debian.
            raise unittest.SkipTest("this machine cannot have Debian %s: %s" % (release, error)) from error

    def _mount(self, release, stack):
        stored = CACHE / "systems" / release
        if not (stored / "complete").exists():
            self._store(release, stored)
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="ddp-doctor-install-"))
        stack.callback(shutil.rmtree, scratch)
        mount(stack, scratch, "-t", "tmpfs", "none")
        for name in ("upper", "work", "root"):
            (scratch / name).mkdir()
        self.root = scratch / "root"
        options = "lowerdir=%s,upperdir=%s/upper,workdir=%s/work" % (stored, scratch, scratch)
        mount(stack, self.root, "-t", "overlay", "none", "-o", options)
        mount(stack, self.root / "proc", "-t", "proc", "none")
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
        command = ["debootstrap", "--variant=minbase", packages, release, stored]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=SECONDS)
        (stored / "complete").touch()

    def run(self, *command, user=0, **changes):
        inside = [CHROOT, "--userspec=%d:%d" % (user, user), self.root, *command]
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


class TestCase(unittest.TestCase):
    def reads_stack(self, start, dump):
        """`start(words)` starts a program with these arguments, `dump(pid)` prints the stack of a process."""
        sleeper = start(["-c", SLEEPER])
        try:
            self.assertEqual(sleeper.stdout.readline(), b"ready\n")
            stack = self.succeeds(dump(sleeper.pid))
            self.assertRegex(stack, r"waits_for_long +<string>:4")
            self.assertRegex(stack, r"<module> +<string>:7")
        finally:
            sleeper.kill()
            sleeper.wait()
            sleeper.stdout.close()

    def folder(self):
        folder = tempfile.mkdtemp(prefix="ddp-doctor-install-")
        # A process that was ended may still remove its own files.
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return pathlib.Path(folder)

    def each_system(self):
        for release in SYSTEMS:
            print(release, end=" ", file=sys.stderr, flush=True)
            with self.subTest(release), contextlib.ExitStack() as stack:
                yield System(release, stack)

    def succeeds(self, done):
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout
