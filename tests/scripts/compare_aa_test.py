#!/usr/bin/env python3
"""scripts/compare-aa with stand-ins for ft-tune, ninja and meson. Checked against: its --help: which pairs are compared, what
fails, and that a second call goes on where the first was stopped."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"

# Tuning writes the build's kind; comparing a plain profile with a planted one gives $CAUGHT, equal ones $ALARM.
TUNE = """#!/usr/bin/env bash
here=$(dirname "$0")
case "$1" in
  --version) echo "ft-tune 0.1.0 (gcc 12, code $CODE, commit $RANDOM)" ;;
  compare)
    echo "$(basename "$2") $(basename "$3")" >> "$CALLS"
    if [[ $(< "$2") == $(< "$3") ]]; then code=$ALARM; else code=$CAUGHT; fi
    [[ $code -ne 1 ]] || echo "regressed  expert_single/gate_up"
    exit $code ;;
  *)
    echo "tune $*" >> "$CALLS"
    while [[ $1 != -o ]]; do shift; done
    basename "$here" > "$2" ;;
esac
"""


class CompareAaTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="ft-compare-aa-"))
        self.addCleanup(shutil.rmtree, self.root)
        self.calls = self.root / "calls"
        for folder in ("scripts", "bin", "build", "build-planted"):
            (self.root / folder).mkdir()
        for name in ("compare-aa", "lib.sh"):
            shutil.copy(SCRIPTS / name, self.root / "scripts")
        for name, text in (("bin/ninja", "#!/bin/sh\n"), ("bin/meson", "#!/bin/sh\n"), ("build/ft-tune", TUNE),
                           ("build-planted/ft-tune", TUNE)):
            (self.root / name).write_text(text, encoding="utf-8")
            (self.root / name).chmod(0o755)

    def run_script(self, *arguments, caught=1, alarm=0, code="a"):
        self.calls.write_text("", encoding="utf-8")
        environment = {**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", "CALLS": str(self.calls),
                       "CAUGHT": str(caught), "ALARM": str(alarm), "CODE": code}
        done = subprocess.run([self.root / "scripts/compare-aa", *arguments], env=environment, capture_output=True, text=True,
                              timeout=60, check=False)
        return done, self.calls.read_text(encoding="utf-8").splitlines()

    def test_neighbours_and_pairs(self):
        done, calls = self.run_script("--runs", "4", "--pairs", "3", "--budget", "7", "--", "--threads", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("one build: 0 of 3 neighbour pairs regressed, 0 incomparable", done.stdout)
        self.assertIn("planted: 3 of 3 pairs regressed, 0 incomparable", done.stdout)
        self.assertEqual([c for c in calls if not c.startswith("tune")],
                         [f"run-{i}.json run-{i + 1}.json" for i in (1, 2, 3)] + [f"plain-{i}.json planted-{i}.json" for i in (1, 2, 3)])
        tunings = [c for c in calls if c.startswith("tune")]
        self.assertEqual(len(tunings), 4 + 6)
        for call in tunings:
            self.assertIn("--budget 7", call)
            self.assertIn("--threads 1", call)

    def test_what_fails(self):
        done, _ = self.run_script("--runs", "3", "--pairs", "0", alarm=1)
        self.assertEqual(done.returncode, 1)
        self.assertIn("run-1 run-2: regressed", done.stdout)
        self.assertIn("failed: one build", done.stdout)
        for caught in (0, 3):
            done, _ = self.run_script("--runs", "0", "--pairs", "2", "--folder", str(self.root / f"folder{caught}"), caught=caught)
            self.assertEqual(done.returncode, 1)
            self.assertIn("failed: planted", done.stdout)
        done, _ = self.run_script("--runs", "3", "--pairs", "0", alarm=3)
        self.assertEqual(done.returncode, 0)
        self.assertIn("0 of 2 neighbour pairs regressed, 2 incomparable", done.stdout)
        done, _ = self.run_script("--runs", "3", "--pairs", "0", alarm=2)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ended with 2", done.stderr)

    def test_goes_on_where_it_was_stopped(self):
        self.run_script("--runs", "2", "--pairs", "0")
        (self.root / "build/compare-aa/run-2.json").unlink()
        done, calls = self.run_script("--runs", "3", "--pairs", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len([c for c in calls if c.startswith("tune")]), 2)
        for options, code in ((("--budget", "11"), "a"), ((), "b")):
            done, calls = self.run_script("--runs", "3", "--pairs", "0", *options, code=code)
            self.assertEqual(done.returncode, 1)
            self.assertIn("another build or other options", done.stderr)
            self.assertEqual(calls, [])

    def test_usage(self):
        for arguments in (("--runs", "x"), ("--budget", "0"), ("--nope",), ("--folder",)):
            self.assertEqual(self.run_script(*arguments)[0].returncode, 2)
        self.assertIn("--pairs", self.run_script("--help")[0].stdout)


if __name__ == "__main__":
    unittest.main()
