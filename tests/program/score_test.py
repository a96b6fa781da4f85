#!/usr/bin/env python3
"""ft-engine --score through the real command line. Checked against: logits and greedy ids that Hugging Face transformers
computed in float32 (golden cases, limits of issue 2), and against itself bit by bit where bits must not change."""
import json
import math
import unittest

from support import (DATA, DONE, FAILED, SCRATCH, SHARED, USAGE, ProgramTest, read_safetensors, run, tiny_profile, tune)

ISAS = ("scalar", "avx2", "avx512", "avx512_bf16")


def golden_cases():
    """Folders by name: those of the tree, and the others where the shared folder is there."""
    found = {}
    for root in (SHARED / "golden", DATA / "golden"):
        if root.is_dir():
            found.update({path.name: path for path in root.glob("qwen3_moe*") if (path / "golden.json").exists()})
    return dict(sorted(found.items()))


def relative_error(values, expected):
    difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(values, expected, strict=True)))
    return difference / math.sqrt(sum(b * b for b in expected))


class ScoreCase(ProgramTest):
    def score(self, profile, *options, environment=None, **fields):
        source, output = self.folder / "in.json", self.folder / "out.safetensors"
        source.write_text(json.dumps(fields), encoding="utf-8")
        output.unlink(missing_ok=True)
        done = run("ft-engine", "--profile", profile, "--score", source, "--output", output, *options,
                   environment=environment)
        self.assertEqual((done.returncode, done.stdout), (DONE, ""), done.stderr)
        return output


class GoldenTest(ScoreCase):
    def compare(self, profile, folder, golden, numerics, limit):
        ids, vocab = golden["greedy"], None
        out = read_safetensors(self.score(profile, "--numerics", numerics, input_ids=golden["prompt"], greedy=len(ids)))
        self.assertEqual(set(out), {"logits", "greedy_ids", "greedy_logits"})
        expected = read_safetensors(folder / "golden.safetensors")
        (rows, vocab), logits = out["logits"]
        self.assertEqual(rows, len(golden["prompt"]))
        self.assertEqual(out["greedy_ids"][0], [len(ids)])
        self.assertEqual(out["greedy_logits"][0], [len(ids), vocab])
        at = [x for p in golden["prompt_logits_at"] for x in logits[p * vocab:(p + 1) * vocab]]
        self.assertLessEqual(relative_error(at, expected["prompt_logits"][1]), limit)
        # A row is of the same text as long as all ids before it are the recorded ones.
        chosen = list(out["greedy_ids"][1])
        same = next((i for i, (a, b) in enumerate(zip(chosen, ids)) if a != b), len(ids))
        rows = min(same + 1, len(ids))
        self.assertLessEqual(relative_error(out["greedy_logits"][1][:rows * vocab],
                                            expected["decode_logits"][1][:rows * vocab]), limit)
        for row, choice in enumerate(chosen):
            logits = out["greedy_logits"][1][row * vocab:(row + 1) * vocab]
            self.assertEqual(logits[choice], max(logits))
        return chosen

    def test_golden_cases(self):
        cases = golden_cases()
        self.assertGreaterEqual(len(cases), 4)
        for name, folder in cases.items():
            with self.subTest(name):
                golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
                profile = SCRATCH / f"{name}.json"
                _, written = tune(folder, profile, "--batch", "1", "--context", "240")
                self.assertEqual(written["identity"]["model"]["weights"], "checkpoint")
                limit = max(1e-5, 10 * golden["rel_cached_vs_uncached"])
                chosen = self.compare(profile, folder, golden, "reference", limit)
                self.assertEqual(chosen, golden["greedy"])
                self.compare(profile, folder, golden, "serve", 1.5 * golden["rel_bf16_vs_fp32"])
                prompt = run("ft-engine", "--profile", profile, "--prompt", "a")
                self.assert_refused(prompt, FAILED, "tokenizer.json")


