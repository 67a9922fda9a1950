"""PEP 249: `connect`, and running the statements of a text.

The package imports little, so that `connect` can start Java before the rest is imported.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from watersmeet.errors import error
from watersmeet.runtime.spark.java import launched_ahead
from watersmeet.system.process import lazy_import, uncollected
from watersmeet.values import DEFAULT_DIALECT

if TYPE_CHECKING:
    from watersmeet.capture import receiving
    from watersmeet.database import opened
    from watersmeet.database.sessions import context, variables
    from watersmeet.dialects import registry
    from watersmeet.maintenance import maintaining
    from watersmeet.session import handlers
    from watersmeet.session.connections import connection as _connection
    from watersmeet.session.connections import execute as _execute
    from watersmeet.session.connections.connection import Connection
    from watersmeet.sinkwriters import writers
    from watersmeet.store.layout import FilePermissions
else:
    receiving = lazy_import("watersmeet.capture.receiving")
    opened = lazy_import("watersmeet.database.opened")
    context = lazy_import("watersmeet.database.sessions.context")
    variables = lazy_import("watersmeet.database.sessions.variables")
    registry = lazy_import("watersmeet.dialects.registry")
    maintaining = lazy_import("watersmeet.maintenance.maintaining")
    handlers = lazy_import("watersmeet.session.handlers")
    # Named unlike the modules, because `from watersmeet.session.connections import execute` must return the module.
    _connection = lazy_import("watersmeet.session.connections.connection")
    _execute = lazy_import("watersmeet.session.connections.execute")
    writers = lazy_import("watersmeet.sinkwriters.writers")

Runtime = Literal["spark", "inprocess"]

_PERMISSIONS: Final = ("private", "umask")
_RUNTIMES: Final = ("spark", "inprocess")


def connect(
    path: str | Path | None = None,
    dialect: str = DEFAULT_DIALECT,
    parallelism: int | None = None,
    runtime: Runtime = "spark",
    *,
    spark: Any = None,
    read_only: bool = False,
    rebuild: bool = False,
    tick_seconds: float = 1.0,
    file_permissions: FilePermissions = "private",
    allow_files: bool = True,
    kafka: Mapping[str, str] | None = None,
    take_over: bool = False,
) -> Connection:
    """Open a database and return a connection to it.

    path: the directory or URL of a persistent database, created if it does not exist; all views resume. By default the
        database is in a temporary directory until `close`.
    dialect: the SQL dialect of the statements.
    parallelism: the number of state buckets from now on. By default an existing database keeps its number, and a new
        one gets the number of cores.
    runtime: `spark`, or `inprocess` to run the same circuits without Spark, inside FLUSH.
    spark: an existing SparkSession to use; `close` does not stop it.
    read_only: allow only SELECT, SHOW and DESCRIBE, without Spark, also while another process runs the database.
    rebuild: first plan all views again and compute their state from their inputs: after STATE_DAMAGED, or for another
        `parallelism` if the state can't be split. The content of the views does not change.
    tick_seconds: the shortest interval between updates of views that change only because time passes (now(), idle
        timeouts).
    file_permissions: those of a new database. `private`: only the user of this process can access its directory and
        files (0700, 0600), whatever the umask is. `umask`: the umask applies, for executors or readers that run as
        another user. An existing database keeps the permissions of its directory.
    allow_files: whether statements may read files of this machine: `read_csv(…)` and similar functions in SELECT,
        connectors and dictionaries with a path. If False, they fail with FILES_NOT_ALLOWED; existing sources continue.
    kafka: the connection to Kafka for new topics of the Lenses dialect: settings `kafka.*` without that prefix, such as
        {"bootstrap.servers": "host:9092"}. A topic keeps its connection; SET changes it for later ones.
    take_over: open a directory for writing even if another process, which hangs, has it open. That process fails with
        WRITER_FENCED at its next commit, as always in an object store.

    Raises DATABASE_IN_USE if another process has the database open for writing, DATABASE_FORMAT if the path contains
    anything else or a newer database, PARALLELISM_MISMATCH, and RUNTIME_UNAVAILABLE without a usable Java.
    """
    if runtime not in _RUNTIMES:
        raise error("INVALID_PARAMETER", f'unknown runtime "{runtime}"', hint="The runtimes are spark and inprocess.")
    if read_only and path is None:
        raise error("INVALID_PARAMETER", "read_only needs the path of a database")
    if file_permissions not in _PERMISSIONS:
        raise error(
            "INVALID_PARAMETER",
            f'unknown file_permissions "{file_permissions}"',
            hint="They are private and umask.",
        )
    starts_java = runtime == "spark" and spark is None and not read_only
    with launched_ahead() if starts_java else contextlib.nullcontext():
        with uncollected():
            importlib.import_module("watersmeet.session.connections.connection")
        found = variables.Variables(dialect)
        registry.language_named(dialect)
        for name, value in (kafka or {}).items():
            found.set(f"kafka.{name}", value)
        database = opened.OpenDatabase(
            path,
            read_only=read_only,
            parallelism=parallelism,
            runtime=runtime,
            spark=spark,
            rebuild=rebuild,
            tick_seconds=tick_seconds,
            permissions=file_permissions,
            files=allow_files,
            take_over=take_over,
        )
        if not read_only:
            try:
                _add_services(database, dialect)
            except BaseException:
                database.close()
                raise
        return _connection.Connection(context.Session(database, found))


def _add_services(database: opened.OpenDatabase, dialect: str) -> None:
    def session() -> context.Session:
        return context.Session(database, variables.Variables(dialect))

    database.add(maintaining.Maintenance(session()))
    # A fork writes nothing to other systems, and has the inputs of its main database.
    if not database.layout.is_fork:
        database.add(writers.SinkWriters(database))
        for kind in receiving.SERVICES:
            database.add(kind(session()))
    database.add(handlers.function_named("features.verifying.Verifying")(session()))
    _execute.begin(session())
