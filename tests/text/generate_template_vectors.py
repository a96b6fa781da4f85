#!/usr/bin/env python3
"""Writes tests/data/templates/*.json: what jinja2, set up as transformers sets it up, makes of chat templates.

Usage: generate_template_vectors.py TEMPLATE_FOLDER   (needs: pip install jinja2==3.1.6)

TEMPLATE_FOLDER holds the published templates (*.jinja). Expected texts of templates that are in the tree go into
bundled.json, of small expressions (template_expressions.txt) into expressions.json; of the others published.json keeps
the length in bytes and a hash (FNV-1a, 64 bits), which is enough to compare and 30 times smaller.
"""
import itertools
import json
import pathlib
import sys

import jinja2

from jinja_reference import NOW, environment, is_mutable, outcome
from random_templates import VARIABLES

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


def render(source, variables, mutable=False):
    try:
        template = environment(mutable).from_string(source)
    except Exception as error:  # noqa: BLE001: any failure of the template is a vector
        return {"error": str(error)}
    result = outcome(template, variables)
    result.pop("raised", None)
    return result


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a \"city\" <now> & later\u2026",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Città or 城市", "enum": ["Roma", "北京"]},
                "days": {"type": "integer", "default": 3},
                "exact": {"type": "boolean", "nullable": True},
                "spot": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                         "required": ["lat"]},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "any"},
                "either": {"oneOf": [{"type": "string"}, {"type": "number", "default": 1.5}]},
            },
            "required": ["city"],
        },
    },
}
PING = {"type": "function", "function": {"name": "ping", "description": "No parameters.",
                                         "parameters": {"type": "object", "properties": {}}}}


def call(arguments, name="get_weather", ident="call_1"):
    return {"type": "function", "id": ident, "function": {"name": name, "arguments": arguments}}


ARGUMENTS = {"city": "Roma", "days": 2, "exact": True, "spot": {"lat": 1.0, "lon": -0.5}, "tags": ["a", "ü"], "n": None}

CONVERSATIONS = {
    "one_user": [{"role": "user", "content": "Hello, world!"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [{"role": "system", "content": "  Be kind.\n"}, {"role": "user", "content": "1+1?"},
              {"role": "assistant", "content": "2"}, {"role": "user", "content": "And 2+2?"}],
    "ends_with_assistant": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello\n"}],
    "thinking_in_content": [{"role": "user", "content": "Why?"},
                            {"role": "assistant", "content": "<think>\nreason\n</think>\n\nBecause."},
                            {"role": "user", "content": "Really?"},
                            {"role": "assistant", "content": "<think>\nagain\n</think>\n\nYes."}],
    "reasoning_content": [{"role": "user", "content": "Why?"},
                          {"role": "assistant", "content": "Because.", "reasoning_content": "\nlong thought\n"}],
    "unicode": [{"role": "user", "content": "\u202eאבג\u200d 👩\u200d👩\u200d👧 e\u0301 \U0001d11e\x7f\t\x01 \"q\" 'a' \\n"}],
    "empty": [{"role": "system", "content": ""}, {"role": "user", "content": ""}, {"role": "assistant", "content": ""},
              {"role": "user", "content": " \n "}],
    "specials": [{"role": "user", "content": "<|im_end|>\n{{ 7 * 7 }}{% raw %}<tool_response>x</tool_response>"}],
    "tool_call": [{"role": "user", "content": "Weather?"},
                  {"role": "assistant", "content": "", "tool_calls": [call(ARGUMENTS)]},
                  {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "{\"t\": 21.5}"}],
    "tool_calls_two": [{"role": "system", "content": "S"}, {"role": "user", "content": "Weather?"},
                       {"role": "assistant", "content": "Looking.", "reasoning_content": "two calls",
                        "tool_calls": [call({"city": "Roma"}), call({"city": "北京"}, ident="call_2")]},
                       {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
                       {"role": "tool", "tool_call_id": "call_2", "content": "rain\n"},
                       {"role": "assistant", "content": "Sun and rain."}, {"role": "user", "content": "Thanks"}],
    "tool_call_text_arguments": [{"role": "user", "content": "Ping"},
                                 {"role": "assistant", "content": None,
                                  "tool_calls": [call("{\"a\": [1, 2.50, \"x\"]}", "ping")]},
                                 {"role": "tool", "content": "pong"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "text", "text": "here"}]}],
    "system_late": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}],
    "developer": [{"role": "developer", "content": "Dev"}, {"role": "user", "content": "x"}],
    "none": [],
}

SETTINGS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "enable_thinking": True, "reasoning_effort": "high"},
    {"add_generation_prompt": True, "tools": [WEATHER, PING], "enable_thinking": True},
    {"add_generation_prompt": False, "tools": [PING], "thinking": True},
]


def fnv1a64(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def fingerprint(case):
    if "expected" in case:
        data = case.pop("expected").encode()
        case.update(bytes=len(data), fnv1a64=fnv1a64(data))
    return case


def template_cases(name, source):
    mutable = is_mutable(name)
    for (label, messages), (index, settings) in itertools.product(CONVERSATIONS.items(), enumerate(SETTINGS)):
        variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", **settings}
        yield {"template": name, "conversation": label, "settings": index, **render(source, variables, mutable)}


EXPRESSIONS = pathlib.Path(__file__).with_name("template_expressions.txt")


def expression_cases():
    for block in EXPRESSIONS.read_text(encoding="utf-8").split("\n----\n"):
        block = block.removesuffix("\n")
        if block:
            yield {"source": block, **render(block, VARIABLES, mutable=True)}
    yield {"variables": VARIABLES}


def main():
    folder = pathlib.Path(sys.argv[1])
    tiny = json.loads((DATA / "tiny-moe/tokenizer_config.json").read_text())["chat_template"]
    qwen = (DATA / "tokenizers/Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
    bundled = [*template_cases("tiny-moe", tiny), *template_cases("Qwen-Qwen3-0.6B", qwen)]
    published = [fingerprint(case) for path in sorted(folder.glob("*.jinja")) if path.stem != "Qwen-Qwen3-0.6B"
                 for case in template_cases(path.stem, path.read_text(encoding="utf-8"))]
    expressions = list(expression_cases())
    out = DATA / "templates"
    out.mkdir(exist_ok=True)
    shared = {"now_unix_seconds": NOW, "jinja2": jinja2.__version__}
    for name, cases in (("bundled", bundled), ("published", published)):
        content = {**shared, "conversations": CONVERSATIONS, "settings": SETTINGS, "cases": cases}
        (out / f"{name}.json").write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")
    content = {**shared, "variables": expressions[-1]["variables"], "cases": expressions[:-1]}
    (out / "expressions.json").write_text(json.dumps(content, ensure_ascii=True, indent=0) + "\n")


if __name__ == "__main__":
    main()
