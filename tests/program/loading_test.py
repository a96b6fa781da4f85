#!/usr/bin/env python3
"""Loading as a user sees it: progress in a log and on a terminal, nothing of it on stdout, and --packed-cache.

Checked against: what loading the same model without a packed cache answers; files in the folder that was named.
"""
import os
import pty
import re
import subprocess
import unittest

from support import DONE, HOST, ONE_POINT, SCRATCH, TINY_MOE, USAGE, command, run, start, tiny_profile, tune

SUMMARY = re.compile(r"^packing weights: \d+\.\d [KMG]B in \d+\.\d s", re.MULTILINE)
PROMPT = ("--prompt", "In the beginning", "--max-tokens", "8")


def on_terminal(program, *arguments):
    """Runs with stderr on a terminal; what was written to it, and stdout."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(program, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end was closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    return process.returncode, shown.decode(), out.decode()


class Progress(unittest.TestCase):
    def test_a_log_has_whole_lines(self):
        done = run("ft-engine", "--profile", tiny_profile(), *PROMPT)
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertRegex(done.stderr, r"(?m)^packing weights:   0 %, 0\.0 of \d+\.\d [KMG]B$")
        self.assertRegex(done.stderr, SUMMARY)
        self.assertNotIn("\r", done.stderr)
        self.assertNotIn("packing", done.stdout)

    def test_a_terminal_has_one_line_that_is_updated(self):
        code, shown, out = on_terminal("ft-engine", "--profile", tiny_profile(), *PROMPT)
        self.assertEqual(code, DONE, shown)
        lines = [line for line in shown.split("\n") if "packing weights" in line]
        self.assertEqual(len(lines), 1, shown)
        states = lines[0].strip("\r").split("\r")
        self.assertGreaterEqual(len(states), 2)
        self.assertTrue(all(state.endswith("\x1b[K") for state in states), states)
        self.assertIn("0 %", states[0])
        self.assertRegex(states[-1], r"\d [KMG]B in")
        self.assertNotIn("packing", out)

    def test_a_quiet_log_level_shows_nothing(self):
        done = run("ft-engine", "--profile", tiny_profile(), *PROMPT, "--log-level", "warning")
        self.assertEqual((done.returncode, done.stderr), (DONE, ""))


class PackedCache(unittest.TestCase):
    def setUp(self):
        self.folder = SCRATCH / f"packed-{self.id().rsplit('.', 1)[1]}"

    def engine(self, *options):
        done = run("ft-engine", "--profile", tiny_profile(), "--packed-cache", self.folder, *options)
        self.assertEqual(done.returncode, DONE, done.stderr)
        return done

    def test_the_second_start_reads_what_the_first_wrote_and_answers_the_same(self):
        plain = run("ft-engine", "--profile", tiny_profile(), *PROMPT)
        planned = self.engine("--dry-run")
        self.assertIn("would be written to a new folder", planned.stdout)
        self.assertFalse(self.folder.exists())
        first, second = self.engine(*PROMPT), self.engine(*PROMPT)
        self.assertIn("packed cache: wrote", first.stderr)
        self.assertRegex(first.stderr, SUMMARY)
        self.assertIn("packed cache: read", second.stderr)
        self.assertNotIn("packing weights", second.stderr)
        self.assertEqual([plain.stdout] * 2, [first.stdout, second.stdout])
        names = os.listdir(self.folder)
        self.assertEqual(len(names), 1)
        self.assertIn(f"{names[0]} (", self.engine("--dry-run").stdout)
        self.assertIn("is there and would be read", self.engine("--dry-run").stdout)

    def test_the_tuner_uses_it_and_its_profile_does_not_name_it(self):
        path = SCRATCH / "packed.json"
        options = (*ONE_POINT, "--strategy", "cpu", "--slots", "0", "--packed-cache", self.folder)
        planned = run("ft-tune", "--model", TINY_MOE, *HOST, *options, "--dry-run", "-o", path)
        self.assertIn("would be written to a new folder", planned.stdout)
        first, profile = tune(TINY_MOE, path, *options)
        self.assertIn("packed cache: wrote", first.stderr)
        second, profile = tune(TINY_MOE, path, *options)
        self.assertIn("packed cache: read", second.stderr)
        self.assertNotIn(str(self.folder), str(profile))
        self.assertNotIn("packed-cache", str(profile))
        self.assertIn("packed cache: read", self.engine(*PROMPT).stderr)  # one file for both programs

    def test_a_damaged_file_is_reported_and_replaced(self):
        plain = self.engine(*PROMPT)
        path = self.folder / os.listdir(self.folder)[0]
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        done = self.engine(*PROMPT)
        self.assertIn("warning: packed cache not used", done.stderr)
        self.assertIn("damaged", done.stderr)
        self.assertEqual(done.stdout, plain.stdout)
        self.assertEqual(path.read_bytes(), good)

    def test_what_cannot_work_is_refused_before_loading(self):
        a_file = SCRATCH / "a-file"
        a_file.write_text("x", encoding="utf-8")
        for options, words in ((("--packed-cache", a_file), ("--packed-cache", "not a folder")),
                               (("--packed-cache", "/proc/new"), ("--packed-cache", "cannot be made")),
                               (("--packed-cache", f"{a_file}/new", "--dry-run"), ("--packed-cache", "cannot be made")),
                               (("--packed-cache", self.folder, "--weights", "synthetic", "--accept-mismatch",
                                 "model.weights"), ("only with a checkpoint",))):
            done = run("ft-engine", "--profile", tiny_profile(), *PROMPT, *options)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)
            self.assertNotIn("weights: ", done.stderr)

    def test_a_start_that_is_stopped_while_it_writes_leaves_no_file(self):
        process = start("ft-engine", "--profile", tiny_profile(), *PROMPT, "--packed-cache", self.folder)
        process.kill()
        process.communicate(timeout=60)
        self.assertIn("packed cache: ", self.engine(*PROMPT).stderr)
        self.assertEqual([name for name in os.listdir(self.folder) if not name.endswith(".ftpack")], [])


if __name__ == "__main__":
    unittest.main()
