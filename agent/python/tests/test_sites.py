"""Which code belongs to the user, by the path of its file and by how the program was started."""

import os
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ddp_doctor import _origin  # noqa: E402

CACHE = "/scratch/compiled"
PACKAGES = "/venv/lib/python3.11/site-packages/"
STDLIB = os.path.dirname(os.__file__) + "/"
# The script that pip writes for an entry point.
SCRIPT = """#!/venv/bin/python
# -*- coding: utf-8 -*-
import re
import sys
from trainer.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""


class Origins(unittest.TestCase):
    def setUp(self):
        for name, value in (("_torch", PACKAGES + "torch/"), ("_program", None)):
            self.addCleanup(setattr, _origin, name, getattr(_origin, name))
            setattr(_origin, name, value)
        self.addCleanup(os.environ.pop, "TORCHINDUCTOR_CACHE_DIR", None)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = CACHE

    def kinds(self, *files):
        return [_origin._kind(file) for file in files]

    def started_as(self, main):
        """Makes `main` the file of the main module."""
        patch = mock.patch.dict(sys.modules, {"__main__": types.SimpleNamespace(__file__=main)})
        patch.start()
        self.addCleanup(patch.stop)
        _origin._program = None

    def test_generated_code_is_internal(self):
        files = (
            "<eval_with_key>.7",
            "/tmp/torchinductor_me/ab/cabxyz.py",
            CACHE + "/qr/cqr2.py",
            PACKAGES + "functorch/dim/op.py",
            PACKAGES + "torch/nn/modules/module.py",
        )
        self.assertEqual(self.kinds(*files), [_origin.INTERNAL] * len(files))

    def test_user_files_with_names_of_pytorch_are_not_internal(self):
        files = (
            "/home/me/functorch/train.py",
            "/home/me/torchinductor_speed/train.py",
            "/home/me/torchinductor_speed/ra/main.py",
            CACHE + "/train.py",
        )
        self.assertEqual(self.kinds(*files), [_origin.USER] * len(files))

    def test_installed_packages_are_libraries(self):
        self.started_as("/home/me/train.py")
        files = (
            PACKAGES + "accelerate/utils/operations.py",
            PACKAGES + "torchvision/models/resnet.py",
            PACKAGES + "single_module.py",
            "/usr/lib/python3/dist-packages/yaml/loader.py",
            "/home/me/.venv/lib/python3.11/site-packages/lightning/trainer.py",
            "/home/me/.local/lib/python3.11/site-packages/transformers/trainer.py",
        )
        self.assertEqual(self.kinds(*files), [_origin.LIBRARY] * len(files))

    def test_standard_library_and_capture_are_passed_over(self):
        self.started_as("/home/me/train.py")
        files = (
            STDLIB + "contextlib.py",
            STDLIB + "unittest/case.py",
            STDLIB + "concurrent/futures/thread.py",
            "<frozen runpy>",
            "<attrs generated init Config>",
            _origin._OURS + "_hooks.py",
            PACKAGES + "torch/distributed/distributed_c10d.py",
            PACKAGES + "typing_extensions.py",
        )
        self.assertEqual(self.kinds(*files), [_origin.CALL] * len(files))

    def test_code_in_the_user_tree_is_the_users(self):
        """A vendored framework, an editable install and a zip archive are read and changed like the program."""
        self.started_as("/home/me/train.py")
        files = (
            "/home/me/train.py",
            "/home/me/third_party/accelerate/utils/operations.py",
            "/home/me/src/trainer/loop.py",
            "/home/me/app.pyz/trainer/loop.py",
            "train.py",
        )
        self.assertEqual(self.kinds(*files), [_origin.USER] * len(files))

    def test_typed_code_is_the_users(self):
        files = (
            "<stdin>",
            "<string>",
            "<ipython-input-3-8f3e>",
            "<python-input-0>",
            "/tmp/ipykernel_812/1234.py",
        )
        self.assertEqual(self.kinds(*files), [_origin.USER] * len(files))

    def test_start_of_a_spawned_process_is_not_the_users(self):
        with mock.patch.object(sys, "orig_argv", ["python", "-c", "from …", "--multiprocessing-fork"]):
            self.assertEqual(self.kinds("<string>", "<stdin>"), [_origin.CALL, _origin.USER])

    def test_installed_package_that_is_the_program_is_the_users(self):
        self.started_as(PACKAGES + "trainer/__main__.py")
        found = self.kinds(PACKAGES + "trainer/data/loader.py", PACKAGES + "trainer_utils/x.py")
        self.assertEqual(found, [_origin.USER, _origin.LIBRARY])
        self.started_as(PACKAGES + "train.py")
        self.assertEqual(self.kinds(PACKAGES + "train.py", PACKAGES + "trainer/x.py"), [_origin.USER, _origin.LIBRARY])

    def test_package_of_a_console_script_is_the_users(self):
        with tempfile.TemporaryDirectory() as prefix:
            os.mkdir(os.path.join(prefix, "bin"))
            script = os.path.join(prefix, "bin", "trainer")
            with open(script, "w") as file:
                file.write(SCRIPT)
            self.started_as(script)
            cli = types.SimpleNamespace(__file__=PACKAGES + "trainer/cli.py")
            with mock.patch.dict(sys.modules, {"trainer.cli": cli}):
                found = self.kinds(PACKAGES + "trainer/loop.py", PACKAGES + "accelerate/x.py", script)
            self.assertEqual(found, [_origin.USER, _origin.LIBRARY, _origin.CALL])
            # A script of the user's that imports a package as any program does.
            with open(script, "w") as file:
                file.write("from trainer.cli import main\nmain()\n")
            self.started_as(script)
            with mock.patch.dict(sys.modules, {"trainer.cli": cli}):
                found = self.kinds(PACKAGES + "trainer/loop.py", script)
            self.assertEqual(found, [_origin.LIBRARY, _origin.USER])


if __name__ == "__main__":
    unittest.main()
