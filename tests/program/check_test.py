#!/usr/bin/env python3
"""ft-tune check as a user runs it. Checked against: what ft-engine --dry-run accepts and refuses of the same files."""
import json
import os
import shutil
import unittest

from support import DONE, FAILED, TINY_MOE, USAGE, ProgramTest, run, tiny_profile


class CheckTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.text = tiny_profile().read_text(encoding="utf-8")

    def check(self, change=lambda profile: None, *options):
        """Both programs about the same file: check's process, its JSON, and what the engine said."""
        profile = json.loads(self.text)
        change(profile)
        path = self.folder / "profile.json"
        path.write_text(json.dumps(profile), encoding="utf-8")
        done = run("ft-tune", "check", path, *options)
        as_json = run("ft-tune", "check", path, "--format", "json", *options)
        self.assertEqual((done.stderr, as_json.stderr), ("", ""))
        self.assertEqual(done.returncode, as_json.returncode)
        engine = run("ft-engine", "--profile", path, "--dry-run", *options)
        self.assertEqual(done.returncode == DONE, engine.returncode == DONE, engine.stderr)
        report = json.loads(as_json.stdout)
        self.assertEqual(report["fits"], done.returncode == DONE)
        bad = {row["field"]: row["state"] for row in report["fields"] if row["state"] != "fits"}
        for row in report["fields"]:
            mark = " " if row["state"] == "fits" else "!"
            self.assertRegex(done.stdout, rf"(?m)^{mark} {row['field']} ")
        return done, bad, engine.stderr

    def test_it_fits_where_it_was_tuned(self):
        done, bad, _ = self.check()
        self.assertEqual((done.returncode, bad), (DONE, {}))
        self.assertTrue(done.stdout.endswith(f"\nfits: ft-engine would start with {self.folder}/profile.json\n"))
        self.assertEqual(self.check(lambda p: None, "--model", str(TINY_MOE))[0].returncode, DONE)

    def test_what_does_not_fit_is_what_the_engine_refuses(self):
        def two(profile):
            profile["identity"]["host"]["cores"] = 999
            profile["identity"]["build"]["code_hash"] = "0" * 32

        def long(profile):
            profile["serve"]["max_context"] = 4097

        def threads(profile):
            profile["serve"]["threads"] = 1024
            profile["serve"].pop("pinning", None)

        for change, fields in ((two, {"host.cores": "differs", "build.code_hash": "differs"}),
                               (long, {"serve.max_context": "refused"}), (threads, {"serve.threads": "refused"})):
            with self.subTest(fields):
                done, bad, engine = self.check(change)
                self.assertEqual(done.returncode, FAILED)
                self.assertLessEqual(fields.items(), bad.items())
                for field in fields:
                    self.assertIn(field, engine)
                self.assertIn("does not fit: ", done.stdout)

    def test_model_folders(self):
        gone = str(self.folder / "gone")
        done, bad, _ = self.check(lambda p: p["serve"].update(model_path=gone))
        self.assertEqual((done.returncode, bad["serve.model_path"], bad["model.family"]), (FAILED, "refused", "not checked"))
        self.assertIn("with --model DIR", done.stdout)
        self.assertIn("with --model DIR", self.check(lambda p: p["serve"].pop("model_path"))[0].stdout)
        other = self.folder / "other"
        shutil.copytree(TINY_MOE, other)
        config = json.loads((other / "config.json").read_text(encoding="utf-8"))
        config["rope_theta"] = 12345.0
        (other / "config.json").write_text(json.dumps(config), encoding="utf-8")
        self.assertEqual(self.check(lambda p: None, "--model", str(other))[1], {"model.config_hash": "differs"})
        empty = self.folder / "empty"
        empty.mkdir()
        self.assertIn("config.json", self.check(lambda p: None, "--model", str(empty))[0].stdout)

    def test_a_gpu_that_is_not_here(self):
        def on_gpu(profile):
            profile["serve"].update(device="cuda")
            profile["identity"]["host"].update(gpu_uuid="GPU-1", gpu_name="G", gpu_driver="1", gpu_link="PCIe 5 x16")

        _, bad, _ = self.check(on_gpu)
        self.assertEqual(bad["host.gpu_uuid"], "differs")
        if not os.path.exists("/dev/nvidiactl"):
            self.assertEqual(bad["serve.device"], "refused")

    def test_usage(self):
        path = tiny_profile()
        for arguments, words in (((), "wrong number"), ((path, path), "wrong number"), ((path, "--nope"), "--nope"),
                                 ((path, "--format", "xml"), "one of text, json"), ((self.folder / "none",), "No such file"),
                                 ((self.folder,), "not a regular file"), ((TINY_MOE / "config.json",), "$.version")):
            with self.subTest(words):
                self.assert_refused(run("ft-tune", "check", *arguments), USAGE, words)
        help_text = run("ft-tune", "check", "--help")
        self.assertEqual(help_text.returncode, DONE)
        self.assertIn("0 it fits, 1 it does not", help_text.stdout)


if __name__ == "__main__":
    unittest.main()
