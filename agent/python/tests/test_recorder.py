"""The server by which PyTorch's own recorder is read: when it runs, and how it ends."""

import glob
import json
import os
import shutil
import tempfile
import unittest

from support import job

HEAD = """
import os, sys, time
import torch, torch.distributed as dist
from ddp_doctor import _box, _recorder
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
"""
BEGINS, SHUTS_DOWN, IS_DOWN = "Server listening to UNIX", "Server shutting down", "Server exited"


class Recorder(unittest.TestCase):
    def run_job(self, code, **changes):
        self.folder = tempfile.mkdtemp(prefix="ddp-test-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        # What PyTorch says of its server is left out unless somebody wants it.
        changes = {"TORCH_CPP_LOG_LEVEL": "WARNING", **changes}
        outcome = job(HEAD + code, DDP_DOCTOR_CAPTURE="recorder", TMPDIR=self.folder, **changes)
        self.addCleanup(os.unlink, outcome.file)
        return outcome

    def last_words(self):
        (file,) = glob.glob(os.path.join(self.folder, "ddp-doctor-*", "*"))
        self.assertTrue(file.endswith(".fr.json"), file)
        with open(file) as said:
            return [entry["profiling_name"] for entry in json.load(said)["entries"]]

    def said(self, outcome):
        return [line for line in (BEGINS, SHUTS_DOWN, IS_DOWN) if line in outcome.outputs[0]]

    def test_it_is_down_before_the_interpreter_goes_away(self):
        for tail in ("", "dist.destroy_process_group()", "raise ValueError"):
            with self.subTest(tail):
                # Somebody who asks until there is nobody to answer.
                o = self.run_job(
                    """
import threading, socket
def asks():
    while True:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(path)
            asking.sendall(b"POST /handler/fr_trace_json HTTP/1.1\\r\\nConnection: close\\r\\nContent-Length: 0\\r\\n\\r\\n")
            while asking.recv(1 << 16):
                pass
path = _recorder._path
threading.Thread(target=asks, daemon=True).start()
threading.excepthook = lambda _: None
for _ in range(200):
    dist.all_reduce(torch.ones(4))
"""
                    + tail
                )
                self.assertEqual(o.statuses, [int("raise" in tail)], o.outputs)
                self.assertEqual(self.said(o), [BEGINS, SHUTS_DOWN, IS_DOWN], o.outputs)
                self.assertEqual(self.last_words(), ["gloo:all_reduce"] * 201)

    def test_nobody_hears_of_it(self):
        o = self.run_job(
            """
import ctypes
lib = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
print("level", ctypes.c_int.in_dll(lib, "FLAGS_caffe2_log_level").value, flush=True)
""",
            TORCH_CPP_LOG_LEVEL=None,
        )
        self.assertEqual((o.statuses, self.said(o)), ([0], []), o.outputs)
        # The program's own warnings are printed as ever.
        self.assertIn("level 1", o.outputs[0])
        self.assertEqual(self.last_words(), ["gloo:all_reduce"])

    def test_one_that_does_not_answer_is_left_alone(self):
        # As one whose thread has not begun: PyTorch would wait for it for ever.
        o = self.run_job("_recorder._ask = lambda *_: None")
        self.assertEqual(o.statuses, [0], o.outputs)
        self.assertEqual(self.said(o), [BEGINS], o.outputs)
        self.assertEqual(self.last_words(), ["gloo:all_reduce"])

    def test_nobody_waits_long_for_one_that_hangs_or_is_asked_by_one_that_does(self):
        hangs = """
import socket, tempfile
silent = socket.socket(socket.AF_UNIX)
silent.bind(os.path.join(tempfile.mkdtemp(), "s"))
silent.listen()
ask = _recorder._ask
_recorder._ask = lambda path, *rest: ask(silent.getsockname(), *rest)
"""
        asked = """
import socket
half = socket.socket(socket.AF_UNIX)
half.connect(_recorder._path)
half.sendall(b"POST /handler/ping HTTP/1.1\\r\\n")
time.sleep(0.1)
"""
        for code in (hangs, asked):
            with self.subTest(code):
                o = self.run_job(
                    code
                    + """
end = _recorder.end
def timed():
    began = time.monotonic()
    end()
    print("took", time.monotonic() - began, flush=True)
_recorder.end = timed
"""
                )
                self.assertEqual(o.statuses, [0], o.outputs)
                self.assertEqual(self.said(o), [BEGINS], o.outputs)
                took = float(o.outputs[0].split("took ")[1].split()[0])
                # It was waited for at all, and no longer than that; the rest is the machine's.
                self.assertTrue(0.9 < took < 2.5, took)

    def test_other_ways_to_end_leave_it_alone(self):
        o = self.run_job("os._exit(0)")
        self.assertEqual((o.statuses, self.said(o)), ([0], [BEGINS]), o.outputs)
        self.assertEqual(self.last_words(), ["gloo:all_reduce"])

    def test_a_forked_child_leaves_it_to_its_parent(self):
        o = self.run_job(
            """
child = os.fork()
if child == 0:
    sys.exit(0)  # as an interpreter ends
assert os.waitpid(child, 0)[1] == 0
assert os.path.exists(_recorder._path) and _recorder._ask(_recorder._path, "ping") is not None
print("answers")
"""
        )
        self.assertEqual(o.statuses, [0], o.outputs)
        self.assertIn("answers", o.outputs[0])
        self.assertEqual(self.said(o), [BEGINS, SHUTS_DOWN, IS_DOWN], o.outputs)
        self.assertEqual(o.outputs[0].count(SHUTS_DOWN), 1)

    def test_what_a_pytorch_lacks_is_said_once_there_is_a_group(self):
        o = self.run_job(
            """
before = _recorder._HANDLERS["gloo"]
for backend in ("cpu:gloo,cuda:nccl", "nccl", "gloo", "fake", "undefined", "cuda:xccl"):
    _recorder.say_what_is_not_seen(backend)
# As 2.8 and 2.9, whose server has no such handler.
_recorder._HANDLERS["gloo"] = "none"
_recorder._readable = _recorder._what_is_readable()
_recorder.say_what_is_not_seen("gloo")
_recorder.say_what_is_not_seen("gloo")
"""
        )
        self.assertEqual(o.statuses, [0], o.outputs)
        notes = [record.text.split(", and ")[1] for record in o.box.of("note")]
        self.assertEqual([note.split(" (")[0] for note in notes], [
            "its recorder of calls on NCCL is read only where DDP_DOCTOR_NCCL_RECORDER=1",
            "calls on xccl are not read from its Flight Recorder",
            "its server does not tell of calls on Gloo",
        ])

    def test_hooks_are_used_where_there_are_some(self):
        for asked in (None, "hooks", "nonsense"):
            with self.subTest(asked):
                o = job(HEAD, DDP_DOCTOR_CAPTURE=asked)
                self.addCleanup(os.unlink, o.file)
                self.assertEqual(o.statuses, [0], o.outputs)
                self.assertNotIn(BEGINS, o.outputs[0])
                self.assertEqual(len([r for r in o.box.of("issued") if r.op == 1]), 1)


if __name__ == "__main__":
    unittest.main()
