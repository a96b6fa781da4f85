#!/usr/bin/env python3
"""ft-tune doctor as a user meets it, with real provocations: processes that load the cores, a control group with a CPU
quota. Checked against: the command's --help and issue 5, item 4."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

from support import DONE, FAILED, HOST, INTERRUPTED, ONE_POINT, TINY_MOE, USAGE, ProgramTest, run, start, tune, wait_for_handler

CORES = sorted(os.sched_getaffinity(0))
QUOTA_USEC, PERIOD_USEC = 10_000, 100_000  # so little that other load cannot keep this process below it


def doctor(*options, **more):
    return run("ft-tune", "doctor", *HOST, *options, **more)


def checks_of(done):
    return {check["id"]: check for check in json.loads(done.stdout)["checks"]}


class BusyCores:
    """One process per core that does nothing but compute."""

    def __enter__(self):
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"],
                                           preexec_fn=lambda core=core: os.sched_setaffinity(0, {core})) for core in CORES]

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


class QuotaGroup:
    """A control group of our own with a quota; why_not says why there is none."""

    def __init__(self):
        self.folder, self.why_not = None, ""
        v1, v2 = pathlib.Path("/sys/fs/cgroup/cpu"), pathlib.Path("/sys/fs/cgroup")
        try:
            if (v1 / "cpu.cfs_quota_us").exists():
                self.make(v1, {"cpu.cfs_period_us": PERIOD_USEC, "cpu.cfs_quota_us": QUOTA_USEC})
            elif "cpu" in (v2 / "cgroup.subtree_control").read_text(encoding="ascii").split():
                self.make(v2, {"cpu.max": f"{QUOTA_USEC} {PERIOD_USEC}"})
            else:
                self.why_not = "the cpu controller is not given to groups below the root"
        except OSError as error:
            self.why_not = f"no control group can be made here: {error}"
            self.remove()

    def make(self, parent, files):
        folder = parent / f"ft-doctor-test-{os.getpid()}"
        folder.mkdir()
        self.folder = folder
        for name, value in files.items():
            (folder / name).write_text(f"{value}\n", encoding="ascii")

    def join(self):
        (self.folder / "cgroup.procs").write_text(f"{os.getpid()}\n", encoding="ascii")

    def remove(self):
        if self.folder is not None:
            self.folder.rmdir()


class DoctorTest(ProgramTest):
    def test_text_and_json_say_the_same_checks(self):
        text = doctor("--seconds", "1")
        self.assertIn(text.returncode, (DONE, FAILED), text.stderr)
        done = doctor("--seconds", "1", "--format", "json")
        checks = checks_of(done)
        lines = [line for line in text.stdout.splitlines() if line and not line.startswith((" ", "warnings "))]
        self.assertEqual({line.split()[1] for line in lines}, set(checks))
        self.assertIn(text.stdout.splitlines()[-1].split()[0], "warnings")
        for name, check in checks.items():
            self.assertIn(check["state"], ("ok", "note", "warning", "skipped"), name)
            self.assertTrue(check["what"], name)
            if check["state"] in ("note", "warning"):
                self.assertTrue(check["fix"], name)
        warnings = [name for name, check in checks.items() if check["state"] == "warning"]
        self.assertEqual(done.returncode, FAILED if warnings else DONE)
        self.assertEqual(json.loads(done.stdout)["warnings"], len(warnings))

    def test_every_source_is_asked(self):
        groups = {name.split(".")[0] for name in checks_of(doctor("--seconds", "1", "--format", "json"))}
        self.assertLessEqual({"cpu", "memory", "numa", "counters"}, groups)

    def test_refusals(self):
        for options, words in ((("--seconds", "0.99"), "allowed: number, 1 to 3600"), (("--seconds", "3601"), "3601"),
                               (("--format", "xml"), "text, json"), (("--device", "tpu"), "auto, cuda, host"),
                               (("profile.json",), "unexpected argument")):
            with self.subTest(options):
                self.assert_refused(run("ft-tune", "doctor", *options), USAGE, words)

    def test_ctrl_c(self):
        process = start("ft-tune", "doctor", *HOST, "--seconds", "60")
        wait_for_handler(process, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        self.assertEqual((process.returncode, out), (INTERRUPTED, ""), err)

    def test_busy_cores_are_a_warning_with_a_command(self):
        with BusyCores():
            done = doctor("--seconds", "2")
        self.assertEqual(done.returncode, FAILED)
        lines = done.stdout.splitlines()
        found = [i for i, line in enumerate(lines) if line.startswith("warning") and "cpu.other_load" in line]
        self.assertEqual(len(found), 1, done.stdout)
        self.assertIn("(while idle, under load)", lines[found[0]])
        self.assertIn("> end or move them: ps", lines[found[0] + 1])
        print("\n" + lines[found[0]], file=sys.stderr)

    def test_a_quota_that_stops_the_cores_is_a_warning(self):
        group = QuotaGroup()
        if group.why_not:
            self.skipTest(group.why_not)
        try:
            done = run("ft-tune", "doctor", *HOST, "--seconds", "2", "--format", "json", preexec_fn=group.join)
        finally:
            group.remove()
        checks = checks_of(done)
        self.assertEqual(done.returncode, FAILED)
        self.assertEqual(checks["cpu.quota"]["state"], "warning")
        self.assertIn("0.10 cores", checks["cpu.quota"]["what"])
        self.assertEqual(checks["cpu.throttled"]["state"], "warning")
        self.assertIn("under load", checks["cpu.throttled"]["what"])
        print("\n" + checks["cpu.throttled"]["what"], file=sys.stderr)

    def test_a_tuning_beside_busy_processes_says_so(self):
        with BusyCores():
            done, profile = tune(TINY_MOE, self.folder / "profile.json", *ONE_POINT, budget="3")
        findings = {finding["id"]: finding for finding in profile["conditions"]["findings"]}
        self.assertEqual(findings["cpu.other_load"]["level"], "warning")
        self.assertIn("of 2 cores" if len(CORES) == 2 else "cores", findings["cpu.other_load"]["what"])
        self.assertIn("warning: cpu.other_load: other processes had ", done.stdout)
        remarks = [remark for m in profile["measurements"] for remark in m.get("remarks", [])]
        self.assertTrue(any(remark.startswith("cpu.other_load: ") for remark in remarks), remarks)


if __name__ == "__main__":
    unittest.main()
