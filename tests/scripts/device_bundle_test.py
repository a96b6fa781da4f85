#!/usr/bin/env python3
"""scripts/device-bundle: what each set packs, with stand-ins for the programs; and a bundle of the real ones, moved to
another folder and used there as on a machine without compilers. Checked against: the sets that its --help lists, the test
data that the device tests name, the linker's own list of libraries."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("ENGINE_BUILD_DIR", ROOT / "build")).resolve()
sys.path.insert(0, str(ROOT / "tests/program"))
from support import synthetic_model  # noqa: E402

SECONDS = 240
PROGRAMS = {
    "tests": {"ft-engine", "ft-tune", "ft-probe", "tests/device/device_test_ops", "tests/device/device_test_prefill",
              "tests/device/device_test_moe", "tests/device/device_test_engine"},
    "benches": {"tests/device/device_bench_attention", "tests/device/device_bench_chain"},
    "gpu-bench": {"tests/bench/gpu-bench"},
    "regret": {"tests/bench/bench_regret"},
    "serve": {"ft-engine", "ft-tune"},
}
DEFAULT = ["tests", "gpu-bench", "regret"]
SCRIPTS = {"device-test": "tests", "gpu-bench": "gpu-bench", "regret": "regret", "serve-geometry": "serve"}
# The machine's own, newer than the ones here.
SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so.*|ld-linux.*")
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}


def run(words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=SECONDS, check=False, **options)


class BundleCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)


class PackedTest(BundleCase):
    def setUp(self):
        super().setUp()
        self.build = self.folder / "build"
        for name in set().union(*PROGRAMS.values()):
            (self.build / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy("/usr/bin/printenv", self.build / name)
        self.bundle = self.folder / "bundle"

    def make(self, *words):
        return run([ROOT / "scripts/device-bundle", "--from", self.build, *words, self.bundle])

    def made(self, *words):
        done = self.make(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def start(self, *words, path=BARE["PATH"], **more):
        return run(words, env={**BARE, "PATH": path, **more})

    def test_every_set_has_its_programs_scripts_and_data(self):
        told = run([ROOT / "scripts/device-bundle", "--help"]).stdout
        self.assertEqual(set(re.findall(r"^    ([a-z-]+) +\S", told, re.MULTILINE)), set(PROGRAMS))
        for words, sets in ([(), DEFAULT], [("--with", "all"), list(PROGRAMS)], *[[("--with", one), [one]] for one in PROGRAMS]):
            with self.subTest(sets):
                out = self.made(*words)
                self.assertEqual(re.findall(r"^(\S+) +[0-9.]+ MiB unpacked$", out, re.MULTILINE), sets)
                size = float(re.search(rf"^bundle: {self.bundle} \(([0-9.]+) MiB, ", out, re.MULTILINE).group(1))
                held = sum(path.stat().st_size for path in self.bundle.rglob("*") if path.is_file())
                self.assertAlmostEqual(size, held / 2**20, delta=0.2)
                expected = {pathlib.Path(name).name for one in sets for name in PROGRAMS[one]}
                self.assertEqual({path.name for path in (self.bundle / "bin").iterdir()}, expected)
                self.assertEqual({name for name in SCRIPTS if (self.bundle / name).exists()},
                                 {name for name, one in SCRIPTS.items() if one in sets})
                self.assertEqual((self.bundle / "data/golden").exists(), "tests" in sets)
                self.assertEqual((self.bundle / "data/tiny-moe").exists(), "tests" in sets or "gpu-bench" in sets)
                self.assertEqual((self.bundle / "data/geometry").exists(), "serve" in sets)

    def test_it_holds_all_data_that_device_tests_name(self):
        self.made("--with", "tests")
        data, found = ROOT / "tests/data", set()
        for path in (ROOT / "tests/device").glob("*.cpp"):
            for text in re.findall(r'"([\w./-]+)"', path.read_text()):
                found |= {place for place in (text, "golden/" + text) if text and (data / place).exists()}
        self.assertIn("golden/deepseek_v4.published", found)
        self.assertEqual({place for place in found if not (self.bundle / "data" / place).exists()}, set())

    def test_what_is_too_large_is_refused_and_not_left(self):
        self.made("--with", "gpu-bench")
        done = self.make("--max-mib", 2)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"the bundle would have [0-9.]+ MiB; allowed: 2 \(--max-mib\); leave a set out with --with")
        self.assertRegex(done.stdout, r"^tests +[0-9.]+ MiB unpacked\n")
        self.assertFalse(self.bundle.exists())

    def test_command_lines_that_are_refused(self):
        for words, said in ((("--with", "tests,nope"), "no set is called 'nope'; allowed: tests,benches,gpu-bench,regret,serve, all"),
                            (("--max-mib", "0"), "--max-mib is '0'"), (("--max-mib", "1.5"), "--max-mib is '1.5'"),
                            (("--from", self.folder / "none"), "--from is"), (("--nope",), "unknown argument '--nope'")):
            with self.subTest(words):
                done = self.make(*words)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(said, done.stderr)
        (self.build / "tests/bench/gpu-bench").unlink()
        done = self.make()
        self.assertEqual(done.returncode, 1)
        self.assertIn("tests/bench/gpu-bench is not there", done.stderr)
        self.made("--with", "regret")

    def test_a_folder_that_is_no_bundle_is_left_alone(self):
        self.bundle.mkdir()
        (self.bundle / "thesis.txt").write_text("years")
        done = self.make("--with", "serve")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no bundle", done.stderr)
        self.assertEqual((self.bundle / "thesis.txt").read_text(), "years")

    def test_programs_see_the_libraries_and_data_of_the_bundle(self):
        self.made("--with", "serve")
        asked = [self.bundle / "bin/ft-tune", "LD_LIBRARY_PATH", "FT_TEST_DATA"]
        self.assertEqual(self.start(*asked).stdout, f"{self.bundle}/lib\n{self.bundle}/data\n")
        self.assertEqual(self.start(*asked, LD_LIBRARY_PATH="/a", FT_TEST_DATA="/b").stdout, f"{self.bundle}/lib:/a\n/b\n")
        self.assertEqual(self.start(*asked, FT_RUN_UNDER="echo under").stdout.split()[:2], ["under", f"{self.bundle}/programs/ft-tune"])
        (self.bundle / "programs/ft-tune").unlink()
        done = self.start(*asked)
        self.assertEqual(done.returncode, 2)
        self.assertIn("programs/ft-tune is not there", done.stderr)

    def test_it_unpacks_once_whoever_comes_first(self):
        self.made("--with", "serve")
        names = ["ft-tune", "ft-engine"] * 4
        started = [subprocess.Popen([self.bundle / "bin" / name, "HOME"], env=BARE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for name in names]
        self.assertEqual([(process.communicate(timeout=SECONDS), process.returncode) for process in started],
                         [((b"/nonexistent\n", b""), 0)] * len(names))
        self.assertFalse((self.bundle / "packed.tar.xz").exists())

    def test_it_unpacks_without_xz_by_python(self):
        tools = self.folder / "tools"
        tools.mkdir()
        for name in ("bash", "basename", "dirname", "flock", "rm", "tar"):
            (tools / name).symlink_to(shutil.which(name))
        self.made("--with", "serve")
        asked = ["/usr/bin/env", "bash", self.bundle / "bin/ft-tune", "HOME"]
        done = self.start(*asked, path=str(tools))
        self.assertEqual(done.returncode, 2)
        self.assertIn("needs xz (apt-get install xz-utils) or python3", done.stderr)
        (tools / "python3").symlink_to(sys.executable)
        self.assertEqual(self.start(*asked, path=str(tools)).stdout, "/nonexistent\n")


class UsedTest(BundleCase):
    """Somewhere else, without the source tree, by the real programs."""

    @classmethod
    def setUpClass(cls):
        needed = [BUILD / name for one in ("gpu-bench", "regret", "serve") for name in PROGRAMS[one]]
        if not all(path.exists() for path in needed):
            raise unittest.SkipTest("the programs are not built: scripts/build --tests")
        cls.there = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.there)
        with tempfile.TemporaryDirectory() as made:
            done = run([ROOT / "scripts/device-bundle", "--from", BUILD, "--with", "gpu-bench,regret,serve", pathlib.Path(made) / "bundle"])
            assert done.returncode == 0, done.stderr
            shutil.copytree(pathlib.Path(made) / "bundle", cls.there / "bundle")
        cls.bundle = cls.there / "bundle"

    def use(self, *words):
        return run(words, env=BARE, cwd=self.folder)

    def test_libraries_are_its_own_but_for_the_runtime(self):
        self.assertEqual(self.use(self.bundle / "bin/ft-tune", "--help").returncode, 0)
        for program in (self.bundle / "programs").iterdir():
            told = run(["ldd", program], env={**BARE, "LD_LIBRARY_PATH": str(self.bundle / "lib")}).stdout
            self.assertIn("libstdc++", told)
            for name, path in re.findall(r"^\s*(\S+) => (.*?)(?: \(0x\w+\))?$", told, re.MULTILINE):
                with self.subTest(f"{program.name}: {name}"):
                    self.assertTrue(path.startswith(f"{self.bundle}/lib/") or SYSTEM.fullmatch(name), path)

    def test_serve_geometry(self):
        done = self.use(self.bundle / "serve-geometry", "--device", "host", "--budget", 1, "--context", 64, "--slots", "50%", "--tokens", 8,
                        synthetic_model("whole"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1].split()[0], "whole")
        self.assertTrue((self.bundle / "logs/geometry/results.json").exists())
        self.assertEqual(list(self.there.iterdir()), [self.bundle])  # nothing beside it

    def test_regret(self):
        results = self.folder / "cells.jsonl"
        listed = self.use(self.bundle / "regret", "--host-small", "--list", results).stdout
        cell = listed.split()[listed.split().index("--cell") + 1]
        done = self.use(self.bundle / "regret", "--host-small", "--budget", 1, "--score", 1, "--cells", cell, results)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(cell, results.read_text())

    def test_gpu_bench_says_that_there_is_no_gpu(self):
        if pathlib.Path("/dev/nvidiactl").exists():
            self.skipTest("there is one")
        done = self.use(self.bundle / "gpu-bench", "--device", "cuda")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, "^gpu-bench: error: .*--device is 'cuda'; allowed: auto or host")


if __name__ == "__main__":
    unittest.main()
