#!/usr/bin/env python3
"""The sums of scripts/count_tests.py. Checked against: logs as Meson, doctest, unittest and scripts/fuzz write them."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

COUNT = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "count_tests.py"
DOCTEST = """[doctest] doctest version is "2.4.9"
===============================================================================
../tests/a_test.cpp:33:
TEST CASE:  against the shared cases

../tests/a_test.cpp:40: MESSAGE: skipped: no shared folder

../tests/a_test.cpp:41: MESSAGE: skipped: said twice

../tests/a_test.cpp:50: MESSAGE: skipped kernel x: not on this CPU

===============================================================================
[doctest] test cases: 5 | {passed} passed | {failed} failed | 0 skipped
[doctest] assertions: 9 | 9 passed | 0 failed |
[doctest] Status: SUCCESS!
"""


class CountTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def count(self, meson=(), python=(), fuzz=()):
        command = [sys.executable, COUNT]
        log = self.root / "meson.json"
        log.write_text("".join(json.dumps(test) + "\n" for test in meson), encoding="utf-8")
        command += ["--meson", log]
        for kind, texts in (("--python", python), ("--fuzz", fuzz)):
            paths = []
            for i, text in enumerate(texts):
                paths.append(self.root / f"{kind[2:]}{i}.log")
                paths[-1].write_text(text, encoding="utf-8")
            command += [kind, *paths]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    @staticmethod
    def doctest(passed, failed, result="OK"):
        return {"name": "a", "result": result, "returncode": 0, "stdout": DOCTEST.format(passed=passed, failed=failed)}

    def test_doctest_cases_are_counted_and_skips_listed(self):
        code, lines = self.count(meson=[self.doctest(5, 0)])
        self.assertEqual(code, 0)
        self.assertEqual(lines[-1], "4 passed, 0 failed, 1 skipped")
        self.assertIn("  a: against the shared cases: skipped: no shared folder", lines)
        self.assertIn("  a: skipped kernel x: not on this CPU", lines)

    def test_failures_fail(self):
        code, lines = self.count(meson=[self.doctest(3, 2, "FAIL"), self.doctest(5, 0)])
        self.assertEqual(code, 1)
        self.assertEqual(lines[-1], "6 passed, 2 failed, 2 skipped")
        self.assertIn("  a: 2 cases", lines)

    def test_a_program_that_dies_after_its_last_case_is_a_failure(self):
        code, lines = self.count(meson=[self.doctest(5, 0, "FAIL")])
        self.assertEqual((code, lines[-1]), (1, "4 passed, 1 failed, 1 skipped"))

    def test_a_program_that_dies_early_is_a_failure(self):
        test = {"name": "b", "result": "TIMEOUT", "returncode": -9, "stdout": "[doctest] doctest version"}
        self.assertEqual(self.count(meson=[test])[1][-1], "0 passed, 1 failed, 0 skipped")

    def test_other_programs_count_one(self):
        tests = [{"name": "c", "result": "OK", "stdout": ""},
                 {"name": "d", "result": "SKIP", "returncode": 77, "stdout": "no GPU\n"}]
        code, lines = self.count(meson=tests)
        self.assertEqual((code, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertIn("  d: no GPU", lines)

    def test_nothing_ran_is_a_failure(self):
        self.assertEqual(self.count()[0], 1)

    def test_unittest_logs(self):
        good = "test_a (m.T.test_a) ... ok\ntest_b (m.T.test_b) ... skipped 'no openai'\n\nRan 2 tests in 0.1s\n\nOK (skipped=1)\n"
        bad = "Ran 4 tests in 0.1s\n\nFAILED (failures=1, errors=1, skipped=1)\n"
        code, lines = self.count(python=[good])
        self.assertEqual((code, lines[-1]), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertIn("  python0: test_b (m.T.test_b): 'no openai'", lines)
        self.assertEqual(self.count(python=[good, bad])[1][-1], "2 passed, 2 failed, 2 skipped")
        self.assertEqual(self.count(python=["ImportError\n"])[1][-1], "0 passed, 1 failed, 0 skipped")

    def test_a_last_line_with_totals(self):
        code, lines = self.count(python=["test ok\n5 passed, 0 failed, 2 skipped\n"])
        self.assertEqual((code, lines[-1]), (0, "5 passed, 0 failed, 2 skipped"))
        self.assertEqual(self.count(python=["5 passed, 1 failed, 0 skipped\n"])[1][-1], "5 passed, 1 failed, 0 skipped")
        self.assertEqual(self.count(python=["5 passed, 0 failed, 0 skipped\nTraceback\n"])[1][-1],
                         "0 passed, 1 failed, 0 skipped")

    def test_fuzz_lines(self):
        code, lines = self.count(fuzz=["fuzz a_fuzz: 10 executions, coverage 5, passed\n",
                                       "fuzz b_fuzz: 10 executions, coverage 5, FAILED (exit code 77)\n", ""])
        self.assertEqual((code, lines[-1]), (1, "1 passed, 2 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
