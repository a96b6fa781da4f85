#!/usr/bin/env python3
"""What the programs write, and what they must not: an input as output, a terminal moved by a profile's text, a verdict that
nobody got. Checked against: the exit codes of --help; files that are the same before and after; every control character."""
import json
import os
import resource
import shutil
import subprocess
import unittest

from support import DONE, FAILED, HOST, NOT_WRITTEN, SECONDS, TINY_MOE, USAGE, ProgramTest, command, run, tiny_profile

REGRESSED, INCOMPARABLE = 1, 3
# Cursor, colour, window title, bell, a new line that looks like ours, DEL, CSI as one character.
# The direction of writing turned, a line and a paragraph ended.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\nregressed  fake/line\x7f\x9b31m\u202e\u2067\u200f\u2028\x00"[:-1]
TURNS = {chr(code) for code in (0x61c, 0x200e, 0x200f, *range(0x2028, 0x202f), *range(0x2066, 0x206a))}


def strings_of(value, path=()):
    """Paths of all strings of a JSON value."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, (dict, list)):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from strings_of(below, (*path, key))


def replaced(value, path, change):
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = change(value[path[-1]])


class OutputCase(ProgramTest):
    def profile(self, name="profile.json", change=lambda profile: None):
        profile = json.loads(tiny_profile().read_text(encoding="utf-8"))
        change(profile)
        path = self.folder / name
        path.write_text(json.dumps(profile), encoding="utf-8")
        return path


class InputAsOutputTest(OutputCase):
    def refused(self, output, reads, *words):
        """Refused with both names, and no byte of any file has changed."""
        before = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        self.assert_refused(run(*words, "-o", output), USAGE, "it would overwrite", str(reads), f"'{output}'")
        self.assertEqual({path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}, before)

    def test_profiles(self):
        a, b = self.profile("a.json"), self.profile("b.json")
        link = self.folder / "link.json"
        link.symlink_to(a)
        hard = self.folder / "hard.json"
        os.link(b, hard)
        for output, reads in ((a, a), (b, b), (link, a), (hard, b), (f"{self.folder}/./a.json", a)):
            with self.subTest(output):
                self.refused(output, reads, "ft-tune", "compare", a, b)
                self.refused(output, reads, "ft-tune", "report", a, b)
        self.assertEqual(run("ft-tune", "report", a, "-o", self.folder / "page.html").returncode, DONE)
        self.assertEqual(run("ft-tune", "report", a, "-o", self.folder / "page.html").returncode, DONE)  # over its own

    def test_files_of_the_model(self):
        model = self.folder / "model"
        shutil.copytree(TINY_MOE, model)
        for path in sorted(model.iterdir()):
            self.refused(path, path, "ft-tune", "--model", model, *HOST)
        # A profile may be beside the model, also a second time; its samples may not be something else.
        shutil.copy(self.profile(), model / "profile.json")
        dry = ("ft-tune", "--model", model, *HOST, "--dry-run", "-o")
        self.assertEqual(run(*dry, model / "profile.json").returncode, DONE)
        self.assertEqual(run(*dry, model / "new.json").returncode, DONE)
        shutil.copy(model / "config.json", model / "new.json.samples.json")
        self.assert_refused(run(*dry, model / "new.json"), USAGE, "new.json.samples.json", "it would overwrite --model")

    def test_score(self):
        profile = self.profile()
        scored = self.folder / "in.json"
        scored.write_text(json.dumps({"input_ids": [1, 2, 3]}), encoding="utf-8")
        score = ("ft-engine", "--profile", profile, "--model", TINY_MOE, "--score", scored)
        self.refused(scored, scored, *score)
        self.refused(profile, profile, *score)
        model = self.folder / "model"
        shutil.copytree(TINY_MOE, model)
        self.refused(model / "model.safetensors", model / "model.safetensors", *score[:4], model, *score[5:])
        self.assertEqual(run(*score, "-o", self.folder / "out.safetensors").returncode, DONE)


class TerminalTest(OutputCase):
    def assert_clean(self, done):
        for text in (done.stdout, done.stderr):
            strange = sorted({c for c in text if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c == "\ufffd" or c in TURNS})
            self.assertEqual(strange, [], text[:3000])
            self.assertFalse([line for line in text.splitlines() if line.startswith("regressed  fake/line")], text[:3000])

    def test_every_string_of_a_profile(self):
        """All that a schema leaves free at once; one that is refused for it is left as it was, and its refusal looked at."""
        base = self.profile("base.json")
        paths = [p for p in strings_of(json.loads(base.read_text(encoding="utf-8"))) if p[0] != "measurements" or p[1] % 9 == 0]
        # One of a list stands for all: 200 candidates are of one kind.
        kinds = {}
        for path in paths:
            kinds.setdefault(tuple("*" if isinstance(key, int) else key for key in path), path)
        taken = []
        for path in kinds.values():
            other = self.profile("other.json", lambda p, path=path: replaced(p, path, lambda text: text[:20] + HOSTILE))
            done = run("ft-tune", "explain", other)
            self.assert_clean(done)
            self.assertIn(done.returncode, (DONE, USAGE), path)
            if done.returncode == DONE:
                taken.append(path)
        names = {path[-1] for path in taken}
        self.assertLessEqual({"reason", "verdict", "cpu_model", "model_path", "routing_source", "name", "compiler"}, names)

        def all_of_them(profile):
            for path in taken:
                replaced(profile, path, lambda text: text[:20] + HOSTILE)

        everything = self.profile("everything.json", all_of_them)
        commands = [("explain", everything), ("check", everything), ("check", everything, "--model", TINY_MOE),
                    ("compare", base, everything), ("compare", everything, everything),
                    ("report", everything, "-o", self.folder / "page.html")]
        for words in commands:
            for form in ((), ("--format", "json")) if words[0] != "report" else ((),):
                with self.subTest(words + form):
                    done = run("ft-tune", *words, *form)
                    self.assertIn(done.returncode, (DONE, FAILED, INCOMPARABLE), done.stderr)
                    self.assert_clean(done)
        for form in ("markdown", "junit"):
            self.assert_clean(run("ft-tune", "compare", everything, everything, "--format", form))
        here = json.loads(run("ft-tune", "check", everything, "--model", TINY_MOE, "--format", "json").stdout)
        fields = ",".join(field["field"] for field in here["fields"] if field["state"] == "differs")
        for more in ((), ("--accept-mismatch", fields)):
            done = run("ft-engine", "--profile", everything, "--model", TINY_MOE, "--dry-run", *more)
            self.assert_clean(done)
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertIn("\\x1b[2J", done.stderr)  # the banner shows it

    def test_names_on_the_command_line(self):
        odd = self.folder / "a\x1b[2J\u202eb.json"
        shutil.copy(self.profile(), odd)
        for words in (("explain", odd), ("check", odd), ("compare", odd, odd), ("report", odd, "-o", self.folder / "c\x1b[2J.html")):
            self.assert_clean(run("ft-tune", *words))
        model = self.folder / "m\x1b[2J\u2067"
        shutil.copytree(TINY_MOE, model)
        for words in (("ft-tune", "--model", model / "none"), ("ft-tune", "--model", model, "--dry-run", "-o", odd / "x", *HOST),
                      ("ft-tune", "a\x1b[2J"), ("ft-engine", "--profile", self.profile(), "--model", model, "--prompt", "a",
                       "--max-tokens", "1"), ("ft-probe", "--model", model / "none"), ("ft-probe", "\x1b[2J\u202e")):
            done = run(*words)
            self.assertNotEqual(done.stderr, "")
            self.assert_clean(done)


class LostOutputTest(OutputCase):
    def lost(self, *words, closed):
        """With a stdout that takes nothing."""
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command(*words), stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False,
                                  preexec_fn=(lambda: os.close(1)) if closed else None)
        self.assertEqual(done.returncode, NOT_WRITTEN, (words, done.stderr))
        self.assertEqual(done.stderr.splitlines()[-1].split(": error: ")[-1], "cannot write to stdout")

    def test_stdout(self):
        base, slower = self.profile("base.json"), self.profile("slower.json", self.slow)
        fits_not = self.profile("other.json", lambda p: p["identity"]["host"].update(cpu_model="another"))
        for closed in (False, True):
            for words in (("explain", base), ("check", base), ("check", fits_not), ("compare", base, base), ("compare", base, slower),
                          ("compare", base, fits_not), ("doctor", *HOST, "--seconds", "1"), ("--help",), ("compare", "--help")):
                with self.subTest((closed, *words)):
                    self.lost("ft-tune", *words, closed=closed)
            self.lost("ft-engine", "--profile", base, "--model", TINY_MOE, "--dry-run", closed=closed)
        codes = {words: run("ft-tune", *words).returncode for words in (("check", fits_not), ("compare", base, fits_not))}
        self.assertEqual(list(codes.values()), [FAILED, INCOMPARABLE])

    @staticmethod
    def slow(profile):
        for m in profile["measurements"]:
            m["values"] = [v * 3 if m["unit"] == "us" else v / 3 for v in m["values"]]

    def test_a_report_that_cannot_be_written(self):
        base = self.profile("base.json")
        output = self.folder / "out"
        output.write_text("old", encoding="utf-8")
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        for words in (("compare", base, base), ("report", base)):
            done = run("ft-tune", *words, "-o", output, preexec_fn=limit)
            self.assert_refused(done, NOT_WRITTEN, "File too large", str(output))
            self.assertEqual(output.read_text(encoding="utf-8"), "old")
        for place in (self.folder / "none" / "out", self.folder, "/dev/full"):
            self.assert_refused(run("ft-tune", "compare", base, base, "-o", place), USAGE, "--output refused", str(place))


class NumbersTest(OutputCase):
    def test_measurements_that_none_can_be(self):
        text = tiny_profile().read_text(encoding="utf-8")
        first = json.loads(text)["measurements"][0]["values"][0]
        begin = text.index('"values": [', text.index('"measurements"')) + len('"values": [')
        begin = text.index(str(first)[:6], begin)
        end = min(text.index(",", begin), text.index("]", begin))
        base = self.profile("base.json")
        cases = [(number, ("$.measurements[0].values[0]", f"'{number}'", "0 to 1000000000000000")) for number in ("-1", "-0.5")]
        cases += [(number, ("$.measurements[0].values[0]", "0 to 1000000000000000")) for number in ("1e16", "1.5e308")]
        cases += [(number, ("at byte", number, "allowed: numbers of up to 1.7e308")) for number in ("1e999", "-1e999")]
        cases += [(word, ("at byte", "invalid")) for word in ("inf", "Infinity", "-Infinity", "NaN", "nan")]
        for number, words in cases:
            bad = self.folder / "bad.json"
            bad.write_text(text[:begin] + number + text[end:], encoding="utf-8")
            for done in (run("ft-tune", "explain", bad), run("ft-tune", "check", bad), run("ft-tune", "compare", base, bad),
                         run("ft-tune", "compare", bad, base), run("ft-tune", "report", bad, "-o", self.folder / "r.html"),
                         run("ft-engine", "--profile", bad, "--dry-run")):
                with self.subTest((number, done.args)):
                    self.assert_refused(done, USAGE, "bad.json", *words)
        bad.write_text(text[:begin] + "0" + text[end:], encoding="utf-8")
        self.assertEqual(run("ft-tune", "explain", bad).returncode, DONE)


class WordsTest(OutputCase):
    def test_files_that_begin_with_a_dash(self):
        for name in ("-a.json", "--format"):
            shutil.copy(self.profile(), self.folder / name)
            for words in (("explain", "--", name), ("explain", "--format", "json", "--", name), ("compare", "--", name, name)):
                self.assertIn(run("ft-tune", *words, cwd=self.folder).returncode, (DONE, INCOMPARABLE), words)
        self.assert_refused(run("ft-tune", "explain", "-a.json", cwd=self.folder), USAGE, "unknown option")
        self.assert_refused(run("ft-tune", "--model", TINY_MOE, "--", "x"), USAGE, "unexpected argument", "'x'")

    def test_a_folder_that_is_not_there_is_wrong_usage_of_every_program(self):
        gone = self.folder / "gone"
        for done in (run("ft-tune", "--model", gone), run("ft-engine", "--profile", self.profile(), "--model", gone),
                     run("ft-probe", "--model", gone)):
            self.assert_refused(done, USAGE, "no such model folder", str(gone))

    def test_the_advice_about_a_folder_says_folder(self):
        for place in ("/proc/none", f"{self.folder}/none/record"):
            words = ("ft-tune", "--model", TINY_MOE, *HOST, "-o", self.folder / "p.json", "--record", place)
            error = self.assert_refused(run(*words), USAGE, "--record refused", place, "folder")
            self.assertNotIn("name a file", error)
            dry = run(*words, "--dry-run")
            self.assertEqual(dry.returncode, DONE, dry.stderr)
            self.assertIn("warning: without --dry-run: --record refused", dry.stderr)

    def test_a_dry_run_needs_no_place_to_write(self):
        """It writes nothing; that what it stands for could not is a warning."""
        scored = self.folder / "in.json"
        scored.write_text(json.dumps({"input_ids": [1, 2, 3]}), encoding="utf-8")
        for words in (("ft-tune", "--model", TINY_MOE, *HOST), ("ft-engine", "--profile", self.profile(), "--score", scored)):
            for place in ("/proc/out", self.folder / "none" / "out", self.folder):
                with self.subTest((words, place)):
                    self.assert_refused(run(*words, "-o", place), USAGE, "--output refused", str(place))
                    dry = run(*words, "-o", place, "--dry-run")
                    self.assertEqual(dry.returncode, DONE, dry.stderr)
                    self.assertIn("warning: without --dry-run: --output refused", dry.stderr)
                    self.assertNotEqual(dry.stdout, "")
        here = run("ft-tune", "--model", TINY_MOE, *HOST, "--dry-run", cwd="/proc")  # the default output
        self.assertEqual(here.returncode, DONE, here.stderr)


if __name__ == "__main__":
    unittest.main()
