"""The user's line of calls through installed packages and of calls from background threads, by how the program is started."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

from support.boxreader import ALL_REDUCE, BARRIER, HIDDEN, boxes
from support import CaptureTest, environment, free_port

INIT = """
import os, sys, threading
import torch, torch.distributed as dist
from concurrent.futures import ThreadPoolExecutor
"""
# An installed package that other programs call, and that is a program itself.
TRAINER = """
import torch, torch.distributed as dist
class Trainer:
    def fit(self, call=None):
        self.validate() if call is None else call()
    def validate(self):
        dist.all_reduce(torch.ones(3))
def save():
    dist.barrier()
def main():
    dist.init_process_group("gloo")
    Trainer().fit()
    Trainer().fit(save)
    dist.destroy_process_group()
"""
SCRIPT = """#!%s
import re
import sys
from trainer.cli import main
if __name__ == '__main__':
    sys.exit(main())
"""


class Folder:
    """A folder with an installed package in it, from which a program is started as one rank."""

    def __init__(self, test):
        self.path = tempfile.mkdtemp(prefix="ddp-doctor-test-")
        test.addCleanup(shutil.rmtree, self.path)
        self.packages = os.path.join(self.path, "lib", "site-packages")
        self.write("lib/site-packages/trainer/__init__.py", "")
        self.write("lib/site-packages/trainer/cli.py", TRAINER)
        self.write("lib/site-packages/trainer/__main__.py", "from .cli import main\nmain()\n")
        os.mkdir(os.path.join(self.path, "boxes"))

    def write(self, name, text):
        file = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w") as source:
            source.write(textwrap.dedent(text))
        return file

    def run(self, *arguments):
        """Runs Python with these arguments. Returns the calls of the process with a black box."""
        env = environment(self.path, RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        env["PYTHONPATH"] += os.pathsep + self.packages
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env=env, cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=300
        )
        assert done.returncode == 0, done.stdout
        found = boxes(os.path.join(self.path, "boxes"))
        assert len(found) == 1, (found, list(os.walk(self.path)), done.stdout)
        (box,) = found
        return [r for r in box.of("issued") if r.op in (ALL_REDUCE, BARRIER)]


def names(record):
    """`(file name and function of the user's line, functions of the packages)`."""
    file, _, function = record.site
    return os.path.basename(file), function, [name for _, _, name in record.via]


class Started(unittest.TestCase):
    def test_package_called_by_a_script_is_passed_over(self):
        folder = Folder(self)
        program = """
            from trainer.cli import Trainer, save
            dist.init_process_group("gloo")
            trainer = Trainer()
            trainer.fit()
            trainer.fit(save)
            def own():
                dist.barrier()
            trainer.fit(own)
            dist.destroy_process_group()
        """
        file = folder.write("train.py", INIT + textwrap.dedent(program))
        calls = folder.run(file)
        self.assertEqual(
            [names(call) for call in calls],
            [
                ("train.py", "<module>", ["Trainer.fit", "Trainer.validate"]),
                ("train.py", "<module>", ["Trainer.fit", "save"]),
                ("train.py", "own", []),
            ],
        )
        self.assertEqual([call.site[1] for call in calls], [9, 10, 12])

    def test_console_script_of_an_installed_program_shows_its_package(self):
        folder = Folder(self)
        script = folder.write("bin/trainer", SCRIPT % sys.executable)
        found = [names(call) for call in folder.run(script)]
        self.assertEqual(found, [("cli.py", "Trainer.validate", []), ("cli.py", "save", [])])

    def test_installed_program_started_as_a_module_shows_its_package(self):
        found = [names(call) for call in Folder(self).run("-m", "trainer")]
        self.assertEqual(found, [("cli.py", "Trainer.validate", []), ("cli.py", "save", [])])

    def test_zip_archive_is_the_program(self):
        folder = Folder(self)
        folder.write("app/__main__.py", "from trainer.cli import main\nimport loop\nloop.run()\n")
        loop = "import torch.distributed as dist\nfrom trainer.cli import save\ndef run():\n    dist.init_process_group('gloo')\n    save()\n    dist.destroy_process_group()\n"
        folder.write("app/loop.py", loop)
        archive = shutil.make_archive(os.path.join(folder.path, "app"), "zip", os.path.join(folder.path, "app"))
        (call,) = folder.run(archive)
        self.assertEqual(names(call), ("loop.py", "run", ["save"]))
        self.assertEqual(call.site[0], os.path.join(archive, "loop.py"))

    def test_cells_of_a_notebook_are_the_program(self):
        folder = Folder(self)
        kernel = """
            import sys, torch.distributed as dist
            dist.init_process_group("gloo")
            space = {}
            for name, cell in (("/tmp/ipykernel_7/1.py", "from trainer.cli import save"), ("<ipython-input-2-ab>", "save()")):
                exec(compile(cell, name, "exec"), space)
            dist.destroy_process_group()
        """
        folder.write("lib/site-packages/ipykernel_launcher.py", kernel)
        (call,) = folder.run("-m", "ipykernel_launcher")
        self.assertEqual(names(call), ("<ipython-input-2-ab>", "<module>", ["save"]))

    def test_spawned_process_shows_its_function(self):
        folder = Folder(self)
        program = """
            import multiprocessing
            from trainer.cli import main
            if __name__ == "__main__":
                process = multiprocessing.get_context("spawn").Process(target=main)
                process.start()
                process.join()
                sys.exit(process.exitcode)
        """
        first, second = folder.run(folder.write("train.py", INIT + textwrap.dedent(program)))
        self.assertEqual(names(first), ("cli.py", "main", ["Trainer.fit", "Trainer.validate"]))
        self.assertEqual(names(second), ("cli.py", "main", ["Trainer.fit", "save"]))

    def test_function_shipped_by_cloudpickle_shows_its_file(self):
        folder = Folder(self)
        program = """
            import types
            from trainer.cli import Trainer
            def norm():
                Trainer().validate()
            code = norm.__code__.replace(co_filename="<dynamic-code>")
            dist.init_process_group("gloo")
            types.FunctionType(code, {**globals(), "__file__": "/home/me/serve.py"})()
            types.FunctionType(code, {**globals(), "__file__": None})()
            dist.destroy_process_group()
        """
        first, second = folder.run(folder.write("train.py", INIT + textwrap.dedent(program)))
        self.assertEqual(names(first), ("serve.py", "norm", ["Trainer.validate"]))
        self.assertEqual(names(second)[1:], ("norm", ["Trainer.validate"]))


class Threads(CaptureTest):
    def test_background_threads_carry_the_line_that_started_them(self):
        o = self.run_job(
            """
