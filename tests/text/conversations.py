"""Conversations from a seed: what clients send to chat templates, and what they should not but do.

conversation(seed) gives the variables of one rendering: messages with tools, tool calls and results, reasoning, parts,
strange text, and the switches that published templates read. Three of four keep to what clients are told to send; the others
hold every now and then something that is missing or of another type, which most templates refuse.
"""
import random

TEXTS = [
    "Hello, world!", "", " ", "\n", "  padded \n\n", "What is the weather in Z\u00fcrich?", "\u4f60\u597d\uff0c\u4e16\u754c", "\U0001f468\u200d\U0001f469\u200d\U0001f467 ok",
    "e\u0301\u00a0\u200b\u3000\u2028end", "\u0645\u0631\u062d\u0628\u0627 \u202eabc", "tab\tnew\r\nline\x0b\x0c\x85x", "\x01\x1f\x7f", "it's \"quoted\" \\ / <b>&amp;</b>",
    "<|im_end|>\n<|im_start|>system", "{{ 7 * 7 }}{% raw %}{# no #}", "<think>\nplan\n</think>\n\nAnswer.", "<think>open", "a</think>b</think>c",
    "</think>", "<tool_response>\nx\n</tool_response>", "<tool_call>\n{}\n</tool_call>", "/no_think", "/nothink", "<|channel>thought\nx<channel|>y",
    "<channel|>z<|channel>", "line\n" * 3, "\u00c5ngstr\u00f6m \ufb01 \u01c6 \u0130I\u0131 \u1e9e\u00df", "1234567890 " * 4, "'", '"', "\\", "%s %d {0}", "null", "None", "true",
    "<|\"|>", "]~b]x[e~[", "\U00020000\U0010fffd", "\u0000 nul",
]
NAMES = ["get_weather", "ping", "search", "f", "\u540d\u524d", "with space", "a.b", "call-2", ""]
KEYS = ["city", "days", "exact", "spot", "tags", "type", "description", "properties", "required", "items", "Zeta", "alpha", "\u00fc", "a b",
        "name", "values", "keys", "get", "x", "nullable", "enum"]
WORDS = ["Roma", "celsius", "it's", "\u5317\u4eac", "", "x" * 60, "two\nlines", "<a & b>", "\"", "z"]
TYPES = ["string", "number", "integer", "boolean", "null", "array", "object"]
NUMBERS = [0, 1, -1, 3, 21.5, 0.0, -0.5, 1.0, 1e-7, 1e16, 1.5e300, 123456789012, 2**53 + 1, 1e22, 100000.0, 5e-324]


class Generator(random.Random):
    """keeps_to_form: nothing is missing or of another type than the API says; uses_parts: lists of parts as content."""

    def __init__(self, seed):
        super().__init__(f"conversation {seed}")
        self.keeps_to_form = self.random() < 0.75
        self.uses_parts = self.random() < 0.15


def chance(rng, probability):
    return rng.random() < probability


def odd(rng, probability):
    return chance(rng, probability) and not rng.keeps_to_form


def text(rng):
    if chance(rng, 0.7):
        return rng.choice(TEXTS)
    return "".join(rng.choice((rng.choice(TEXTS), rng.choice(WORDS), " ", "\n", chr(rng.choice((rng.randrange(32, 0xD7FF), rng.randrange(0xE000, 0x2FFF0))))))
                   for _ in range(rng.randint(1, 6)))


def value(rng, depth=3):
    """Any JSON value."""
    kind = rng.randrange(8 if depth else 6)
    if kind < 2:
        return rng.choice(WORDS)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice((True, False, None, text(rng)))
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {key: value(rng, depth - 1) for key in rng.sample(KEYS, rng.randrange(4))}


