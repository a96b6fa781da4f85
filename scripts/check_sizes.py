#!/usr/bin/env python3
"""Checks sizes: check_sizes.py [ROOT]

Source files: 400 lines wanted (a note), 800 allowed; functions: 70 lines. One tracked file at most 16 MiB, all of them
at most 40 MiB. Generated tables (*_table.*) and data are exempt from line limits.
"""
import pathlib
import re
import sys

from tracked import CPP_SUFFIXES, report, tracked_files

WANTED_LINES = 400
MAX_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_FILE_BYTES = 16 << 20
MAX_TREE_BYTES = 40 << 20

# A function starts at the left margin, or two spaces in as a member, its continuation lines are further in, and its
# brace closes at the same column: what clang-format makes of ours.
STARTS = re.compile(r"^(?P<indent>(?:  )?)(?![#}/ ])\S")
NO_FUNCTION = re.compile(r"^\s*(namespace|class|struct|union|enum|extern \"C\" \{|TEST_SUITE)\b")


def statement_end(lines, start):
    """The line on which the statement that starts at `start` ends or opens its brace."""
    end = start
    while not lines[end].rstrip().endswith((";", "{", "}", ":")) and end + 1 < len(lines) and lines[end + 1].startswith("  "):
        end += 1
    return end


def long_functions(path, lines):
    found = []
    i = 0
    while i < len(lines):
        match = STARTS.match(lines[i])
        if not match:
            i += 1
            continue
        opens = statement_end(lines, i)
        text = lines[opens].rstrip()
        if text.endswith("{") and not text.endswith("= {") and not NO_FUNCTION.match(lines[i]):
            close = match["indent"] + "}"
            end = next((j for j in range(opens + 1, len(lines)) if lines[j].startswith(close)), opens)
            if end - i + 1 > MAX_FUNCTION_LINES:
                found.append(f"{path}:{i + 1}: function of {end - i + 1} lines; allowed: {MAX_FUNCTION_LINES}")
            opens = end
        i = opens + 1
    return found


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    problems, notes = [], []
    total = 0
    for path in tracked_files(root):
        size = (root / path).stat().st_size
        total += size
        if size > MAX_FILE_BYTES:
            problems.append(f"{path}: {size} bytes; allowed: {MAX_FILE_BYTES}")
        if path.suffix not in (*CPP_SUFFIXES, ".py", ".sh") or "_table." in path.name:
            continue
        lines = (root / path).read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_LINES:
            problems.append(f"{path}: {len(lines)} lines; allowed: {MAX_LINES}")
        elif len(lines) > WANTED_LINES:
            notes.append(f"{path}: {len(lines)} lines; wanted: {WANTED_LINES}")
        if path.suffix in CPP_SUFFIXES:
            problems += long_functions(path, lines)
    if total > MAX_TREE_BYTES:
        problems.append(f"the tracked tree has {total} bytes; allowed: {MAX_TREE_BYTES}")
    for note in notes:
        print(f"sizes: note: {note}")
    code = report(problems, "sizes")
    print(f"sizes: {total / 2**20:.1f} MiB in the tree, {len(notes)} notes, {len(problems)} problems")
    return code


sys.exit(main())