from concurrent.futures import ThreadPoolExecutor
package = {"dist": dist}
exec(compile("def save(): dist.barrier()", "/venv/site-packages/writer/save.py", "exec"), package)
def own():
    dist.barrier()  # own
def start(target):
    thread = threading.Thread(target=target)
    thread.start()  # thread
    thread.join()
start(dist.barrier)
start(package["save"])
start(own)
with ThreadPoolExecutor(1) as pool:
    future = pool.submit(package["save"])  # pool
    future.result()
"""
        )
        lines = [o.line(marker) for marker in ("thread", "thread", "own", "pool")]
        calls = self.issued(o.box, BARRIER)
        self.assertEqual([call.site[1] for call in calls], lines)
        self.assertEqual([len(call.via) for call in calls], [0, 1, 0, 1])
        self.assertFalse(any(call.flags & HIDDEN for call in calls))

    def test_calls_under_a_default_device_are_the_programs(self):
        """PyTorch passes the call through a mode that moves new tensors to the device."""
        o = self.run_job(
            """
torch.set_default_device("cpu")
dist.all_reduce(torch.ones(3))  # call
"""
        )
        (call,) = self.issued(o.box, ALL_REDUCE)
        self.assertEqual(call.site[1], o.line("call"))
        self.assertFalse(call.flags & HIDDEN)

    def test_asynchronous_checkpoint_carries_the_line_of_its_save(self):
        o = self.run_job(
            """
import tempfile
import torch.distributed.checkpoint as dcp
with tempfile.TemporaryDirectory() as folder:
    future = dcp.async_save({"x": torch.ones(3)}, checkpoint_id=folder)  # save
    torch.ones(1).sum()
    future.result()  # main thread
"""
        )
        background = [r for r in self.issued(o.box) if r.thread != o.box.records[0].thread]
        self.assertTrue(background)
        self.assertEqual({r.site[1] for r in background}, {o.line("save")})


class Tracebacks(CaptureTest):
    def test_frames_of_the_capture_are_not_in_tracebacks(self):
        code = """
import traceback, warnings
warnings.simplefilter("ignore")
t = torch.ones(3)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        raise KeyError("no item")
loss = model(torch.ones(1, 2)).sum()
loss.backward()
work = dist.all_reduce(t, async_op=True)
for wrong in (
    lambda: dist.all_reduce("x"),
    lambda: dist.broadcast(t, 9),
    lambda: dist.new_group([7]),
    lambda: dist.init_process_group("gloo"),
    lambda: dist.monitored_barrier(timeout="soon"),
    lambda: dist.destroy_process_group("x"),
    lambda: dist.group.WORLD.allreduce("x"),
    lambda: dist.Work.wait(),
    lambda: work.wait("soon"),
    lambda: work.get_future(1),
    lambda: model(torch.ones(1, 3)),
    lambda: loss.backward(),
    lambda: next(iter(torch.utils.data.DataLoader(Data()))),
    threading.main_thread().start,
):
    try:
        wrong()
    except Exception as error:
        shown = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        assert not any("/ddp_doctor/" in file for file in shown), (error, shown)
    else:
        raise AssertionError("nothing was raised")
work.wait()
"""
        for capture in (None, "interception"):
            for native in "01":
                with self.subTest(capture=capture, native=native):
                    self.run_job(code, DDP_DOCTOR_NATIVE_HOOKS=native, DDP_DOCTOR_CAPTURE=capture)


if __name__ == "__main__":
    unittest.main()
