#!/usr/bin/env python3
"""Writes tests/data/tokenizers/reference.json: what Hugging Face's tokenizers makes of texts.

Usage: generate_tokenizer_vectors.py FOLDER   (needs: pip install tokenizers==0.23.3)

FOLDER holds NAME/tokenizer.json.gz of the published tokenizers. Texts are random, seeded; those at the front are cases in
which PCRE2 or ICU, used as they are, gave something else.
"""
import gzip
import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import Tokenizer, pre_tokenizers

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"

FOUND = [
    "a\u180eb \u180e\u180e c",               # white space for PCRE2 only
    "it'\u017f we'LL don'T",                 # (?i:'s) takes the long s
    "x\U0001faf7\U0001faf7y \U0001faad\u2b75",  # symbols of Unicode 15, unassigned for PCRE2
    "\U00031350\U0001e030\u1c89\u0897\u0cf3\U00011f50",  # letters, marks and digits of Unicode 15 and 16
    "\u0344\u1df7 e\u0323\u0301\u1dfa\u0316",  # a mark that the normalizer does not know keeps its place
    "q\u0315\u0300\u05ae\u0362" * 20,        # long runs of marks in the wrong order
    "\u0f71\u0f72\u0f73\u0f75" * 12,
    "a\u0085b\u001cc\u2028d\ufeffe\u200bf\u3000",
    "\u1100\u1161\u11a8 \uac00\u11a8 \u212b \u2126 \ufb1d",
]
SPACES = [0x20, 0x9, 0xA, 0xB, 0xC, 0xD, 0x85, 0xA0, 0x1680, 0x180E, 0x2000, 0x200A, 0x200B, 0x2028, 0x2029, 0x202F, 0x205F,
          0x3000, 0xFEFF, 0x1C, 0x1F]
MARKS = [0x300, 0x301, 0x308, 0x323, 0x327, 0x338, 0x344, 0x345, 0x5B0, 0x64B, 0x93C, 0xF71, 0xF73, 0x20D0, 0x3099, 0x1D165]
WORDS = ["'s", "'RE", "'\u017f", "Hello", "hELLO", "\u00df", "\u01c5", "\ufb01", "</think>", "<think>", "<|im_end|>", "<|im_",
         "\u2581", "\u0120", "<0x0A>", "1234567", "\u0663", "\u00bd", "\u4e00\u9fa5", "\u3042\u30ff", "\uac00", "\u1100\u1161",
         "e\u0301", "\U0001f469\u200d\U0001f467", "  ", "\n\n", "\r\n", "\n ", "....", "//", "\\n"]


def random_text(rnd):
    out = []
    for _ in range(rnd.choice([1, 2, 3, 5, 8, 13, 30])):
        kind = rnd.random()
        if kind < 0.25:
            piece = chr(rnd.randrange(32, 127))
        elif kind < 0.40:
            piece = chr(rnd.choice(SPACES))
        elif kind < 0.50:
            piece = chr(rnd.choice(MARKS))
        elif kind < 0.65:
            piece = rnd.choice(WORDS)
        else:
            top = 0x3400 if kind < 0.8 else 0x10000 if kind < 0.9 else 0x110000
            code = rnd.randrange(top)
            piece = "" if 0xD800 <= code <= 0xDFFF else chr(code)
        out.append(piece * rnd.choice([1] * 12 + [2, 3, 40]))
    return "".join(out)


def encoded(tokenizer, texts):
    cases = []
    for text in texts:
        case = {"text": text}
        for name, ordinary in (("all", False), ("ordinary", True)):
            tokenizer.encode_special_tokens = ordinary
            case[name] = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        case["added"] = tokenizer.encode(text, add_special_tokens=True).ids
        case["decoded"] = tokenizer.decode(case["all"], skip_special_tokens=True)
        for name, same in (("ordinary", case["all"]), ("added", case["all"]), ("decoded", text)):  # left out when the same
            if case[name] == same:
                del case[name]
        cases.append(case)
    return cases


def split_cases():
    patterns = [{"Regex": r"\s+"}, {"Regex": r"\p{N}{1,3}"}, {"Regex": "a*"}, {"String": "ab"}, {"Regex": r"^\w|\d$"},
                {"Regex": "[^\\S\\n]|x"}, {"Regex": r"(?i:STRASSE|k)"}, {"Regex": r"\w+"}, {"Regex": r"\p{Han}+"}]
    texts = ["", "ab", "ab  abab 12345\tx", "  a\u00a0b  ", "\u00b2\u0301\u203fK\u212a \u180e", "1\n2 line\nend7\n",
             "\u4e00\u3005\u30fc\u3006x", "aaa b aa"]
    for pattern in patterns:
        for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
            for invert in (False, True):
                node = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
                kind, content = next(iter(pattern.items()))
                style = {"Isolated": "isolated", "Removed": "removed", "MergedWithPrevious": "merged_with_previous",
                         "MergedWithNext": "merged_with_next", "Contiguous": "contiguous"}[behavior]
                split = pre_tokenizers.Split(tokenizers.Regex(content) if kind == "Regex" else content, style, invert)
                yield {"pre_tokenizer": node,
                       "cases": [[t, [p for p, _ in split.pre_tokenize_str(t)]] for t in texts]}


