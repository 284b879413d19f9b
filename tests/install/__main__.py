"""Installs what `make wheels` built where its users have it, and uses it there: `make test-install`, as root.

    python3 tests/install [TEST…]              what is in dist/
    python3 tests/install --built target/debug   a wheel of these files, for this system alone (`.ci/run`)

Systems are releases of Debian, with the oldest and the newest C library that debootstrap's default mirror has. debootstrap
(Debian's package of that name) stores each in $DDP_DOCTOR_CACHE, else $XDG_CACHE_HOME/ddp-doctor, else
~/.cache/ddp-doctor (0.3 GB each, once); a test changes a copy in memory. On this machine, pip, uv and pipx install the
wheel, and torchrun runs a job with it. Interpreters are those on PATH, in $PYENV_ROOT and of the systems. Files for
AArch64 run with qemu-user (Debian: qemu-user-static), the wheel's with the libraries in $DDP_DOCTOR_TEST_AARCH64, the root
directory of a system for AArch64. What is missing is skipped with a line.
"""

import argparse
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

import support


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", type=pathlib.Path, metavar="DIR")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    arguments = parser.parse_args()
    if not arguments.built and (os.geteuid() != 0 or not shutil.which("debootstrap")):
        sys.exit("the test of installations needs root and debootstrap")
    with tempfile.TemporaryDirectory(prefix="ddp-doctor-install-") as scratch:
        modules = ["symbols", "here", "systems", "container", "published", "static", "aarch64"]
        if arguments.built:
            modules = ["symbols", "here", "systems"]
            support.build_wheel(arguments.built.resolve(), pathlib.Path(scratch))
        names = arguments.tests or modules
        unittest.main(module=None, argv=["install", "--verbose", *names])


if __name__ == "__main__":
    main()
