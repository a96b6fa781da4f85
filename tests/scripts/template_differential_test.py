#!/usr/bin/env python3
"""Chat templates on generated conversations, and generated templates. Checked against: jinja2 with the settings of
transformers, text by text.

Usage: template_differential_test.py [unittest's options], or
       template_differential_test.py --conversations N [--seed S] [TEMPLATE.jinja ..]

The second form compares N conversations from seed S on for each template (default: all that are found), prints those that
differ, and exits with 1 if there are any.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import warnings

import jinja2

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = pathlib.Path(os.environ.get("FT_TEST_DATA", ROOT / "tests" / "data"))
SHARED = pathlib.Path(os.environ.get("FT_SHARED", ROOT.parent / "shared"))
BUILD = pathlib.Path(os.environ.get("ENGINE_BUILD_DIR", ROOT / "build"))
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/text"))
import jinja_reference  # noqa: E402
import random_templates  # noqa: E402
from conversations import conversation  # noqa: E402

CONVERSATIONS = 300  # for each template in the test: 3000 renderings in some seconds
RANDOM_TEMPLATES = 4000
# Where ours may fail in what jinja2 renders: entries that nobody reads (jinja2 makes them when they are read), addresses in
# memory that Python prints, integers beyond 64 bits, and two of its functions that are refused with their reason.
MAKES_ENTRIES = re.compile(r"\| (map|select|reject|selectattr|rejectattr|items|unique|batch)\b")
EXCUSED = re.compile("cannot be printed|does not fit in 64 bits|string formatting with % is not|isdigit of a string that is not ASCII")
PRINTED_OBJECT = re.compile(r" at 0x|<built-in |<bound |<function |dict_(items|keys|values)\(|Markup\(", re.IGNORECASE)


class Ours:
    """tests/text/render_templates, kept running."""

    def __init__(self):
        self.process = subprocess.Popen([BUILD / "tests/text/render_templates"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, encoding="utf-8")

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def compile(self, name, source):
        return self.ask(template=name, source=source)

    def render(self, name, variables):
        return self.ask(template=name, variables=variables, now=jinja_reference.NOW)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(timeout=60)


def sources():
    """{name: source} of the bundled templates and of those in the shared folder."""
    found = {"tiny-moe": json.loads((DATA / "tiny-moe/tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]}
    for folder in (DATA / "tokenizers", SHARED / "tokenizers/templates"):
        found.update({path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))})
    return found


def difference(expected, ours):
    """What is not the same of the two outcomes, or None."""
    if "expected" in expected:
        if "error" in ours:
            return f"jinja2 renders it; ours: {ours['error']}"
        if ours["text"] == expected["expected"]:
            return None
        at = next((i for i, pair in enumerate(zip(ours["text"], expected["expected"])) if pair[0] != pair[1]),
                  min(len(ours["text"]), len(expected["expected"])))
        return f"at {at}: jinja2 {expected['expected'][at - 30:at + 40]!r}, ours {ours['text'][at - 30:at + 40]!r}"
    if "error" not in ours:
        return f"jinja2: {expected['error']}; ours renders it"
    if expected["raised"] and not ours["error"].endswith(f"refuses the messages: {expected['error']}"):
        return f"jinja2 raises {expected['error']!r}; ours: {ours['error']}"
    return None


def compare(ours, name, source, seeds, report):
    """Calls report(seed, variables, what) for every conversation that differs; gives how many rendered, and how many not."""
    template = jinja_reference.environment(jinja_reference.is_mutable(name)).from_string(source)
    counts = {"rendered": 0, "refused": 0}
    for seed in seeds:
        variables = conversation(seed)
        expected = jinja_reference.outcome(template, variables)
        counts["rendered" if "expected" in expected else "refused"] += 1
        what = difference(expected, ours.render(name, variables))
        if what:
            report(seed, variables, what)
    return counts


class DifferentialTest(unittest.TestCase):
    def setUp(self):
        self.ours = Ours()

    def tearDown(self):
        self.assertEqual(self.ours.close(), 0)

    def test_generated_conversations(self):
        templates = sources()
        if len(templates) < 11:
            print(f"skipped in part: FT_SHARED/tokenizers/templates is not there, {len(templates)} templates are")
        self.assertGreaterEqual(len(templates), 2)
        for name, source in templates.items():
            with self.subTest(name):
                self.assertEqual(self.ours.compile(name, source), {})
                counts = compare(self.ours, name, source, range(CONVERSATIONS), lambda *found: self.fail(found))
                self.assertGreater(counts["rendered"], CONVERSATIONS // 10)

    def test_generated_templates(self):
        """One that jinja2 does not parse, ours does not load; what both render is the same; what only jinja2 renders is
        refused at load."""
        warnings.simplefilter("ignore")  # Python's, about what random expressions compare
        environment = jinja_reference.environment(True)
        same = refused = excused = 0
        for seed in range(RANDOM_TEMPLATES):
            source = random_templates.template(seed)
            loaded = self.ours.compile("random", source) == {}
            try:
                template = environment.from_string(source)
            except jinja2.TemplateSyntaxError:
                self.assertFalse(loaded, (seed, source))
                continue
            expected = jinja_reference.outcome(template, random_templates.VARIABLES)
            if "error" in expected or PRINTED_OBJECT.search(expected["expected"]):
                continue
            if not loaded:
                refused += 1
                continue
            ours = self.ours.render("random", random_templates.VARIABLES)
            what = difference(expected, ours)
            if not what:
                same += 1
            elif "error" in ours and (EXCUSED.search(ours["error"]) or MAKES_ENTRIES.search(source)):
                excused += 1
            else:
                self.fail((seed, source, what))
        self.assertGreater(same, RANDOM_TEMPLATES // 5)
        self.assertLess(refused + excused, same // 10)


def main():
    if "--conversations" not in sys.argv:
        return unittest.main()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("templates", nargs="*", type=pathlib.Path)
    chosen = parser.parse_args()
    templates = {path.stem: path.read_text(encoding="utf-8") for path in chosen.templates} or sources()
    ours, different = Ours(), 0

    def report(seed, variables, what):
        nonlocal different
        different += 1
        print(f"{name}, seed {seed}: {what}", flush=True)

    for name, source in templates.items():
        problem = ours.compile(name, source)
        if problem:
            report(None, None, problem["error"])
            continue
        counts = compare(ours, name, source, range(chosen.seed, chosen.seed + chosen.conversations), report)
        print(f"{name}: {counts['rendered']} rendered, {counts['refused']} refused by jinja2 too", flush=True)
    ours.close()
    print(f"{different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
