#!/usr/bin/env python3
"""Checks that includes follow the arrows of the design: check_arrows.py [ROOT]

    kernels <- engine <- probes <- tuner        schemas <- profiles <- {engine/program, engine/server, tuner, probes/main}
    engine/program <- tuner

engine/program is where the engine's types and the profile's meet: ft-engine's main and what ft-tune shares with it.
kernels/base is visible to all. Our headers are included by project path and exist; third-party headers that are slow
to compile or that decide an interface stay out of our headers.
"""
import pathlib
import re
import sys

from tracked import CPP_SUFFIXES, report, tracked_files

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# The longest matching prefix of a file decides what it may include (prefixes; its own folder is listed too).
ENGINE_LIBRARY = ("engine/model", "engine/text", "engine/experts", "engine/runtime", "engine/scheduler",
                  "engine/engine_config.h")
ALLOWED = {
    "kernels/base/": ("kernels/base/",),
    "kernels/": ("kernels/",),
    "schemas/": ("schemas/", "kernels/base/"),
    "profiles/": ("profiles/", "schemas/", "kernels/base/"),
    "engine/": (*ENGINE_LIBRARY, "kernels/"),
    "engine/scheduler/": ("engine/scheduler", "engine/runtime", "engine/experts", "engine/model",
                          "engine/engine_config.h", "kernels/"),
    "engine/server/": ("engine/server/", *ENGINE_LIBRARY, "kernels/", "profiles/", "schemas/"),
    "engine/program/": ("engine/", "kernels/", "profiles/", "schemas/"),
    "probes/": ("probes/", *ENGINE_LIBRARY, "kernels/"),
    "probes/main.cpp": ("probes/", *ENGINE_LIBRARY, "kernels/", "profiles/", "schemas/"),
    "tuner/": ("tuner/", "probes/", "engine/program/", *ENGINE_LIBRARY, "kernels/", "profiles/", "schemas/"),
    "tests/": ("",),
}
HEAVY_IN_HEADERS = re.compile(
    r"^(nlohmann/json\.hpp|CLI/|httplib\.h|spdlog/|doctest/|benchmark/|valijson/|hwloc|likwid|Eigen/|pcre2|unicode/|cuda)"
)


def allowed_for(path):
    best = max((prefix for prefix in ALLOWED if path.startswith(prefix)), key=len, default=None)
    return None if best is None else ALLOWED[best]


def is_generated(root, target):
    """A header that the folder's meson.build writes into the build folder."""
    path = pathlib.PurePosixPath(target)
    build = root / path.parent / "meson.build"
    return build.is_file() and f"output: '{path.name}'" in build.read_text(encoding="utf-8")


def check_file(root, path):
    allowed = allowed_for(str(path))
    if allowed is None:
        return [f"{path}: no folder of the design; see ALLOWED in scripts/check_arrows.py"]
    problems = []
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        kind, target = match.groups()
        where = f"{path}:{number}: "
        if kind == "<":
            if path.suffix in (".h", ".hpp") and path.parts[0] != "tests" and HEAVY_IN_HEADERS.match(target):
                problems.append(f"{where}<{target}> in a header: include it in a .cpp file only")
        elif not (root / target).is_file() and not is_generated(root, target):
            problems.append(f'{where}"{target}" is not a file by its path in the project')
        elif not target.startswith(allowed):
            problems.append(f'{where}"{target}" is against the arrows; allowed: {", ".join(allowed)}')
    return problems


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    files = tracked_files(root, *CPP_SUFFIXES)
    problems = [problem for path in files for problem in check_file(root, path)]
    code = report(problems, "arrows")
    print(f"arrows: {len(files)} files, {len(problems)} problems")
    return code


sys.exit(main())
