"""Exceptions, exits and children in the black boxes of real programs."""

import os
import unittest

from support.boxreader import ALL_REDUCE, DESTROY, INIT
from support import HEAD, CaptureTest, job


class Processes(CaptureTest):
    def test_logged_exception_is_not_recorded_as_uncaught(self):
        o = self.run_job(
            """
def main():
    try:
        raise ValueError("logged")
    except ValueError:
        sys.excepthook(*sys.exc_info())
    dist.barrier()

before = sys.excepthook
def wrapped(*exception):
    before(*exception)
sys.excepthook = wrapped
main()
"""
        )
        self.assertEqual(o.box.of("exception"), [])
        self.assertEqual([r.text for r in o.box.of("exit")], ["main returned"])

    def test_uncaught_exception_is_recorded_behind_another_hook(self):
        o = self.run_job(
            """
before = sys.excepthook
def wrapped(*exception):
    before(*exception)
sys.excepthook = wrapped
def main():
    raise ValueError("bad")
main()
""",
            statuses=[1],
        )
        self.assertIn("ValueError: bad", [r.text for r in o.box.of("exception")])
        self.assertEqual([r.text for r in o.box.of("exit")], ["uncaught exception"])

    def test_traceback_within_a_text_is_left_out(self):
        o = self.run_job(
            """
def main():
    raise RuntimeError("worker 3 failed.\\nOriginal Traceback (most recent call last):\\n  File x\\nKeyError: 'a'\\n")
main()
""",
            statuses=[1],
        )
        self.assertEqual({r.text for r in o.box.of("exception")}, {"RuntimeError: worker 3 failed: KeyError: 'a'"})

    def test_exception_before_init_creates_a_box(self):
        raises = """
            import sys
            def load():
                raise ValueError("no such data set")  # raises
            %s
            load()
            """
        # Without another excepthook, with one that calls the previous hook, with one that does not, with PyTorch imported.
        for before in (
            "",
            "theirs = sys.excepthook; sys.excepthook = lambda *e: theirs(*e)",
            "sys.excepthook = lambda *e: None",
            "import torch.distributed",
        ):
            outcome = job(raises % before, RANK="1", WORLD_SIZE="3")
            self.addCleanup(os.unlink, outcome.file)
            self.assertEqual(outcome.statuses, [1], outcome.outputs)
            self.assertNotIn("ddp-doctor:", outcome.outputs[0])
            self.assertEqual((outcome.box.rank, outcome.box.world_size), (1, 3))
            (exception,) = outcome.box.of("exception")
            self.assertEqual((exception.code, exception.text), (1, "ValueError: no such data set"))
            self.assertEqual(exception.site[1:], (outcome.line("raises"), "load"))
            self.assertEqual([r.text for r in outcome.box.of("exit")], ["uncaught exception"])

    def test_exceptions_of_other_processes_create_no_box(self):
        for code, status, changes in (
            ("raise ValueError('no rank')", 1, {"RANK": None}),
            ("raise ValueError('no world')", 1, {"WORLD_SIZE": None}),
            ("raise ValueError('no such rank')", 1, {"RANK": "1", "WORLD_SIZE": "1"}),
            ("raise SystemExit(3)", 3, {}),
            ("raise KeyboardInterrupt", -2, {}),
            ("import sys\ntry: 1 / 0\nexcept Exception: sys.excepthook(*sys.exc_info())", 0, {}),
            ("import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", 0, {}),
            ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1 / 0'])", 0, {}),
            ("import subprocess, sys\nsubprocess.run(['sh', '-c', sys.executable + ' -c 1/0; true'])", 0, {}),
            ("import os\nif os.fork() == 0: 1 / 0\nos.wait()", 0, {}),
            (
                "import multiprocessing as m\ndef work(): 1 / 0\nif __name__ == '__main__':\n"
                " p = m.get_context('spawn').Process(target=work); p.start(); p.join()",
                0,
                {},
            ),
            (
                "import torch.multiprocessing as mp\ndef work(i): 1 / 0\nif __name__ == '__main__': mp.spawn(work)",
                1,
                {},
            ),
        ):
            outcome = job(code, forked=False, destroys=False, **changes)
            self.addCleanup(os.unlink, outcome.file)
            self.assertEqual(outcome.statuses, [status], (code, outcome.outputs))
            self.assertEqual(outcome.boxes, [], code)

    def test_launcher_with_a_rank_creates_no_box(self):
        outcome = job(
            """
            import sys
            from torch.distributed.run import main
            main(["--standalone", "--nproc-per-node", "1", "--no-python", "false"])
            """
        )
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, [1], outcome.outputs)
        self.assertIn("ChildFailedError", outcome.outputs[0])
        self.assertEqual(outcome.boxes, [])

    def test_exceptions_are_recorded_by_kind(self):
        o = self.run_job(
            """
class Broken(torch.nn.Linear):
    def forward(self, x):
        if x.shape[0] == 2:
            raise ValueError("in forward")  # forward
        return super().forward(x)
model = torch.nn.parallel.DistributedDataParallel(Broken(3, 2))
try:
    model(torch.ones(2, 3))
except ValueError:
    dist.barrier()
class Bad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): raise KeyError("in backward")
try:
    Bad.apply(torch.ones(1, requires_grad=True)).sum().backward()
except KeyError:
    pass
try:
    dist.all_reduce([])  # collective
except (TypeError, RuntimeError):  # PyTorch 2.1 raises the latter
    pass
def in_thread():
    raise EOFError("in thread")
t = threading.Thread(target=in_thread); t.start(); t.join()
raise OSError("at last" + "!" * 3000)  # last
""",
            statuses=[1],
        )
        found = {(r.code, r.text.split(":")[0]): r for r in o.box.of("exception")}
        kinds = {r.text.split(":")[0]: [x.code for x in o.box.of("exception") if x.text.startswith(r.text[:8])] for r in o.box.of("exception")}
        self.assertEqual(kinds["ValueError"], [2, 5])
        self.assertEqual(kinds["KeyError"], [3])
        (of_collective,) = {"TypeError", "RuntimeError"} & set(kinds)
        self.assertEqual(kinds[of_collective], [4])
        self.assertEqual(kinds["EOFError"], [6])
        self.assertEqual(kinds["OSError"], [1])
        self.assertEqual(found[2, "ValueError"].site[1], o.line("forward"))
        self.assertEqual(found[4, of_collective].site[1], o.line("collective"))
        self.assertEqual(found[1, "OSError"].site[1], o.line("last"))
        self.assertLessEqual(len(found[1, "OSError"].text), 1000)
        self.assertEqual([(r.code, r.text) for r in o.box.of("exit")], [(1, "uncaught exception")])
        self.assertNotIn("ddp_doctor", o.outputs[0].split("OSError")[-2].split("Traceback")[-1])

    def test_swallowed_exceptions_of_each_line_are_recorded(self):
        o = self.run_job(
            """
import pickle
def one(): raise ValueError("one")
def two(): raise ValueError("two")
def three(): raise ValueError("three")
for fails in (one, two, three, two):  # each exception has the address of the one before
    try:
        fails()
    except ValueError as error:
        dist.barrier()
        dist.barrier()
        copied = pickle.dumps(error)
try:
    raise pickle.loads(copied)
except ValueError:
    dist.barrier()
class Frozen(Exception):
    def __setattr__(self, name, value):
        raise TypeError("frozen")
try:
    raise Frozen("cold")
except Frozen:
    dist.barrier()
    dist.barrier()
for _ in range(100):
    try:
        dist.all_reduce([])
    except (TypeError, RuntimeError):  # PyTorch 2.1 raises the latter
        pass
""",
        )
        handled = [r.text for r in o.box.of("exception") if r.code == 5]
        errors = ["ValueError: %s" % text for text in ("one", "two", "three", "two")]
        self.assertEqual(handled, errors + ["Frozen: cold"], "the second `two` is the copy")
        raised = [r for r in o.box.of("exception") if r.code == 4]
        self.assertEqual(len(raised), 64, "of one line")

    def test_exception_is_recorded_without_a_chained_excepthook(self):
        o = self.run_job(
            """
sys.excepthook = lambda *a: print("mine")
raise ValueError("lost")
""",
            statuses=[1],
        )
        self.assertEqual([(r.code, r.text) for r in o.box.of("exception")], [(1, "ValueError: lost")])

    def test_ways_to_exit_are_recorded(self):
        for code, status, want in (
            ("sys.exit(3)", 3, (3, "sys.exit")),
            ("sys.exit('a reason')", 1, (1, "sys.exit")),
            ("os._exit(4)", 4, (4, "os._exit")),
            ("raise SystemExit(5)", 5, (-1, "interpreter ended")),
            ("pass", 0, (0, "main returned")),
        ):
            with self.subTest(code):
                o = self.run_job(code, statuses=[status])
                self.assertEqual([(r.code, r.text) for r in o.box.of("exit")], [want])

    def test_exit_functions_can_be_pickled(self):
        self.run_job(
            """
import pickle, subprocess
child = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))(3)"
for leave in (sys.exit, os._exit):
    data = pickle.dumps(leave)
    assert pickle.loads(data) is leave
    assert subprocess.run([sys.executable, "-I", "-c", child, data.hex()]).returncode == 3
"""
        )

    def test_calls_of_atexit_handlers_follow_the_exit_record(self):
        late = "import atexit; atexit.register(lambda: (dist.barrier(), dist.destroy_process_group()))\n"
        for name, code in (("before", late + HEAD), ("after", HEAD + late)):
            with self.subTest("registered %s joining" % name):
                o = job(code + "dist.barrier()", destroys=False)
                self.addCleanup(os.unlink, o.file)
                self.assertEqual(o.statuses, [0], o.outputs)
                kinds = [r.kind for r in o.box.of("issued", "exit")]
                self.assertEqual(kinds[-4:], ["issued", "exit", "issued", "issued"])
                self.assertEqual(len({r.thread for r in o.box.of("issued", "exit")}), 1)

    def test_hooks_are_removed_before_the_interpreter_exits(self):
        for tail in ("time.sleep(0.2)", "dist.destroy_process_group()", "keep = [g, model]; dist.destroy_process_group()", "del g, model"):
            with self.subTest(tail):
                self.run_job(
                    """
g = dist.new_group([0])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=g)
model(torch.ones(1, 3)).sum().backward()
"""
                    + tail,
                    destroys=False,
                )

    def test_forked_child_records_nothing(self):
        o = self.run_job(
            """
from torch.utils.data import DataLoader
dist.barrier()
for batch in DataLoader(list(range(8)), batch_size=2, num_workers=2):  # loader
    pass
import ddp_doctor
child = os.fork()
if child == 0:
    ddp_doctor.step()
    from ddp_doctor import _box, _sites
    assert not _box.is_open and not _sites._places
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
dist.barrier()
"""
        )
        self.assertEqual(len(o.box.of("step")), 0)
        # The last batch, and the end.
        self.assertEqual([r.site[1] for r in o.box.of("input-ended")], [o.line("loader")] * 2)
        self.assertEqual([r.text for r in o.box.of("exit")], ["main returned"])

    def test_children_that_join_a_group_have_their_own_boxes(self):
        outcome = job(
            """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, port):
    os.environ["MASTER_PORT"] = port
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(2))
    if rank == 1 and len(sys.argv) > 9:
        raise ValueError("never")
    dist.destroy_process_group()
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        port = str(int(os.environ["MASTER_PORT"]))
        mp.start_processes(work, args=(port,), nprocs=2, start_method=method)
""",
            LOCAL_RANK=None,
            RANK="7",
            WORLD_SIZE="9",
        )
        self.addCleanup(os.unlink, outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)
        self.assertEqual([box.rank for box in outcome.boxes], [0, 0, 1, 1])
        for box in outcome.boxes:
            self.assertEqual(box.world_size, 2)
            self.assertEqual([r.op for r in self.issued(box)], [INIT, ALL_REDUCE, DESTROY])
            self.assertEqual(self.issued(box)[1].site[2], "work")


if __name__ == "__main__":
    unittest.main()
