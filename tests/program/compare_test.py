#!/usr/bin/env python3
"""ft-tune compare as a user and a CI job meet it. Checked against: profiles made by hand from a tuned one, whose verdict is
known; the exit codes of issue 5, item 6; the elements and attributes that JUnit's usual schema (junit-10.xsd) knows."""
import copy
import json
import re
import unittest
import xml.etree.ElementTree as ElementTree

from support import DONE, USAGE, ProgramTest, run, tiny_profile

REGRESSED, INCOMPARABLE = 1, 3
SAMPLES = 31


def quiet(profile):
    """The same profile as a quiet machine would have measured it: every series within 1 % of its median."""
    profile = copy.deepcopy(profile)
    profile["conditions"].update(throttled_usec=0)
    profile["conditions"].pop("findings", None)
    for index, m in enumerate(profile["measurements"]):
        middle = sorted(m["values"])[len(m["values"]) // 2]
        if m["probe"] == "yardstick":
            middle = 30.0
            m["at"]["others_share"] = 0.0
        m["values"] = [middle * (1 + 0.01 * ((i * 7 + index * 3) % SAMPLES) / SAMPLES) for i in range(SAMPLES)]
        m["reduced"] = False
    return profile


def slower(profile, probe, factor, name=""):
    for m in profile["measurements"]:
        if m["probe"] == probe and name in m["name"]:
            m["values"] = [v * factor if m["unit"] == "us" else v / factor for v in m["values"]]
    return profile


class CompareTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.base = quiet(json.loads(tiny_profile().read_text(encoding="utf-8")))

    def compare(self, change=lambda profile: profile, *options):
        """Compares the quiet profile with what `change` makes of a copy of it."""
        new = copy.deepcopy(self.base)
        change(new)
        paths = []
        for name, profile in (("base.json", self.base), ("new.json", new)):
            paths.append(self.folder / name)
            paths[-1].write_text(json.dumps(profile), encoding="utf-8")
        return run("ft-tune", "compare", *paths, *options)

    def report(self, change, code, *options):
        done = self.compare(change, "--format", "json", *options)
        self.assertEqual((done.returncode, done.stderr), (code, ""), done.stdout[:2000])
        report = json.loads(done.stdout)
        self.assertEqual(report["exit_code"], code)
        return report

    def verdicts(self, report, verdict):
        return [m["name"] for m in report["metrics"] if m["verdict"] == verdict]

    def test_the_same(self):
        report = self.report(lambda p: p, DONE)
        self.assertEqual({m["verdict"] for m in report["metrics"]}, {"same"})
        self.assertEqual({m["name"].split("/")[0] for m in report["metrics"]},
                         {"expert_single", "layer_sweep", "dense", "overlap", "decode"})
        self.assertAlmostEqual(report["machine_time_ratio"], 1)
        done = self.compare()
        self.assertEqual(done.returncode, DONE)
        self.assertRegex(done.stdout.splitlines()[-1], r"^no regression \(0 regressed, 0 improved, \d+ same, 0 incomparable\)$")

    def test_slower_and_faster(self):
        report = self.report(lambda p: slower(p, "expert_single", 1.1, "gate_up"), REGRESSED)
        names = self.verdicts(report, "regressed")
        self.assertEqual(len(names), 1)
        self.assertIn("gate_up", names[0])
        self.assertAlmostEqual(report["metrics"][0]["time_ratio"], 1.1, places=2)
        report = self.report(lambda p: slower(p, "decode", 1.3), REGRESSED)
        self.assertTrue(all(name.startswith("decode/") for name in self.verdicts(report, "regressed")))
        report = self.report(lambda p: slower(p, "layer_sweep", 0.7), DONE)
        self.assertTrue(all(name.startswith("layer_sweep/") for name in self.verdicts(report, "improved")))

    def test_a_slower_machine_is_no_regression(self):
        def slow_machine(profile):
            for probe in {m["probe"] for m in profile["measurements"]}:
                slower(profile, probe, 1.3)

        report = self.report(slow_machine, INCOMPARABLE)
        self.assertIn("yardstick", report["metrics"][0]["reason"])
        self.assertAlmostEqual(report["machine_time_ratio"], 1.3)

    def test_another_build_is_compared_and_named(self):
        def other_build(profile):
            profile["identity"]["build"].update(version="9.9.9", code_hash="0" * 32)

        report = self.report(other_build, DONE)
        self.assertEqual({d["field"] for d in report["identity_differences"]}, {"build.version", "build.code_hash"})
        self.assertIn("build.version: ", self.compare(other_build).stdout)

    def test_incomparable_as_a_whole(self):
        cases = [("host", "cpu_model", "another"), ("host", "cores", 999), ("model", "config_hash", "0" * 32)]
        for part, field, value in cases:
            with self.subTest(field):
                report = self.report(lambda p: p["identity"][part].update({field: value}), INCOMPARABLE)
                self.assertIn(f"another {part}: {part}.{field}", report["incomparable"][0])
                self.assertEqual(report["metrics"], [])
        for options in ((), ("--format", "markdown"), ("--format", "junit")):
            done = self.compare(lambda p: p["identity"]["host"].update(cpu_model="another"), *options)
            self.assertEqual(done.returncode, INCOMPARABLE)
            self.assertIn("another host", done.stdout.replace("\\_", "_"))
        report = self.report(lambda p: p.update(measurements=[]), INCOMPARABLE)
        self.assertEqual({m["verdict"] for m in report["metrics"]}, {"incomparable"})

    def test_one_metric_that_is_incomparable_does_not_fail(self):
        def few(profile):
            next(m for m in profile["measurements"] if m["probe"] == "dense")["values"][7:] = []

        report = self.report(few, DONE)
        self.assertEqual(len(self.verdicts(report, "incomparable")), 1)
        self.assertIn("too few samples", report["metrics"][0]["reason"])

    def test_metrics_and_floor(self):
        def both(profile):
            slower(slower(profile, "dense", 1.2), "layer_sweep", 1.5)

        self.assertEqual({m["name"].split("/")[0] for m in self.report(both, REGRESSED, "--metric", "dense/")["metrics"]}, {"dense"})
        self.report(both, DONE, "--metric", "expert_single/,decode/")
        self.report(both, DONE, "--metric", "dense/", "--floor", "25")
        self.report(both, REGRESSED, "--metric", "dense/", "--floor", "10")

    def test_usage(self):
        same = self.folder / "base.json"
        self.assertEqual(self.compare().returncode, DONE)
        damaged = self.folder / "damaged.json"
        damaged.write_text(same.read_text(encoding="utf-8")[:1000], encoding="utf-8")
        wrong = self.folder / "wrong.json"
        text = json.loads(same.read_text(encoding="utf-8"))
        text["measurements"][0]["values"][0] = "fast"
        wrong.write_text(json.dumps(text), encoding="utf-8")
        cases = [((same,), "PROFILE"), ((same, same, same), "PROFILE"), ((same, self.folder / "none.json"), "none.json"),
                 ((damaged, same), "damaged.json"), ((same, damaged), "damaged.json"),
                 ((same, wrong), "$.measurements[0].values[0]"), ((same, same, "--format", "xml"), "text, markdown, json, junit"),
                 ((same, same, "--floor", "51"), "0 to 50"), ((same, same, "--floor", "-1"), "0 to 50"),
                 ((same, same, "--metric", "nothing/"), "--metric is 'nothing/'"),
                 ((same, same, "-o", self.folder / "none" / "report"), "none"), ((same, same, "-o", self.folder), str(self.folder))]
        for words, expected in cases:
            with self.subTest(expected):
                self.assert_refused(run("ft-tune", "compare", *words), USAGE, expected)
        text = run("ft-tune", "compare", "--help").stdout
        for part in ("Examples:", "0 no regression, 1 regression, 2 usage", "3 incomparable", "--floor", "--metric"):
            self.assertIn(part, " ".join(text.split()))

    def test_a_report_in_a_file(self):
        output = self.folder / "report.md"
        output.write_text("old", encoding="utf-8")
        done = self.compare(lambda p: slower(p, "dense", 1.3), "--format", "markdown", "-o", output)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (REGRESSED, "", ""))
        self.assertIn("regression", output.read_text(encoding="utf-8"))
        self.assert_no_files(("base.json", "new.json", "report.md"))

    def test_markdown(self):
        def change(profile):
            slower(slower(profile, "dense", 1.3), "overlap", 0.7)
            next(m for m in profile["measurements"] if m["probe"] == "layer_sweep")["values"][7:] = []

        text = self.compare(change, "--format", "markdown").stdout
        self.assertLess(text.index("regressed**"), text.index("improved**"))
        self.assertLess(text.index("improved**"), text.index("<details>"))
        self.assertEqual(text.count("<details>"), 2)
        self.assertEqual(text.count("</details>"), 2)
        for line in text.splitlines():
            if line.startswith("|"):
                self.assertIn(len(re.findall(r"(?<!\\)\|", line)), (3, 7), line)

    def test_markdown_fits_a_comment(self):
        def many(profile):
            first = next(m for m in profile["measurements"] if m["probe"] == "dense")
            profile["measurements"] += [{**first, "name": f"only.in.new.{i}"} for i in range(2000)]

        text = self.compare(many, "--format", "markdown").stdout
        self.assertLess(len(text.encode()), 60000)
        self.assertRegex(text, r"\d+ more are left out here")
        self.assertEqual(text.count("<details>"), text.count("</details>"))

    def test_junit(self):
        def change(profile):
            slower(profile, "dense", 1.3)
            first = next(m for m in profile["measurements"] if m["probe"] == "layer_sweep")
            first["values"][7:] = []
            first["name"] = "a<b>&\"c\""

        done = self.compare(change, "--format", "junit")
        self.assertEqual(done.returncode, REGRESSED)
        suites = ElementTree.fromstring(done.stdout)
        self.assertEqual(suites.tag, "testsuites")
        suite, = list(suites)
        self.assertEqual(suite.tag, "testsuite")
        self.assertLessEqual(set(suite.attrib), {"name", "tests", "failures", "errors", "skipped", "time"})
        cases = list(suite)
        self.assertEqual(int(suite.get("tests")), len(cases))
        counts = {"failure": 0, "skipped": 0}
        for case in cases:
            self.assertEqual(case.tag, "testcase")
            self.assertEqual(set(case.attrib), {"classname", "name", "time"})
            self.assertLessEqual(len(case), 1)
            for child in case:
                counts[child.tag] += 1
                self.assertLessEqual(set(child.attrib), {"message", "type"})
        self.assertEqual((counts["failure"], counts["skipped"]), (int(suite.get("failures")), int(suite.get("skipped"))))
        self.assertGreater(counts["failure"], 0)
        self.assertEqual(counts["skipped"], 2)
        self.assertIn("a<b>&\"c\"", {case.get("name") for case in cases})


if __name__ == "__main__":
    unittest.main()
