"""What the tests of the programs share: running them, one profile of the bundled model, synthetic models, safetensors.

The programs are those of $ENGINE_BUILD_DIR (default: build in the project's root).
"""
import atexit
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("ENGINE_BUILD_DIR", ROOT / "build")).resolve()
DATA = pathlib.Path(os.environ.get("FT_TEST_DATA", ROOT / "tests" / "data"))
SHARED = pathlib.Path(os.environ.get("FT_SHARED", ROOT.parent / "shared"))
TINY_MOE = DATA / "tiny-moe"

DONE, FAILED, USAGE, NOT_WRITTEN, INTERRUPTED = 0, 1, 2, 4, 130
SECONDS = 120  # no command here takes a tenth of it on an idle machine

SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="ft-program-test-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)


def command(program, *arguments):
    return [str(BUILD / program), *map(os.fsencode, arguments)]


def run(program, *arguments, environment=None, **options):
    """Runs a program to its end; its stdout and stderr are text."""
    return subprocess.run(command(program, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace", timeout=SECONDS,
                          env={**os.environ, **(environment or {})}, **options)


STARTED = []  # ended after every test, also one that failed


def start(program, *arguments):
    STARTED.append(subprocess.Popen(command(program, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, errors="replace"))
    return STARTED[-1]


def wait_for_handler(process, number):
    """Until the program handles the signal: before that it would just die of it."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1]
        if int(caught, 16) >> (number - 1) & 1:
            return
        time.sleep(0.005)
    raise AssertionError("the program never handled the signal")


def wait_for_line(process, text):
    """Reads stderr up to a line that holds `text`."""
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"the program ended with {process.wait()} before it said {text!r}")


HOST = ("--device", "host")  # the tests are of the host device, also where there is a GPU
ONE_POINT = ("--batch", "1", "--context", "64")  # where only the profile's form matters: the quickest tuning


def tune(folder, output, *options, budget="1"):
    """Tunes; returns the finished process and the profile."""
    device = () if "--device" in options else HOST
    done = run("ft-tune", "--model", folder, "--budget", budget, "-o", output, *device, *options)
    if done.returncode != DONE:
        raise AssertionError(f"ft-tune ended with {done.returncode}: {done.stderr}")
    return done, json.loads(pathlib.Path(output).read_text(encoding="utf-8"))


def tiny_profile():
    """Path of one profile of the bundled model: $FT_TEST_PROFILE, or tuned here once."""
    given = os.environ.get("FT_TEST_PROFILE")
    if given:
        return pathlib.Path(given)
    path = SCRATCH / "tiny.json"
    if not path.exists():
        tune(TINY_MOE, path)
    return path


def synthetic_model(name, **changes):
    """A folder with nothing but a config.json of a small made-up qwen3_moe model."""
    config = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "torch_dtype": "bfloat16",
              "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 32, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
              "intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
              "rope_theta": 10000.0, "hidden_act": "silu", "norm_topk_prob": True, "tie_word_embeddings": False}
    config.update(changes)
    folder = SCRATCH / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


DTYPES = {"F32": "f", "I64": "q"}


def read_safetensors(path):
    """{name: (shape, values)} of F32 and I64 tensors."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        kind = DTYPES[entry["dtype"]]
        count = (end - begin) // struct.calcsize(kind)
        tensors[name] = (entry["shape"], struct.unpack(f"<{count}{kind}", data[8 + size + begin:8 + size + end]))
    return tensors


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """ft-engine on a free port, ready to be asked."""

    def __init__(self, profile, *options):
        self.port = free_port()
        self.process = start("ft-engine", "--profile", profile, "--port", str(self.port), *options)
        deadline = time.monotonic() + SECONDS
        while self.ask("/ready")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError("ft-engine did not become ready: " + self.process.communicate()[1])
            time.sleep(0.05)

    def ask(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}",
                                         None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def stop(self, number):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err


class ProgramTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))

    def tearDown(self):
        while STARTED:
            process = STARTED.pop()
            process.kill()
            process.communicate()

    def assert_refused(self, done, codes, *words):
        """One of the exit codes, nothing on stdout, and exactly one line of error that holds all the words."""
        codes = (codes,) if isinstance(codes, int) else codes
        self.assertIn(done.returncode, codes, done.stderr)
        self.assertEqual(done.stdout, "")
        errors = [line for line in done.stderr.splitlines() if ": error: " in line]
        self.assertEqual(len(errors), 1, done.stderr)
        self.assertEqual(done.stderr.splitlines()[-1], errors[0])
        for word in words:
            self.assertIn(word, errors[0])
        return errors[0]

    def assert_no_files(self, but=()):
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), sorted(but))
