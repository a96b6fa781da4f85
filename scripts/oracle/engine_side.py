"""Logits by ft-engine --score."""
import json
import subprocess

from safetensors.numpy import load_file

from .verdict import Logits

NOT_SUPPORTED = "not supported"  # what both programs say of a family or format that they do not know
SECONDS = 300
DEEPSEEK = '"model_type": "deepseek_v4"'


class Refused(Exception):
    """A program ended with an error: its last line."""

    @property
    def not_supported(self):
        return NOT_SUPPORTED in str(self)


def run(program, *arguments):
    try:
        done = subprocess.run([str(program), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise Refused(f"{program} took longer than {SECONDS} s") from None
    if done.returncode:
        raise Refused((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])


def _score(build, folder, scratch, request, *options):
    """Tunes as shortly as possible, since any profile gives these logits, then scores. Raises Refused."""
    profile, source, output = scratch / "profile.json", scratch / "in.json", scratch / "out.safetensors"
    if not profile.exists():
        run(build / "ft-tune", "--model", folder, "--device", "host", "--budget", 1, "--strategy", "resident",
            "--threads", 1, "--batch", 1, "--context", len(request["input_ids"]) + request["greedy"], "-o", profile)
    source.write_text(json.dumps(request), encoding="utf-8")
    run(build / "ft-engine", "--profile", profile, *options, "--score", source, "--output", output)
    return load_file(output)


def compute(build, folder, scratch, prompt, steps):
    """Logits in reference numerics, of a prompt and the steps after it."""
    tensors = _score(build, folder, scratch, {"input_ids": prompt, "greedy": steps}, "--numerics", "reference")
    return Logits(tensors["logits"], tensors["greedy_logits"], tensors["greedy_ids"].tolist())


def compute_served(build, folder, scratch, ids):
    """Logits of a text, as they are served, DeepSeek-V4's with the arithmetic of transformers. After compute, whose context
    they take."""
    arithmetic = ["--deepseek-arithmetic", "transformers"] if DEEPSEEK in (folder / "config.json").read_text("utf-8") else []
    return _score(build, folder, scratch, {"input_ids": ids, "greedy": 0}, "--numerics", "serve", *arithmetic)["logits"]
