"""`python -m ddp_doctor run -- torchrun train.py`: runs the program `ddp-doctor` of this package."""

import os
import shutil
import sys

PROGRAM = "ddp-doctor"


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", PROGRAM)
    if not os.path.isfile(program):
        # In the repository, or in a package without the program. This script itself is not it.
        program = os.environ.get("DDP_DOCTOR_PROGRAM") or shutil.which(PROGRAM)
        if not program or os.path.abspath(program) == os.path.abspath(sys.argv[0]):
            sys.exit("ddp-doctor: the program is not part of this installation: build it with cargo, or set DDP_DOCTOR_PROGRAM")
    try:
        os.execv(program, [PROGRAM] + sys.argv[1:])
    except OSError as error:
        sys.exit("ddp-doctor: %s: %s" % (program, error))


if __name__ == "__main__":
    main()
