#!/usr/bin/env python3
"""ft-engine watching itself: a profile that expects twice the real rate. Checked against: the same profile unedited, whose
answers must be the same, and the rule in engine/runtime/drift.h."""
import json
import re
import signal
import time
import unittest

from support import DONE, SCRATCH, SECONDS, TINY_MOE, USAGE, ProgramTest, Server, run, tune

REQUEST = {"prompt": "In the beginning", "max_tokens": 400, "temperature": 0}
TERMS = ("compute", "hit rate", "fetch", "CPU waits", "throttling", "attention", "context", "batch")


def cpu_profile():
    """Tuned once: strategy cpu with slots, which has offload to fall back to."""
    path = SCRATCH / "watched.json"
    if not path.exists():
        tune(TINY_MOE, path, "--strategy", "cpu", "--slots", "96", "--context", "64,512", "--batch", "1,2", budget="4")
    return json.loads(path.read_text(encoding="utf-8"))


def expect(serve, tok_s):
    """Every tuned point expects that rate of each sequence, in a narrow band; parts keep their shares."""
    for point in serve["expected"]:
        point["tok_s"] = tok_s * point["batch"]
        point["low_tok_s"], point["high_tok_s"] = 0.98 * point["tok_s"], 1.02 * point["tok_s"]
        whole = sum(part["seconds"] for part in point["parts"])
        for part in point["parts"]:
            part["seconds"] /= whole * tok_s


class DriftTest(ProgramTest):
    def write(self, profile):
        path = self.folder / "profile.json"
        path.write_text(json.dumps(profile), encoding="utf-8")
        return path

    def answer(self, server):
        status, text = server.ask("/v1/completions", REQUEST)
        self.assertEqual(status, 200, text)
        return json.loads(text)["choices"][0]["text"]

    def stats(self, server):
        time.sleep(0.3)  # the counters are published every 0.2 s
        return json.loads(server.ask("/v1/stats")[1])

    def answers_until(self, server, reached):
        deadline = time.monotonic() + SECONDS
        texts = set()
        while True:
            texts.update(self.answer(server) for _ in range(4))
            stats = self.stats(server)
            if reached(stats) or time.monotonic() > deadline:
                return texts, stats

    def doubled(self):
        """The profile with twice the rate that this machine has at this moment, and the answer."""
        profile = cpu_profile()
        server = Server(self.write(profile))
        text = [self.answer(server) for _ in range(8)][0]
        stats = self.stats(server)
        code, _, err = server.stop(signal.SIGINT)
        self.assertEqual(code, DONE)
        self.assertIn("drift: judged at contexts 0 to 512 and batches 1 to 2", err)
        self.assertTrue(stats["drift"]["judged"])
        self.assertEqual(stats["drift"]["fallback"], "none")
        self.assertEqual(stats["strategy"], "cpu")
        # Others on this machine make it slower now and then, never faster.
        tuned = [point["tok_s"] for point in profile["serve"]["expected"] if point["batch"] == 1]
        expect(profile["serve"], 2 * max(stats["decode"]["single_tok_s"], *tuned))
        return profile, text

    def metric(self, server, name):
        return float(re.search(rf"^{name} (\S+)$", server.ask("/metrics")[1], re.MULTILINE).group(1))

    def test_half_the_expected_rate_is_said_once_with_its_term(self):
        profile, expected = self.doubled()
        server = Server(self.write(profile))
        texts, stats = self.answers_until(server, lambda s: s["drift"]["windows"] >= 6)
        self.assertEqual(texts, {expected})
        drift = stats["drift"]
        self.assertEqual((drift["state"], drift["times_left"]), ("below", 1), drift)
        self.assertLess(drift["ratio"], 0.8)
        self.assertIn(drift["last_change"]["term"], TERMS)
        self.assertEqual((stats["strategy"], stats["engaged"]["strategy"], drift["fallback"]), ("cpu", "cpu", "none"))
        self.assertEqual(self.metric(server, "ft_drift_state"), -1)
        self.assertEqual(self.metric(server, "ft_drift_left_total"), 1)
        self.assertEqual(self.metric(server, "ft_fallback_active"), 0)
        self.assertLess(self.metric(server, "ft_drift_ratio"), 0.8)
        code, _, err = server.stop(signal.SIGINT)
        self.assertEqual(code, DONE)
        lines = [line for line in err.splitlines() if "drift: decodes at" in line]
        self.assertEqual(len(lines), 1, err)
        self.assertRegex(lines[0], r"at 0\.\d\d of the expected rate \(band 0\.98 to 1\.02\): .* ms a step in place of .* "
                                   rf"({'|'.join(TERMS)}) (or fetch )?(moved|: )|throttling: ")
        self.assertIn("| drift: below the band", err.splitlines()[-1])
        self.assertNotIn("falls back", err)

    def test_it_falls_back_to_offload_and_answers_stay_the_same(self):
        profile, expected = self.doubled()
        server = Server(self.write(profile), "--on-drift", "fallback")
        texts, stats = self.answers_until(server, lambda s: s["strategy"] == "offload")
        self.assertEqual(stats["engaged"]["strategy"], "offload", stats["drift"])
        self.assertEqual(stats["strategy"], "offload")
        self.assertEqual((stats["drift"]["fallback"], stats["drift"]["fell_back_from"]), ("active", "cpu"))
        self.assertEqual(self.metric(server, "ft_fallback_active"), 1)
        cpu_before = stats["experts"]["cpu"]
        texts.add(self.answer(server))
        after = self.stats(server)
        self.assertEqual(texts, {expected})
        self.assertEqual(after["experts"]["cpu"], cpu_before)
        self.assertGreater(after["experts"]["fetched"], 0)
        self.assertFalse(after["drift"]["judged"])  # the profile does not know how fast offload is
        code, _, err = server.stop(signal.SIGINT)
        self.assertEqual(code, DONE)
        self.assertIn("drift: falls back from cpu to offload until the next start", err)
        self.assertIn("below its band the engine falls back to offload", err)
        self.assertIn("| fell back from cpu", err.splitlines()[-1])

    def test_a_profile_that_expects_nothing_is_not_judged(self):
        profile = cpu_profile()
        del profile["serve"]["expected"]
        path = self.write(profile)
        done = run("ft-engine", "--profile", path, "--prompt", "In the beginning", "--max-tokens", "2")
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertIn("drift: not judged, the profile does not say what to expect (serve.expected)", done.stderr)
        self.assert_refused(run("ft-engine", "--profile", path, "--on-drift", "fallback"), USAGE, "--on-drift",
                            "$.serve.expected", "tune again")

    def test_what_has_no_fallback_is_refused(self):
        profile = cpu_profile()
        del profile["serve"]["fallback"]
        path = self.write(profile)
        self.assert_refused(run("ft-engine", "--profile", path, "--on-drift", "fallback", "--dry-run"), USAGE,
                            "nothing to fall back to with strategy cpu", "$.serve.fallback", "leave --on-drift out")
        self.assert_refused(run("ft-engine", "--profile", path, "--on-drift", "never"), USAGE, "--on-drift", "warn")
        self.assert_refused(run("ft-engine", "--profile", path, "--on-drift", "warn", "--score", "in.json", "--output", "o"),
                            USAGE, "--on-drift", "--score")
        profile = cpu_profile()
        profile["serve"]["expected"][0]["tok_s"] = -1
        self.assert_refused(run("ft-engine", "--profile", self.write(profile)), USAGE, "$.serve.expected[0].tok_s", "'-1'")


if __name__ == "__main__":
    unittest.main()
