#!/usr/bin/env python3
"""Writes a C++ file that holds JSON Schemas as strings: embed.py OUT.cpp FILE.schema.json...

Every "$ref" (FILE.schema.json#/definitions/NAME, or #/definitions/NAME) is replaced by what it names, so that the
program needs neither files nor reference resolution. Stored compact, under the file's name up to the first dot.
"""
import json
import pathlib
import sys

DELIMITER = "ft_json"
# Compilers must accept string literals of 65536 bytes (C++ annex B); longer ones are joined from pieces.
PIECE_CHARACTERS = 16000


def resolved(node, path, documents):
    """`node` of document `path` without references. Recursive schemas are not supported, and end in RecursionError."""
    if isinstance(node, list):
        return [resolved(item, path, documents) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        file, _, pointer = node["$ref"].partition("#")
        target_path = path.parent / file if file else path
        if target_path not in documents:
            documents[target_path] = json.loads(target_path.read_text(encoding="utf-8"))
        target = documents[target_path]
        for key in pointer.strip("/").split("/"):
            target = target[key]
        return resolved(target, target_path, documents)
    return {key: resolved(value, path, documents) for key, value in node.items() if key != "definitions"}


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
    documents = {}
    for source in sources:
        path = pathlib.Path(source).resolve()
        schema = resolved(json.loads(path.read_text(encoding="utf-8")), path, documents)
        text = json.dumps(schema, separators=(",", ":"))
        lines.append(f'    {{"{path.name.split(".")[0]}",\n{literal(text)}}},')
    lines += ["};", "", "}  // namespace", "",
              "std::span<const SchemaText> schema_texts() { return kTexts; }", "", "}  // namespace ft", ""]
    pathlib.Path(out).write_text("\n".join(lines), encoding="utf-8")


main()
