"""An S3 server that is killed between any two requests, and starts again with what it had."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from scripts.servers.s3 import S3

from tests.servers import Bucket

_WRITES: Final = ("PUT", "POST", "DELETE")
#: What a server and its client say of a connection, which is not what they say of a request.
_OF_A_CONNECTION: Final = ("connection", "expect", "transfer-encoding", "content-length")


class KilledStore:
    """A real server behind an address that stays, with one bucket.

    The server of tests keeps all in memory. So what a request changed is noted before it is answered, and put back when
    the server starts again: as after a crash of one with a disk, what was answered is there, and what was on its way is
    there or not. Uploads in parts that were not completed are lost.

    dies: called with the number of each request, from 1 on, its method and its path. It says "before" if the server is
    killed (kill -9) before it gets the request, "after" if it is before the answer is sent, None if it lives. Whoever
    asks then finds the connection cut; others wait until the server is back. kills: how many there were.
    """

    def __init__(self, folder: Path, bucket: Bucket, dies: Callable[[int, str, str], str | None]) -> None:
        self.dies = dies
        self.kills = 0
        self.requests = 0
        self._folder, self._bucket = folder, bucket
        self._there: dict[str, tuple[str, bytes]] = {}
        self._lock, self._numbers = threading.Lock(), itertools.count(1)
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:  # nothing is logged
                del args

            def _handle(self) -> None:
                given = {n: v for n, v in self.headers.items() if n.lower() not in _OF_A_CONNECTION}
                try:
                    status, headers, answer = store._answered(self.command, self.path, given, self._body())
                except (OSError, http.client.HTTPException):
                    self.close_connection = True
                    return
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(answer)

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                chunks = []
                while size := int(self.rfile.readline().partition(b";")[0], 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return b"".join(chunks)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

        self._front = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._front.daemon_threads = True
        self.url: Final = f"http://127.0.0.1:{self._front.server_port}"
        self._thread = threading.Thread(target=self._front.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def bucket(self) -> Bucket:
        """The bucket, on the server that runs now."""
        return self._bucket

    def close(self) -> None:
        """Ends the servers. The one that was there at first is its owner's."""
        self._front.shutdown()
        self._front.server_close()
        self._thread.join()
        with self._lock:
            if self.kills:
                self._bucket.server.kill()

    def _answered(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Status, headers and body. ConnectionError if the server was killed."""
        with self._lock:  # one after the other, so that the same ones are there after a crash
            self.requests = next(self._numbers)
            fate = self.dies(self.requests, method, path)
            if fate == "before":
                self._die()
            answer = self._forwarded(method, path, headers, body)
            if method in _WRITES and answer[0] < 300:
                self._note()
            if fate == "after":
                self._die()
            return answer

    def _forwarded(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._bucket.server.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body or method in _WRITES:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            kept = [(n, v) for n, v in answer.getheaders() if n.lower() not in ("connection", "transfer-encoding")]
            content = answer.read()
            if method != "HEAD" and not any(n.lower() == "content-length" for n, _ in kept):
                kept.append(("Content-Length", str(len(content))))
            return answer.status, kept, content
        finally:
            connection.close()

    def _note(self) -> None:
        """What is there now."""
        bucket, before = self._bucket, self._there
        listed = bucket._client.list_objects_v2(Bucket=bucket.name)
        assert not listed["IsTruncated"], "too many objects for this server"
        tags = {found["Key"]: found["ETag"] for found in listed.get("Contents", ())}
        self._there = {
            n: before[n] if n in before and before[n][0] == t else (t, bucket.get(n)) for n, t in tags.items()
        }

    def _die(self) -> None:
        """Kills the server and starts another one with the same content. Raises ConnectionError."""
        self._bucket.server.kill()
        self.kills += 1
        threading.Thread(target=self._start_again, daemon=True).start()
        raise ConnectionError("the server was killed")

    def _start_again(self) -> None:
        with self._lock:
            server = S3.started(self._folder / f"s3-{self.kills}")
            server.client().create_bucket(Bucket=self._bucket.name)
            bucket = Bucket(server, self._bucket.name, self._bucket.keys)
            for name, (_, content) in self._there.items():
                bucket.put(name, content)
            self._bucket = bucket
