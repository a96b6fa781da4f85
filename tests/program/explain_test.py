#!/usr/bin/env python3
"""ft-tune explain as a user runs it. Checked against: the profile's own decision and candidates, of a tuning here and of
the recorded reference profile of version 1.0."""
import json
import unittest

from support import DONE, ROOT, USAGE, ProgramTest, run, tiny_profile

OLDEST = ROOT / "tests" / "profiles" / "version_1_0.json"


class ExplainTest(ProgramTest):
    def explain(self, path):
        done = run("ft-tune", "explain", path)
        as_json = run("ft-tune", "explain", path, "--format", "json")
        self.assertEqual((done.returncode, done.stderr), (DONE, ""))
        self.assertEqual((as_json.returncode, as_json.stderr), (DONE, ""))
        return done.stdout, json.loads(as_json.stdout)

    def test_a_tuning_of_today(self):
        text, why = self.explain(tiny_profile())
        profile = json.loads(tiny_profile().read_text(encoding="utf-8"))
        self.assertEqual(why["strategy"], profile["serve"]["strategy"])
        self.assertIn(f"why {profile['serve']['strategy']}\n", text)
        for candidate in profile["candidates"]:
            self.assertIn(candidate["verdict"], " ".join(text.split()))
        chosen = next(c for c in profile["candidates"] if c["chosen"])
        self.assertEqual(why["parts_seconds"]["chosen"], {p["name"]: p["seconds"] for p in chosen["parts"]})
        for point, rate in enumerate(chosen["predicted_tok_s"]):  # the parts are the predicted step
            batch = profile["conditions"]["batches"][point % len(profile["conditions"]["batches"])]
            total = sum(seconds[point] for seconds in why["parts_seconds"]["chosen"].values())
            self.assertAlmostEqual(total * rate / batch, 1, places=6)
        self.assertNotIn("off what its parameters give", text)
        self.assertTrue(why["changes"] or why["missing"])
        for contradiction in why["contradictions"]:
            self.assertTrue(text.startswith("! "), contradiction)

    def test_a_profile_of_version_1_0(self):
        text, why = self.explain(OLDEST)
        self.assertTrue(text.startswith("! measured contradicts predicted: resident takes 0.77x"), text[:100])
        self.assertEqual(why["changes"], [])
        self.assertEqual(len(why["missing"]), 2)
        self.assertIn("version 1.0.0 does not record", why["missing"][0])

    def test_usage(self):
        broken = self.folder / "broken.json"
        profile = json.loads(OLDEST.read_text(encoding="utf-8"))
        profile["candidates"][0]["predicted_tok_s"] = [1]
        broken.write_text(json.dumps(profile), encoding="utf-8")
        for arguments, words in (((), "wrong number"), ((OLDEST, OLDEST), "wrong number"),
                                 ((self.folder / "none",), "No such file"), ((broken,), "$.candidates[0].predicted_tok_s"),
                                 ((OLDEST, "--format", "xml"), "one of text, json"), ((OLDEST, "--nope"), "--nope")):
            with self.subTest(words):
                self.assert_refused(run("ft-tune", "explain", *arguments), USAGE, words)
        help_text = run("ft-tune", "explain", "--help")
        self.assertEqual(help_text.returncode, DONE)
        self.assertIn("Exit codes: 0 done", help_text.stdout)


if __name__ == "__main__":
    unittest.main()
