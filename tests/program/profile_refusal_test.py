#!/usr/bin/env python3
"""Profiles and options that must be refused. Checked against: issue 2's list of refusals, with profiles that are made wrong
one field at a time from one that is accepted."""
import json
import os
import unittest

from support import DONE, FAILED, HOST, SCRATCH, TINY_MOE, USAGE, ProgramTest, run, tiny_profile, tune


class ProfileTest(ProgramTest):
    """With the profile that this machine's tuning chose; below with one of each strategy."""
    strategy = None

    @classmethod
    def setUpClass(cls):
        path = tiny_profile()
        if cls.strategy:
            path = SCRATCH / f"{cls.strategy}.json"
            slots = () if cls.strategy == "resident" else ("--slots", "50%")
            tune(TINY_MOE, path, "--strategy", cls.strategy, *slots)
        cls.text = path.read_text(encoding="utf-8")

    def engine(self, text, *options):
        path = self.folder / "profile.json"
        path.write_text(text, encoding="utf-8")
        return run("ft-engine", "--profile", path, "--dry-run", *options)

    def changed(self, change, *options):
        profile = json.loads(self.text)
        change(profile)
        return self.engine(json.dumps(profile), *options)

    def as_cpu(self, profile):
        """The same profile with the strategy cpu without slots, whatever was chosen."""
        serve = profile["serve"]
        serve.update(strategy="cpu", slots=0, fetch_of_misses=[0] * 33, promote_bytes_per_layer=0, max_batch=8)
        serve.pop("fallback", None)  # needs slots
        profile["decision"]["strategy"] = "cpu"
        for index, candidate in enumerate(profile["candidates"]):
            candidate["chosen"] = index == 0
        profile["candidates"][0]["strategy"] = "cpu"

    def test_it_is_accepted_unchanged(self):
        done = self.engine(self.text)
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertIn("expert banks", done.stdout)
        done = self.changed(self.as_cpu)
        self.assertEqual(done.returncode, DONE, done.stderr)

    def test_files_that_are_no_profile(self):
        self.assert_refused(run("ft-engine", "--profile", self.folder / "none.json"), USAGE, "none.json", "No such file")
        self.assert_refused(run("ft-engine", "--profile", self.folder), USAGE, "not a regular file")
        for size in (0, 1, 100, len(self.text) // 2, len(self.text) - 3):
            self.assert_refused(self.engine(self.text[:size]), USAGE, "at byte")
        for text in ("[]", "null", '"a"', "[" * 100000, '{"a":' * 100000, '{"version": "1.0.0", "version": "1.0.0"}'):
            self.assert_refused(self.engine(text), USAGE, "profile")

    def test_versions(self):
        for version in ("2.0.0", "0.9.0", "1", "one", "", "1.0.0.0", "-1.0.0"):
            self.assert_refused(self.changed(lambda p, v=version: p.update(version=v)), USAGE, "$.version", "1.MINOR.PATCH")
        self.assert_refused(self.changed(lambda p: p.pop("version")), USAGE, "$.version")
        self.assert_refused(self.changed(lambda p: p.update(version=1)), USAGE, "$.version")

    def test_keys(self):
        self.assert_refused(self.changed(lambda p: p["serve"].update(nope=1)), USAGE, "unknown key", "$.serve.nope")
        newer = self.changed(lambda p: (p.update(version="1.99.0"), p["serve"].update(nope=1)))
        self.assert_refused(newer, USAGE, "unknown key", "$.serve.nope")
        for key in ("strategy", "threads", "slots", "max_context", "device"):
            self.assert_refused(self.changed(lambda p, k=key: p["serve"].pop(k)), USAGE, f"$.serve.{key}", "missing")

    def test_values_out_of_range(self):
        for key, value in (("threads", 0), ("threads", 1025), ("threads", 1.5), ("threads", "2"), ("max_batch", 65),
                           ("max_batch", 0), ("prefill_chunk", 0), ("prefill_chunk", 8193), ("slots", -1),
                           ("max_context", 0), ("max_context", 16777217), ("promote_bytes_per_layer", -1),
                           ("strategy", "fast"), ("device", "tpu"), ("predicted_tok_s", -1)):
            done = self.changed(lambda p, k=key, v=value: p["serve"].__setitem__(k, v))
            shown = 'the text "2"' if value == "2" else value  # of another type than asked for
            self.assert_refused(done, USAGE, f"$.serve.{key} is '{shown}'", "allowed: ")

    def test_values_that_this_host_or_model_cannot_have(self):
        def cpu_with(**fields):
            return lambda p: (self.as_cpu(p), p["serve"].update(fields))

        cores = len(os.sched_getaffinity(0))
        cases = [
            ("$.serve.threads is '1024'", lambda p: (self.as_cpu(p), p["serve"].update(threads=1024), p["serve"].pop("pinning", 0))),
            ("$.serve.pinning[0] is '60000'", cpu_with(threads=1, pinning=[60000])),
            ("$.serve.max_context is '4097'", cpu_with(max_context=4097)),
            ("$.serve.slots is '193'", cpu_with(slots=193)),
            ("$.serve.slots is '31'", cpu_with(slots=31)),
            ("$.serve.fetch_of_misses is '3'", cpu_with(fetch_of_misses=[0, 0, 0])),
            ("$.serve.fetch_of_misses[32] is '1'", cpu_with(fetch_of_misses=[0] * 32 + [1])),
            ("no CUDA device can be used (", cpu_with(device="cuda")),
            ("$.serve.device is 'cuda'", cpu_with(device="cuda", link_slowdown=2)),
            ("$.serve.link_slowdown is 'present'", cpu_with(link_slowdown=2)),
            ("$.serve.max_batch is '64'", lambda p: p["serve"].update(max_batch=64)),
            ("$.serve.max_batch is '7'", lambda p: p["serve"].update(max_batch=7)),
            ("$.serve.pinning[1] is '0'", cpu_with(threads=2, pinning=[0, 0])),
        ]
        self.assertLess(cores, 1024)
        for words, change in cases:
            with self.subTest(words):
                self.assert_refused(self.changed(change), USAGE, words, "allowed: ")
        self.assertEqual(self.changed(cpu_with(max_context=4096)).returncode, DONE)
        self.assertEqual(self.changed(cpu_with(slots=32, promote_bytes_per_layer=1 << 20)).returncode, DONE)

    def test_a_gpu_is_identity(self):
        """A profile of a machine with a GPU that does not serve here, and options that only a GPU has."""
        def with_gpu(profile):
            profile["identity"]["host"].update(gpu_uuid="GPU-1", gpu_name="G", gpu_driver="1", gpu_link="PCIe 5 x16")

        self.assert_refused(self.changed(with_gpu), USAGE, "$.identity.host.gpu_uuid is 'GPU-1', here it is none",
                            "host.gpu_uuid,host.gpu_name,host.gpu_driver,host.gpu_link")
        self.assert_refused(self.engine(self.text, "--no-wait"), USAGE, "--no-wait has an effect only on cuda")

    def test_a_contradiction(self):
        self.assert_refused(self.changed(lambda p: p["decision"].update(strategy={"cpu": "offload"}.get(p["serve"]["strategy"], "cpu"))),
                            USAGE, "$.decision.strategy")
        self.assert_refused(self.changed(lambda p: p["serve"].update(routing_preset="uniform")), USAGE, "$.serve.routing_preset")
        self.assert_refused(self.changed(lambda p: p["serve"].update(synthetic_seed=3)), USAGE, "$.identity.model.weights")

    def test_identity(self):
        fields = (("host", "cpu_model", "another"), ("host", "cores", 999), ("host", "memory_bytes", 1 << 50),
                  ("build", "code_hash", "0" * 32), ("build", "version", "9.9.9"), ("model", "config_hash", "0" * 32),
                  ("model", "index_hash", "0" * 32))
        for part, field, value in fields:
            def change(profile, part=part, field=field, value=value):
                profile["identity"][part][field] = value

            name = f"{part}.{field}"
            with self.subTest(name):
                self.assert_refused(self.changed(change), USAGE, f"$.identity.{name} is '{value}'", f"--accept-mismatch {name}")
                self.assertEqual(self.changed(change, "--accept-mismatch", name).returncode, DONE)
                other = "host.numa_nodes"
                self.assert_refused(self.changed(change, "--accept-mismatch", other), USAGE, "does not differ", other)
                self.assert_refused(self.changed(change, "--accept-mismatch", "host.nope"), USAGE, "host.nope",
                                    "allowed: host.cpu_model")

        def two(profile):
            profile["identity"]["host"]["cores"] = 999
            profile["identity"]["build"]["code_hash"] = "0" * 32

        self.assert_refused(self.changed(two, "--accept-mismatch", "host.cores"), USAGE, "host.cores,build.code_hash")
        self.assertEqual(self.changed(two, "--accept-mismatch", "host.cores,build.code_hash").returncode, DONE)

    def test_model_folders(self):
        self.assert_refused(self.engine(self.text, "--model", self.folder), (FAILED, USAGE), "config.json")
        self.assert_refused(self.changed(lambda p: p["serve"].update(model_path=str(self.folder / "gone"))), (FAILED, USAGE), "gone")
        self.assert_refused(self.changed(lambda p: p["serve"].pop("model_path")), USAGE, "$.serve.model_path", "--model")
        gone = self.folder / "gone"
        self.assert_refused(self.changed(lambda p: p["serve"].update(model_path=str(gone))), USAGE, "$.serve.model_path",
                            "--model DIR")
        self.assert_refused(self.engine(self.text, "--model", gone), USAGE, "no such model folder", "gone")
        self.assert_refused(run("ft-tune", "--model", gone), USAGE, "no such model folder", "gone")
        file = TINY_MOE / "config.json"
        for done in (self.engine(self.text, "--model", file), run("ft-tune", "--model", file, "-o", self.folder / "x.json")):
            self.assert_refused(done, USAGE, "the model is a file", str(file), "allowed: the folder of a checkpoint")
        config = json.loads((TINY_MOE / "config.json").read_text(encoding="utf-8"))
        other = self.folder / "other"
        other.mkdir()
        (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 2e-6}), encoding="utf-8")
        os.symlink(TINY_MOE / "model.safetensors", other / "model.safetensors")
        self.assert_refused(self.engine(self.text, "--model", other), USAGE, "$.identity.model.config_hash")

    def test_a_dry_run_refuses_what_a_start_would(self):
        """Apart from port and memory: instruction set, tokenizer, chat template, address, prompt, score input."""
        for name, words in (("avx1024", "unknown instruction set in FT_ISA"), ("AVX2", "FT_ISA")):
            path = self.folder / "profile.json"
            path.write_text(self.text, encoding="utf-8")
            done = run("ft-engine", "--profile", path, "--dry-run", environment={"FT_ISA": name})
            self.assert_refused(done, USAGE, words, f"'{name}'", "allowed: scalar")
        folder = self.folder / "model"
        folder.mkdir()
        for file in TINY_MOE.iterdir():
            os.symlink(file, folder / file.name)
        self.assertEqual(self.engine(self.text, "--model", folder).returncode, DONE)
        for name, content, words in (("tokenizer.json", "{}", "tokenizer.json: $.model"),
                                     ("tokenizer.json", "[]", "tokenizer.json: the whole file is 'array'"),
                                     ("chat_template.jinja", "{% nope %}", "nope")):
            with self.subTest(name):
                (folder / name).unlink(missing_ok=True)
                (folder / name).write_text(content, encoding="utf-8")
                served = self.assert_refused(self.engine(self.text, "--model", folder), (FAILED, USAGE), words)
                # A tuning that cannot be served is wasted: it says the same before it measures, and check agrees.
                for more in ((), ("--dry-run",)):
                    tuned = run("ft-tune", "--model", folder, *HOST, "-o", self.folder / "new.json", *more)
                    tuning = self.assert_refused(tuned, (FAILED, USAGE), words)
                    self.assertEqual(tuning.split(": error: ")[1], served.split(": error: ")[1])
                    self.assertNotIn("packing", tuned.stderr)
                checked = run("ft-tune", "check", path, "--model", folder)
                self.assertEqual(checked.returncode, FAILED)
                self.assertIn("refused: " + served.split(": error: ")[1], checked.stdout)
                (folder / name).unlink()
                if (TINY_MOE / name).exists():
                    os.symlink(TINY_MOE / name, folder / name)
        (folder / "tokenizer.json").unlink()
        bare = run("ft-tune", "--model", folder, *HOST, "--dry-run")
        self.assertEqual(bare.returncode, DONE)
        self.assertIn("warning: the folder", bare.stderr)
        self.assertIn("no tokenizer.json", bare.stderr)
        self.assert_refused(self.engine(self.text, "--model", folder, "--prompt", "a"), FAILED, "no tokenizer.json")
        self.assert_refused(self.engine(self.text, "--host", "300.1.1.1"), FAILED, "--host is '300.1.1.1'")
        self.assert_refused(self.engine(self.text, "--prompt", "a " * 20000), FAILED, "allowed: at most 4096")
        score = ("--score", self.folder / "none.json", "--output", self.folder / "out")
        self.assert_refused(self.engine(self.text, *score), (FAILED, USAGE), "none.json")

    def test_memory(self):
        self.assert_refused(self.engine(self.text, "--host-memory", "16MiB"), FAILED, "not enough")


