"""Tests of the scorer and of what it reads; no job runs."""

import importlib.util
import json
import pathlib
import tempfile
import unittest

import doctor
import flight_recorder
import programs
import pytorch
import table
from score import CLASSES, Answer, expected_lines, kind, score, wilson

TEXT = """\
# /// truth
# nproc = 3
# [faulty]
# code = "DD117"
# hang = true
# ranks = { root = [1], victims = [0, 2] }
# [healthy]
# seconds = 4
# ///
dist.all_reduce(x)  # HERE rank 0 2
dist.barrier()  # HERE rank 1
"""
FAULTY, HEALTHY = programs.cases_of("missing", "program", TEXT)


def traceback(line, error, file="/jobs/faulty/program.py", rank=None):
    text = (
        'Traceback (most recent call last):\n  File "%s", line %d, in <module>\n    step()\n'
        '  File "/venv/torch/distributed/distributed_c10d.py", line 4333, in reduce\n    work.wait()\n%s\n'
    ) % (file, line, error)
    return text if rank is None else "".join("[rank%d]: %s\n" % (rank, it) for it in text.splitlines())


TIMEOUT = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms "
    "for recv operation to complete"
)
CLOSED = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:7"


class Programs(unittest.TestCase):
    def test_truth_of_a_variant_is_merged(self):
        self.assertEqual(FAULTY.truth["nproc"], 3)
        self.assertEqual(FAULTY.truth["code"], "DD117")
        self.assertEqual(HEALTHY.truth, {"nproc": 3, "seconds": 4})
        self.assertEqual(FAULTY.marked_lines(), {0: 10, 2: 10, 1: 11})

    def test_scenarios_are_cases(self):
        text = TEXT.replace("# [healthy]", "# [scenario.a]\n# healthy = { nproc = 2 }\n# [scenario.b]")
        cases = list(programs.cases_of("missing", "program", text.replace("# seconds = 4", '# faulty = { code = "DD102" }')))
        self.assertEqual([it.id for it in cases], ["missing/program.a.healthy", "missing/program.b.faulty"])
        self.assertEqual([it.truth["nproc"] for it in cases], [2, 3])
        self.assertEqual(cases[1].truth["code"], "DD102")

    def test_every_program_can_be_scored(self):
        cases = programs.cases()
        self.assertGreater(len(cases), 150)
        self.assertEqual(len({it.id for it in cases}), len(cases))
        for case in cases:
            with self.subTest(case.id):
                self.assertGreater(case.truth["nproc"], 0)
                if case.is_faulty:
                    self.assertIn(case.truth["code"], CLASSES)


class Scores(unittest.TestCase):
    def test_right_answer(self):
        answer = Answer(True, "mismatch", frozenset({1}), frozenset({11, 99}), confident=True, at_ns=3_000_000)
        found = score(FAULTY, answer, decisive_ns=1_000_000)
        self.assertTrue(found.detected and found.fault and found.ranks and found.lines)
        self.assertFalse(found.wrong_and_confident)
        self.assertEqual(found.latency_ms, 2.0)

    def test_innocent_rank_is_wrong_and_confident_only_as_a_fact(self):
        for confident in (True, False):
            found = score(FAULTY, Answer(True, "stuck", frozenset({0, 1}), confident=confident))
            self.assertEqual((found.fault, found.ranks, found.wrong_and_confident), (False, False, confident))

    def test_ranks_that_do_not_make_a_conditional_call_are_missing(self):
        found = score(FAULTY, Answer(True, "missing", frozenset({0, 2}), confident=True))
        self.assertEqual((found.fault, found.ranks, found.wrong_and_confident), (True, False, False))

    def test_some_of_the_culprits_are_not_exact_but_not_wrong(self):
        text = TEXT.replace("root = [1], victims = [0, 2]", "root = [0, 1]")
        case = next(programs.cases_of("missing", "program", text))
        found = score(case, Answer(True, "missing", frozenset({1}), confident=True))
        self.assertEqual((found.ranks, found.wrong_and_confident), (False, False))

    def test_fault_without_answer_counts_as_missed_in_every_column(self):
        found = score(FAULTY, Answer(False))
        self.assertEqual((found.detected, found.fault, found.ranks, found.lines), (False, False, False, False))

    def test_lines_are_those_of_the_culprits_if_marked(self):
        self.assertEqual(expected_lines(FAULTY), {11})
        case = next(programs.cases_of("missing", "program", TEXT.replace("HERE rank 1", "")))
        self.assertEqual(expected_lines(case), {10})

    def test_kinds(self):
        self.assertEqual(kind(FAULTY), "stops")
        for verdict, expected in (("crash", "stops"), ("wrong", "wrong"), ("slow", "other"), ("healthy", "other")):
            case = next(programs.cases_of("a", "b", TEXT.replace("hang = true", f'verdict = "{verdict}"')))
            self.assertEqual(kind(case), expected)

    def test_wilson_interval(self):
        for right, of, low, high in ((0, 10, 0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1), (0, 0, 0, 1)):
            found = wilson(right, of)
            self.assertAlmostEqual(found[0], low, places=4)
            self.assertAlmostEqual(found[1], high, places=4)


