"""This machine: installers, interpreters and kinds of environments, and a job of PyTorch."""

import os
import pathlib
import shutil
import subprocess
import sys

from support import DD102, ROOT, TestCase, environment, pytorch, run, wheel

INSTALLERS = ("uv==0.9.9", "pipx==1.8.0")
MINOR_VERSIONS = range(9, 15)
LIBRARIES_LOAD = (
    "import ctypes, ddp_doctor, pathlib;"
    "[ctypes.PyDLL(str(it)) for it in pathlib.Path(ddp_doctor.__file__).parent.glob('*.so')]"
)


def interpreter(minor):
    """Python 3.`minor` on PATH or of pyenv; None if there is none."""
    name = "python3.%d" % minor
    root = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    found = [*sorted(root.glob("versions/3.%d.*/bin/%s" % (minor, name))), shutil.which(name)]
    works = "import ensurepip, sys; assert sys.version_info[1] == %d" % minor
    return next((it for it in found if it and run([it, "-c", works]).returncode == 0), None)


class ThisSystem(TestCase):
    def setUp(self):
        self.scratch = self.folder()

    def diagnoses(self, program, **changes):
        demo = run([program, "demo", "early-exit"], env=environment(**changes), cwd=self.scratch)
        self.assertRegex(demo.stdout, DD102)

    def test_versions_of_python(self):
        for minor in MINOR_VERSIONS:
            with self.subTest("3.%d" % minor):
                found = interpreter(minor)
                if not found:
                    self.skipTest("no Python 3.%d" % minor)
                prefix = self.scratch / str(minor)
                self.succeeds(run([found, "-m", "venv", prefix]))
                self.succeeds(run([prefix / "bin/pip", "install", "--no-index", wheel()]))
                self.assertEqual(self.succeeds(run([prefix / "bin/python", "-c", LIBRARIES_LOAD])), "")
                self.diagnoses(prefix / "bin/ddp-doctor")

                def start(words):
                    return subprocess.Popen([prefix / "bin/python", *words], stdout=subprocess.PIPE, env=environment())

                self.reads_stack(start, lambda pid: run([prefix / "bin/ddp-doctor", "dump", "--pid", pid]))

    def test_prefix_with_its_own_python(self):
        """As conda's: the interpreter, its library and the packages are in one directory, which was moved."""
        python = os.path.realpath(next(filter(None, map(interpreter, MINOR_VERSIONS))))
        where = "import sys, sysconfig; print(sys.prefix, sysconfig.get_path('stdlib'), sep='\\n')"
        prefix, library = run([python, "-c", where]).stdout.split()
        moved = self.scratch / "prefix"
        inside = moved / os.path.relpath(library, prefix)
        (moved / "bin").mkdir(parents=True)
        shutil.copy(python, moved / "bin/python")
        shutil.copytree(library, inside, symlinks=True, ignore=shutil.ignore_patterns("site-packages", "test", "__pycache__"))
        own = environment(LD_LIBRARY_PATH=os.path.join(prefix, "lib"))
        self.succeeds(run([moved / "bin/python", "-m", "ensurepip"], env=own))
        self.succeeds(run([moved / "bin/python", "-m", "pip", "install", "--no-index", wheel()], env=own))
        self.assertTrue(list(moved.glob("lib/python3*/site-packages/ddp_doctor/bin/ddp-doctor")))
        self.diagnoses(moved / "bin/ddp-doctor", LD_LIBRARY_PATH=os.path.join(prefix, "lib"))

    def test_torchrun_job(self):
        python = pytorch()
        self.succeeds(run([python, "-m", "venv", self.scratch / "v"]))
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        lender = run([python, "-c", where]).stdout
        package = run([self.scratch / "v/bin/python", "-c", where]).stdout.strip()
        pathlib.Path(package, "pytorch.pth").write_text(lender)
        self.succeeds(run([self.scratch / "v/bin/pip", "install", "--no-index", wheel()]))
        words = "run --on-hang kill --kill-after 2 -- python -m torch.distributed.run --standalone --nproc-per-node 2"
        path = "%s:%s" % (self.scratch / "v/bin", os.environ["PATH"])
        job = run(
            ["ddp-doctor", *words.split(), ROOT / "agent/python/examples/uneven_batches.py"],
            cwd=self.scratch,
            env=environment(PATH=path, OMP_NUM_THREADS="1"),
        )
        self.assertEqual(job.returncode, 75, job.stdout)
        self.assertRegex(job.stdout, r"uneven_batches\.py:\d+")

    def test_installers(self):
        tools = self.scratch / "tools"
        self.succeeds(run([sys.executable, "-m", "venv", tools]))
        self.succeeds(run([tools / "bin/pip", "install", "--quiet", *INSTALLERS]))
        settings = ("XDG_DATA_HOME", "XDG_BIN_HOME", "PIPX_HOME", "UV_TOOL_DIR")
        home = {name: value for name, value in environment(HOME=str(self.scratch)).items() if name not in settings}
        program = self.scratch / ".local/bin/ddp-doctor"
        for tool, install, uninstall in (
            ("uv", ["tool", "install", "--offline"], ["tool", "uninstall"]),
            ("pipx", ["install"], ["uninstall"]),
        ):
            with self.subTest(tool):
                self.succeeds(run([tools / "bin" / tool, *install, wheel()], env=home))
                self.diagnoses(program, HOME=str(self.scratch))
                self.succeeds(run([tools / "bin" / tool, *uninstall, "ddp-doctor"], env=home))
                self.assertFalse(os.path.lexists(program))
        with self.subTest("uv venv"):
            # An environment without pip.
            uv = [tools / "bin/uv"]
            self.succeeds(run([*uv, "venv", "--offline", "--python", sys.executable, self.scratch / "u"], env=home))
            python = ["--python", self.scratch / "u/bin/python"]
            self.succeeds(run([*uv, "pip", "install", "--offline", *python, wheel()], env=home))
            self.diagnoses(self.scratch / "u/bin/ddp-doctor")
