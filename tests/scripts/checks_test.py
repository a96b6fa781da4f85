#!/usr/bin/env python3
"""The lint checks find what is planted, and only that. Checked against: small trees with one violation each."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
LONG_FUNCTION = "void f() {\n" + "  g();\n" * 69 + "}\n"  # 71 lines
LONGEST_FUNCTION = "void f() {\n" + "  g();\n" * 68 + "}\n"  # 70 lines
STATEMENTS = "".join(f"  total += first[{i}] * second[{i}] + {i};\n" for i in range(120))


class ChecksTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def tearDown(self):
        self.folder.cleanup()

    def put(self, **files):
        for name, content in files.items():
            self.put_at(name, content)

    def put_at(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")

    def run_check(self, name):
        done = subprocess.run([sys.executable, SCRIPTS / f"check_{name}.py", self.root], capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def expect(self, check, path, content, problem):
        """`content` at `path` gives the problem; an empty problem stands for none."""
        self.put_at(path, content)
        code, out = self.run_check(check)
        if problem:
            self.assertEqual(code, 1, out)
            self.assertIn(f"{check}: {path}", out)
            self.assertIn(problem, out)
        else:
            self.assertEqual(code, 0, out)
        (self.root / path).unlink()

    def test_arrows(self):
        folders = ("kernels/base", "kernels/host", "schemas", "profiles", "engine/model", "engine/server",
                   "engine/program", "probes", "tuner")
        for folder in folders:
            self.put_at(f"{folder}/x.h", "#pragma once\n")
        against = "against the arrows"
        cases = [
            ("kernels/base/y.h", "kernels/host/x.h", against),
            ("kernels/host/y.cpp", "kernels/base/x.h", ""),
            ("kernels/host/y.cpp", "engine/model/x.h", against),
            ("schemas/y.cpp", "kernels/base/x.h", ""),
            ("schemas/y.cpp", "kernels/host/x.h", against),
            ("schemas/y.cpp", "profiles/x.h", against),
            ("profiles/y.cpp", "schemas/x.h", ""),
            ("profiles/y.cpp", "engine/model/x.h", against),
            ("engine/model/y.cpp", "kernels/host/x.h", ""),
            ("engine/model/y.cpp", "profiles/x.h", against),
            ("engine/model/y.cpp", "engine/server/x.h", against),
            ("engine/server/y.cpp", "profiles/x.h", ""),
            ("engine/server/y.cpp", "engine/program/x.h", against),
            ("engine/program/y.cpp", "engine/server/x.h", ""),
            ("engine/program/y.cpp", "tuner/x.h", against),
            ("probes/y.cpp", "engine/model/x.h", ""),
            ("probes/y.cpp", "profiles/x.h", against),
            ("probes/y.cpp", "schemas/x.h", against),
            ("probes/y.cpp", "engine/program/x.h", against),
            ("probes/main.cpp", "profiles/x.h", ""),
            ("probes/y.cpp", "tuner/x.h", against),
            ("tuner/y.cpp", "probes/x.h", ""),
            ("tuner/y.cpp", "engine/program/x.h", ""),
            ("tuner/y.cpp", "engine/server/x.h", against),
            ("tests/y.cpp", "tuner/x.h", ""),
            ("tuner/y.cpp", "x.h", "not a file by its path"),
            ("elsewhere/y.cpp", "tuner/x.h", "no folder of the design"),
        ]
        for path, target, problem in cases:
            with self.subTest(path=path, target=target):
                self.expect("arrows", path, f'#include "{target}"\n', problem)

    def test_arrows_of_third_party_headers_and_generated_ones(self):
        self.expect("arrows", "profiles/y.h", "#include <nlohmann/json.hpp>\n", "in a header")
        self.expect("arrows", "profiles/y.h", "#include <nlohmann/json_fwd.hpp>\n", "")
        self.expect("arrows", "profiles/y.cpp", "#include <nlohmann/json.hpp>\n", "")
        self.put_at("kernels/host/meson.build", "configure_file(output: 'made.h')\n")
        self.expect("arrows", "kernels/host/y.cpp", '#include "kernels/host/made.h"\n', "")

    def test_sizes(self):
        self.expect("sizes", "a.cpp", "int a;\n" * 800, "")
        self.expect("sizes", "a.cpp", "int a;\n" * 801, "801 lines")
        self.expect("sizes", "a_table.cpp", "int a;\n" * 801, "")
        self.put_at("note.cpp", "int a;\n" * 401)
        self.assertIn("note: note.cpp: 401 lines", self.run_check("sizes")[1])
        self.expect("sizes", "a.cpp", LONGEST_FUNCTION, "")
        self.expect("sizes", "a.cpp", LONG_FUNCTION, "function of 71 lines")
        member = "class A {\n  void f() {\n" + "    g();\n" * 69 + "  }\n};\n"
        self.expect("sizes", "a.cpp", member, "function of 71 lines")
        signature = "void long_name(int first,\n               int second) {\n" + "  g();\n" * 68 + "}\n"
        self.expect("sizes", "a.cpp", signature, "function of 71 lines")
        self.expect("sizes", "a.cpp", "namespace a {\n" + "int b();\n" * 100 + "}\n", "")

    def test_text(self):
        cases = [
            ("engine/a.cpp", 'std::getenv("A");\n', "environment"),
            ("kernels/host/isa.cpp", 'std::getenv("A");\n', ""),
            ("tests/a.cpp", 'std::getenv("A");\n', ""),
            ("a.cpp", "#if " + "0\n#endif\n", "switched off"),
            ("a.cpp", "  // return x + 1;\n", "commented-out"),
            ("a.cpp", "  // total = total + 1;\n", "commented-out"),
            ("a.cpp", "  // call(first, second);\n", "commented-out"),
            ("a.cpp", "  // for (int i = 0; i < n; ++i) {\n", "commented-out"),
            ("a.cpp", "// First this; then that, whatever it takes.\n", ""),
            ("a.cpp", "// Return values are checked, see f();\n", ""),
            ("a.md", "see /ro" + "ot/model\n", "somebody's machine"),
            ("a.cpp", "// TO" + "DO later\n", "note to self"),
            ("a.md", "<" * 7 + " HEAD\n", "mark of a merge"),
            ("a.py", ">" * 7 + " branch\n", "mark of a merge"),
            ("a.md", "<" * 6 + " less\n", ""),
            ("a.py", "\tpass\n", "tab"),
            ("a.cpp", "int a; \n", "trailing space"),
            ("a.cpp", "int a;", "no newline"),
            ("engine/util.h", "#pragma once\n", "a name that says nothing"),
            ("engine/helpers.cpp", "int a;\n", "a name that says nothing"),
        ]
        for path, content, problem in cases:
            with self.subTest(path=path, content=content):
                self.expect("text", path, content, problem)

    def test_duplicates(self):
        self.put_at("a.cpp", f"void a() {{\n{STATEMENTS}}}\n")
        self.expect("duplicates", "other.cpp", STATEMENTS.replace("first", "third").replace("total", "sum"), "")
        self.put_at("b.cpp", f"void b() {{\n{STATEMENTS}}}\n")
        code, out = self.run_check("duplicates")
        self.assertEqual(code, 1)
        self.assertIn("a.cpp and b.cpp share", out)

    def test_headers(self):
        self.expect("headers", "a.h", "#pragma once\n#include <string>\ninline std::string a() { return {}; }\n", "")
        self.expect("headers", "a.h", "#pragma once\ninline std::string a() { return {}; }\n", "does not compile alone")
        self.expect("headers", "a.h", "struct A {};\n", "does not compile alone")  # no guard

    def test_ignored_files_are_not_looked_at(self):
        self.put_at(".gitignore", "/build/\n")
        self.expect("text", "build/a.cpp", "int a; \n", "")


if __name__ == "__main__":
    unittest.main()
