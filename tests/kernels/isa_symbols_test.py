#!/usr/bin/env python3
"""Object code of an ISA must define nothing that baseline code could be linked to.

An inline function used by an AVX-512 file and by baseline code is one weak symbol, and the linker picks either copy:
the baseline program may then die of an illegal instruction. So every symbol that is visible outside an ISA library's
objects must be in the namespace ft::ISA.

usage: isa_symbols_test.py NM LIBRARY...     (libft_cpu_ISA.a)
"""
import re
import subprocess
import sys


def main():
    nm, libraries = sys.argv[1], sys.argv[2:]
    if not libraries:
        sys.exit("no libraries given")
    bad = 0
    total = 0
    for library in libraries:
        isa = re.search(r"libft_cpu_(\w+)\.a$", library).group(1)
        out = subprocess.run([nm, "--extern-only", "--defined-only", library], check=True, capture_output=True, text=True)
        names = [line.split()[-1] for line in out.stdout.splitlines() if len(line.split()) == 3]
        mangled = re.compile(r"^_Z\w*?N[KVrO]*2ft%d%s" % (len(isa), re.escape(isa)))
        total += len(names)
        if not any("matvec_nvfp4" in name for name in names):
            print(f"{library}: expected ft::{isa}::matvec_nvfp4 among its symbols; is this the right library?")
            bad += 1
        for name in names:
            # compiler's own: pointer to the personality routine and the like
            if not mangled.match(name) and not name.startswith("DW.ref."):
                print(f"{library}: {name} is not in ft::{isa}")
                bad += 1
    print(f"{total} symbols in {len(libraries)} libraries, {bad} problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
