"""Files of the tree that the lint checks look at: what git tracks, and what is new and not ignored."""
import pathlib
import subprocess


def tracked_files(root, *suffixes):
    """Paths relative to `root`, sorted; all files without suffixes."""
    out = subprocess.run(
        ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, check=True,
    ).stdout.decode()
    paths = sorted({pathlib.PurePosixPath(name) for name in out.split("\0") if name})
    return [p for p in paths if (not suffixes or p.suffix in suffixes) and (root / p).is_file()]


CPP_SUFFIXES = (".h", ".hpp", ".cpp", ".inc", ".def", ".cu", ".cuh")


def report(problems, name):
    """Prints the problems; the exit code of a check."""
    for problem in problems:
        print(f"{name}: {problem}")
    return 1 if problems else 0