class SameBitsTest(ScoreCase):
    IDS = [826, 263, 3300, 595, 1472, 11, 40, 900, 77, 4095, 0, 12]
    OTHERS = [[5, 9, 300, 21], [2000], [17] * 30]

    def test_batch_and_cache_history_change_no_bit(self):
        profile = SCRATCH / "hybrid.json"
        tune(DATA / "tiny-moe", profile, "--strategy", "hybrid", "--slots", "40")
        alone = self.score(profile, input_ids=self.IDS, greedy=12).read_bytes()
        for fields in ({"batch_with": self.OTHERS}, {"warm_with": self.OTHERS},
                       {"batch_with": self.OTHERS[:1], "warm_with": self.OTHERS[1:]}):
            with self.subTest(fields):
                self.assertEqual(self.score(profile, input_ids=self.IDS, greedy=12, **fields).read_bytes(), alone)
        whole = self.score(tiny_profile(), input_ids=self.IDS, greedy=12).read_bytes()
        self.assertEqual(whole, alone, "the shared profile's strategy gives other bits than hybrid with 40 slots")

    def test_instruction_sets_change_no_bit(self):
        results, missing = {}, []
        for isa in ISAS:
            try:
                output = self.score(tiny_profile(), input_ids=self.IDS, greedy=12, environment={"FT_ISA": isa})
                results[isa] = output.read_bytes()
            except AssertionError as error:
                self.assertIn("FT_ISA", str(error))  # refused with its reason: this CPU lacks it
                missing.append(isa)
        self.assertIn("scalar", results)
        self.assertEqual(len(set(results.values())), 1, list(results))
        if missing:
            print(f"skipped in part: this CPU lacks {', '.join(missing)}")

    def test_reference_numerics_are_others(self):
        serve = self.score(tiny_profile(), input_ids=self.IDS).read_bytes()
        reference = self.score(tiny_profile(), "--numerics", "reference", input_ids=self.IDS)
        self.assertEqual(set(read_safetensors(reference)), {"logits"})
        self.assertNotEqual(reference.read_bytes(), serve)


class RefusedInputTest(ProgramTest):
    def refused(self, text, *words, codes=USAGE):
        (self.folder / "in.json").write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
        done = run("ft-engine", "--profile", tiny_profile(), "--score", self.folder / "in.json", "--output",
                   self.folder / "out.safetensors")
        self.assert_refused(done, codes, *words)
        self.assert_no_files(("in.json",))

    def test_wrong_fields(self):
        ids = {"input_ids": [1, 2]}
        cases = [("$.input_ids[1] is '4096'", {"input_ids": [1, 4096]}), ("$.input_ids[0] is '-1'", {"input_ids": [-1]}),
                 ("$.input_ids[0] is '1.5'", {"input_ids": [1.5]}), ("$.input_ids[1] is 'null'", {"input_ids": [1, None]}),
                 ("$.input_ids[0] is 'true'", {"input_ids": [True]}), ("$.input_ids", {"input_ids": "1 2"}),
                 ("$.input_ids[0] is '18446744073709551615'", {"input_ids": [2**64 - 1]}), ("$.input_ids", {"input_ids": []}),
                 ("$.input_ids is '4097'", {"input_ids": [1] * 4097}), ("$.input_ids", {"greedy": 1}), ("the whole file is 'array'", [1]),
                 ("$.nope", {**ids, "nope": 1}), ("$.greedy is '-1'", {**ids, "greedy": -1}),
                 ("$.greedy is '4096'", {**ids, "greedy": 4096}), ("$.greedy", {**ids, "greedy": "1"}),
                 ("$.batch_with is '8'", {**ids, "batch_with": [[1]] * 8}), ("$.batch_with", {**ids, "batch_with": {}}),
                 ("$.batch_with[0][0] is '-1'", {**ids, "batch_with": [[-1]]}), ("$.batch_with[1]", {**ids, "batch_with": [[1], []]}),
                 ("$.warm_with[0]", {**ids, "warm_with": [1]}), ("$.warm_with[0][1] is '4096'", {**ids, "warm_with": [[1, 4096]]})]
        for words, fields in cases:
            with self.subTest(words):
                self.refused(fields, words, "allowed: ")

    def test_text_that_is_no_json(self):
        for text in (b"", b"{", b"[" * 100000, b'{"input_ids": [1], "input_ids": [2]}', b'{"input_ids": ["\xff"]}'):
            self.refused(text, "in.json", codes=(FAILED, USAGE))

    def test_output_that_cannot_be_written(self):
        (self.folder / "in.json").write_text('{"input_ids": [1]}', encoding="utf-8")
        for output in (self.folder, self.folder / "none" / "out.safetensors", "/dev/null", "/proc/out.safetensors"):
            done = run("ft-engine", "--profile", tiny_profile(), "--score", self.folder / "in.json", "--output", output)
            self.assert_refused(done, USAGE, "--output", str(output))
            self.assertNotIn("packing", done.stderr)
        missing = run("ft-engine", "--profile", tiny_profile(), "--score", self.folder / "none.json", "--output", "x")
        self.assert_refused(missing, (FAILED, USAGE), "none.json")


if __name__ == "__main__":
    unittest.main()
