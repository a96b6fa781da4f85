#!/usr/bin/env python3
"""scripts/gpu-bench and scripts/gpu-bench-llama with stand-ins for the programs. Checked against: the GGUF layout as its
specification has it (a reader of its own below), the tensors that llama.cpp's qwen3moe asks for, ratios counted by hand."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
PER_LAYER = {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm", "ffn_gate_inp",
             "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}
LLAMA = """#!/usr/bin/env python3
import itertools, json, os, sys
value = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert os.path.getsize(value["-m"]) > 0 and value["-p"] == "0"
records = []
for moe, threads, fa in itertools.product(value["-ncmoe"].split(","), value["-t"].split(","), value["-fa"].split(",")):
    records.append({"n_cpu_moe": int(moe), "n_threads": int(threads), "flash_attn": fa, "avg_ts": 100 - int(moe) + int(threads)})
print(json.dumps(records))
"""
OURS = """#!/usr/bin/env python3
import json, pathlib, sys
value = dict(zip(sys.argv[1::2], sys.argv[2::2]))
here = pathlib.Path(sys.argv[0]).parent
calls = here / "calls"
calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
rate = 150.0 if len(calls.read_text()) == 1 else 300.0
cells = [{"slots_percent": float(percent) + 0.01, "preset": "uniform", "strategy": s, "tokens_per_second": rate * (1 if s == "hybrid" else 0.5),
          "hit_rate": 0.25} for percent in value["--slots"].split(",") for s in ("offload", "hybrid")]
