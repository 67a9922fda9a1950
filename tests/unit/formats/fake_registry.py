"""A schema registry in memory, over HTTP."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from watersmeet.formats.registry import _opened


class FakeRegistry:
    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.status = 0  # what it answers to everything, if not 0
        self.credentials: str | None = None
        self.asked: list[str] = []
        self.address = ""

    def add(self, schema: Any, kind: str = "AVRO", subject: str | None = None, references: Any = ()) -> int:
        number = len(self.schemas) + 1
        text = schema if kind == "PROTOBUF" else json.dumps(schema)
        self.schemas[number] = {"schema": text, "schemaType": kind, "references": list(references)}
        self.subjects.setdefault(subject or f"s{number}", []).append(number)
        return number

    def answer(self, path: str) -> tuple[int, Any]:
        self.asked.append(path)
        parts = path.strip("/").split("/")
        if self.status:
            return self.status, {"message": "broken"}
        if parts[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(parts[2]))
            return (200, found) if found else (404, {"message": "no such schema"})
        versions = self.subjects.get(parts[1])
        if versions is None:
            return 404, {"message": "no such subject"}
        number = versions[-1] if parts[3] == "latest" else versions[int(parts[3]) - 1]
        return 200, {"id": number, **self.schemas[number]}


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()
    _opened.cache_clear()  # an earlier one may have had the same port

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = None if fake.credentials is None else base64.b64encode(fake.credentials.encode()).decode()
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            status, body = (401, {}) if wanted is not None and given != wanted else fake.answer(self.path)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
