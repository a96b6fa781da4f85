#!/usr/bin/env python3
"""The parts of scripts/oracle-test that need no transformers. Checked against: what it promises of its cases (odd sizes, all
formats, texts past every boundary), errors computed by hand."""
import pathlib
import subprocess
import sys
import unittest

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
from checkpoint import families  # noqa: E402
from checkpoint.model import schemes_of  # noqa: E402
from oracle import cases, verdict  # noqa: E402

SEEDS = 40


class CasesTest(unittest.TestCase):
    def test_every_case_can_be_made_and_is_the_same_again(self):
        for family in families.NAMES:
            seen = [cases.draw(family, seed) for seed in range(SEEDS)]
            with self.subTest(family):
                self.assertEqual({case.scheme for case in seen}, {None, *schemes_of(family)})
                self.assertEqual(len({case.sizes for case in seen}), SEEDS)
                for case in seen:
                    self.assertGreater(len(case.model.entries()), 10)
                    self.assertTrue(all(0 <= token < case.model.config["vocab_size"] for token in case.prompt))
                again = cases.draw(family, 5)
                self.assertEqual((again.model.config, again.prompt), (seen[5].model.config, seen[5].prompt))

    def test_the_odd_ones_are_drawn(self):
        for family in families.TEXT:
            seen = [cases.draw(family, seed) for seed in range(SEEDS)]
            configs = [case.model.config for case in seen]
            with self.subTest(family):
                self.assertTrue(any(config["num_hidden_layers"] == 1 for config in configs))
                self.assertTrue(any(config.get("num_experts_per_tok", config.get("top_k_experts")) == 1 for config in configs))
                self.assertTrue(any(config["hidden_size"] % 128 and config["hidden_size"] > 128 for config in configs))

    def test_models_without_a_choice_are_drawn(self):
        for family in families.NAMES:
            seen = [cases.draw(family, seed) for seed in range(SEEDS)]
            alike = [case for case in seen if not case.chooses]
            with self.subTest(family):
                self.assertEqual(len(alike) > 0, family not in ("deepseek_v4", "qwen4_exp", "qwen4_exp_text"))
                for case in alike:
                    self.assertIn(" E{0} k{0} ".format(case.model.config.get("num_experts_per_tok") or
                                                       case.model.config["top_k_experts"]), case.sizes)

    def test_all_ways_to_store_a_model_are_drawn(self):
        requests = {family: [cases.draw(family, seed).model.request for seed in range(SEEDS)] for family in families.NAMES}
        for family, seen in requests.items():
            with self.subTest(family):
                self.assertEqual({request.with_dense for request in seen if request.quantization}, {None, True, False})
        self.assertEqual({request.experts for seen in requests.values() for request in seen}, {"auto", "fused", "separate"})
        self.assertTrue(any(request.published for request in requests["deepseek_v4"]))
        self.assertTrue(any(request.fp8_table for request in requests["qwen4_exp"]))

    def test_texts_pass_windows_and_compression_boundaries(self):
        def passes(family, bound):
            drawn = [cases.draw(family, seed) for seed in range(SEEDS)]
            return sum(len(case.prompt) > bound(case.model.config) for case in drawn)

        self.assertGreaterEqual(passes("gpt_oss", lambda config: config["sliding_window"]), SEEDS // 4)
        self.assertGreaterEqual(passes("gemma4_text", lambda config: config["sliding_window"]), SEEDS // 4)
        self.assertGreaterEqual(passes("qwen4_exp_text", lambda config: config["indexer_budget"]), SEEDS // 4)
        self.assertGreaterEqual(passes("deepseek_v4", lambda config: max(
            config["compress_rates"][cases.HEAVY], 4 * config["index_topk"], config["sliding_window"])), SEEDS // 4)


class VerdictTest(unittest.TestCase):
    def logits(self, decode, greedy):
        return verdict.Logits(np.float32([[3, 4]]), np.float32(decode), greedy)

    def test_errors_and_the_limit(self):
        self.assertEqual(verdict.relative_error(np.float32([3, 4.5]), np.float32([3, 4])), 0.1)
        self.assertFalse(verdict.relative_error(np.float32([np.nan]), np.float32([1])) <= 1)
        self.assertEqual([verdict.limit(noise) for noise in (0.0, 2.0**-20, 2.0**-10)], [1e-5, 1e-5, 10 * 2.0**-10])

    def test_the_rounding_error_leaves_out_rows_of_other_choices(self):
        exact = np.float32([[3, 4]] * 4)
        values = exact.copy()
        values[:, 1] = (90, 4.5, -4, 3)
        self.assertEqual(verdict.rounding_error(values, exact, chooses=True), 0.1)
        self.assertEqual(verdict.rounding_error(values, exact, chooses=False), verdict.relative_error(values, exact))
        self.assertFalse(verdict.rounding_error(values * np.nan, exact, chooses=True) <= 1)
        self.assertEqual([verdict.serve_limit(rounded) for rounded in (None, 0.5)], [0.05, 0.75])

    def test_rows_after_another_id_do_not_count(self):
        expected = self.logits([[0, 1], [5, 5.0009], [1, 0]], [1, 1, 0])
        near = self.logits([[0, 1], [5.0009, 5], [9, 0]], [1, 0, 0])
        prompt, decode, complaint = verdict.compare(near, expected)
        self.assertEqual((prompt, complaint), (0.0, None))
        self.assertTrue(0 < decode < 1e-3)
        far = self.logits([[1, 0], [5, 5.0009], [1, 0]], [0, 1, 0])
        self.assertEqual(verdict.compare(far, expected)[2], "greedy id 0 is 0, expected 1")
        self.assertEqual(verdict.compare(expected, expected), (0.0, 0.0, None))


class CommandLineTest(unittest.TestCase):
    def run_script(self, *arguments):
        return subprocess.run([sys.executable, str(ROOT / "scripts/oracle-test"), *arguments], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)

    def test_usage(self):
        self.assertIn("--supported-only", self.run_script("--help").stdout)
        for arguments in (("--seeds", "0"), ("--first-seed", "-1"), ("--keep", str(ROOT)), ("--nope",)):
            done = self.run_script(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("oracle-test: error: ", done.stderr)


if __name__ == "__main__":
    unittest.main()