class OptionTest(ProgramTest):
    def test_no_profile_names_the_command_that_makes_one(self):
        self.assert_refused(run("ft-engine"), USAGE, "ft-tune --model DIR")
        self.assert_refused(run("ft-engine", "--model", TINY_MOE), USAGE, f"ft-tune --model {TINY_MOE}")

    def test_options(self):
        tune = ("ft-tune", "--model", str(TINY_MOE))
        cases = [(("ft-tune", "--modle", "a"), "--model"), (("ft-tune",), "--model"), (("ft-tune", "--model"), "--model"),
                 (("ft-tune", "stray"), "stray"), (("ft-engine", "--prot", "1"), "--port"),
                 (("ft-engine", "--port", "0"), "1 to 65535"), (("ft-engine", "--port", "65536"), "1 to 65535"),
                 (("ft-engine", "--port", "http"), "1 to 65535"), (("ft-engine", "--log-level", "loud"), "--log-level"),
                 (("ft-engine", "--profile"), "--profile"), (("ft-engine", "--prompt", ""), "--prompt")]
        for name, values in {"--budget": ("0", "-1", "nan", "inf", "1s", "86401"), "--threads": ("0", "1.5", "1025"),
                             "--slots": ("101%", "-1", "5%%", "x"), "--context": ("0", "5,5", "5,", "x"),
                             "--batch": ("0", "65", "1,1"), "--vram-limit": ("5XB", "-1", "0"), "--strategy": ("fast",),
                             "--device": ("tpu",), "--weights": ("random", "synthetic:-1", "synthetic:x"),
                             "--model": (str(TINY_MOE),)}.items():
            cases += [((*tune, name, value), name) for value in values]
        for words, expected in cases:
            with self.subTest(" ".join(words)):
                self.assert_refused(run(*words), USAGE, expected)

    def test_options_without_an_effect_here(self):
        profile = tiny_profile()
        for options in (("--output", "x"), ("--numerics", "reference"), ("--max-tokens", "5"), ("--routing", "uniform"),
                        ("--score", "a.json"), ("--score", "a.json", "--output", "x", "--prompt", "a")):
            with self.subTest(options):
                self.assert_refused(run("ft-engine", "--profile", profile, *options), USAGE)
        self.assert_refused(run("ft-tune", "--model", TINY_MOE, "--routing", "uniform"), USAGE, "--weights synthetic")

    def test_help_and_version(self):
        for program in ("ft-tune", "ft-engine", "ft-probe"):
            for option in ("--help", "--version"):
                done = run(program, option)
                self.assertEqual((done.returncode, done.stderr), (DONE, ""))
                self.assertIn(program, done.stdout)
            text = " ".join(run(program, "--help").stdout.split())
            for part in ("Usage:", "Options:", "Examples:", "Exit codes:", "--version"):
                self.assertIn(part, text)
            refused = run("ft-tune", "--model", TINY_MOE, "--weights", "synthetic", "--routing", "nope", "-o", self.folder / "x")
            names = refused.stderr.split("allowed: ")[-1]
            self.assertIn("Presets: qwen3-30b, ", text)
            for name in text.split("Presets: ")[1].split(". ")[0].split(", "):
                self.assertIn(name, names)
        self.assert_refused(run("ft-probe", "--probe", "stream,nope"), USAGE, "--probe is 'nope'", "allowed: stream, ")
        self.assert_refused(run("ft-probe", "--bogus"), USAGE, "--bogus")
        for options, words in ((("--model", TINY_MOE, "--routing", "mixed"), "only with synthetic weights"),
                               (("--weights", "synthetic"), "only with a model"),
                               (("--packed-cache", self.folder), "only with a model")):
            self.assert_refused(run("ft-probe", *options), USAGE, words, options[-2])


class ResidentProfileTest(ProfileTest):
    strategy = "resident"


class OffloadProfileTest(ProfileTest):
    strategy = "offload"


class CpuProfileTest(ProfileTest):
    strategy = "cpu"


class HybridProfileTest(ProfileTest):
    strategy = "hybrid"


if __name__ == "__main__":
    unittest.main()
