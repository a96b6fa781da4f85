#!/usr/bin/env python3
"""scripts/serve-geometry on a small made-up model, with the real programs. Checked against: its --help, what the profile
and the server's counters must add up to, the published layer lists of the geometries."""
import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import unittest

from support import BUILD, DATA, ROOT, SECONDS, ProgramTest, synthetic_model

SCRIPT = ROOT / "scripts" / "serve-geometry"
LEFT = 3


def load_script():
    loader = importlib.machinery.SourceFileLoader("serve_geometry", str(SCRIPT))
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("serve_geometry", loader))
    loader.exec_module(module)
    return module


class ServeGeometryTest(ProgramTest):
    def run_script(self, *words):
        words = [sys.executable, SCRIPT, "--build", BUILD, "--out", self.folder / "out", "--device", "host", "--budget", 1,
                 "--context", 64, *words]
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=SECONDS, check=False)

    def test_tuned_and_served(self):
        model = synthetic_model("whole")
        done = self.run_script("--slots", "50%", "--tokens", 16, model)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        out = self.folder / "out"
        self.assertEqual({path.name for path in out.iterdir()}, {
            "results.json", "whole.profile.json", "whole.tune.txt", "whole.plan.txt", "whole.explain.txt", "whole.serve.txt"})
        result = json.loads((out / "results.json").read_text())["whole"]
        self.assertEqual(result["exit_code"], 0)
        for part, streams, tokens in (("filling", 1, 8), ("one", 1, 16), ("four", 4, 32)):
            with self.subTest(part):
                found = result[part]
                self.assertEqual((found["streams"], found["tokens"], found["failed"]), (streams, tokens, 0))
                self.assertGreaterEqual(found["steps"], tokens // streams - 1)
                self.assertLessEqual(found["steps"], tokens - streams)
                self.assertGreater(found["tok_s"], 0)
                activated = found["hits"] + found["fetched"] + found["cpu"]
                # Distinct experts of a step: of one sequence the top 2 of each of 3 layers.
                if streams == 1:
                    self.assertEqual(activated, found["steps"] * 3 * 2)
                self.assertAlmostEqual(found["hit_rate"], found["hits"] / activated)
        profile = json.loads((out / "whole.profile.json").read_text())
        row = done.stdout.splitlines()[-1].split()
        self.assertEqual(row[0], "whole")
        self.assertTrue(row[1].startswith(profile["serve"]["strategy"]), row)
        self.assertEqual(row[-1], "0")
        self.assertIn("why ", (out / "whole.explain.txt").read_text())
        self.assertIn("expert banks", (out / "whole.plan.txt").read_text())
        self.assertRegex(done.stdout, r"GB: device dense weights [0-9.]+, .*; host expert banks [0-9.]+")

    def test_what_fails_is_named_and_the_rest_goes_on(self):
        broken = synthetic_model("broken", model_type="nope")
        done = self.run_script("--layers", "1,2", "--tokens", 8, broken, synthetic_model("cut"))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "broken: failed after .*ft-tune ended with 1: .*not supported")
        self.assertEqual(done.stdout.splitlines()[-1].split()[0], "cut")
        cut = json.loads((self.folder / "out/models/cut/config.json").read_text())
        self.assertEqual(cut["num_hidden_layers"], 2)

    def test_no_time_no_model(self):
        done = self.run_script("--seconds", 2, synthetic_model("late"))
        self.assertEqual((done.returncode, done.stdout), (LEFT, "left: late\n"))

    def test_what_was_measured_before_a_failure_is_shown(self):
        # The longest answer does not fit the context of a profile that was tuned for 64 positions.
        done = self.run_script("--tokens", 300, synthetic_model("long"))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("long: failed: an answer of 400", done.stdout)
        row = done.stdout.splitlines()[-1].split()
        self.assertEqual((row[0], row[-1]), ("long", "0"))
        result = json.loads((self.folder / "out/results.json").read_text())["long"]
        self.assertEqual(result["filling"]["tokens"], 150)
        self.assertNotIn("one", result)

    def test_interrupted(self):
        words = [sys.executable, SCRIPT, "--build", BUILD, "--out", self.folder / "out", "--device", "host", "--budget", 60,
                 synthetic_model("stopped")]
        process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        log, deadline = self.folder / "out/stopped.tune.txt", time.monotonic() + SECONDS
        while not (log.exists() and "stream:" in log.read_text()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("stopped: interrupted", out)

    def test_usage(self):
        for words, said in (((), "no MODEL_DIR"), ((self.folder,), "no config.json"), (("--layers", "x", DATA / "tiny-moe"), "invalid literal"),
                            (("--nope",), "--nope")):
            done = self.run_script(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(said, done.stderr.splitlines()[-1])

    def test_layers_of_the_geometries(self):
        keep = load_script().keep_layers

        def kept(name, layers):
            config = keep(json.loads((DATA / "geometry" / name / "config.json").read_text()), layers)
            return config.get("text_config", config)

        deepseek = kept("deepseek-v4-flash", [1, 2, 3])
        self.assertEqual((deepseek["compress_ratios"], deepseek["num_hash_layers"], deepseek["num_hidden_layers"]), ([0, 4, 128], 2, 3))
        self.assertEqual(kept("gemma-4-26b-a4b", [4, 5])["layer_types"], ["sliding_attention", "full_attention"])
        flash = kept("qwen3.8-flash-next-nvfp4", [1, 2, 3])
        self.assertEqual((flash["ple_layer_ids"], flash["layer_types"]), ([1], ["linear_attention", "linear_attention", "full_attention"]))
        self.assertEqual(kept("qwen3.8-flash-next-nvfp4", [3])["ple_layer_ids"], [])
        with self.assertRaisesRegex(Exception, "layers 0 to 27"):
            kept("deepseek-v4-flash", [28])


if __name__ == "__main__":
    unittest.main()
