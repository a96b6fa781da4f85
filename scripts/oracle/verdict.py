"""Comparing logits of two implementations."""
from dataclasses import dataclass

import numpy as np

FLOAT32_LIMIT = 1e-5
TIMES_OWN_NOISE = 10
SERVE_TIMES = 1.5  # what serve numerics may differ, in errors of a run in bf16
SERVE_LIMIT = 0.05  # the same where there is no such run
SAFE_MARGIN = 1e-3  # where the two best logits are closer than this, either id may be chosen


@dataclass
class Logits:
    """prompt [n, V]; decode [steps, V], whose row i chose greedy[i]."""

    prompt: np.ndarray
    decode: np.ndarray
    greedy: list


def relative_error(values, expected):
    """norm(difference) / norm(expected), in float64; NaN where either holds one."""
    values, expected = values.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(values - expected) / np.linalg.norm(expected))


def rounding_error(values, expected, chooses):
    """Of rounded arithmetic. A model that chooses experts or what it attends to chooses another one where two scores are
    close: the row is then another one, however exact the arithmetic is, and so are all that see it. Of such a model the
    best row counts."""
    if not chooses:
        return relative_error(values, expected)
    values, expected = values.astype(np.float64), expected.astype(np.float64)
    return float(np.min(np.linalg.norm(values - expected, axis=1) / np.linalg.norm(expected, axis=1)))


def serve_limit(rounded):
    """rounded: error of a run in bf16, or None."""
    return SERVE_LIMIT if rounded is None else SERVE_TIMES * rounded


def limit(own_noise):
    return max(FLOAT32_LIMIT, TIMES_OWN_NOISE * own_noise)


def compare(ours, expected):
    """(error of the prompt's logits, error of decode's, complaint or None). Decode rows count as long as the ids before
    them are the same; ids may differ only where the margin is not safe."""
    same = next((i for i, pair in enumerate(zip(ours.greedy, expected.greedy)) if pair[0] != pair[1]), len(expected.greedy))
    rows = min(same + 1, len(expected.greedy))
    complaint = None
    if same < len(expected.greedy):
        best = np.sort(expected.decode[same])[-2:]
        if best[1] - best[0] > SAFE_MARGIN:
            complaint = f"greedy id {same} is {ours.greedy[same]}, expected {expected.greedy[same]}"
    return (relative_error(ours.prompt, expected.prompt),
            relative_error(ours.decode[:rows], expected.decode[:rows]), complaint)
