#!/usr/bin/env python3
"""Checks what sources must not hold: check_text.py [ROOT]

The environment is read in one place; no code that is switched off or commented out; no paths of somebody's machine; no
notes to self; no marks of a merge; no tabs, trailing spaces or missing last newline; no junk-drawer file names.
"""
import pathlib
import re
import sys

from tracked import CPP_SUFFIXES, report, tracked_files

GETENV_ALLOWED = "kernels/host/isa.cpp"
TEXT_SUFFIXES = (*CPP_SUFFIXES, ".py", ".md", ".build", ".sh", ".txt", ".json", "")
JUNK_NAMES = re.compile(r"^(utils?|misc|helpers?|common|stuff)(\.|_|$)")
# Written in pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:" + "root|home|wor" + r"k|Users)/[\w.]")
NOTE_TO_SELF = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
MERGE_MARK = re.compile(r"^(<{7}|>{7}) ")
SWITCHED_OFF = re.compile(r"^\s*#\s*if\s+(0|false)\b")
# A comment that is a statement: ends like one, and starts with a keyword, or has a call or an assignment and no prose.
COMMENTED_CODE = re.compile(
    r"^\s*//\s*(?:(?:return|if|for|while|auto|const|int|float|double|std::|#include)\b.*[;{]\s*$"
    r"|[\w.\->\[\]:]+\s*(?:=|\+=|-=)\s*[^,]*;\s*$|[\w.\->:]+\([^()]*\);\s*$|\}\s*$)"
)


def check_line(path, line):
    cpp = path.suffix in CPP_SUFFIXES
    if cpp and re.search(r"\bgetenv\b|\bsecure_getenv\b", line) and str(path) != GETENV_ALLOWED and path.parts[0] != "tests":
        yield f"the environment is read in {GETENV_ALLOWED} only"
    if cpp and SWITCHED_OFF.match(line):
        yield "code that is switched off: delete it, git keeps it"
    if cpp and COMMENTED_CODE.match(line):
        yield "looks like commented-out code: delete it, git keeps it"
    if path.suffix != ".json" and MACHINE_PATH.search(line):
        yield "a path of somebody's machine"
    if NOTE_TO_SELF.search(line) and path.suffix not in (".json", ".txt"):
        yield "a note to self: do it, or file an issue"
    if MERGE_MARK.match(line):
        yield "a mark of a merge: resolve it"
    if (cpp or path.suffix in (".py", ".build")) and "\t" in line:
        yield "tab"
    if line != line.rstrip() and path.suffix not in (".md", ".txt", ".json"):
        yield "trailing space"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    problems = []
    # Data and seeds are what they are; LICENSE is not ours to format.
    files = [p for p in tracked_files(root, *TEXT_SUFFIXES)
             if not str(p).startswith(("tests/data/", "tests/fuzz/corpus/")) and p.name != "LICENSE"]
    for path in files:
        if JUNK_NAMES.match(path.name):
            problems.append(f"{path}: a name that says nothing")
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            problems.append(f"{path}: not UTF-8")
            continue
        for number, line in enumerate(text.split("\n"), 1):
            problems += [f"{path}:{number}: {what}" for what in check_line(path, line)]
        if text and not text.endswith("\n") and path.suffix in (*CPP_SUFFIXES, ".py", ".build", ".md", ".sh"):
            problems.append(f"{path}: no newline at the end")
    code = report(problems, "text")
    print(f"text: {len(files)} files, {len(problems)} problems")
    return code


sys.exit(main())
