#!/usr/bin/env python3
"""Checks that every header compiles alone: check_headers.py [ROOT]"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

from tracked import report, tracked_files

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-restrict", "-x", "c++"]
# Headers of one instruction set need its flags and its namespace.
ISA_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
    "avx512_bf16": ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16"],
}


def flags_of(path):
    if path.parts[:2] != ("kernels", "cpu"):
        return []
    isa = next((isa for isa in sorted(ISA_FLAGS, key=len, reverse=True) if path.stem.endswith("_" + isa)), "avx512_bf16")
    return [*ISA_FLAGS[isa], f"-DFT_ISA_NAMESPACE={isa}"]


def compile_alone(root, path):
    done = subprocess.run(
        [os.environ.get("CXX", "c++"), *FLAGS, *flags_of(path), f"-I{root}", "-"],
        input=f'#include "{path}"\n#include "{path}"\n', capture_output=True, text=True,
    )
    return None if done.returncode == 0 else f"{path} does not compile alone:\n{done.stderr.strip()}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    headers = [p for p in tracked_files(root, ".h", ".hpp") if not p.name.endswith(".inc.h")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [text for text in pool.map(lambda path: compile_alone(root, path), headers) if text]
    code = report(problems, "headers")
    print(f"headers: {len(headers)} compiled alone, {len(problems)} problems")
    return code


sys.exit(main())
