#!/usr/bin/env python3
"""Adds up what scripts/test ran: count_tests.py [--meson LOG.json] [--python LOG...] [--fuzz LINES...]

Prints what failed, what was skipped and why, and as its last line `N passed, N failed, N skipped`; fails when something
failed or nothing ran. What counts:
    meson    the test cases of doctest programs; other programs count one each. A case that printed a message starting
             with "skipped:" counts as skipped.
    python   the tests of unittest, or what a last line `N passed, N failed, N skipped` says
    fuzz     the targets of scripts/fuzz
"""
import argparse
import json
import pathlib
import re
import sys

DOCTEST_TOTALS = re.compile(r"\[doctest\] test cases:\s*(\d+) \|\s*(\d+) passed \|\s*(\d+) failed \|\s*(\d+) skipped")
DOCTEST_CASE = re.compile(r"^TEST CASE:\s*(.*)$")
DOCTEST_SKIP = re.compile(r"MESSAGE: (skipped: .*)$")
PART_SKIP = re.compile(r"MESSAGE: (skipped (?!:).*)$")
UNITTEST_TOTALS = re.compile(r"^Ran (\d+) tests? in")
UNITTEST_RESULT = re.compile(r"^(OK|FAILED)(?: \((.*)\))?$")
UNITTEST_SKIP = re.compile(r"^(.*) \.\.\. skipped (.*)$")
PLAIN_TOTALS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")
FUZZ_LINE = re.compile(r"^fuzz (\S+): .*, (passed|FAILED.*)$")
MESON_SKIP_EXIT_CODE = 77


class Totals:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures, self.skips, self.parts = [], [], []


def add_doctest(totals, name, output, ended_well):
    case, skipped = "", {}
    for line in output.splitlines():
        if match := DOCTEST_CASE.match(line):
            case = match[1]
        elif match := DOCTEST_SKIP.search(line):
            skipped.setdefault(case, match[1])
        elif match := PART_SKIP.search(line):
            totals.parts.append(f"{name}: {match[1]}")
    _, passed, failed, left_out = map(int, DOCTEST_TOTALS.search(output).groups())
    if failed == 0 and not ended_well:
        failed = 1  # all cases passed, and the program crashed or leaked at its end
    totals.passed += max(passed - len(skipped), 0)
    totals.failed += failed
    totals.skipped += len(skipped) + left_out
    totals.skips += [f"{name}: {case}: {why}" for case, why in skipped.items()]
    if left_out:
        totals.skips.append(f"{name}: {left_out} cases left out by the program")
    if failed:
        totals.failures.append(f"{name}: {failed} cases")


def add_meson(totals, path):
    for line in path.read_text(encoding="utf-8").splitlines():
        test = json.loads(line)
        output = test.get("stdout", "")
        name = test["name"]
        if DOCTEST_TOTALS.search(output):
            add_doctest(totals, name, output, test["result"] == "OK")
        elif test["result"] == "OK":
            totals.passed += 1
        elif test["result"] == "SKIP" or test.get("returncode") == MESON_SKIP_EXIT_CODE:
            totals.skipped += 1
            totals.skips.append(f"{name}: {(output.strip().splitlines() or ['no reason given'])[-1]}")
        else:
            totals.failed += 1
            totals.failures.append(f"{name}: {test['result']}")


def add_python(totals, path):
    ran = None
    counts = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines and (match := PLAIN_TOTALS.match(lines[-1])):
        passed, failed, skipped = map(int, match.groups())
        ran, counts = passed + failed + skipped, {"failures": failed, "skipped": skipped}
    for line in lines:
        if match := UNITTEST_TOTALS.match(line):
            ran = int(match[1])
        elif ran is not None and (match := UNITTEST_RESULT.match(line)):
            counts = {key.strip(): int(value) for key, value in re.findall(r"([a-z ]+)=(\d+)", match[2] or "")}
        elif match := UNITTEST_SKIP.match(line):
            totals.skips.append(f"{path.stem}: {match[1]}: {match[2]}")
    if ran is None:
        totals.failed += 1
        totals.failures.append(f"{path.stem}: did not run to its end; see {path}")
        return
    failed = sum(counts.get(key, 0) for key in ("failures", "errors", "unexpected successes"))
    skipped = counts.get("skipped", 0)
    totals.failed += failed
    totals.skipped += skipped
    totals.passed += max(ran - failed - skipped, 0)
    if failed:
        totals.failures.append(f"{path.stem}: {failed} tests; see {path}")


def add_fuzz(totals, path):
    match = FUZZ_LINE.match(path.read_text(encoding="utf-8").strip())
    if match and match[2] == "passed":
        totals.passed += 1
    else:
        totals.failed += 1
        totals.failures.append(f"fuzz {path.stem}: {match[2] if match else 'no result'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--meson", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--python", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--fuzz", type=pathlib.Path, nargs="*", default=[])
    arguments = parser.parse_args()
    totals = Totals()
    for path in arguments.meson:
        add_meson(totals, path)
    for path in arguments.python:
        add_python(totals, path)
    for path in arguments.fuzz:
        add_fuzz(totals, path)
    for title, lines in (("failed", totals.failures), ("skipped", totals.skips), ("skipped in part", totals.parts)):
        if lines:
            print(f"{title}:")
            print("\n".join(f"  {line}" for line in lines))
    print(f"{totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped")
    return 1 if totals.failed or not totals.passed else 0


if __name__ == "__main__":
    sys.exit(main())
