#!/usr/bin/env python3
"""Checks for copies: check_duplicates.py [ROOT]

Two source files of more than 100 lines of code must not share more than 40 % of the smaller one's lines, in runs of at
least 6; comments, includes, braces and blank lines do not count. Tests are held to the same.
"""
import itertools
import pathlib
import re
import sys

from tracked import report, tracked_files

MIN_LINES = 100
RUN_LINES = 6
MAX_SHARED = 0.4


def code_lines(text):
    lines = []
    for line in text.splitlines():
        line = re.sub(r"//.*", "", line).strip()
        if line and line not in ("{", "}", "};", "});") and not line.startswith(("#include", "#pragma", "namespace", "using ")):
            lines.append(line)
    return lines


def runs(lines):
    return {tuple(lines[i : i + RUN_LINES]) for i in range(len(lines) - RUN_LINES + 1)}


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = []
    for path in tracked_files(root, ".h", ".cpp", ".inc", ".cu", ".cuh"):
        lines = code_lines((root / path).read_text(encoding="utf-8"))
        if len(lines) > MIN_LINES:
            files.append((path, runs(lines)))
    problems = []
    for (a, runs_a), (b, runs_b) in itertools.combinations(files, 2):
        shared = len(runs_a & runs_b) / min(len(runs_a), len(runs_b))
        if shared > MAX_SHARED:
            problems.append(f"{a} and {b} share {shared:.0%} of their lines; allowed: {MAX_SHARED:.0%}")
    code = report(problems, "duplicates")
    print(f"duplicates: {len(files)} files, {len(problems)} problems")
    return code


sys.exit(main())
