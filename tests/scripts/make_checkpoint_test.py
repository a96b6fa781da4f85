#!/usr/bin/env python3
"""scripts/make-checkpoint. Checked against: the NumPy reference implementations of the families (they read what was
written, dequantize it and run it), the names, shapes and types of checkpoints that transformers saved (golden cases), an
E4M3 and E2M1 rounding by brute force, and the rounding error that each format's grid allows."""
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads cost ten times what these small products take
import numpy as np  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = pathlib.Path(os.environ.get("FT_TEST_DATA", ROOT / "tests" / "data"))
SHARED = pathlib.Path(os.environ.get("FT_SHARED", ROOT.parent / "shared"))
REFERENCE = SHARED / "reference"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
from checkpoint import families, formats  # noqa: E402
from checkpoint.errors import CheckpointError  # noqa: E402
from checkpoint.model import Model, Request, schemes_of  # noqa: E402

if REFERENCE.is_dir():
    sys.path.insert(0, str(REFERENCE))
    import common as reference  # noqa: E402

SHARD_BYTES = 1 << 30
# The largest part of a value that rounding may take away, of the largest value that shares a scale with it. Half a step of
# the grid at its widest (E2M1: 4 to 6 of 6, E4M3: 16 of 448), and what rounding the scale adds: E4M3 scales (1/16),
# powers of two (E2M1's largest is 6 where up to 8 may be asked; E4M3's scale is up to twice too wide).
LARGEST_ERROR = {
    "nvfp4_modelopt": 1 / 6 * 17 / 16 + 1 / 16, "nvfp4_ct": 1 / 6 * 17 / 16 + 1 / 16, "mxfp4": 0.25, "mxfp4_ct": 0.25,
    "ds_fp4": 0.25, "fp8_block": 1 / 28, "fp8_tensor_modelopt": 1 / 28, "fp8_channel_modelopt": 1 / 28,
    "fp8_tensor_ct": 1 / 28, "fp8_channel_ct": 1 / 28,
}
# Each makes something ragged or extreme: fp8 blocks that end early, one layer, one expert a token.
SHAPES = {"qwen3_moe": {"hidden": 160, "intermediate": 96, "layers": 2}, "gemma4_text": {"hidden": 160, "intermediate": 96, "layers": 2},
          "deepseek_v4": {"hidden": 160, "layers": 3}, "gpt_oss": {"hidden": 96, "layers": 1, "top_k": 1},
          "gemma4": {"hidden": 160, "intermediate": 96, "layers": 2}}


def header(path):
    """{name: (dtype, shape)} of every tensor of a file."""
    size = int.from_bytes(path.read_bytes()[:8], "little")
    entries = json.loads(path.read_bytes()[8:8 + size])
    entries.pop("__metadata__")
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}


def with_known_formats(raw):
    """Formats that the reference does not read, from first principles: fp8 with a scale for all or for each row, and
    32 E2M1 codes with a U8 power of two."""
    known = dict(raw)
    for name, tensor in raw.items():
        stem = name.removesuffix(".weight").removesuffix(".weight_packed")
        scale = raw.get(stem + ".weight_scale")
        if tensor.dtype == "F8_E4M3" and name.endswith(".weight") and scale is not None:
            values = reference.E4M3_VALUES[tensor.data] * np.reshape(scale.data, (-1, 1))
        elif tensor.dtype == "F8_E4M3" and ".ngram_embedding.shard_" in name:  # the reference applies the table's scale
            values = reference.E4M3_VALUES[tensor.data]
        elif name.endswith(".weight_packed") and scale is not None and scale.dtype == "U8":
            values = reference.unpack_e2m1(tensor.data) * np.repeat(reference.E8M0_VALUES[scale.data], 32, axis=-1)
        else:
            continue
        known[stem + ".weight"] = reference.Raw("F32", values.astype(np.float32))
        for suffix in (".weight_packed", ".weight_scale", ".input_scale"):
            known.pop(stem + suffix, None)
    return known


def read(folder):
    """(configuration, dequantized tensors by the names of the text model) as the reference sees a folder."""
    config = reference.load_config(folder)
    raw = {}
    for path in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        raw.update(reference.read_safetensors(path))
    raw = {name.replace("model.language_model.", "model."): tensor for name, tensor in with_known_formats(raw).items()}
    return config, reference.dequantize(raw, [128, 128])


class ScratchTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="make-checkpoint-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, str(ROOT / "scripts/make-checkpoint"), *map(str, arguments)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


class FormatsTest(unittest.TestCase):
    def test_rounding_is_to_the_nearest_code_and_to_even(self):
        for encode, decode, top, codes in ((formats.encode_e2m1, formats.decode_e2m1, 8, 8), (formats.encode_e4m3, formats.decode_e4m3, 500, 127)):
            grid = decode(np.arange(codes, dtype=np.uint8)).astype(np.float64)
            values = np.concatenate([np.random.default_rng(3).uniform(-top, top, 2000), grid, -grid, (grid[1:] + grid[:-1]) / 2])
            for value, code in zip(values, encode(values)):
                distance = np.abs(grid - abs(value))
                nearest = np.nonzero(distance == distance.min())[0]
                best = nearest[0] if len(nearest) == 1 else next(n for n in nearest if n % 2 == 0)
                self.assertEqual(code, best | (np.signbit(value) * (codes if codes == 8 else 128)), value)

    def test_published_examples(self):
        self.assertEqual([float(formats.decode_e4m3(np.uint8([c]))[0]) for c in (1, 8, 0x38, 0x5A, 0x7E, 0xB8)],
                         [2.0**-9, 2.0**-6, 1, 20, 448, -1])
        self.assertEqual(formats.decode_e8m0(np.uint8([0, 127, 254])).tolist(), [2.0**-127, 1, 2.0**127])
        self.assertEqual(formats.encode_e8m0(np.array([-200, 0, 200])).tolist(), [0, 127, 254])
        packed = formats.pack_pairs(formats.encode_e2m1(np.float32([-1.5, 1.0])))
        self.assertEqual((packed.tolist(), formats.decode_e2m1(formats.unpack_pairs(packed)).tolist()), ([0x2B], [-1.5, 1.0]))
        self.assertEqual(formats.encode_bf16(np.float32([1, 1 + 2**-8, 1 + 3 * 2**-8])).tolist(), [0x3F80, 0x3F80, 0x3F82])


