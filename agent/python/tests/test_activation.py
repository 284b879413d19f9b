"""Activation at interpreter start, and its effects on other code."""

import os
import subprocess
import sys
import tempfile
import unittest

from support import ACTIVATE, environment, job, python

SAY = "import sys; print(sorted(m for m in sys.modules if 'ddp_doctor' in m or m == 'torch')); print([type(f).__name__ for f in sys.meta_path if type(f).__name__ == '_Finder'])"


class Activation(unittest.TestCase):
    def test_activation_imports_little_and_leaves_no_path(self):
        done = python(
            """
            import sys
            print(any("ddp_doctor" in entry or entry.endswith("agent/python") for entry in sys.path))
            print("torch" in sys.modules, "ctypes" in sys.modules, "threading" in sys.modules)
            print([type(finder).__name__ for finder in sys.meta_path][:1])
            print("sitecustomize" in sys.modules)
            """
        )
        self.assertEqual((done.stdout, done.stderr), ("False\nFalse False False\n['_Finder']\nFalse\n", ""))

    def test_activation_is_off_without_job_or_by_switch(self):
        for changes in ({"DDP_DOCTOR": "0"}, {"DDP_DOCTOR_JOB": None}):
            done = python(SAY, env=environment(**changes))
            self.assertEqual((done.stdout, done.stderr), ("[]\n[]\n", ""))
        for flag in ("-I", "-E", "-S"):
            done = python(SAY, [flag])
            self.assertEqual((done.stdout, done.stderr), ("[]\n[]\n", ""))

    def test_sitecustomize_of_the_user_is_imported(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "sitecustomize.py")
            with open(file, "w") as theirs:
                theirs.write("import sys; print('theirs', __name__, __file__)\nvalue = 5\n")
            for ours in ({}, {"DDP_DOCTOR": "0"}):
                env = environment(PYTHONPATH=ACTIVATE + os.pathsep + folder, **ours)
                done = python("import sitecustomize; print(sitecustomize.value, sitecustomize.__spec__.origin)", env=env)
                self.assertEqual(done.stderr, "")
                self.assertEqual(done.stdout, "theirs sitecustomize %s\n5 %s\n" % (file, file))
            # An error of the user's module looks the same with and without capture.
            with open(file, "w") as theirs:
                theirs.write("raise ValueError('broken')\n")
            outputs = []
            for path in (ACTIVATE + os.pathsep + folder, folder):
                done = python("import sys; print('sitecustomize' in sys.modules)", env=environment(PYTHONPATH=path))
                outputs.append((done.returncode, done.stdout, done.stderr))
            self.assertEqual(outputs[0], outputs[1])
            self.assertIn("ValueError: broken", outputs[0][2])
            # So does a missing import of it.
            with open(file, "w") as theirs:
                theirs.write("import no_such_module\n")
            outputs = []
            for path in (ACTIVATE + os.pathsep + folder, folder):
                done = python("pass", env=environment(PYTHONPATH=path))
                outputs.append((done.returncode, done.stdout, done.stderr))
            self.assertEqual(outputs[0], outputs[1])

    def test_child_processes_are_activated(self):
        done = python("import subprocess, sys; subprocess.run([sys.executable, '-c', %r])" % SAY)
        self.assertEqual(done.stdout, "['ddp_doctor', 'ddp_doctor._finder']\n['_Finder']\n")

    def test_module_is_patched_once_beside_a_nested_finder(self):
        done = python(
            """
            import importlib.util, sys
            class Finder:
                busy = False
                def find_spec(self, name, path=None, target=None):
                    if self.busy or name != "torch.distributed.distributed_c10d":
                        return None
                    self.busy = True
                    try:
                        return importlib.util.find_spec(name)
                    finally:
                        self.busy = False
            from ddp_doctor import _finder
            patched, patch = [], _finder._patch
            _finder._patch = lambda name, *others: patched.append(name) or patch(name, *others)
            sys.meta_path.insert(1, Finder())  # behind the finder of the capture
            import torch.distributed
            print(patched.count("torch.distributed.distributed_c10d"))
            """
        )
        self.assertEqual((done.stdout, done.stderr), ("1\n", ""))

    def test_program_without_process_group_creates_no_box(self):
        outcome = job("import torch, torch.distributed, ddp_doctor\nddp_doctor.step()\nwith ddp_doctor.phase('x'): pass\n")
        os.unlink(outcome.file)
        self.assertEqual((outcome.statuses, outcome.boxes, outcome.outputs), ([0], [], [""]))

    def test_missing_library_is_reported_in_one_line(self):
        outcome = job(
            "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\ng = dist.new_group([0])\n",
            DDP_DOCTOR_LIBRARY="/no/such/library.so",
        )
        os.unlink(outcome.file)
        self.assertEqual((outcome.statuses, outcome.boxes), ([0], []))
        lines = [line for line in outcome.outputs[0].splitlines() if "ddp-doctor" in line]
        self.assertEqual(len(lines), 1, outcome.outputs)
        self.assertIn("/no/such/library.so: no such file", lines[0])

    def test_disabled_capture_patches_nothing(self):
        for changes in ({"DDP_DOCTOR": "0"}, {"DDP_DOCTOR": "0", "PYTHONPATH": os.path.dirname(os.path.dirname(ACTIVATE))}):
            outcome = job(
                "import ddp_doctor\nddp_doctor.enable()\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
                "assert dist.init_process_group.__code__.co_filename.find('ddp_doctor') < 0\nddp_doctor.step()\n"
                if "PYTHONPATH" in changes
                else "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n",
                **changes,
            )
            os.unlink(outcome.file)
            self.assertEqual((outcome.statuses, outcome.boxes), ([0], []), outcome.outputs)

    def test_interception_is_used_without_hooks(self):
        outcome = job(
            """
            import torch, torch.distributed as dist
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(1))
            """,
            DDP_DOCTOR_CAPTURE="interception",
        )
        os.unlink(outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)
        self.assertEqual(outcome.box.of("note"), [])
        self.assertEqual([call.op for call in outcome.box.of("issued")], [32, 1, 34])

    def test_interception_needs_no_names_of_hooks(self):
        """PyTorch 2.14 has hooks, but no names for some operations."""
        outcome = job(
            """
            import torch, torch.distributed as dist
            from ddp_doctor._c10d import _hooks
            torch._C._distributed_c10d.HookOpName = object()
            _hooks.numbers.clear()
            _hooks.prepare(dist.distributed_c10d, True)
            assert set(_hooks.numbers) == set(_hooks._OPS), _hooks.numbers
            """
        )
        os.unlink(outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)

    def test_missing_hooks_are_noted(self):
        outcome = job(
            """
            import torch, torch.distributed as dist
            hooks = [name for name in dir(dist.ProcessGroup) if name.startswith("register_p")]
            for name in hooks:
                delattr(dist.ProcessGroup, name)
            print("hooks:", len(hooks))
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(1))
            """
        )
        os.unlink(outcome.file)
        self.assertEqual(outcome.statuses, [0], outcome.outputs)
        if "hooks: 0" in outcome.outputs[0]:
            self.skipTest("this PyTorch has no hooks")
        (note,) = outcome.box.of("note")
        self.assertEqual(note.code, 1)
        self.assertIn("are not captured", note.text)

    def test_ranks_of_torchrun_are_captured(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "boxes"))
            script = os.path.join(folder, "train.py")
            with open(script, "w") as program:
                program.write("import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\ndist.destroy_process_group()\n")
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script],
                env=environment(folder),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                universal_newlines=True,
                timeout=120,
            )
            self.assertEqual(done.returncode, 0, done.stdout)
            from support.boxreader import boxes

            self.assertEqual([box.rank for box in boxes(os.path.join(folder, "boxes"))], [0, 1])


if __name__ == "__main__":
    unittest.main()
