#!/usr/bin/env python3
"""Writes a C++ file that holds JSON files as strings: embed.py OUT.cpp FILE.schema.json...

Each file is checked to be JSON first, and stored compact, under its name up to the first dot.
"""
import json
import pathlib
import sys

DELIMITER = "ft_json"
# Compilers must accept string literals of 65536 bytes (C++ annex B); longer ones are joined from pieces.
PIECE_CHARACTERS = 16000


def literal(text):
    pieces = [text[i : i + PIECE_CHARACTERS] for i in range(0, len(text), PIECE_CHARACTERS)]
    for piece in pieces:
        if f'){DELIMITER}"' in piece:
            sys.exit(f'embed.py: text holds the delimiter "{DELIMITER}"')
    return "\n".join(f'R"{DELIMITER}({piece}){DELIMITER}"' for piece in pieces)


def main():
    out, *sources = sys.argv[1:]
    lines = ['#include "schemas/schema_text.h"', "", "namespace ft {", "namespace {", "",
             "constexpr SchemaText kTexts[] = {"]
    for source in sources:
        path = pathlib.Path(source)
        text = json.dumps(json.loads(path.read_text(encoding="utf-8")), separators=(",", ":"))
        lines.append(f'    {{"{path.name.split(".")[0]}",\n{literal(text)}}},')
    lines += ["};", "", "}  // namespace", "",
              "std::span<const SchemaText> schema_texts() { return kTexts; }", "", "}  // namespace ft", ""]
    pathlib.Path(out).write_text("\n".join(lines), encoding="utf-8")


main()
