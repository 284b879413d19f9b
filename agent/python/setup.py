"""Includes the libraries and the program in the package, for `pip install agent/python`.

cargo builds them from the workspace of this folder. If DDP_DOCTOR_BUILT names a folder that contains
them, cargo is not needed; manual pages, completions and licenses in it are included too (`scripts/wheels`).
DDP_DOCTOR_PLATFORM is the platform tag of files that were built for another system than this.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = "libddp_doctor.so"
EXTENSION = "libddp_doctor_python.so"
NCCL_LIBRARY = "libddp_doctor_nccl.so"
NAMED_LIBRARY = "libddp_doctor_nccl_soname.so"
PROGRAM = "ddp-doctor"
LIBRARIES = (LIBRARY, EXTENSION, NCCL_LIBRARY, NAMED_LIBRARY)
FILES = (*LIBRARIES, PROGRAM)
NOTICES = "THIRD-PARTY.txt"
PLATFORM = os.environ.get("DDP_DOCTOR_PLATFORM")
# Runs at the start of every interpreter of the environment, so it only reads two variables.
ACTIVATION = (
    'import os; os.environ.get("DDP_DOCTOR_COORDINATOR") and os.environ.get("DDP_DOCTOR") != "0"'
    ' and __import__("ddp_doctor._start")\n'
)


def built():
    """The folder with the libraries and the program."""
    folder = os.environ.get("DDP_DOCTOR_BUILT")
    if not folder:
        folder = build()
    for name in FILES:
        if not os.path.isfile(os.path.join(folder, name)):
            raise SetupError("%s has no %s: build it there with `cargo build --workspace`" % (folder, name))
    return folder


def build():
    if not sys.platform.startswith("linux"):
        raise SetupError("ddp_doctor is for Linux")
    if not os.path.isfile(os.path.join(ROOT, "agent", "capi", "Cargo.toml")):
        raise SetupError(
            "%s is not in the ddp-doctor repository: install from a checkout of it, or set DDP_DOCTOR_BUILT "
            "to a folder with %s" % (HERE, ", ".join(FILES))
        )
    cargo = os.environ.get("CARGO") or shutil.which("cargo")
    if not cargo:
        raise SetupError(
            "building ddp_doctor needs Rust (https://rustup.rs): there is no cargo on PATH. Set DDP_DOCTOR_BUILT to a "
            "folder with %s to do without" % ", ".join(FILES)
        )
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    # The same packages as `make build`: others would have other features, and be compiled again.
    command = [cargo, "build", "--release", "--locked", "--workspace", "--target-dir", target]
    done = subprocess.run(command, cwd=ROOT)
    if done.returncode:
        raise SetupError("`%s` failed: see above" % " ".join(command))
    return os.path.join(target, "release")


class Build(build_py):
    def run(self):
        super().run()
        if self.editable_mode:
            return  # the package is used in place
        folder = built()
        package = os.path.join(self.build_lib, "ddp_doctor")
        os.makedirs(os.path.join(package, "bin"), exist_ok=True)
        for library in LIBRARIES:
            self.place(os.path.join(folder, library), os.path.join(package, library))
        self.place(os.path.join(folder, PROGRAM), os.path.join(package, "bin", PROGRAM))
        notices = os.path.join(folder, NOTICES)
        if os.path.isfile(notices):
            shutil.copyfile(notices, os.path.join(package, NOTICES))
        with open(os.path.join(self.build_lib, "ddp_doctor.pth"), "w") as file:
            file.write(ACTIVATION)

    def place(self, source, target):
        shutil.copyfile(source, target)
        os.chmod(target, 0o755)
        strip = shutil.which("strip")
        if strip and not PLATFORM:  # a failure only leaves the file larger
            subprocess.run([strip, "--strip-debug", target])


def shared_files():
    """Manual pages and completions of DDP_DOCTOR_BUILT, by their folder under the prefix."""
    built = os.environ.get("DDP_DOCTOR_BUILT") or ""
    share = os.path.join(built, "share")
    found = []
    for folder, _, names in os.walk(share) if built else ():
        if names:
            files = [os.path.join(folder, name) for name in sorted(names)]
            found.append((os.path.relpath(folder, built), [os.path.relpath(file, HERE) for file in files]))
    return found


class Wheel(bdist_wheel):
    def get_tag(self):
        # Any Python 3: the extension uses the limited API, and is not loaded where it does not fit. One platform.
        return ("py3", "none", PLATFORM or super().get_tag()[2])


class Platform(Distribution):
    def has_ext_modules(self):
        return True


# A fresh build folder, so that files of an earlier build do not get into the wheel.
scratch = tempfile.mkdtemp(prefix="ddp-doctor-build-")
atexit.register(shutil.rmtree, scratch, ignore_errors=True)

setup(
    cmdclass={"build_py": Build, "bdist_wheel": Wheel},
    distclass=Platform,
    data_files=shared_files(),
    options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
)
