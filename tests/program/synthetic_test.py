#!/usr/bin/env python3
"""--weights synthetic for both programs, from nothing but a config.json. Checked against: issue 2, item 11, the seed's
reproducibility, and the geometry of the made-up config."""
import json
import os
import signal
import unittest

from support import DONE, FAILED, ONE_POINT, USAGE, ProgramTest, Server, read_safetensors, run, synthetic_model, tune

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
         "ignore": ["lm_head", "model.embed_tokens", "*self_attn*", "*mlp.gate"]}
PRESETS = ("qwen3-30b", "gemma4-26b", "dsv4-flat", "uniform")


def trace(layers=3, experts=16, top_k=2, tokens=64):
    ids = [[[(t + layer + k) % experts for k in range(top_k)] for layer in range(layers)] for t in range(tokens)]
    return {"version": "1.0.0", "source": "made for a test", "layers": layers, "experts": experts, "top_k": top_k,
            "tokens": tokens, "ids": ids}


class SyntheticTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.output = self.folder / "profile.json"

    def score(self, *options):
        source, output = self.folder / "in.json", self.folder / "out.safetensors"
        source.write_text('{"input_ids": [1, 2, 3, 511], "greedy": 3}', encoding="utf-8")
        done = run("ft-engine", "--profile", self.output, "--score", source, "--output", output, *options)
        self.assertEqual(done.returncode, DONE, done.stderr)
        return output

    def test_tuned_and_served(self):
        for name, changes, experts in (("bf16", {}, "bf16"), ("nvfp4", {"quantization_config": NVFP4}, "nvfp4"),
                                       ("mxfp4", {"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4")):
            with self.subTest(name):
                folder = synthetic_model(name, **changes)
                _, profile = tune(folder, self.output, "--weights", "synthetic:7", *ONE_POINT)
                model, serve = profile["identity"]["model"], profile["serve"]
                self.assertEqual(model["weights"], "synthetic:7")
                self.assertNotIn("index_hash", model)
                self.assertEqual(model["formats"], f"experts {experts}, dense bf16")
                self.assertEqual((serve["synthetic_seed"], serve["routing_preset"]), (7, "qwen3-30b"))
                self.assertIn("qwen3-30b", profile["conditions"]["routing_source"])
                self.serve_it()
                out = read_safetensors(self.score())
                self.assertEqual((out["logits"][0], out["greedy_ids"][0]), ([4, 512], [3]))
                first = self.score().read_bytes()
                self.assertEqual(self.score().read_bytes(), first)
                other = self.score("--weights", "synthetic:8", "--accept-mismatch", "model.weights").read_bytes()
                self.assertNotEqual(other, first)

    def serve_it(self):
        server = Server(self.output)
        stats = json.loads(server.ask("/v1/stats")[1])
        self.assertEqual((stats["weights"], stats["routing"]), ("synthetic", "qwen3-30b"))
        status, answer = server.ask("/v1/completions", {"prompt": "Abc", "max_tokens": 40, "seed": 3})
        answer = json.loads(answer)
        self.assertEqual((status, answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]), (200, 3, 40))
        self.assertRegex(answer["choices"][0]["text"], "<(25[6-9]|2[6-9][0-9]|[34][0-9][0-9]|50[0-9]|51[01])>")
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        status, same = server.ask("/v1/completions", {"prompt": [65, 98, 99], "max_tokens": 40, "seed": 3})
        self.assertEqual((status, json.loads(same)["choices"]), (200, answer["choices"]))
        status, refused = server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
        self.assertEqual(status, 400, refused)
        self.assertIn("chat template", json.loads(refused)["error"]["message"])
        code, out, err = server.stop(signal.SIGTERM)
        self.assertEqual((code, out), (DONE, ""))
        self.assertIn("weights are synthetic (seed 7), routing from qwen3-30b", err)
        self.assertIn("no tokenizer.json: every byte of a text is a token", err)
        self.assertIn("synthetic weights", err.splitlines()[-1])
        done = run("ft-engine", "--profile", self.output, "--prompt", "Abc", "--max-tokens", "5")
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertNotEqual(done.stdout.strip(), "")

    def test_a_recorded_trace(self):
        folder = synthetic_model("traced")
        path = self.folder / "trace.json"
        path.write_text(json.dumps(trace()), encoding="utf-8")
        _, profile = tune(folder, self.output, "--weights", "synthetic", "--routing", os.path.relpath(path))
        self.assertEqual(profile["conditions"]["routing_source"], "made for a test")
        self.assertEqual(profile["serve"]["routing_preset"], str(path))
        self.score()
        self.score("--routing", "uniform")
        path.write_text(json.dumps(trace(layers=2)), encoding="utf-8")
        self.assert_refused(run("ft-engine", "--profile", self.output, "--dry-run"), USAGE, "of another model", str(path))

    def test_refused_routing(self):
        folder = synthetic_model("traced")
        path = self.folder / "trace.json"
        cases = [(trace(layers=2), "2 MoE layers"), (trace(experts=17), "17 experts"), (trace(top_k=3), "top 3"),
                 ({**trace(), "version": "2.0.0"}, "$.version"), ({**trace(), "nope": 1}, "$.nope"),
                 ({**trace(), "tokens": 63}, "$.ids"), ({**trace(), "ids": [[[16, 0]] * 3] * 64}, "$.ids[0][0]"),
                 ([], "the whole file")]
        for content, words in cases:
            with self.subTest(words):
                path.write_text(json.dumps(content), encoding="utf-8")
                done = run("ft-tune", "--model", folder, "--weights", "synthetic", "--routing", path, "-o", self.output)
                self.assert_refused(done, USAGE, str(path), words)
        for name in ("nope", "./nope.json"):
            done = run("ft-tune", "--model", folder, "--weights", "synthetic", "--routing", name, "-o", self.output)
            self.assert_refused(done, USAGE, f"'{name}'", *PRESETS)
            self.assertNotIn("making", done.stderr)
        self.assert_no_files(("trace.json",))

    def test_a_config_alone_needs_the_option(self):
        done = run("ft-tune", "--model", synthetic_model("bf16"), "-o", self.output)
        self.assert_refused(done, FAILED, "--weights synthetic")

    def test_another_seed_is_another_model(self):
        tune(synthetic_model("bf16"), self.output, "--weights", "synthetic:1", *ONE_POINT)
        self.assert_refused(run("ft-engine", "--profile", self.output, "--dry-run", "--weights", "synthetic:2"), USAGE,
                            "$.identity.model.weights is 'synthetic:1', here it is 'synthetic:2'")
        self.assert_refused(run("ft-engine", "--profile", self.output, "--dry-run", "--routing", "nope"), USAGE, *PRESETS)


if __name__ == "__main__":
    unittest.main()
