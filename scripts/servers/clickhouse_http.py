"""The HTTP interface of ClickHouse's engine: `python clickhouse_http.py PACKAGES DATA PORT USER PASSWORD`.

As the server has it: a statement is the body, or the parameter `query` with data behind it in the body; `database`;
users by their headers or by Basic authentication; errors with their code, and status 404 or 500 or 403.
"""

from __future__ import annotations

import base64
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_CODE = re.compile(r"Code: (\d+)")
_NOT_FOUND = (60, 81)
_DENIED = (497, 516)


class Interface(ThreadingHTTPServer):
    """One statement at a time: the engine has one session."""

    daemon_threads = True

    def __init__(self, packages: str, data: str, port: int, users: dict[str, str]) -> None:
        sys.path.append(packages)
        import chdb  # noqa: PLC0415 - it is where the arguments say

        self.engine: Any = chdb.connect(data)
        self.users = users
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    def run(self, statement: bytes, database: str) -> bytes:
        """Errors of the engine are RuntimeError, with ClickHouse's text."""
        with self.lock:
            self.engine.query(f"USE `{database}`")
            return bytes(self.engine.query(statement, "TabSeparated").bytes())


class Handler(BaseHTTPRequestHandler):
    """See the module."""

    protocol_version = "HTTP/1.1"
    server: Interface

    def do_GET(self) -> None:
        self._answer(200, b"Ok.\n")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parameters = parse_qs(urlsplit(self.path).query)
        user, password = self._login()
        if self.server.users.get(user) != password:
            said = f"{user}: Authentication failed: password is incorrect, or there is no user with such name."
            self._refuse(f"Code: 516. DB::Exception: {said} (AUTHENTICATION_FAILED)")
            return
        statement = b"\n".join([*(q.encode() for q in parameters.get("query", ())), body])
        try:
            self._answer(200, self.server.run(statement, parameters.get("database", ["default"])[0]))
        except RuntimeError as error:
            self._refuse(str(error).strip())

    def _login(self) -> tuple[str, str]:
        given = self.headers.get("Authorization", "")
        if given.startswith("Basic "):
            user, _, password = base64.b64decode(given[6:]).decode().partition(":")
            return user, password
        return self.headers.get("X-ClickHouse-User", "default"), self.headers.get("X-ClickHouse-Key", "")

    def _refuse(self, text: str) -> None:
        found = _CODE.search(text)
        code = int(found[1]) if found else 0
        status = 403 if code in _DENIED else 404 if code in _NOT_FOUND else 500
        self._answer(status, f"{text} (version {VERSION})\n".encode(), code)

    def _answer(self, status: int, body: bytes, code: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if code is not None:
            self.send_header("X-ClickHouse-Exception-Code", str(code))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        pass


VERSION = "26.9.2.1 (official build)"

if __name__ == "__main__":
    packages, data, port, *login = sys.argv[1:]
    Interface(packages, data, int(port), {login[0]: login[1]}).serve_forever()
