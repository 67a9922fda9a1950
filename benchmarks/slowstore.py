"""A server of S3's protocol that takes its time, in a process of its own: moto, which answers each request so many
milliseconds later than it would, and writes down what it was asked for.

`python -m benchmarks.slowstore PORT` runs one until its standard input ends.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs
from urllib.request import urlopen

from scripts.servers.process import free_ports
from scripts.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY

_OWN = "/slow-store"
#: Of moto: objects stay in memory, where it would write those of 5 MiB to its disk and read them again.
_SETTINGS = {"MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(1 << 30)}


class Request(NamedTuple):
    """One request that was done. kind: as in `requestprices.PRICES`. begin, end: of `time.monotonic`, in seconds.

    own_s: the part of it that moto took. sent_bytes: the size of the request. answer_bytes: that of the answer's body.
    """

    kind: str
    path: str
    begin: float
    end: float
    own_s: float
    sent_bytes: int
    answer_bytes: int


class SlowStore:
    """The server, until the end of the block, with a bucket `benchmark`. The environment says how it is reached."""

    def __init__(self, core: int | None = None) -> None:
        """core: the one that it is held to."""
        self._held = [] if core is None else ["taskset", "--cpu-list", str(core)]

    def __enter__(self) -> Self:
        (self._port,) = free_ports(1)
        command = [*self._held, sys.executable, "-m", "benchmarks.slowstore", str(self._port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **_SETTINGS}
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            # As over HTTPS, where nothing is hashed for its signature.
            "AWS_UNSIGNED_PAYLOAD": "true",
        }
        os.environ.update(self.environment)
        import boto3

        boto3.client("s3", endpoint_url=self.environment["AWS_ENDPOINT_URL"]).create_bucket(Bucket="benchmark")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()

    @property
    def pid(self) -> int:
        """Its process, a child of this one."""
        return self._process.pid

    def delay(self, seconds: float) -> None:
        """From now on each request takes so much longer."""
        self._ask(f"delay={seconds}")

    def taken(self) -> list[Request]:
        """The requests that were done since the last call, in the order in which they ended."""
        return [Request(*one) for one in self._ask("taken=1")]

    def _ask(self, query: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self._port}{_OWN}?{query}") as answer:
            return json.load(answer)


def counts(requests: Iterable[Request]) -> Counter[str]:
    """How many there are of each kind."""
    return Counter(request.kind for request in requests)


def in_series(requests: Iterable[Request]) -> int:
    """How many of them came one after the other, at most: each began when the one before had ended."""
    number, end = 0, float("-inf")
    for request in sorted(requests, key=lambda r: r.end):
        if request.begin >= end:
            number, end = number + 1, request.end
    return number


class _Slow:
    """The application of the server. before_s: what each request takes longer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._delay_s = 0.0
        self._requests: list[Request] = []
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path, query = environ["PATH_INFO"], parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        if path == _OWN:
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._own(query)).encode()]
        begin = time.monotonic()
        if self._delay_s:
            time.sleep(self._delay_s)
        asked = time.monotonic()
        answered: dict[str, str] = {}

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            answered.update((name.lower(), value) for name, value in headers)
            return start_response(status, headers, *rest)

        answer = self._inner(environ, start)
        end = time.monotonic()
        sent_bytes = int(environ.get("CONTENT_LENGTH") or 0)
        answer_bytes = int(answered.get("content-length", 0))
        kind = _kind(environ, path, query)
        with self._lock:
            self._requests.append(Request(kind, path, begin, end, end - asked, sent_bytes, answer_bytes))
        return answer

    def _own(self, query: dict[str, list[str]]) -> Any:
        if "delay" in query:
            self._delay_s = float(query["delay"][0])
            return None
        with self._lock:
            found, self._requests = self._requests, []
        return found


def _kind(environ: dict[str, Any], path: str, query: dict[str, list[str]]) -> str:
    method = str(environ["REQUEST_METHOD"])
    if method == "GET" and ("list-type" in query or path.count("/") < 2):
        return "LIST"
    return "DELETE" if method == "POST" and "delete" in query else method


def _serve(port: int) -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    made = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", port, _Slow(made), threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
