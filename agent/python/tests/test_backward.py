"""Backward passes of PyTorch before 2.3, whose engine is called through one object."""

import os
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ddp_doctor._ddp import _backward, _buckets, _parameters  # noqa: E402


class Engine:
    def run_backward(self, tensors, fails=False):
        if fails:
            raise RuntimeError("no gradient")
        return tensors

    def queue_callback(self):
        return "queued"


class EarlierEngine(unittest.TestCase):
    def setUp(self):
        self.variable = types.SimpleNamespace(_execution_engine=Engine())
        self.addCleanup(setattr, _buckets, "_queue_callback", _buckets._queue_callback)
        _backward.patch(types.SimpleNamespace(Variable=self.variable), False)

    @property
    def engine(self):
        return self.variable._execution_engine

    def test_the_end_of_a_backward_is_seen(self):
        with mock.patch.object(_parameters, "backward_ended") as ended:
            self.assertEqual(self.engine.run_backward("tensors"), "tensors")
        self.assertIs(ended.call_args.args[0], sys._getframe())

    def test_an_exception_of_a_backward_is_seen_and_raised(self):
        with mock.patch.object(_parameters, "backward_raised") as raised, self.assertRaises(RuntimeError):
            self.engine.run_backward("tensors", fails=True)
        self.assertEqual(str(raised.call_args.args[0]), "no gradient")

    def test_everything_else_is_the_engines(self):
        self.assertEqual(self.engine.queue_callback(), "queued")


if __name__ == "__main__":
    unittest.main()
