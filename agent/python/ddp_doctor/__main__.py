"""`python -m ddp_doctor run -- torchrun train.py`: runs the program `ddp-doctor` of this package."""

import os
import shutil
import sys

from . import _job_alone

PROGRAM = "ddp-doctor"


def main():
    arguments = sys.argv[1:]
    program = _find()
    if not program:
        reason = "the program is not part of this installation: build it with cargo, or set DDP_DOCTOR_PROGRAM"
    elif _job_alone.is_asked_for(arguments):
        # The loader of libraries ends a program that does not fit this system only after `exec`, when it would be too
        # late to start the job without it.
        reason = _job_alone.why_not(program)
    else:
        reason = None
    if reason is None:
        try:
            os.execv(program, [PROGRAM] + arguments)
        except OSError as error:
            reason = "%s: %s" % (program, error.strerror)
    _job_alone.start(arguments, reason)
    sys.exit("ddp-doctor: " + reason)


def _find():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", PROGRAM)
    if os.path.isfile(program):
        return program
    # In the repository, or in a package without the program. This script itself is not it.
    program = os.environ.get("DDP_DOCTOR_PROGRAM") or _on_path()
    if program and os.path.abspath(program) != os.path.abspath(sys.argv[0]):
        return program
    return None


def _on_path():
    # Another user may control the working directory, in which relative folders and empty ones are.
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(PROGRAM, path=os.pathsep.join(filter(os.path.isabs, folders)))


if __name__ == "__main__":
    main()
