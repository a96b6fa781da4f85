#!/usr/bin/env python3
"""scripts/quickstart end to end with stand-ins for the programs. Checked against: what the README promises of it."""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
TUNE = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo '{}' > "$2"
"""
# Listens like ft-engine: /ready is 503 for a moment, one chat answer, its pid in a file, 0 on SIGTERM.
ENGINE = """#!/usr/bin/env python3
import http.server, json, os, pathlib, signal, sys, threading, time
here = pathlib.Path(sys.argv[0]).parent
failures = here / "failures"
left = int(failures.read_text()) if failures.exists() else 0
port = int(sys.argv[sys.argv.index("--port") + 1])
if left:
    failures.write_text(str(left - 1))
    sys.exit(f"ft-engine: error: cannot listen: port {port} is busy")
start = time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.reply(200 if time.monotonic() - start > 0.3 else 503, b"")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions" and body["temperature"] == 0, body
        (here / "asked").write_text(body["messages"][0]["content"])
        if (here / "slow").exists():
            time.sleep(60)
        answer = "two\\nlines"
        self.reply(200, json.dumps({"choices": [{"message": {"content": answer}}]}).encode())
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
server.daemon_threads = True
(here / "pid").write_text(str(os.getpid()))
signal.signal(signal.SIGTERM, lambda *_: (here / "stopped").touch() or os._exit(0))
server.serve_forever()
"""


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.build = self.root / "build"
        self.build.mkdir()
        (self.root / "scripts").mkdir()
        for name in ("quickstart", "lib.sh", "ask.py"):
            shutil.copy(SCRIPTS / name, self.root / "scripts" / name)
        for name in ("install", "build"):
            self.put(self.root / "scripts" / name, "#!/bin/sh\n")
        self.put(self.build / "ft-tune", TUNE)
        self.put(self.build / "ft-engine", ENGINE)

    def tearDown(self):
        self.folder.cleanup()

    @staticmethod
    def put(path, text):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def start(self, *arguments):
        return subprocess.Popen([self.root / "scripts" / "quickstart", *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, start_new_session=True)

    def run_to_end(self, *arguments):
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.splitlines(), err

    def engine_is_gone(self):
        pid = int((self.build / "pid").read_text())
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    def test_answers_and_stops_the_engine(self):
        code, lines, err = self.run_to_end("--question", "What is this?")
        self.assertEqual(code, 0, err)
        self.assertEqual(lines[-2:], [f"profile: {self.build}/quickstart/profile.json", "answer: two lines"])
        self.assertEqual((self.build / "asked").read_text(), "What is this?")
        for step in ("install", "build", "tune", "load", "answer"):
            self.assertTrue(any(line.split()[:1] == [step] for line in lines), step)
        self.assertTrue((self.build / "stopped").exists())
        self.assertTrue(self.engine_is_gone())

    def test_another_port_is_tried_when_one_is_busy(self):
        (self.build / "failures").write_text("2")
        code, lines, err = self.run_to_end()
        self.assertEqual(code, 0, err)
        self.assertIn("could not take port", err)
        (self.build / "failures").write_text("3")
        code, lines, err = self.run_to_end()
        self.assertEqual(code, 1)
        self.assertIn("load failed", err)

    def test_an_engine_that_refuses_is_an_error_with_its_message(self):
        self.put(self.build / "ft-engine", "#!/bin/sh\necho 'ft-engine: error: profile refused' >&2\nexit 2\n")
        code, lines, err = self.run_to_end()
        self.assertEqual(code, 1)
        self.assertIn("profile refused", err)
        self.assertIn("load failed", err)
        self.assertEqual(lines, [])

    def test_a_failing_tuner_stops_it(self):
        self.put(self.build / "ft-tune", "#!/bin/sh\nexit 1\n")
        code, lines, err = self.run_to_end()
        self.assertEqual(code, 1)
        self.assertIn("tune failed", err)
        self.assertFalse((self.build / "pid").exists())

    def test_an_interrupt_stops_the_engine_too(self):
        (self.build / "slow").touch()
        process = self.start()
        deadline = time.monotonic() + 30
        while not (self.build / "asked").exists():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertTrue(self.engine_is_gone())

    def test_usage_errors(self):
        for arguments in (("--bogus",), ("--budget",), ("stray",)):
            code, _, err = self.run_to_end(*arguments)
            self.assertEqual(code, 2)
            self.assertIn("--help", err)
        self.assertEqual(self.run_to_end("--help")[0], 0)


if __name__ == "__main__":
    unittest.main()
