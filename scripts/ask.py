#!/usr/bin/env python3
"""Asks a running ft-engine one question over HTTP and prints the answer on one line: ask.py URL TEXT

With --wait SECONDS first waits until URL/ready answers 200. Standard library only.
"""
import argparse
import json
import sys
import time
import urllib.error
import urllib.request

# The engine is on this machine or named by the user: a proxy of the environment has no part in it.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ANSWER_TIMEOUT_SECONDS = 120
POLL_SECONDS = 0.1


def wait_until_ready(url, seconds):
    deadline = time.monotonic() + seconds
    while True:
        try:
            with OPENER.open(f"{url}/ready", timeout=5) as reply:
                if reply.status == 200:
                    return
                last = f"status {reply.status}"
        except (urllib.error.URLError, OSError) as error:
            last = str(error)
        if time.monotonic() > deadline:
            sys.exit(f"ask.py: {url}/ready did not answer 200 within {seconds:g} s: {last}")
        time.sleep(POLL_SECONDS)


def ask(url, text, max_tokens):
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with OPENER.open(request, timeout=ANSWER_TIMEOUT_SECONDS) as reply:
            return json.load(reply)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        sys.exit(f"ask.py: {url} answered {error.code}: {error.read(2000).decode(errors='replace')}")
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        sys.exit(f"ask.py: no answer from {url}: {error!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("text", nargs="?", help="without it only waits")
    parser.add_argument("--wait", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--max-tokens", type=int, default=32, metavar="N")
    arguments = parser.parse_args()
    url = arguments.url.rstrip("/")
    if arguments.wait > 0:
        wait_until_ready(url, arguments.wait)
    if arguments.text is not None:
        print(" ".join(ask(url, arguments.text, arguments.max_tokens).split()))


main()