def synthetic(model, **rest):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      **model}, **rest}


def added(token_id, content, **flags):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False, **flags}


def synthetic_cases():
    letters = {c: i for i, c in enumerate("abcdef \u2581<>")}
    pairs = [["a", "b"], ["ab", "c"], ["b", "c"], ["a", "a"], ["aa", "aa"], [" ", "a"]]
    vocab = dict(letters)
    for left, right in pairs:
        vocab.setdefault(left + right, len(vocab))
    texts = ["abcabc", "aaaaa", "aaaaaaaab", "x", "axxb", "ab zz abc", "\u00e9a", " <s>a <s> b<s>", "a<w>b <w> <w>", "<<s>>",
             "A<N> <n>", "cab<s><s>", "   <l>  a  <r>  b", "", "ef d"]

    def many(first):  # ids follow the vocabulary: tokenizers would renumber others
        return [added(first, "<s>", special=True), added(first + 1, "<w>", single_word=True),
                added(first + 2, "<l>", lstrip=True), added(first + 3, "<r>", rstrip=True),
                added(first + 4, "<N>", normalized=True), added(first + 5, "<<s>", special=True)]

    unknown = {**vocab, "<unk>": len(vocab)}
    bytes_vocab = {**unknown, **{f"<0x{i:02X}>": len(unknown) + i for i in range(256)}}
    merges = [f"{a} {b}" for a, b in pairs[:5]]
    template = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                           {"SpecialToken": {"id": "<e>", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [len(unknown)], "tokens": ["<s>"]},
                                   "<e>": {"id": "<e>", "ids": [0, 1], "tokens": ["a", "b"]}}}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    models = [
        synthetic({"vocab": vocab, "merges": pairs}),
        synthetic({"vocab": vocab, "merges": merges, "ignore_merges": True}, added_tokens=many(len(vocab))),
        synthetic({"vocab": unknown, "merges": pairs, "unk_token": "<unk>"}, added_tokens=many(len(unknown)), post_processor=template),
        synthetic({"vocab": unknown, "merges": pairs, "unk_token": "<unk>", "fuse_unk": True},
                  normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, replace,
                                                                 {"type": "Prepend", "prepend": "\u2581"}]}),
        synthetic({"vocab": bytes_vocab, "merges": pairs, "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True},
                  normalizer=replace,
                  decoder={"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"},
                                                             "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}),
    ]
    for model in models:
        # Texts without ids decode differently when bytes are missing; the vectors keep what encode gave.
        yield {"tokenizer": model, "cases": encoded(Tokenizer.from_str(json.dumps(model)), texts)}
    byte_level = json.loads((DATA / "tiny-moe/tokenizer.json").read_text())
    byte_level["normalizer"] = None
    byte_level["model"]["merges"] = byte_level["model"]["merges"][:40]
    keep = {left + right for left, right in byte_level["model"]["merges"]}
    byte_level["model"]["vocab"] = {t: i for t, i in byte_level["model"]["vocab"].items() if len(t) == 1 or t in keep or i < 3}
    for use_regex, prefix in ((True, True), (True, False), (False, True)):
        byte_level["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True,
                                       "use_regex": use_regex}
        yield {"tokenizer": byte_level.copy(),
               "cases": encoded(Tokenizer.from_str(json.dumps(byte_level)), ["the cat's 12  \n x", " a", "\u00e9\u3000b", "don't"])}


def main():
    folder = pathlib.Path(sys.argv[1])
    texts = {}
    result = {"tokenizers": tokenizers.__version__, "splits": list(split_cases()), "synthetic": list(synthetic_cases()),
              "published": {}}
    for index, name in enumerate(["tiny-moe", "qwen3", "gptoss", "deepseek_v3", "gemma3"]):
        if name == "tiny-moe":
            tokenizer = Tokenizer.from_file(str(DATA / "tiny-moe/tokenizer.json"))
        else:
            tokenizer = Tokenizer.from_str(gzip.open(folder / name / "tokenizer.json.gz").read().decode())
        rnd = random.Random(index)
        texts = FOUND + [random_text(rnd) for _ in range(60)]
        result["published"][name] = encoded(tokenizer, texts)
    (DATA / "tokenizers/reference.json").write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
