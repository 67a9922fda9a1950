"""Lakes in tests: DuckDB as a reader, whose extensions come as packages, and a server of Iceberg's REST catalogs."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

import duckdb
from pyiceberg import exceptions
from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles

_STATUS: Final = (
    (exceptions.NoSuchTableError, 404),
    (exceptions.NoSuchNamespaceError, 404),
    (exceptions.TableAlreadyExistsError, 409),
    (exceptions.NamespaceAlreadyExistsError, 409),
    (exceptions.CommitFailedException, 409),
)


def duckdb_with(*extensions: str) -> duckdb.DuckDBPyConnection:
    """A connection with these extensions."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in extensions:
        (folder,) = importlib.import_module(f"duckdb_extension_{name}").__path__
        (file,) = Path(folder).rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    return connection


class RestCatalog:
    """A catalog of Iceberg behind HTTP, as its REST specification has it. What is in it is in a catalog of pyiceberg's.

    token: what clients have to show. answers: the statuses that commits are answered with next, in order, although they
    were made; None: the commit is not made and the status is 503. commits: how many were made.
    """

    def __init__(self, kept: SqlCatalog, token: str) -> None:
        self._kept = kept
        self.token: Final = token
        self.answers: list[int | None] = []
        self.commits = 0
        catalog, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:  # nothing is logged
                del args

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with lock:
                    if self.headers.get("Authorization") != f"Bearer {catalog.token}":
                        status, answer = 401, _refusal("NotAuthorizedException", "this token is not known", 401)
                    else:
                        status, answer = catalog._handle(self.command, self.path.partition("?")[0], body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = _answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri: Final = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            return self._found(method, path.strip("/").split("/")[1:], body)
        except tuple(kind for kind, _ in _STATUS) as problem:
            status = next(status for kind, status in _STATUS if isinstance(problem, kind))
            return status, _refusal(type(problem).__name__, str(problem), status)

    def _found(self, method: str, parts: list[str], body: bytes) -> tuple[int, bytes]:
        match method, parts:
            case "GET", ["config"]:
                return 200, b'{"defaults": {}, "overrides": {}}'
            case "POST", ["namespaces"]:
                wanted = json.loads(body)
                self._kept.create_namespace(tuple(wanted["namespace"]), wanted["properties"])
                return 200, body
            case "GET", ["namespaces", namespace, "tables"]:
                if not self._kept.namespace_exists(namespace):
                    raise exceptions.NoSuchNamespaceError(namespace)
                found = [{"namespace": [*n[:-1]], "name": n[-1]} for n in self._kept.list_tables(namespace)]
                return 200, json.dumps({"identifiers": found}).encode()
            case "POST", ["namespaces", namespace, "tables"]:
                left_out = {"location": None, "partition-spec": None, "write-order": None}
                create = CreateTableRequest.model_validate({**left_out, **json.loads(body)})
                if not self._kept.namespace_exists(namespace):
                    raise exceptions.NoSuchNamespaceError(namespace)
                if self._kept.table_exists((namespace, create.name)):
                    raise exceptions.TableAlreadyExistsError(create.name)
                assert create.stage_create, "tables are made by transactions"
                staged = self._kept._create_staged_table((namespace, create.name), create.table_schema)
                return 200, TableResponse(metadata=staged.metadata).model_dump_json().encode()
            case "GET", ["namespaces", namespace, "tables", name]:
                table = self._kept.load_table((namespace, name))
                found = TableResponse(metadata=table.metadata, metadata_location=table.metadata_location)
                return 200, found.model_dump_json().encode()
            case "POST", ["namespaces", namespace, "tables", name]:
                return self._commit((namespace, name), CommitTableRequest.model_validate_json(body))
        return 400, _refusal("BadRequestException", f"{method} {parts}", 400)

    def _commit(self, name: tuple[str, str], wanted: CommitTableRequest) -> tuple[int, bytes]:
        answer = self.answers.pop(0) if self.answers else 200
        if answer is None:
            return 503, _refusal("ServiceUnavailableException", "not now", 503)
        table: Any = SimpleNamespace(name=lambda: name)
        done = self._kept.commit_table(table, wanted.requirements, wanted.updates)
        self.commits += 1
        if answer != 200:
            return answer, _refusal("InternalServerError", "the answer got lost", answer)
        return 200, done.model_dump_json().encode()


@contextmanager
def rest_catalog(folder: Path, token: str = "let-me-in") -> Iterator[RestCatalog]:
    """A server of the catalog `lake` in the folder, as `sql_catalog` opens it."""
    server = RestCatalog(sql_catalog(folder), token)
    try:
        yield server
    finally:
        server.stop()


def sql_catalog(folder: Path) -> SqlCatalog:
    """The catalog `lake` in SQLite, with its warehouse beside it."""
    return SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")


class _Compaction(_OverwriteFiles):
    def _summary(self, snapshot_properties: Mapping[str, str] = MappingProxyType({})) -> Summary:
        made = super()._summary(dict(snapshot_properties))
        return Summary(operation=Operation.REPLACE, **made.additional_properties)


def compact_iceberg(table: Table, files: int | None = None) -> None:
    """Puts one data file for each partition in place of so many (None: all), as engines do: pyiceberg can't."""
    tasks = list(table.scan().plan_files())[:files]
    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
    with table.transaction() as transaction:
        compaction = _Compaction(operation=Operation.OVERWRITE, transaction=transaction, io=table.io)
        with compaction:
            for task in tasks:
                compaction.delete_data_file(task.file)
            made = _dataframe_to_data_files(transaction.table_metadata, rows, table.io) if len(rows) else ()
            for file in made:
                compaction.append_data_file(file)


def _refusal(kind: str, message: str, status: int) -> bytes:
    return json.dumps({"error": {"type": kind, "message": message, "code": status}}).encode()
