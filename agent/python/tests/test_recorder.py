"""Variables for PyTorch's Flight Recorder."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ddp_doctor._c10d import _recorder  # noqa: E402

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
SIZE, OLD_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
FILE, OLD_FILE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


def names(version, **environ):
    found = _recorder.variables(version, environ, "/run", 7)
    return {name for name in found if name == SIZE or found[name] == "/run/7_"}


class Variables(unittest.TestCase):
    def test_recent_versions_need_only_new_names(self):
        for version in ("2.9.1", "2.11.0+cu130", "2.15.0+cpu", "3.0.0a0"):
            self.assertEqual(names(version), {PIPE, FILE, SIZE}, version)

    def test_earlier_versions_are_left_alone_unless_the_recorder_is_on(self):
        for version, file in (("2.4.1", OLD_FILE), ("2.6.0", OLD_FILE), ("2.8.0", FILE)):
            self.assertEqual(names(version), set(), version)
            self.assertEqual(names(version, **{OLD_SIZE: "500"}), {PIPE, file}, version)
        self.assertEqual(names("unknown"), set())

    def test_what_the_user_has_set_stays(self):
        self.assertEqual(names("2.11.0", **{PIPE: "/own"}), set())
        self.assertEqual(names("2.11.0", **{FILE: "/own"}), {PIPE, SIZE})
        self.assertEqual(names("2.11.0", **{OLD_FILE: "/own"}), {PIPE, SIZE})
        self.assertEqual(names("2.11.0", **{SIZE: "500"}), {PIPE, FILE})
        for size in (SIZE, OLD_SIZE):
            self.assertEqual(names("2.11.0", **{size: "0"}), set(), "the recorder is off")

    def test_child_does_not_use_the_fifo_of_its_parent(self):
        inherited = {PIPE: "/run/3_", FILE: "/run/3_", SIZE: "2000"}
        self.assertEqual(names("2.11.0", **inherited), {PIPE, FILE})

    def test_only_the_private_folder_of_the_run_is_used(self):
        with tempfile.TemporaryDirectory() as folder:
            status = os.stat(folder)
            value = "%d:%d:%s" % (status.st_dev, status.st_ino, folder)
            self.assertEqual(_recorder._folder(value), folder)
            other = "%d:%d:%s" % (status.st_dev, status.st_ino + 1, folder)
            self.assertIsNone(_recorder._folder(other), "another one is at its path")
            self.assertIsNone(_recorder._folder(folder), "without numbers")
            os.chmod(folder, 0o755)
            self.assertIsNone(_recorder._folder(value), "others can enter it")
        self.assertIsNone(_recorder._folder(value), "it does not exist")
        self.assertIsNone(_recorder._folder(""))


if __name__ == "__main__":
    unittest.main()
