"""Logits by ft-engine --score in reference mode."""
import json
import subprocess

from safetensors.numpy import load_file

from .verdict import Logits

NOT_SUPPORTED = "not supported"  # what both programs say of a family or format that they do not know
SECONDS = 300


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


def compute(build, folder, scratch, prompt, steps):
    """Tunes as shortly as possible, since any profile gives these logits, then scores. Raises Refused."""
    profile, source, output = scratch / "profile.json", scratch / "in.json", scratch / "out.safetensors"
    run(build / "ft-tune", "--model", folder, "--device", "host", "--budget", 1, "--strategy", "resident",
        "--threads", 1, "--batch", 1, "--context", len(prompt) + steps, "-o", profile)
    source.write_text(json.dumps({"input_ids": prompt, "greedy": steps}), encoding="utf-8")
    run(build / "ft-engine", "--profile", profile, "--numerics", "reference", "--score", source, "--output", output)
    tensors = load_file(output)
    return Logits(tensors["logits"], tensors["greedy_logits"], tensors["greedy_ids"].tolist())