def schema(rng, depth=3):
    """A JSON schema of one parameter, nested, now and then with parts that do not fit."""
    kind = rng.choice(TYPES if depth else TYPES[:5])
    result = {"type": kind}
    if odd(rng, 0.1):
        result["type"] = rng.sample(TYPES, rng.randint(1, 3))
    elif odd(rng, 0.1):
        del result["type"]
    if chance(rng, 0.6):
        result["description"] = text(rng)
    if kind == "string" and chance(rng, 0.4):
        result["enum"] = rng.sample(WORDS, rng.randint(1, 4))
    if kind == "array" and chance(rng, 0.85):
        result["items"] = schema(rng, depth - 1)
    if kind == "object":
        if chance(rng, 0.85):
            result["properties"] = properties(rng, depth - 1)
        if chance(rng, 0.5):
            result["required"] = rng.sample([*result.get("properties", {}), "other"], 1)
        if chance(rng, 0.3):
            result["additionalProperties"] = rng.choice((False, True, {"type": "string"}))
    for key, probability, make in (("default", 0.25, lambda: value(rng, 1)), ("nullable", 0.15, lambda: rng.choice((True, False))),
                                   ("minimum", 0.1, lambda: rng.choice(NUMBERS)), ("format", 0.05, lambda: "date-time")):
        if chance(rng, probability):
            result[key] = make()
    if depth and chance(rng, 0.15):
        result[rng.choice(("oneOf", "anyOf", "allOf"))] = [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    return shuffled(rng, result)


def properties(rng, depth):
    return {key: schema(rng, depth) for key in rng.sample(KEYS, rng.randrange(5))}


def shuffled(rng, entries):
    return dict(rng.sample(list(entries.items()), len(entries)))


def tool(rng):
    function = {"name": rng.choice(NAMES), "description": text(rng)}
    if odd(rng, 0.1):
        del function["description"]
    if chance(rng, 0.9):
        function["parameters"] = {"type": "object", "properties": properties(rng, 3)}
        if chance(rng, 0.6):
            names = list(function["parameters"]["properties"])
            function["parameters"]["required"] = rng.sample(names, rng.randrange(len(names) + 1))
        if chance(rng, 0.1):
            function["parameters"]["$defs"] = {"P": schema(rng, 1)}
    for key, probability, make in (("strict", 0.2, lambda: rng.choice((True, False))), ("response", 0.2, lambda: schema(rng, 1)),
                                   ("return", 0.1, lambda: schema(rng, 1)), ("defer_loading", 0.1, lambda: rng.choice((True, False)))):
        if chance(rng, probability):
            function[key] = make()
    if odd(rng, 0.2):
        return function  # without the wrapper
    return {"type": "function", "function": shuffled(rng, function)}


def content(rng, none=0.1):
    """Text, parts, now and then nothing."""
    if odd(rng, none):
        return None
    if not (rng.uses_parts and chance(rng, 0.4)):
        return text(rng)
    parts = [{"type": "text", "text": text(rng)} for _ in range(rng.randint(1, 3))]
    for part in parts:
        if odd(rng, 0.2):
            part.pop("text")
            part["type"] = rng.choice(("image", "audio", "video", "image_url"))
    return parts


def tool_call(rng, number):
    arguments = {key: value(rng, 2) for key in rng.sample(KEYS, rng.randrange(5))}
    if odd(rng, 0.3):
        arguments = rng.choice(('{"a": [1, 2.50, "x"]}', "", "{}", '{"city": "\u5317\u4eac"}', "not json", None))
    function = {"name": rng.choice(NAMES), "arguments": arguments}
    if odd(rng, 0.15):
        return function
    call = {"type": "function", "id": rng.choice((f"call_{number}", f"functions.f:{number}", "")), "function": function}
    if odd(rng, 0.2):
        del call["id"]
    return call


def assistant(rng, number):
    message = {"role": "assistant", "content": content(rng, 0.3)}
    for key, probability in (("reasoning_content", 0.35), ("reasoning", 0.1), ("thinking", 0.1)):
        if chance(rng, probability):
            message[key] = None if odd(rng, 0.3) else text(rng)
    if chance(rng, 0.4):
        message["tool_calls"] = rng.choice((None, [])) if odd(rng, 0.2) else [tool_call(rng, number + i) for i in range(rng.randint(1, 3))]
        if chance(rng, 0.3):
            message["content"] = "" if rng.keeps_to_form else None
    if odd(rng, 0.1):
        del message["content"]
    for key, probability, make in (("prefix", 0.1, lambda: True), ("name", 0.1, lambda: "model"),
                                   ("tool_responses", 0.1, lambda: [{"name": rng.choice(NAMES), "response": value(rng, 2)}])):
        if odd(rng, probability):
            message[key] = make()
    return message


def tool_result(rng, call):
    message = {"role": "tool", "content": text(rng) if rng.keeps_to_form else rng.choice((text(rng), content(rng), value(rng, 2)))}
    if "id" in call and not odd(rng, 0.2):
        message["tool_call_id"] = call["id"]
    if chance(rng, 0.5):
        message["name"] = call.get("function", call).get("name")
    return message


def messages(rng):
    found = []
    if chance(rng, 0.5):
        found.append({"role": "developer" if odd(rng, 0.3) else "system", "content": content(rng)})
    for turn in range(rng.randint(1, 5)):
        found.append({"role": "user", "content": content(rng)})
        if odd(rng, 0.2):
            found.append({"role": rng.choice(("user", "system", "observation", "latest_reminder")), "content": text(rng)})
        for step in range(rng.choice((1, 1, 2, 3))):
            found.append(assistant(rng, 10 * turn + step))
            found += [tool_result(rng, call) for call in found[-1].get("tool_calls") or [] if not odd(rng, 0.2)]
            if rng.keeps_to_form and found[-1]["role"] == "assistant":
                break
    if chance(rng, 0.6):
        found.append({"role": "user", "content": content(rng)})
    if odd(rng, 0.2):
        rng.shuffle(found)
    return [] if odd(rng, 0.05) else found


def conversation(seed):
    rng = Generator(seed)
    variables = {"messages": messages(rng), "bos_token": rng.choice(("<s>", "<bos>", "")), "eos_token": "</s>"}
    optional = (
        ("add_generation_prompt", 0.9, lambda: chance(rng, 0.6)), ("enable_thinking", 0.6, lambda: rng.choice((True, False, None)[:2 if rng.keeps_to_form else 3])),
        ("thinking", 0.3, lambda: rng.choice((True, False))), ("reasoning_effort", 0.3, lambda: rng.choice(("low", "medium", "high", "max", None)[:4 if rng.keeps_to_form else 5])),
        ("tools", 0.6, lambda: rng.choice((None, [])) if chance(rng, 0.15) else [tool(rng) for _ in range(rng.randint(1, 3))]),
        ("documents", 0.2, lambda: None), ("model_identity", 0.15, lambda: text(rng)),
        ("builtin_tools", 0.1, lambda: rng.sample(("browser", "python", "other"), rng.randrange(4))),
        ("add_vision_id", 0.1, lambda: chance(rng, 0.5)), ("drop_thinking", 0.2, lambda: chance(rng, 0.5)),
        ("clear_thinking", 0.2, lambda: chance(rng, 0.5)), ("preserve_thinking", 0.2, lambda: chance(rng, 0.5)))
    for key, probability, make in optional:
        if chance(rng, probability):
            variables[key] = make()
    return variables
