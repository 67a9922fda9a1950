"""Watersmeet: streaming SQL joins that follow every insert, update and delete.

`connect()` returns a PEP 249 connection to a database. `join()` joins streaming Spark DataFrames, `sql()` runs a query
over them. Importing this package is cheap: the session, and with it the SQL front end and DuckDB, are imported when
they are first used, because every Spark worker also imports the package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from watersmeet.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,  # noqa: A004 - the name is PEP 249's
)
from watersmeet.system.process import spark_module, uncollected

if TYPE_CHECKING:
    from watersmeet.database.sessions.result import Interval
    from watersmeet.datasource import register
    from watersmeet.frames.api import asof, join, join_metrics, latest, once_per_batch
    from watersmeet.framesql import sql
    from watersmeet.session.connections import connect
    from watersmeet.session.connections.connection import Connection
    from watersmeet.session.connections.cursor import (
        BINARY,
        DATETIME,
        NUMBER,
        ROWID,
        STRING,
        Binary,
        Cursor,
        Date,
        DateFromTicks,
        Time,
        TimeFromTicks,
        Timestamp,
        TimestampFromTicks,
    )

__version__ = "0.1.0"

#: PEP 249.
apilevel: Final = "2.0"
#: PEP 249: threads may share the module and connections. The statements of one connection run sequentially.
threadsafety: Final = 2
#: PEP 249: parameters are question marks.
paramstyle: Final = "qmark"

_LAZY: Final[dict[str, str]] = {
    "Connection": "watersmeet.session.connections.connection",
    "Cursor": "watersmeet.session.connections.cursor",
    "Interval": "watersmeet.database.sessions.result",
    "connect": "watersmeet.session.connections",
    "register": "watersmeet.datasource",
    "sql": "watersmeet.framesql",
    **dict.fromkeys(("asof", "join", "join_metrics", "latest", "once_per_batch"), "watersmeet.frames.api"),
    **dict.fromkeys(
        (
            "BINARY",
            "DATETIME",
            "NUMBER",
            "ROWID",
            "STRING",
            "Binary",
            "Date",
            "DateFromTicks",
            "Time",
            "TimeFromTicks",
            "Timestamp",
            "TimestampFromTicks",
        ),
        "watersmeet.session.connections.cursor",
    ),
}

#: The modules that import PySpark.
_ON_SPARK: Final = ("watersmeet.datasource", "watersmeet.frames.api", "watersmeet.framesql")

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "Interval",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "__version__",
    "apilevel",
    "asof",
    "connect",
    "join",
    "join_metrics",
    "latest",
    "once_per_batch",
    "paramstyle",
    "register",
    "sql",
    "threadsafety",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _LAZY[name]
    with uncollected():
        return getattr((spark_module if module in _ON_SPARK else importlib.import_module)(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
