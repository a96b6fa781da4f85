#!/usr/bin/env python3
"""The official `openai` package against a running ft-engine: chat, completions, streams, errors, concurrency, shutdown.

usage: openai_client_test.py ENGINE PROFILE [MODEL_DIR]     (needs: pip install openai)

Checked against: the client library's own types, and, for concurrency, the answers that a client gets alone.
The last line is "N passed, N failed, N skipped".
"""
import concurrent.futures
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import openai

PROMPTS = ["In the beginning God created", "The following example shows how to use the", "And it came to pass",
           "Return a new list", "The Lord said unto", "class Node:", "Blessed are the", "import sys"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Engine:
    def __init__(self, command, port):
        self.port = port
        self.process = subprocess.Popen(command + ["--port", str(port)], stderr=subprocess.PIPE, text=True)
        self.base = f"http://127.0.0.1:{port}"
        deadline = time.time() + 120
        while True:
            if self.process.poll() is not None:
                raise SystemExit("ft-engine ended early:\n" + self.process.stderr.read())
            try:
                if self.get("/ready")[0] == 200:
                    break
            except OSError:
                pass
            if time.time() > deadline:
                self.process.kill()
                raise SystemExit("ft-engine was not ready within 120 s")
            time.sleep(0.1)

    def get(self, path):
        try:
            with urllib.request.urlopen(self.base + path, timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post_raw(self, path, body):
        request = urllib.request.Request(self.base + path, data=body, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        _, text = self.process.communicate(timeout=30)
        return self.process.returncode, text


def ask(port, method, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    response = connection.getresponse()
    return response.status, response.headers, response.read().decode()


LONG = 3500  # tokens: some seconds of the bundled model


def send_request(port, stream):
    """A connection on which a long answer was asked for."""
    body = json.dumps({"prompt": PROMPTS[0], "max_tokens": LONG, "temperature": 0, "stream": stream}).encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    return connection


def read_all(connection):
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    return data.decode()


def chat(client, text, **options):
    options = {"max_tokens": 24, "temperature": 0, **options}
    return client.chat.completions.create(model="default", messages=[{"role": "user", "content": text}], **options)


def complete(client, text, **options):
    options = {"max_tokens": 24, "temperature": 0, **options}
    return client.completions.create(model="default", prompt=text, **options)


def test_chat(engine, client):
    answer = chat(client, "Hello")
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 24 and answer.usage.prompt_tokens > 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_completion_continues_the_text(engine, client):
    answer = complete(client, PROMPTS[0])
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 24
    # Transformers' greedy text for this prompt (tests/data/tiny-moe/eval.json) begins so.
    assert answer.choices[0].text.startswith(", that the Lord Jesus Christ"), answer.choices[0].text


def test_streams_equal_whole_answers(engine, client):
    for prompt in PROMPTS[:3]:
        whole = complete(client, prompt).choices[0].text
        parts = list(complete(client, prompt, stream=True))
        assert "".join(p.choices[0].text for p in parts) == whole
        assert parts[-1].choices[0].finish_reason == "length" and len(parts) > 5
    whole = chat(client, "Hello").choices[0].message.content
    parts = list(chat(client, "Hello", stream=True))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(p.choices[0].delta.content or "" for p in parts) == whole


def test_stream_usage(engine, client):
    parts = list(complete(client, PROMPTS[0], stream=True, stream_options={"include_usage": True}))
    assert parts[-1].choices == [] and parts[-1].usage.completion_tokens == 24


def test_stop_strings(engine, client):
    whole = complete(client, PROMPTS[0], max_tokens=40).choices[0].text
    stop = whole[10:14]
    cut = complete(client, PROMPTS[0], max_tokens=40, stop=[stop])
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].text == whole[: whole.index(stop)]
    streamed = "".join(p.choices[0].text for p in complete(client, PROMPTS[0], max_tokens=40, stop=[stop], stream=True))
    assert streamed == whole[: whole.index(stop)]


def test_seeds(engine, client):
    a, b, c = (complete(client, PROMPTS[2], temperature=1, seed=s).choices[0].text for s in (7, 7, 8))
    assert a == b and a != c


def test_token_ids_as_prompt(engine, client):
    assert complete(client, [826, 263, 3300, 595, 1472]).choices[0].text == complete(client, PROMPTS[0]).choices[0].text


def test_models_and_health(engine, client):
    models = client.models.list().data
    assert len(models) == 1
    assert client.chat.completions.create(model=models[0].id, messages=[{"role": "user", "content": "a"}], max_tokens=1)
    assert engine.get("/health")[0] == 200 and engine.get("/ready")[0] == 200


def test_stats_and_metrics(engine, client):
    complete(client, PROMPTS[1])
    time.sleep(0.5)
    stats = json.loads(engine.get("/v1/stats")[1])
    assert stats["decode"]["steps"] > 0 and 0 <= stats["experts"]["hit_rate"] <= 1
    assert len(stats["logits_hash"]) == 32
    text = engine.get("/metrics")[1]
    values = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}
    assert values["ft_decode_steps_total"] >= stats["decode"]["steps"] - 1
    for name in ("ft_hit_rate", "ft_miss_fetched_share", "ft_miss_cpu_share", "ft_achieved_over_predicted"):
        assert name in values


def expect(error_type, call):
    try:
        call()
    except error_type as error:
        return error
    raise AssertionError(f"no {error_type.__name__}")


def test_errors_have_openai_form(engine, client):
    error = expect(openai.BadRequestError, lambda: chat(client, "a", temperature=3))
    assert error.body["param"] == "temperature" and error.body["type"] == "invalid_request_error"
    expect(openai.NotFoundError, lambda: client.completions.create(model="other", prompt="a"))
    expect(openai.BadRequestError, lambda: complete(client, "word " * 20000))
    expect(openai.BadRequestError, lambda: complete(client, "a", max_tokens=10**7))
    expect(openai.BadRequestError, lambda: chat(client, "a", n=2))
    expect(openai.NotFoundError, lambda: client.embeddings.create(model="default", input="a"))


def test_hostile_bodies(engine, client):
    bodies = [b"", b"{", b"[" * 100000, b'{"prompt": "\xff\xfe"}', b'{"prompt": NaN}', b"null", b'"a"', b"\x00" * 64,
              b'{"prompt": "a", "prompt": "b"}', b'{"messages": [{"role": "user", "content": {"a": 1}}]}']
    for body in bodies:
        for path in ("/v1/completions", "/v1/chat/completions"):
            status, text = engine.post_raw(path, body)
            assert status == 400, (status, body[:40])
            assert json.loads(text)["error"]["message"]
    status, _ = engine.post_raw("/v1/completions", b'{"prompt": "' + b"a" * (9 << 20) + b'"}')
    assert status == 413, status
    assert engine.get("/health")[0] == 200


def test_eight_clients_get_what_each_gets_alone(engine, client):
    def ask(prompt):
        return complete(client, prompt, max_tokens=32).choices[0].text

    def ask_sampled(prompt):
        return complete(client, prompt, max_tokens=32, temperature=0.9, seed=11).choices[0].text

    for question in (ask, ask_sampled):
        alone = [question(p) for p in PROMPTS]
        for _ in range(2):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                assert list(pool.map(question, PROMPTS)) == alone


def test_a_client_that_leaves_frees_its_place(engine, client):
    for _ in range(12):
        stream = complete(client, PROMPTS[0], max_tokens=1000, stream=True)
        next(iter(stream))
        stream.close()
    assert complete(client, PROMPTS[1], max_tokens=4).choices[0].text
    deadline = time.time() + 20
    while json.loads(engine.get("/v1/stats")[1])["requests"]["running"] > 0:
        assert time.time() < deadline, "requests of clients that left still run"
        time.sleep(0.1)


def running_and_cancelled(engine):
    requests = json.loads(engine.get("/v1/stats")[1])["requests"]
    return requests["running"] + requests["waiting"], requests["cancelled"]


def test_a_client_that_leaves_an_answer_that_is_not_streamed_is_noticed(engine, client):
    """Also one that still waits in the queue: more clients than places leave."""
    before = running_and_cancelled(engine)[1]
    sockets = [send_request(engine.port, stream=False) for _ in range(12)]
    deadline = time.time() + 20
    while running_and_cancelled(engine)[0] < len(sockets):
        assert time.time() < deadline, "the requests did not arrive"
        time.sleep(0.01)
    for connection in sockets:
        connection.close()
    left = time.time()
    while running_and_cancelled(engine)[0] > 0:
        assert time.time() < left + 20, "requests of clients that left still run"
        time.sleep(0.01)
    assert running_and_cancelled(engine)[1] == before + len(sockets)


def test_one_model(engine, client):
    listed = client.models.list().data[0]
    assert client.models.retrieve(listed.id) == listed
    error = expect(openai.NotFoundError, lambda: client.models.retrieve("nope"))
    assert error.body["code"] == "model_not_found" and "nope" in error.body["message"]


def test_wrong_methods_and_paths(engine, client):
    wrong = [("GET", "/v1/completions", "POST"), ("PUT", "/v1/chat/completions", "POST"), ("POST", "/health", "GET, HEAD"),
             ("DELETE", "/v1/models/default", "GET, HEAD"), ("POST", "/v1/models", "GET, HEAD"), ("PATCH", "/v1/stats", "GET, HEAD")]
    for method, path, allowed in wrong:
        status, headers, body = ask(engine.port, method, path)
        assert (status, headers["Allow"]) == (405, allowed), (method, path, status)
        error = json.loads(body)["error"]
        assert error["type"] == "invalid_request_error" and error["code"] == "method_not_allowed"
    for path in ("/v1", "/v1/modelsx", "/v1/models/", "/v1/completions/x"):
        status, headers, body = ask(engine.port, "GET", path)
        assert (status, headers["Allow"], json.loads(body)["error"]["code"]) == (404, None, "not_found"), path
    assert ask(engine.port, "HEAD", "/v1/models")[0] == 200


def test_requests_without_a_body_are_answered_at_once(engine, client):
    wanted = {"POST /health": "405", "PUT /nosuch": "404", "POST /nosuch": "404", "POST /v1/completions": "411",
              "PATCH /v1/chat/completions": "405"}
    for asked, status in wanted.items():
        with socket.create_connection(("127.0.0.1", engine.port), timeout=5) as connection:
            connection.sendall(f"{asked} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = read_all(connection)
        assert answer.startswith(f"HTTP/1.1 {status} ") and '"error"' in answer, (asked, answer[:200])


TESTS = [value for name, value in list(globals().items()) if name.startswith("test_")]


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    command = [sys.argv[1], "--profile", sys.argv[2]] + (["--model", sys.argv[3]] if len(sys.argv) > 3 else [])
    engine = Engine(command, free_port())
    client = openai.OpenAI(base_url=engine.base + "/v1", api_key="unused", max_retries=0, timeout=120)
    failed = 0
    for test in TESTS:
        try:
            test(engine, client)
            print(f"ok      {test.__name__}", flush=True)
        except Exception as error:  # one broken test must not hide the others
            failed += 1
            print(f"FAILED  {test.__name__}: {type(error).__name__}: {error}", flush=True)
    busy = subprocess.run(command + ["--port", str(engine.port)], capture_output=True, text=True, timeout=60)
    streamed, whole = (send_request(engine.port, stream) for stream in (True, False))
    start = streamed.recv(1 << 12).decode()  # its answer has begun
    while running_and_cancelled(engine)[0] < 2:
        time.sleep(0.01)
    code, text = engine.stop()
    streamed, whole = start + read_all(streamed), read_all(whole)
    stopping = '"message":"the server is stopping","type":"server_error"'
    checks = [("a stream ends with an error event when the server stops",
               streamed.count('data: {"error":{' + stopping) == 1 and streamed.endswith("\r\n0\r\n\r\n")),
              ("an answer that is not streamed is then 503", whole.startswith("HTTP/1.1 503 ") and stopping in whole),
              ("a busy port is one clear error, exit code 1", busy.returncode == 1 and str(engine.port) in busy.stderr),
              ("SIGTERM ends it with exit code 0 and a last line of numbers", code == 0 and "tok/s" in text)]
    for name, good in checks:
        failed += not good
        print(f"{'ok     ' if good else 'FAILED '} {name}", flush=True)
    total = len(TESTS) + len(checks)
    print(f"{total - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
