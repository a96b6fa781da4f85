#!/usr/bin/env python3
"""ft-engine as a user meets it: one answer, the plan, the server's start and end. Checked against: the profile that it was
given, and issue 2, item 12."""
import json
import os
import signal
import socket
import subprocess
import time
import unittest

from support import (DONE, FAILED, INTERRUPTED, ONE_POINT, SCRATCH, SECONDS, TINY_MOE, USAGE, ProgramTest, Server, command, free_port,
                     run, start, synthetic_model, tiny_profile, tune, wait_for_line)


class EngineTest(ProgramTest):
    def test_a_prompt_is_answered(self):
        answers = [run("ft-engine", "--profile", tiny_profile(), "--prompt", "In the beginning", "--max-tokens", "8")
                   for _ in range(2)]
        for done in answers:
            self.assertEqual(done.returncode, DONE, done.stderr)
            self.assertGreater(len(done.stdout.strip()), 3)
            self.assertIn("tok/s", done.stderr.splitlines()[-1])
        self.assertEqual(answers[0].stdout, answers[1].stdout)

    def test_prompts_that_are_refused(self):
        profile = tiny_profile()
        self.assert_refused(run("ft-engine", "--profile", profile, "--prompt", b"a\xff"), USAGE, "--prompt", "UTF-8")
        long = self.assert_refused(run("ft-engine", "--profile", profile, "--prompt", "a " * 20000), FAILED,
                                   ": --prompt is '", "prompt tokens", "shorten it or lower --max-tokens")
        self.assertNotIn("messages", long)
        for options in (("--prompt", "a " * 20000), ("--prompt", "a", "--max-tokens", "16777216")):
            self.assert_refused(run("ft-engine", "--profile", profile, *options), (FAILED, USAGE), "allowed: at most 4096")

    def test_a_dry_run_prints_the_plan(self):
        profile = json.loads(tiny_profile().read_text(encoding="utf-8"))
        done = run("ft-engine", "--profile", tiny_profile(), "--dry-run")
        self.assertEqual(done.returncode, DONE)
        for pool in ("dense weights", "expert slots", "kv cache", "expert banks"):
            self.assertIn(pool, done.stdout)
        self.assertIn(f"strategy {profile['serve']['strategy']}:", done.stderr)
        self.assertIn(f"runner-up: {profile['decision']['runner_up']}; margin", done.stderr)

    def test_it_engages_what_the_profile_says(self):
        path = SCRATCH / "engaged.json"
        cases = [("--strategy", "hybrid", "--slots", "48", "--threads", "1"), ("--strategy", "offload", "--slots", "40"),
                 ("--strategy", "cpu", "--slots", "0")]
        for options in cases:
            with self.subTest(options):
                _, profile = tune(TINY_MOE, path, *options, "--batch", "1,3", "--context", "64")
                serve = profile["serve"]
                server = Server(path)
                status, answer = server.ask("/v1/completions", {"prompt": "In the beginning", "max_tokens": 24, "temperature": 0})
                self.assertEqual(status, 200, answer)
                time.sleep(0.3)  # the counters are published every 0.2 s
                stats = json.loads(server.ask("/v1/stats")[1])
                models = json.loads(server.ask("/v1/models")[1])
                self.assertEqual(server.stop(signal.SIGINT)[0], DONE)
                engaged = stats["engaged"]
                self.assertEqual((engaged["strategy"], engaged["slots"], engaged["threads_worked"]),
                                 (serve["strategy"], serve["slots"], serve["threads"]))
                self.assertEqual(models["data"][0]["max_model_len"], serve["max_context"])
                self.assertEqual(stats["decode"]["predicted_tok_s"], serve["predicted_tok_s"])
                experts = stats["experts"]
                if serve["strategy"] == "offload":
                    self.assertEqual(experts["cpu"], 0)
                if serve["strategy"] == "cpu":
                    self.assertEqual((experts["fetched"], experts["hits"]), (0, 0))
                if serve["strategy"] == "hybrid":
                    self.assertGreater(experts["fetched"] + experts["cpu"], 0)

    def test_answers_in_progress_leave_room_for_other_questions(self):
        """As many streams as are allowed (kMaxAnswers of engine/server/http_server.h), none of which is read, and some more."""
        allowed, more = 128, 12
        body = json.dumps({"prompt": "In the beginning", "max_tokens": 3000, "temperature": 0, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        server = Server(tiny_profile())
        streams = [socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) for _ in range(allowed + more)]
        for stream in streams:
            stream.sendall(head.encode() + body)
        refused = 0
        for stream in streams:
            if stream.recv(12) == b"HTTP/1.1 503":
                refused += 1
                rest = stream.recv(4096).decode()
                self.assertIn("Retry-After: 1", rest)
        begin = time.monotonic()
        for path in ("/health", "/ready", "/v1/stats", "/metrics"):
            self.assertEqual(server.ask(path)[0], 200)
        self.assertLess(time.monotonic() - begin, 5)
        self.assertEqual(refused, more)
        for stream in streams:
            stream.close()
        self.assertEqual(server.stop(signal.SIGTERM)[0], DONE)

    def test_a_busy_port(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            done = run("ft-engine", "--profile", tiny_profile(), "--port", port)
        self.assert_refused(done, FAILED, f"127.0.0.1:{port}", "--port")
        self.assertNotIn("packing", done.stderr)
        self.assertNotIn("--host", done.stderr)

    def test_a_wrong_host_is_not_a_wrong_port(self):
        for host in ("256.0.0.1", "no such host", "192.0.2.1"):
            error = self.assert_refused(run("ft-engine", "--profile", tiny_profile(), "--host", host), FAILED,
                                        f"--host is '{host}'", "an address or a name of this machine")
            self.assertNotIn("--port", error)

    def test_on_a_terminal_the_numbers_begin_on_their_own_line(self):
        for tokens in (1, 8):
            ours, theirs = os.openpty()
            process = subprocess.Popen(command("ft-engine", "--profile", tiny_profile(), "--prompt", "In the beginning",
                                               "--max-tokens", str(tokens)), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
            os.close(theirs)
            shown = b""
            try:
                while part := os.read(ours, 4096):
                    shown += part
            except OSError:  # how Linux says that the other side was closed
                pass
            os.close(ours)
            self.assertEqual(process.wait(SECONDS), DONE)
            lines = shown.decode().replace("\r", "").split("\n")
            self.assertEqual(lines[-1], "")
            self.assertRegex(lines[-2], rf"^{tokens} tokens? \| ")

    def test_what_is_not_known_is_not_printed(self):
        done = run("ft-engine", "--profile", tiny_profile(), "--prompt", "In the beginning", "--max-tokens", "1")
        line = done.stderr.splitlines()[-1]
        self.assertRegex(line, r"^1 token \| prefill of \d+ in \d\.\d+ s \| predicted [0-9.]+ tok/s \| logits [0-9a-f]{16}$")
        _, _, err = Server(tiny_profile()).stop(signal.SIGTERM)
        self.assertRegex(err.splitlines()[-1], r"^0 tokens \| predicted [0-9.]+ tok/s$")

    def test_signals_end_a_server_cleanly(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            code, out, err = Server(tiny_profile()).stop(number)
            self.assertEqual((code, out), (DONE, ""), err)
            self.assertIn("stopping", err)
            self.assertNotIn("error", err)

    def test_signals_while_loading(self):
        """0.6 GiB of weights take long enough to be met while they are made."""
        large = synthetic_model("half", hidden_size=1024, num_hidden_layers=12, num_experts=64, moe_intermediate_size=128)
        path = SCRATCH / "large.json"
        tune(large, path, "--weights", "synthetic", *ONE_POINT, "--strategy", "cpu", "--slots", "0")
        for number in (signal.SIGTERM, signal.SIGINT):
            process = start("ft-engine", "--profile", path, "--port", str(free_port()))
            wait_for_line(process, "making weights: ")
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out), (DONE, ""), err)
            self.assertIn("interrupted while loading", err)
            self.assertNotIn("ready", err)
        source, output = self.folder / "in.json", self.folder / "out.safetensors"
        source.write_text('{"input_ids": [1], "greedy": 100}', encoding="utf-8")
        process = start("ft-engine", "--profile", path, "--score", source, "--output", output)
        wait_for_line(process, "making weights: ")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, err)
        self.assert_no_files(("in.json",))


if __name__ == "__main__":
    unittest.main()
