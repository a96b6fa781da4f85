#!/usr/bin/env python3
"""Writes the C++ file behind profiles/build_info.h: build_info.py OUT.cpp ROOT VERSION COMPILER

Runs at every build and rewrites the file only when a fact changed. The code hash covers everything in kernels/ and
engine/ that decides what the programs compute: sources, lists and build files, by path and content. Tests and
documents are elsewhere, so a change there keeps a profile valid.
"""
import hashlib
import pathlib
import subprocess
import sys

HASHED_FOLDERS = ("kernels", "engine")
HASHED_SUFFIXES = {".h", ".hpp", ".cpp", ".inc", ".def", ".cu", ".cuh", ".S", ".build"}
HASH_DIGITS = 32


def code_hash(root):
    digest = hashlib.sha256()
    for folder in HASHED_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in HASHED_SUFFIXES or not path.is_file():
                continue
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:HASH_DIGITS]


def git(root, *arguments):
    """Output of a git command, or None without git, a checkout of our own, or a commit."""
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commit_and_dirty(root):
    # A tarball unpacked inside some other repository must not report that repository's commit.
    top = git(root, "rev-parse", "--show-toplevel")
    if top is None or pathlib.Path(top).resolve() != root:
        return "", False
    commit = git(root, "rev-parse", "HEAD") or ""
    return commit, bool(git(root, "status", "--porcelain", "--untracked-files=no"))


def main():
    out, root, version, compiler = sys.argv[1:]
    root = pathlib.Path(root).resolve()
    commit, dirty = commit_and_dirty(root)
    text = f"""#include "profiles/build_info.h"

namespace ft {{

BuildInfo build_info() {{
  return {{.version = "{version}",
          .compiler = "{compiler}",
          .code_hash = "{code_hash(root)}",
          .commit = "{commit}",
          .dirty = {str(dirty).lower()}}};
}}

}}  // namespace ft
"""
    path = pathlib.Path(out)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


main()