@unittest.skipUnless(REFERENCE.is_dir(), "FT_SHARED/reference is not there")
class ReferenceTest(ScratchTest):
    def forward(self, config, tensors):
        ids = np.random.default_rng(5).integers(0, config["vocab_size"], 70)
        return reference.forward_for(config["model_type"])(reference.Weights(tensors), config, ids)

    def make(self, name, dequantized=False, **request):
        Model(Request(seed=7, sizes=SHAPES.get(request["family"], {}), **request)).write(self.folder / name, SHARD_BYTES, dequantized=dequantized)
        return read(self.folder / name)

    def check_plain_copy(self, family, scheme, tensors, logits):
        """The copy in float32 has the same values under the text model's names; where one of the two joins a layer's
        experts, the same logits."""
        config, plain = self.make("plain", family=family, quantization=scheme, dequantized=True)
        self.assertEqual({dtype for dtype, _ in header(self.folder / "plain/model.safetensors").values()} - {"I64"}, {"F32"})
        self.assertEqual(config["model_type"], families.WRAPPERS.get(family, family))
        for name in plain.keys() & tensors.keys():
            self.assertTrue(np.array_equal(tensors[name], plain[name]), name)
        if plain.keys() - tensors.keys():
            self.assertTrue(np.array_equal(self.forward(config, plain), logits))

    def test_every_family_in_every_format(self):
        cases = [(family, scheme) for family in families.NAMES for scheme in (None, *schemes_of(family))]
        self.assertGreaterEqual(len(cases), 60)
        for family, scheme in cases:
            with self.subTest(f"{family} {scheme}"):
                config, tensors = self.make("made", family=family, quantization=scheme)
                logits = self.forward(config, tensors)
                self.assertTrue(np.isfinite(logits).all())
                self.assertTrue(0.1 < logits.std() < 10, logits.std())
                self.check_plain_copy(family, scheme, tensors, logits)
                if scheme:
                    self.check_rounding(tensors, self.make("bf16", family=family, experts="separate")[1], scheme)
            shutil.rmtree(self.folder)

    def check_rounding(self, tensors, originals, scheme):
        """Quantized matrices differ from those in bf16, and no value by more than the format's grid allows."""
        rounded = 0
        for name in tensors.keys() & originals.keys():
            values, original = tensors[name], originals[name]
            if not np.array_equal(values, original):
                error = np.abs(values - original).max() / np.abs(original).max()
                self.assertLessEqual(error, LARGEST_ERROR[scheme] + 2.0**-8, name)  # the original was rounded to bf16
                rounded += 1
        self.assertGreater(rounded, 0)

    def test_layouts_hold_the_same_weights(self):
        for text, wrapper in (("qwen3_5_moe_text", "qwen3_5_moe"), ("gemma4_text", "gemma4"), ("qwen4_exp_text", "qwen4_exp")):
            with self.subTest(wrapper):
                seen = []
                for family, experts in ((text, "separate"), (text, "fused"), (wrapper, "separate"), (wrapper, "fused")):
                    folder = self.folder / f"{family}-{experts}"
                    Model(Request(family, seed=3, experts=experts)).write(folder, SHARD_BYTES)
                    names = header(folder / "model.safetensors")
                    self.assertEqual(any(name.endswith("experts.gate_up_proj") for name in names), experts == "fused")
                    self.assertEqual(any(name.startswith("model.language_model.") for name in names), family == wrapper)
                    seen.append(self.forward(*read(folder)))
                for logits in seen[1:]:
                    self.assertTrue(np.array_equal(logits, seen[0]))

    def test_an_n_gram_table_in_fp8(self):
        request = Request("qwen4_exp", quantization="nvfp4_modelopt", fp8_table=True)
        seen = []
        for name, dequantized in (("made", False), ("plain", True)):
            Model(request).write(self.folder / name, SHARD_BYTES, dequantized=dequantized)
            seen.append(self.forward(*read(self.folder / name)))
        table = {key.rsplit(".ngram_embedding.")[1]: entry for key, entry in header(self.folder / "made/model.safetensors").items()
                 if ".ngram_embedding." in key}
        self.assertEqual({dtype for dtype, _ in table.values()}, {"F8_E4M3", "BF16"})
        self.assertEqual(table["weight_scale"], ("BF16", ()))
        self.assertTrue(np.array_equal(*seen))
        self.assertEqual(json.loads((self.folder / "made/config.json").read_text())["text_config"]["layer_types"][3], "full_attention")

    def test_published_names_of_deepseek_v4_hold_the_same_weights(self):
        rates = {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}}
        for scheme in (None, "ds_fp4"):
            seen = []
            for published in (False, True):
                folder = self.folder / f"{scheme}-{published}"
                Model(Request("deepseek_v4", quantization=scheme, settings=rates, published=published)).write(folder, SHARD_BYTES)
                config, tensors = read(folder)
                self.assertEqual("compress_ratios" in config, published)
                self.assertEqual("layers.1.attn.kv_norm.weight" in tensors, published)
                seen.append(tensors)
            copy = self.folder / f"{scheme}-copy"
            Model(Request("deepseek_v4", quantization=scheme, settings=rates, published=True)).write(copy, SHARD_BYTES, dequantized=True)
            exact = read(copy)[1]
            for name, values in seen[0].items():
                found = seen[1][name.removeprefix("model.").replace("attn.norm.", "attn.kv_norm.")
                                .replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")]
                # Published files keep some of them in float32, before the rounding to bf16.
                self.assertLessEqual(np.abs(found - values).max(), np.abs(values).max() * 2.0**-8, name)
                self.assertTrue(np.array_equal(found, exact[name]), name)
            self.assertTrue(np.isfinite(self.forward(config, seen[1])).all())


class NamesTest(ScratchTest):
    SCHEMES = {"nvfp4_modelopt.z": "nvfp4_modelopt"}

    def test_golden_cases(self):
        if not (SHARED / "golden").is_dir():
            self.skipTest("FT_SHARED/golden is not there")
        compared = 0
        for folder in sorted((SHARED / "golden").iterdir()):
            family, _, scheme = folder.name.removesuffix(".b").partition("-")
            if family not in families.TEXT:
                continue
            with self.subTest(folder.name):
                config = json.loads((folder / "config.json").read_text())
                model = Model(Request(family, config=config, quantization=self.SCHEMES.get(scheme, scheme) or None))
                made = {entry.name: (entry.dtype, entry.shape) for entry in model.entries()}
                self.assertEqual(made, header(folder / "model.safetensors"))
                for key, value in config.get("quantization_config", {}).items():
                    if key not in ("ignore", "modules_to_not_convert", "config_groups"):
                        self.assertEqual(model.file_config()["quantization_config"][key], value)
                compared += 1
        self.assertGreaterEqual(compared, 18)


class FilesTest(ScratchTest):
    def test_shards_and_their_index_hold_what_one_file_holds(self):
        one, many = self.folder / "one", self.folder / "many"
        for folder, shard in ((one, 64), (many, 1)):
            self.assertEqual(self.run_script("qwen3_moe", folder, "--shard-mib", shard, "--seed", 9, "--vocab", 4096).returncode, 0)
        index = json.loads((many / "model.safetensors.index.json").read_text())
        files = sorted({*index["weight_map"].values()})
        self.assertEqual(files, [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)])
        self.assertGreaterEqual(len(files), 3)
        whole, bodies = header(one / "model.safetensors"), b""
        for name in files:
            for tensor, entry in header(many / name).items():
                self.assertEqual((index["weight_map"].pop(tensor), whole.pop(tensor)), (name, entry))
            data = (many / name).read_bytes()
            bodies += data[8 + int.from_bytes(data[:8], "little"):]
        self.assertEqual((index["weight_map"], whole), ({}, {}))
        data = (one / "model.safetensors").read_bytes()
        self.assertEqual(bodies, data[8 + int.from_bytes(data[:8], "little"):])
        self.assertEqual(index["metadata"]["total_size"], len(bodies))
        self.assertEqual(json.loads((one / "generation_config.json").read_text()), {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})

    def test_the_seed_decides(self):
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            self.assertEqual(self.run_script("gpt_oss", self.folder / name, "--quantization", "mxfp4", "--seed", seed).returncode, 0)
        a, b, c = ((self.folder / name / "model.safetensors").read_bytes() for name in "abc")
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)

    def test_sizes_settings_tokenizer_and_plain_copy(self):
        plain = self.folder / "plain"
        done = self.run_script("qwen3_5_moe", self.folder / "made", "--hidden", 96, "--intermediate", 48, "--experts", 5, "--top-k", 1,
                               "--layers", 5, "--heads", 6, "--kv-heads", 3, "--head-dim", 32, "--vocab", 4096, "--context", 512,
                               "--set", "rope_parameters.rope_theta=1e4", "--set", "hidden_act=silu", "--quantization", "nvfp4_ct",
                               "--tokenizer", DATA / "tiny-moe", "--dequantized", plain)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        config = json.loads((self.folder / "made/config.json").read_text())
        text = config["text_config"]
        self.assertEqual((config["model_type"], config["architectures"]), ("qwen3_5_moe", ["Qwen3_5MoeForConditionalGeneration"]))
        self.assertEqual(config["quantization_config"]["format"], "nvfp4-pack-quantized")
        self.assertIn(r"re:model\.language_model\.layers\.\d+\.linear_attn\.in_proj_qkv$", config["quantization_config"]["ignore"])
        self.assertEqual([text[key] for key in ("hidden_size", "moe_intermediate_size", "num_experts", "num_experts_per_tok",
                                                "num_hidden_layers", "max_position_embeddings")], [96, 48, 5, 1, 5, 512])
        self.assertEqual(text["rope_parameters"], {"partial_rotary_factor": 0.25, "rope_theta": 1e4, "rope_type": "default"})
        self.assertEqual(text["layer_types"], ["linear_attention"] * 3 + ["full_attention", "linear_attention"])
        for folder in (self.folder / "made", plain):
            self.assertEqual((folder / "tokenizer.json").read_bytes(), (DATA / "tiny-moe/tokenizer.json").read_bytes())
        self.assertNotIn("quantization_config", json.loads((plain / "config.json").read_text()))

    def test_a_real_configuration(self):
        geometry = DATA / "geometry/qwen3-30b-a3b-nvfp4/config.json"
        done = self.run_script("qwen3_moe", self.folder / "none", "--config", geometry, "--quantization", "nvfp4_modelopt", "--dry-run")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        tensors, size = (int(word) for word in done.stdout.split() if word.isdigit())
        experts = 48 * 128 * 3
        self.assertEqual(tensors, experts * 4 + 48 * 9 + 3)
        # 0.5625 bytes an expert weight and two scalars a matrix; two bytes for all else.
        other = 2 * 151936 * 2048 + 2048 + 48 * (2 * 2048 + 2 * 128 + 128 * 2048 + 2048 * 128 * (2 * 32 + 2 * 4))
        self.assertEqual(size, experts * (2048 * 768 * 9 // 16 + 8) + 2 * other)
        self.assertFalse((self.folder / "none").exists())


class RefusedTest(ScratchTest):
    def test_what_cannot_be_made(self):
        cases = [({"family": "llama"}, "family is 'llama'", "qwen3_moe"), ({"quantization": "mxfp4"}, "quantization is 'mxfp4'", "fp8_block"),
                 ({"family": "gpt_oss", "quantization": "fp8_block"}, "quantization", "allowed: mxfp4"),
                 ({"sizes": {"top_k": 9}}, "num_experts_per_tok is 9", "num_experts"), ({"sizes": {"kv_heads": 3}}, "num_attention_heads is 4", "multiple of 3"),
                 ({"sizes": {"head_dim": 31}}, "head_dim is 31", "multiple of 2"), ({"published": True}, "published", "deepseek_v4"),
                 ({"sizes": {"hidden": 100}, "quantization": "nvfp4_ct"}, "100 columns", "multiples of 16"),
                 ({"family": "gpt_oss", "sizes": {"hidden": 48}, "quantization": "mxfp4"}, "48 columns", "multiples of 32"),
                 ({"family": "gpt_oss", "sizes": {"dense_intermediate": 8}}, "--dense-intermediate", "no such size"),
                 ({"family": "gpt_oss", "settings": {"layer_types": ["x"] * 4}}, "layer_types is 'x'", "sliding_attention"),
                 ({"family": "gemma4", "settings": {"layer_types": ["sliding_attention"] * 6}}, "layer_types[-1]", "full_attention"),
                 ({"family": "deepseek_v4", "settings": {"o_groups": 3}}, "num_attention_heads", "o_groups"),
                 ({"family": "deepseek_v4", "published": True}, "compress_rates", "128"),
                 ({"fp8_table": True}, "n-gram table", "qwen4_exp"), ({"family": "qwen4_exp", "settings": {"ple_layer_ids": [4]}}, "ple_layer_ids is 4", "linear attention"),
                 ({"settings": {"hidden_size.x": 1}}, "'hidden_size' of --set", "an object"), ({"config": {"model_type": "qwen3_moe"}}, "hidden_size is None", "whole number")]
        for changes, *words in cases:
            with self.subTest(str(changes)):
                with self.assertRaises(CheckpointError) as caught:
                    model = Model(Request(**{"family": "qwen3_moe", **changes}))
                    self.assertTrue(model.entries() and model.file_config())
                for word in itertools.chain(words, ("allowed: ",)):
                    self.assertIn(word, str(caught.exception))

    def test_exit_codes(self):
        (self.folder / "file").write_text("x", encoding="utf-8")
        for code, words, arguments in ((2, "invalid choice", ("llama", self.folder / "x")), (2, "whole numbers", ("gpt_oss", self.folder / "x", "--layers", "0")),
                                       (2, "KEY=VALUE", ("gpt_oss", self.folder / "x", "--set", "a")), (1, "not empty", ("gpt_oss", self.folder)),
                                       (1, "no tokenizer.json", ("gpt_oss", self.folder / "y", "--tokenizer", self.folder)),
                                       (1, "largest id", ("gpt_oss", self.folder / "z", "--tokenizer", DATA / "tiny-moe")),
                                       (1, "cannot read", ("gpt_oss", self.folder / "x", "--config", self.folder / "none"))):
            done = self.run_script(*arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""))
            self.assertIn(words, done.stderr)
        self.assertFalse((self.folder / "x").exists())


if __name__ == "__main__":
    unittest.main()