class PyTorch(unittest.TestCase):
    def read(self, ranks, launcher="", first=None):
        return pytorch.read(ranks, launcher, first, "program.py")

    def test_timeout_says_neither_class_nor_rank(self):
        found = self.read({0: traceback(10, TIMEOUT, rank=0), 1: traceback(11, TIMEOUT, rank=1)}, first=(0, 1))
        self.assertEqual((found.detected, found.fault, found.ranks, found.lines), (True, None, frozenset(), {10, 11}))

    def test_exception_of_one_rank_is_the_cause_and_closed_connections_are_echoes(self):
        found = self.read({0: traceback(10, CLOSED), 1: traceback(11, "ValueError: no such file")}, first=(1, 1))
        self.assertEqual((found.fault, found.ranks, found.lines, found.confident), ("exit", {1}, {11}, True))

    def test_out_of_memory(self):
        error = "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
        self.assertEqual(self.read({1: traceback(11, error)}).fault, "memory")

    def test_closed_connection_means_that_a_peer_ended(self):
        found = self.read({0: traceback(10, CLOSED), 1: ""}, first=(0, 1))
        self.assertEqual((found.fault, found.ranks), ("exit", frozenset()))
        found = self.read({0: traceback(10, CLOSED), 1: traceback(11, TIMEOUT)}, first=(1, 1))
        self.assertIsNone(found.fault)

    def test_signal_is_known_from_the_launcher(self):
        found = self.read({0: traceback(10, CLOSED), 1: ""}, first=(1, -9))
        self.assertEqual((found.fault, found.ranks), ("exit", {1}))

    def test_debug_mode_names_pairs_of_ranks(self):
        message = "RuntimeError: Detected mismatch between collectives on ranks. Rank %d is running collective: A, but Rank %d is running collective: B."
        found = self.read({0: traceback(10, message % (0, 1)), 1: traceback(11, message % (1, 0))})
        self.assertEqual((found.fault, found.ranks, found.confident), ("mismatch", {0, 1}, True))
        found = self.read({0: traceback(10, message % (0, 2)), 1: traceback(10, message % (1, 2))})
        self.assertEqual(found.ranks, {2})

    def test_models_of_other_sizes_name_both_ranks(self):
        message = "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has inconsistent 6 params."
        found = self.read({0: traceback(10, message)})
        self.assertEqual((found.fault, found.ranks), ("model", {0, 1}))

    def test_gradients_that_a_rank_lacks(self):
        message = "RuntimeError: Expected to have finished reduction in the prior iteration.\nParameter indices which did not receive grad for rank 1: 2 3"
        found = self.read({0: traceback(10, CLOSED), 1: traceback(11, message)})
        self.assertEqual((found.fault, found.ranks), ("model", {1}))

    def test_size_that_gloo_refuses(self):
        text = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:455] op.preamble.length <= op.nbytes. 1024 vs 16\n"
        found = self.read({0: text, 1: traceback(10, CLOSED)}, first=(0, -6))
        self.assertEqual((found.fault, found.ranks), ("mismatch", frozenset()))

    def test_monitored_barrier_names_ranks(self):
        found = self.read({0: traceback(10, "RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 10000 ms")})
        self.assertEqual((found.fault, found.ranks), ("missing", {1, 2}))


class Others(unittest.TestCase):
    def test_first_finding_of_a_report_is_the_answer(self):
        finding = {
            "code": "DD117",
            "ranks": {"root": [1], "root_confidence": "supported", "victims": [0, 2]},
            "per_rank": [{"rank": 1, "where": {"file": "program.py", "line": 11}}, {"rank": 0, "where": None}],
            "detected_at": "2026-11-25T03:30:00.000000250Z",
        }
        note = {"code": "DD901"}
        found = doctor.answer({"findings": [note, finding]}, "program.py")
        self.assertEqual((found.fault, found.ranks, found.lines, found.confident), ("missing", {1}, {11}, True))
        self.assertEqual(found.at_ns % 10**9, 250)
        self.assertFalse(doctor.answer({"findings": [note]}, "program.py").detected)

    def test_torchfrtrace(self):
        found = flight_recorder.read("Not all ranks joining collective, sequence number: 4\nmissing ranks: {1}\n", "program.py")
        self.assertEqual((found.fault, found.ranks), ("missing", {1}))
        found = flight_recorder.read(
            "error msg: Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH\n stack trace: \n <module> at /jobs/program.py:11\n",
            "program.py")
        self.assertEqual((found.fault, found.ranks, found.lines), ("mismatch", {2}, {11}))
        self.assertIn("KeyError", flight_recorder.read(traceback(1, "KeyError: ('0', 0)"), "program.py").unusable)

    def test_table_names_shares_with_intervals(self):
        self.assertEqual(table.share(5, 10), "5/10 (24–76 %)")
        self.assertEqual(table.share(0, 0), "–")

    def test_interrupted_line_of_results_is_ignored(self):
        path = pathlib.Path(__file__).with_name("__main__.py")
        spec = importlib.util.spec_from_file_location("hangbench_main", path)
        main = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(main)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            entry = {"kind": "plain", "case": FAULTY.id, "program": FAULTY.fingerprint(), "timeout": 10}
            (folder / "runs.jsonl").write_text(json.dumps(entry) + "\n" + json.dumps(entry)[:20])
            self.assertTrue(main.Results(folder, 10).has("plain", FAULTY))
            self.assertFalse(main.Results(folder, 20).has("plain", FAULTY))
            self.assertFalse(main.Results(folder, 10).has("detail", FAULTY))


if __name__ == "__main__":
    unittest.main()
