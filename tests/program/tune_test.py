#!/usr/bin/env python3
"""ft-tune as a user meets it: pinned knobs, interruption and resumption, output that cannot be written. Checked against:
the command's --help and issue 2, item 9."""
import json
import os
import resource
import signal
import subprocess
import time
import unittest

from support import (DONE, FAILED, HOST, INTERRUPTED, NOT_WRITTEN, ONE_POINT, SECONDS, TINY_MOE, USAGE, ProgramTest, command, run,
                     start, synthetic_model, tune, wait_for_handler, wait_for_line)

CORES = len(os.sched_getaffinity(0))
EXPERTS = 192  # of the bundled model, over all layers


def probes_of(record):
    return {m["probe"] for m in record["measurements"]}


class TuneCase(ProgramTest):
    def setUp(self):
        super().setUp()
        self.output = self.folder / "profile.json"
        self.samples = self.folder / "profile.json.samples.json"
        self.lock = self.folder / "profile.json.tuning"

    def tune(self, *options, budget="1"):
        return tune(TINY_MOE, self.output, *options, budget=budget)


class TuneTest(TuneCase):
    def test_five_seconds_are_enough_and_say_so(self):
        begin = time.monotonic()
        done, profile = self.tune(budget="5")
        self.assertLess(time.monotonic() - begin, 60)
        self.assertEqual(done.stdout.splitlines()[-1], f"profile: {self.output}")
        self.assertTrue(profile["conditions"]["reduced"])
        self.assertEqual(profile["conditions"]["budget_seconds"], 5)
        self.assertEqual(profile["conditions"]["forced"], [])
        self.assertEqual(probes_of(profile), {"stream", "expert_single", "layer_sweep", "dense", "overlap", "decode", "yardstick"})
        not_here = {"pcie_linear", "pcie_gather", "handshake", "allreduce", "bank", "host_rows"}
        self.assertEqual({s["probe"] for s in profile["skipped"]}, not_here)
        # The kernels' rounds come in six places, the first of each discarded: in expert_single, after it and after four more.
        kernels = [m for m in profile["measurements"] if m["name"].endswith((".gate_up.best", ".down.best"))]
        self.assertEqual([m["discarded"] for m in kernels if m["probe"] == "expert_single"], [6, 6])
        self.assertEqual(len({len(m["values"]) for m in kernels}), 1)
        self.assertNotIn("s left]", done.stdout)
        self.assertIn("s left] decode", done.stderr)
        self.assertIn("choice: " + profile["serve"]["strategy"], done.stdout)
        self.assert_no_files(("profile.json",))

    def test_a_recording_is_five_files_and_replaces_nothing_else(self):
        folder = self.folder / "machine"
        files = {"expected.json", "inputs.json", "machine.json", "routing.json", "samples.json"}
        for _ in range(2):  # the second replaces the first
            _, profile = self.tune("--record", str(folder), *ONE_POINT)
            self.assertEqual({path.name for path in folder.iterdir()}, files)
            self.assertLessEqual(sum(path.stat().st_size for path in folder.iterdir()), 300_000)
            expected = json.loads((folder / "expected.json").read_text())
            self.assertIn(profile["decision"]["strategy"], expected["ties"])
        (folder / "notes.txt").write_text("mine")
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        refused = run("ft-tune", "--model", TINY_MOE, *HOST, "--output", self.output, "--record", folder)
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("--record refused", refused.stderr)
        self.assertIn("notes.txt", refused.stderr)
        self.assertEqual({path.name: path.read_bytes() for path in folder.iterdir()}, before)

    def test_pins_are_honoured_and_served(self):
        cases = [(("--strategy", "offload", "--slots", "50%", "--threads", "1"), "offload", EXPERTS // 2, 1),
                 (("--strategy", "resident", "--slots", "100%"), "resident", EXPERTS, None)]
        for options, strategy, slots, threads in cases:
            with self.subTest(options):
                done, profile = self.tune(*options, *ONE_POINT)
                serve = profile["serve"]
                self.assertEqual(serve["strategy"], strategy or serve["strategy"])
                self.assertEqual(serve["slots"], slots)
                self.assertEqual(serve["threads"], threads or serve["threads"])
                forced = [f"{a} {b}" for a, b in zip(options[::2], options[1::2])]
                self.assertEqual(sorted(profile["conditions"]["forced"]), sorted(forced))
                self.assertTrue(profile["decision"]["forced"])
                for text in forced:
                    self.assertIn(f"forced: {text}", done.stdout)
                plan = run("ft-engine", "--profile", self.output, "--dry-run")
                self.assertEqual(plan.returncode, DONE, plan.stderr)
                self.assertIn(f"{slots} slots", plan.stdout)
                self.assertIn(f"forced: {forced[0]}", plan.stderr)

    def test_what_cannot_run_is_a_row_with_its_reason(self):
        """Half of the experts: resident cannot run, and the profile that says so is accepted."""
        done, profile = self.tune("--slots", "50%", *ONE_POINT)
        self.assertRegex(done.stdout, r"offload +\d +96 \(50%\) +fetch all")
        rejected = [c for c in profile["candidates"] if c["strategy"] == "resident"]
        self.assertEqual([c["verdict"] for c in rejected], ["needs all 192 slots, asked for are 96 (50%)"])
        self.assertEqual(run("ft-engine", "--profile", self.output, "--dry-run").returncode, DONE)

    def test_pins_that_are_refused(self):
        cases = [(("--slots", "50%", "--strategy", "resident"), "--slots is '96 (50%)'"),
                 (("--slots", "191", "--strategy", "resident"), "allowed: 192 or 100%"),
                 (("--slots", "0", "--strategy", "hybrid"), "allowed: 32 to 192"), (("--slots", "31"), "or 0 with"),
                 (("--slots", "193"), "allowed: 32 to 192"), (("--threads", str(CORES + 1)), "usable cores"),
                 (("--context", "4097"), "allowed: 1 to 4096"), (("--device", "cuda"), "no CUDA device can be used ("),
                 (("--link-slowdown", "2"), "only on cuda"), (("--link-slowdown", "65"), "1 to 64"),
                 (("--look-ahead", "4", "--strategy", "resident"), "is '4'; allowed: 0 with --strategy resident"),
                 (("--look-ahead", "4", "--strategy", "cpu"), "is '4'; allowed: 0 with --strategy cpu"),
                 (("--routing", "mixed", "--look-ahead", "4", "--weights", "synthetic"), "mixed+lookahead:0.8/0.7")]
        for options, words in cases:
            for extra in ((), ("--dry-run",)):
                with self.subTest(options + extra):
                    done = run("ft-tune", "--model", TINY_MOE, "-o", self.output, *options, *extra)
                    self.assert_refused(done, USAGE, options[0], words)
                    self.assertNotIn("packing", done.stderr)
        self.assert_no_files()

    def test_a_dry_run_writes_nothing(self):
        done = run("ft-tune", "--model", TINY_MOE, "--dry-run", "-o", self.output, "--strategy", "hybrid", "--slots", "64", *HOST)
        self.assertEqual((done.returncode, done.stderr), (DONE, ""))
        for words in ("expert banks", "layer_sweep", "hybrid    64"):
            self.assertIn(words, done.stdout)
        self.assert_no_files()

    def test_output_that_cannot_be_written_is_refused_at_once(self):
        for output in (self.folder, self.folder / "none" / "p.json", "/dev/null", "/proc/p.json", self.folder / ("x" * 250)):
            with self.subTest(output):
                done = run("ft-tune", "--model", TINY_MOE, "-o", output)
                self.assert_refused(done, USAGE, "--output")
                self.assertNotIn("packing", done.stderr)
        not_utf8 = run("ft-tune", "--model", bytes(self.folder) + b"/\xff", "-o", self.output)
        self.assert_refused(not_utf8, USAGE, "--model", "UTF-8")
        self.assert_no_files()

    def test_a_full_disk_leaves_the_old_file(self):
        """A limit on the size of files stands in for the disk: the kernel refuses the write in the same place."""
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        self.output.write_text("old", encoding="utf-8")
        done = run("ft-tune", "--model", TINY_MOE, "--budget", "1", "-o", self.output, preexec_fn=limit)
        self.assert_refused(done, NOT_WRITTEN, "File too large", str(self.output))
        self.assertEqual(self.output.read_text(encoding="utf-8"), "old")
        # The samples of the first probes fit: they are kept, and the last ones are named as not kept.
        self.assert_no_files(("profile.json", "profile.json.samples.json"))
        self.assertEqual(done.stderr.count("samples are not kept for --resume"), 1)
        self.assertIn("stream", probes_of(json.loads(self.samples.read_text(encoding="utf-8"))))

    def test_a_lost_stdout_has_its_own_code(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(command("ft-tune", "--model", TINY_MOE, "--dry-run"), stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, NOT_WRITTEN)
        self.assertIn("cannot write to stdout", done.stderr)


class InterruptTest(TuneCase):
    def interrupt(self, at, *options):
        """Ctrl-C when stderr shows `at`; returns exit code, stdout and the last line of stderr."""
        process = start("ft-tune", "--model", TINY_MOE, "-o", self.output, *options)
        wait_for_line(process, at)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        out, err = process.communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, 15)
        return process.returncode, out, err.splitlines()[-1]

    def test_samples_are_kept_and_resumed(self):
        code, out, last = self.interrupt("] layer_sweep", "--budget", "8", "--threads", "1")
        self.assertEqual((code, out), (INTERRUPTED, ""))
        self.assertIn(str(self.samples), last)
        self.assertIn("--resume", last)
        self.assert_no_files(("profile.json.samples.json",))
        record = json.loads(self.samples.read_text(encoding="utf-8"))
        self.assertLessEqual({"stream", "expert_single"}, probes_of(record))

        # Only the option that differs is named, with both values.
        names = ("--context", "--batch", "--device", "--vram-limit", "--threads", "--link-slowdown", "--cache-policy", "--look-ahead")
        for options, name, values in ((("--context", "64", "--threads", "1"), "--context", ", 64 now"),
                                      (("--batch", "2", "--threads", "1"), "--batch", ", 2 now"),
                                      (("--vram-limit", "64MiB", "--threads", "1"), "--vram-limit", "none then, 67108864 bytes now"),
                                      (("--cache-policy", "lru", "--threads", "1"), "--cache-policy", "none then, lru now"),
                                      (("--look-ahead", "2", "--threads", "1"), "--look-ahead", "none then, 2 now"),
                                      ((), "--threads", "1 then, none now"), (("--threads", "2"), "--threads", "1 then, 2 now")):
            with self.subTest(options):
                other = run("ft-tune", "--model", TINY_MOE, "-o", self.output, "--resume", *options)
                error = self.assert_refused(other, USAGE, f"another {name}: ", values, str(self.samples))
                self.assertEqual([other for other in names if other in error], [name])
        self.assert_no_files(("profile.json.samples.json",))

        # What to choose from and how long to measure may be other than before: no probe but decode knows it.
        done, profile = self.tune("--resume", "--threads", "1", "--slots", "50%", "--strategy", "offload", budget="4")
        self.assertIn("resuming: 2 probes are done", done.stderr)
        self.assertEqual((profile["serve"]["strategy"], profile["serve"]["slots"]), ("offload", EXPERTS // 2))
        self.assertEqual(profile["conditions"]["forced"], ["--strategy offload", "--slots 50%", "--threads 1"])
        self.assertEqual(profile["conditions"]["budget_seconds"], 4)
        self.assertNotIn("] stream", done.stderr)
        self.assertIn("] layer_sweep", done.stderr)
        kept = [m for m in record["measurements"] if m["probe"] == "stream"]
        self.assertEqual([m for m in profile["measurements"] if m["probe"] == "stream"], kept)
        self.assert_no_files(("profile.json",))

    def test_killed_at_once(self):
        """kill -9 gives no chance to write: what each finished probe measured is there already."""
        process = start("ft-tune", "--model", TINY_MOE, "-o", self.output, "--budget", "8", "--threads", "1")
        wait_for_line(process, "] layer_sweep")
        process.kill()
        process.communicate()
        self.assert_no_files(("profile.json.samples.json", "profile.json.tuning"))  # the next one takes the lock over
        record = json.loads(self.samples.read_text(encoding="utf-8"))
        self.assertEqual(probes_of(record), {"stream", "expert_single", "yardstick"})
        done, profile = self.tune("--resume", "--threads", "1", budget="4")
        self.assertIn("resuming: 2 probes are done", done.stderr)
        self.assertEqual(profile["measurements"][:len(record["measurements"])], record["measurements"])
        self.assert_no_files(("profile.json",))

    def test_two_at_once(self):
        """One output is one tuning's; the samples of the first are not touched by the second."""
        self.lock.write_text("my notes", encoding="utf-8")
        self.assert_refused(run("ft-tune", "--model", TINY_MOE, "-o", self.output), USAGE, str(self.lock), "not ft-tune's")
        self.assertEqual(self.lock.read_text(encoding="utf-8"), "my notes")
        self.lock.unlink()
        first = start("ft-tune", "--model", TINY_MOE, *HOST, "-o", self.output, "--budget", "8", "--threads", "1")
        wait_for_line(first, "] layer_sweep")
        before = self.samples.read_bytes()
        for more in ((), ("--resume", "--threads", "1")):
            second = run("ft-tune", "--model", TINY_MOE, *HOST, "-o", self.output, "--budget", "1", *more)
            self.assert_refused(second, USAGE, str(self.output), f"process {first.pid}", "another --output")
            self.assertNotIn("packing", second.stderr)
        self.assertEqual(self.samples.read_bytes(), before)
        planned = run("ft-tune", "--model", TINY_MOE, *HOST, "-o", self.output, "--dry-run")
        self.assertEqual(planned.returncode, DONE, planned.stderr)
        self.assertEqual(run("ft-tune", "--model", TINY_MOE, *HOST, *ONE_POINT, "-o", self.folder / "other.json", "--budget",
                             "1").returncode, DONE)
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
        self.assert_no_files(("other.json", "profile.json.samples.json"))

    def test_samples_of_other_weights(self):
        self.interrupt("] layer_sweep", "--budget", "8", "--threads", "1")
        record = json.loads(self.samples.read_text(encoding="utf-8"))
        record["identity"]["model"]["data_sample_hash"] = "0" * 32
        self.samples.write_text(json.dumps(record), encoding="utf-8")
        done = run("ft-tune", "--model", TINY_MOE, "-o", self.output, "--resume", "--threads", "1")
        error = self.assert_refused(done, USAGE, "model.data_sample_hash", str(self.samples), "leave --resume out")
        self.assertNotIn("--accept-mismatch", error)  # ft-tune has no such option

    def test_nothing_to_resume(self):
        done = run("ft-tune", "--model", TINY_MOE, "-o", self.output, "--resume")
        self.assert_refused(done, USAGE, str(self.samples), "no samples file", "--output of the run", "leave --resume out")
        self.assertNotIn("packing", done.stderr)
        self.assert_no_files()
        self.output.write_text("{}", encoding="utf-8")
        done = run("ft-tune", "--model", TINY_MOE, "-o", self.output, "--resume")
        self.assert_refused(done, USAGE, str(self.samples), "a profile is there already", "leave --resume out")
        for text in ("", "{}", '{"version": "2.0.0"}', "[" * 100000):
            self.samples.write_text(text, encoding="utf-8")
            done = run("ft-tune", "--model", TINY_MOE, "-o", self.output, "--resume")
            error = self.assert_refused(done, USAGE, "samples file")
            self.assertIn("leave --resume out to measure again", error)
            self.assertNotIn("packing", done.stderr)
            self.assertEqual(self.samples.read_text(encoding="utf-8"), text)

    def test_while_decoding(self):
        code, _, _ = self.interrupt("] decode", "--budget", "2")
        self.assertEqual(code, INTERRUPTED)
        self.assert_no_files(("profile.json.samples.json",))
        self.tune("--resume", budget="2")
        self.assert_no_files(("profile.json",))

    def test_in_the_first_probe(self):
        """What --resume would measure again as a whole is not kept."""
        code, out, last = self.interrupt("] stream", "--budget", "60", "--threads", "1")
        self.assertEqual((code, out), (INTERRUPTED, ""))
        self.assertIn("before the first probe was through, nothing is kept", last)
        self.assertNotIn("--resume", last)
        self.assert_no_files()

    def test_while_loading(self):
        """1.2 GiB of weights take long enough to be met while they are made."""
        large = synthetic_model("large", hidden_size=1024, num_hidden_layers=24, num_experts=64, moe_intermediate_size=128)
        process = start("ft-tune", "--model", large, "--weights", "synthetic", "-o", self.output)
        wait_for_handler(process, signal.SIGINT)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (INTERRUPTED, ""), err)
        self.assertIn("interrupted", err.splitlines()[-1])
        self.assert_no_files()


if __name__ == "__main__":
    unittest.main()
