#!/usr/bin/env python3
"""Model folders that must be refused before anything is measured or written. Checked against: the safetensors format's
own rules and issue 2's list of refusals; every folder is the bundled model with one thing made wrong."""
import json
import os
import struct
import unittest

from support import DONE, FAILED, TINY_MOE, USAGE, ProgramTest, run, synthetic_model, tiny_profile

WEIGHTS = "model.safetensors"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
K_PROJ = "model.layers.0.self_attn.k_proj.weight"
HOSTILE_JSON = {
    "empty": b"", "NUL": b"\0" * 64, "an array": b"[]", "cut off": b'{"a": [1, 2', "not UTF-8": b'{"a": "\xff\xfe"}',
    "deep arrays": b"[" * 1_000_000, "deep objects": b'{"a":' * 200_000, "a huge number": b'{"a": 1e999}',
    "a key twice": b'{"a": 1, "a": 2}', "too long": b'{"a": "' + b"x" * (65 << 20) + b'"}',
    "too many values": b"[" + b"0," * 8_100_000 + b"0]",
}


class ModelTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.weights = (TINY_MOE / WEIGHTS).read_bytes()
        cls.header_bytes = struct.unpack("<Q", cls.weights[:8])[0]
        cls.header = json.loads(cls.weights[8:8 + cls.header_bytes])
        cls.data = cls.weights[8 + cls.header_bytes:]
        cls.config = json.loads((TINY_MOE / "config.json").read_text(encoding="utf-8"))

    def model(self, **files):
        """The bundled model with some files replaced (bytes) or left out (None); dots in names are written as _."""
        folder = self.folder / "model"
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for path in TINY_MOE.iterdir():
            content = files.get(path.name.replace(".", "_"), path)
            if content is path:
                os.symlink(path, folder / path.name)
            elif content is not None:
                (folder / path.name).write_bytes(content)
        return folder

    def refused(self, folder, *words):
        done = run("ft-tune", "--model", folder, "--budget", "1", "-o", self.folder / "profile.json")
        self.assert_refused(done, (FAILED, USAGE), *words)
        self.assertNotIn("packing weights", done.stderr)
        self.assert_no_files(("model",))

    def with_header(self, header, data=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return self.model(model_safetensors=struct.pack("<Q", len(text)) + text + (self.data if data is None else data))

    def with_entry(self, tensor, **fields):
        return self.with_header({**self.header, tensor: {**self.header[tensor], **fields}})

    def with_config(self, **fields):
        return self.model(config_json=json.dumps({**self.config, **fields}).encode())

    def test_missing_parts(self):
        self.refused(self.model(config_json=None), "config.json")
        self.refused(self.model(model_safetensors=None), WEIGHTS)

    def test_truncated_weights(self):
        after_header = 8 + self.header_bytes
        for size in (0, 7, 8, 100, after_header - 1, after_header, after_header + 1000, len(self.weights) - 1):
            with self.subTest(size):
                self.refused(self.model(model_safetensors=self.weights[:size]), WEIGHTS)

    def test_lying_headers(self):
        begin, end = self.header[Q_PROJ]["data_offsets"]
        cases = {"past the end": {"data_offsets": [begin, 10**12]}, "negative": {"data_offsets": [-8, end]},
                 "backwards": {"data_offsets": [end, begin]}, "beyond 63 bits": {"data_offsets": [2**63, 2**64 - 1]},
                 "fractions": {"data_offsets": [0.5, end]}, "one offset": {"data_offsets": [begin]},
                 "a huge shape": {"shape": [2**40, 2**40]}, "a negative shape": {"shape": [-1, 256]},
                 "no such dtype": {"dtype": "F7"}, "a dtype of another size": {"dtype": "F32"},
                 "overlap": {"data_offsets": [begin - 256, end - 256]}, "another shape": {"shape": [1, 65536]}}
        for name, fields in cases.items():
            with self.subTest(name):
                self.refused(self.with_entry(Q_PROJ, **fields), Q_PROJ)
        self.refused(self.with_entry(K_PROJ, shape=self.header[K_PROJ]["shape"][::-1]), K_PROJ, "allowed: BF16 [128, 256]")
        self.refused(self.with_header({k: v for k, v in self.header.items() if k != Q_PROJ}), "lacks a tensor", Q_PROJ)

    def test_headers_that_are_no_header(self):
        huge = self.model(model_safetensors=struct.pack("<Q", 2**62) + self.weights[8:])
        self.refused(huge, "a header of 4611686018427387904 bytes")
        for text in (b"[" * 100_000, b'{"a":' * 100_000, b'{"\xff": {}}', b"[]", b"", b"{"):
            self.refused(self.with_header(text), WEIGHTS)

    def test_hostile_json(self):
        for name, text in HOSTILE_JSON.items():
            with self.subTest(name):
                self.refused(self.model(config_json=text), "config.json")
                self.refused(self.model(tokenizer_json=text), "tokenizer.json")
        engine = run("ft-engine", "--profile", tiny_profile(), "--model", self.model(tokenizer_json=b"[" * 1_000_000),
                     "--prompt", "a")
        self.assert_refused(engine, FAILED, "tokenizer.json", "nested too deeply")

    def test_models_that_are_not_supported(self):
        self.refused(self.with_config(model_type="llama"), "'llama'", "allowed: ", "gpt_oss", "qwen3_moe")
        self.refused(self.model(config_json=b"{}"), "model_type")
        for fields in ({"hidden_act": "gelu"}, {"hidden_size": -1}, {"num_hidden_layers": 0}, {"vocab_size": 2**40},
                       {"num_experts_per_tok": 33}, {"head_dim": "a"}, {"rms_norm_eps": 0},
                       {"max_position_embeddings": 2**60}, {"moe_intermediate_size": 2**60}):
            with self.subTest(fields):
                self.refused(self.with_config(**fields), *fields, "allowed: ")

    def test_a_config_of_another_checkpoint(self):
        for fields in ({"hidden_size": 512}, {"num_hidden_layers": 7}, {"num_local_experts": 33},
                       {"moe_intermediate_size": 129}, {"vocab_size": 4097}):
            with self.subTest(fields):
                self.refused(self.with_config(**fields), "model.", "check that config.json and the weights belong together")

    def test_a_format_that_is_not_supported(self):
        """Packed int32 words, as GPTQ names them, in place of one expert's weights."""
        stem = "model.layers.0.mlp.experts.0.gate_proj."
        header = {k: v for k, v in self.header.items() if not k.startswith(stem)}
        size = self.header[stem + "weight"]["data_offsets"]
        header[stem + "qweight"] = {"dtype": "I32", "shape": [32, 128], "data_offsets": size}
        self.refused(self.with_header(header), stem)
        folder = synthetic_model("gptq", quantization_config={"quant_method": "gptq", "bits": 4})
        done = run("ft-tune", "--model", folder, "--weights", "synthetic", "-o", self.folder / "profile.json")
        self.assert_refused(done, (FAILED, USAGE), "gptq", "allowed: ")

    def test_a_model_that_is_too_large(self):
        huge = synthetic_model("huge", hidden_size=7168, num_hidden_layers=94, num_experts=512, num_experts_per_tok=8,
                               moe_intermediate_size=4096, num_attention_heads=64, head_dim=128, vocab_size=151936)
        for options in ((), ("--dry-run",)):
            done = run("ft-tune", "--model", huge, "--weights", "synthetic", "-o", self.folder / "p.json", *options)
            self.assert_refused(done, FAILED, "not enough", "GiB")
        # The advice names the limit that binds, and no other.
        both = ("--host-memory", "1MiB", "--vram-limit", "1GiB")
        for options, binds, other in ((("--host-memory", "8MiB"), "--host-memory", "--vram-limit"),
                                      (("--host-memory", "1MiB"), "--host-memory", "--vram-limit"),
                                      (("--vram-limit", "4MiB"), "--vram-limit", "--host-memory"),
                                      (both, "--host-memory", "--vram-limit"),
                                      (("--vram-limit", "44MiB", "--strategy", "resident"), "--vram-limit", "--host-memory"),
                                      (("--host-memory", "52MiB", "--strategy", "resident"), "--host-memory", "--vram-limit")):
            with self.subTest(options):
                done = run("ft-tune", "--model", TINY_MOE, "-o", self.folder / "p.json", *options)
                error = self.assert_refused(done, FAILED, "not enough", "MiB" if "resident" not in options else "slots",
                                            "raise " + binds)
                self.assertNotIn(other, error)
        self.assert_no_files()

    def test_the_default_context_shrinks_to_the_memory(self):
        """4096 tokens for a batch of 8 are 96 MiB of keys and values: what nobody asked for is not refused."""
        done = run("ft-tune", "--model", TINY_MOE, "--host-memory", "80MiB", "--dry-run")
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertRegex(done.stdout, r"batch 8, context 2048\n")
        asked = run("ft-tune", "--model", TINY_MOE, "--host-memory", "80MiB", "--context", "4000", "--dry-run")
        self.assert_refused(asked, FAILED, "kv cache", "lower --context")


if __name__ == "__main__":
    unittest.main()
