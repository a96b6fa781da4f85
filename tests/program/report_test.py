#!/usr/bin/env python3
"""ft-tune report as a user runs it. Checked against: an XML parser and the profile's own numbers; with Chromium, what
scripts/check-report sees in light, dark and on a phone's width."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

from support import DONE, FAILED, ROOT, USAGE, ProgramTest, run, tiny_profile

OLDEST = ROOT / "tests" / "profiles" / "version_1_0.json"
CHECK = ROOT / "scripts" / "check-report"
SKIPPED = 77
HTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>&\"'</td></title></style>"


class ReportTest(ProgramTest):
    def report(self, *profiles, output=None):
        output = output or self.folder / "report.html"
        done = run("ft-tune", "report", *profiles, "-o", output)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (DONE, "", f"report: {output}\n"))
        text = output.read_text(encoding="utf-8")
        return text, ElementTree.fromstring(text.split("\n", 1)[1])

    def hostile(self):
        """A profile whose every free text tries to leave its place."""
        profile = json.loads(tiny_profile().read_text(encoding="utf-8"))
        profile["identity"]["host"]["cpu_model"] += HOSTILE
        profile["conditions"].update(routing_source=HOSTILE, memory=HOSTILE, forced=[HOSTILE],
                                     findings=[{"id": "cpu.quota", "level": "warning", "what": HOSTILE, "fix": HOSTILE}])
        profile["decision"].update(reason=HOSTILE, warnings=[HOSTILE])
        for candidate in profile["candidates"]:
            candidate["verdict"] += HOSTILE
        profile["skipped"].append({"probe": "x", "reason": HOSTILE})
        profile["serve"]["model_path"] = "/models/" + HOSTILE
        path = self.folder / "hostile.json"
        path.write_text(json.dumps(profile), encoding="utf-8")
        return path

    def test_one_profile(self):
        text, page = self.report(tiny_profile())
        profile = json.loads(tiny_profile().read_text(encoding="utf-8"))
        sections = [section.get("id") for section in page.iter(HTML + "section")]
        self.assertEqual(sections, ["decision", "candidates", "changes", "predicted", "time", "ceilings", "sweep", "routing",
                                    "conditions"])
        words = " ".join(page.itertext())
        for candidate in profile["candidates"]:
            self.assertIn(candidate["verdict"], words)
        self.assertIn(profile["identity"]["host"]["cpu_model"], words)
        charts = [svg for svg in page.iter(SVG + "svg") if svg.get("class") == "chart"]
        self.assertGreaterEqual(len(charts), 8)
        self.assertTrue(all(chart.get("aria-label") for chart in charts))
        # A mark for each decode measurement.
        scatter = next(chart for chart in charts if chart.get("aria-label").startswith("Predicted against measured"))
        marks = [e for e in scatter.iter() if (e.get("class") or "").startswith("mark ")]
        self.assertEqual(len(marks), sum(len(c["measured_tok_s"]) for c in profile["candidates"]))
        self.assertIsNone(re.search(r"<(script|link|img|iframe|object)|@import|url\(|src=", text))
        self.assertEqual(set(re.findall(r"https?://[^\"' <]*", text)),
                         {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"})

    def test_several_profiles(self):
        _, page = self.report(tiny_profile(), OLDEST)
        self.assertEqual(sum(1 for _ in page.iter(HTML + "article")), 18)
        heads = [h3.text for h3 in page.iter(HTML + "h3")]
        self.assertEqual(heads.count(OLDEST.name), 9)

    def test_hostile_text_stays_text(self):
        text, page = self.report(self.hostile())
        self.assertNotIn("<script", text)
        self.assertEqual(list(page.iter(HTML + "script")), [])
        self.assertGreater(" ".join(page.itertext()).count(HOSTILE), 5)

    def test_in_a_browser(self):
        for profiles in ((tiny_profile(),), (OLDEST, tiny_profile()), (self.hostile(),)):
            output = self.folder / "report.html"
            self.report(*profiles, output=output)
            done = subprocess.run([sys.executable, CHECK, output], capture_output=True, text=True, timeout=300)
            if done.returncode == SKIPPED:
                self.skipTest("no Chromium: only well-formedness was checked")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for view in ("light", "dark", "phone"):
                shot = self.folder / f"report.{view}.png"
                self.assertEqual(shot.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            self.assertEqual((self.folder / "report.pdf").read_bytes()[:5], b"%PDF-")

    def test_refusals_leave_the_old_page(self):
        output = self.folder / "report.html"
        output.write_text("old", encoding="utf-8")
        broken = self.folder / "broken.json"
        broken.write_text(OLDEST.read_text(encoding="utf-8")[:5000], encoding="utf-8")
        cases = [((), "wrong number"), ((OLDEST,) * 9, "wrong number"), ((OLDEST, broken), "broken.json"),
                 ((self.folder / "none.json",), "No such file"), ((OLDEST, "--format", "pdf"), "--format")]
        for arguments, words in cases:
            with self.subTest(words):
                self.assert_refused(run("ft-tune", "report", *arguments, "-o", output), USAGE, words)
        self.assertEqual(output.read_text(encoding="utf-8"), "old")
        self.assert_no_files(("report.html", "broken.json"))
        self.report(*(OLDEST,) * 8)  # at the bound
        for place in (self.folder, self.folder / "none" / "r.html", pathlib.Path("/dev/null")):
            self.assert_refused(run("ft-tune", "report", OLDEST, "-o", place), (FAILED, USAGE), str(place))
        self.assertIn("Exit codes: 0 done", run("ft-tune", "report", "--help").stdout)

    def test_the_default_output_is_in_the_current_folder(self):
        done = run("ft-tune", "report", OLDEST, cwd=self.folder)
        self.assertEqual((done.returncode, done.stdout), (DONE, "report: report.html\n"))
        self.assertEqual(os.listdir(self.folder), ["report.html"])


if __name__ == "__main__":
    unittest.main()