pathlib.Path(value["--json"]).write_text(json.dumps({"cells": cells}))
"""


def load_module():
    loader = importlib.machinery.SourceFileLoader("gpu_bench_llama", str(SCRIPTS / "gpu-bench-llama"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def read_gguf(path):
    """Keys, and tensors as name -> (dimensions, type, offset in the file)."""
    data = path.read_bytes()
    at = 0

    def take(pattern):
        nonlocal at
        values = struct.unpack_from("<" + pattern, data, at)
        at += struct.calcsize("<" + pattern)
        return values[0] if len(values) == 1 else values

    def text():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size:at].decode()

    assert data[:4] == b"GGUF"
    at = 4
    version, tensor_count, key_count = take("I"), take("Q"), take("Q")
    assert version == 3
    keys = {}
    for _ in range(key_count):
        key, kind = text(), take("I")
        keys[key] = text() if kind == 8 else take({4: "I", 6: "f"}[kind])
    infos = []
    for _ in range(tensor_count):
        name, dimensions = text(), take("I")
        shape = tuple(take("Q") for _ in range(dimensions))
        infos.append((name, shape, take("I"), take("Q")))
    begin = -(-at // keys["general.alignment"]) * keys["general.alignment"]
    return keys, {name: (shape, kind, begin + offset) for name, shape, kind, offset in infos}, len(data)


class LlamaTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.module = load_module()
        module = self.module
        module.HIDDEN, module.INTERMEDIATE, module.EXPERTS, module.VOCAB = 128, 64, 4, 96
        module.HEADS, module.KV_HEADS, module.HEAD_DIM, module.PATTERN_BYTES = 2, 1, 64, 1 << 16

    def tearDown(self):
        self.folder.cleanup()

    def test_file_has_what_qwen3moe_asks_for_and_nothing_overlaps(self):
        sizes = {0: (4, 1), 30: (2, 1), 2: (18, 32), 39: (17, 32), 40: (36, 64)}
        for name, kind in self.module.FORMATS.items():
            with self.subTest(format=name):
                path = self.root / "model.gguf"
                self.module.write_gguf(path, kind)
                keys, tensors, size = read_gguf(path)
                self.assertEqual(keys["general.architecture"], "qwen3moe")
                self.assertEqual(keys["qwen3moe.expert_count"], 4)
                self.assertEqual(keys["qwen3moe.vocab_size"], 96)
                expected = {"token_embd.weight", "output.weight", "output_norm.weight"}
                expected |= {f"blk.{layer}.{part}.weight" for layer in range(12) for part in PER_LAYER}
                self.assertEqual(set(tensors), expected)
                self.assertEqual(tensors["blk.11.ffn_down_exps.weight"][:2], ((64, 128, 4), kind))
                end = 0
                for shape, of, begin in sorted(tensors.values(), key=lambda tensor: tensor[2]):
                    self.assertEqual(begin % 32, 0)
                    self.assertGreaterEqual(begin, end)
                    self.assertLess(begin - end, 32 if end else size)
                    weights = 1
                    for side in shape:
                        weights *= side
                    end = begin + weights // sizes[of][1] * sizes[of][0]
                self.assertLess(size - end, 32)

    def test_weights_are_finite_and_of_one_size(self):
        values = struct.unpack("<1000H", self.module.pattern(30)[:2000])
        magnitudes = {value & 0x7f80 for value in values}
        self.assertEqual(magnitudes, {0x3c80})
        self.assertGreater(len(set(values)), 200)
        block = self.module.pattern(40)[36:72]
        self.assertEqual(block[:4], b"\x04" * 4)
        self.assertGreater(len(set(block[4:])), 8)

    def test_best_setting_of_each_share_is_compared_with_both_runs_of_ours(self):
        for name, text in (("llama-bench", LLAMA), ("gpu-bench", OURS)):
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o755)
        output = io.StringIO()
        argv = sys.argv
        sys.argv = ["gpu-bench-llama", "--llama-bench", str(self.root / "llama-bench"), "--gpu-bench", str(self.root / "gpu-bench"),
                    "--threads", "2,4", "--preset", "uniform", "--folder", self.folder.name, "--json", str(self.root / "out.json")]
        try:
            with contextlib.redirect_stdout(output):
                self.assertEqual(self.module.main(), 0)
        finally:
            sys.argv = argv
        rows = json.loads((self.root / "out.json").read_text())["rows"]
        # 9 of 12 layers on the CPU leave 25 %, 6 leave 50 %; best of the settings is with 4 threads. Ours: 150 and 300
        # tok/s are 200 on average of time.
        expected = [(25, "offload", 100 / 95), (25, "hybrid", 200 / 95), (50, "offload", 100 / 98), (50, "hybrid", 200 / 98)]
        self.assertEqual([(row["slots_percent"], row["strategy"]) for row in rows], [row[:2] for row in expected])
        for row, (_, _, ratio) in zip(rows, expected):
            self.assertAlmostEqual(row["ratio"], ratio)
            self.assertIn("n_threads 4", row["settings"])
        self.assertIn("uniform: 2.11x, met", output.getvalue())

    def test_command_lines_that_are_refused(self):
        script = str(SCRIPTS / "gpu-bench-llama")
        for arguments in ([], ["--llama-bench", "x", "--slots", "30"], ["--format", "q9"]):
            with self.subTest(arguments=arguments):
                done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 2)


class WrapperTest(unittest.TestCase):
    def test_in_a_bundle_it_runs_the_program_there(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "bin").mkdir()
            shutil.copy(SCRIPTS / "gpu-bench", root / "gpu-bench")
            (root / "bin/gpu-bench").write_text('#!/bin/sh\necho "$@"\nexit 3\n')
            (root / "bin/gpu-bench").chmod(0o755)
            done = subprocess.run([str(root / "gpu-bench"), "--quick"], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (3, f"--bundled {root}/data/tiny-moe --quick\n"))

    def test_output_that_cannot_be_written_is_refused_before_anything_is_measured(self):
        program = pathlib.Path(os.environ.get("ENGINE_BUILD_DIR", SCRIPTS.parent / "build")) / "tests/bench/gpu-bench"
        if not program.exists():
            self.skipTest("gpu-bench is not built: scripts/build --tests")
        with tempfile.TemporaryDirectory() as folder:
            for path in (folder, folder + "/none/out.json", "/dev/null"):
                done = subprocess.run([program, "--device", "host", "--json", path], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn("--json refused", done.stderr)
                self.assertIn(path, done.stderr)

    def test_a_bundle_goes_into_one_folder(self):
        done = subprocess.run([SCRIPTS / "device-bundle", "--no-build", "one", "two"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("one folder only: 'one' and 'two'", done.stderr)

    def test_help_says_how(self):
        done = subprocess.run([str(SCRIPTS / "gpu-bench"), "--help"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0)
        self.assertIn("scripts/gpu-bench [--no-build]", done.stdout)


if __name__ == "__main__":
    unittest.main()
