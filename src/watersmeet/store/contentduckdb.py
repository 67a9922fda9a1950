"""The DuckDB of a content: its schemas, and one that a content gave back, for the next content of this process.

Making a DuckDB takes 11 ms, more than the rest of opening a small database. Who opens one after another, as tests do,
makes one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final

import duckdb

from watersmeet import duckdbs
from watersmeet.store.merging import quoted
from watersmeet.store.tables import SPACE

#: The DuckDB schema whose views show tables as of the newest transaction and the open one.
NEWEST: Final = "newest"

#: A table that readers touch to begin a transaction of DuckDB.
MOMENT: Final = f"{SPACE}.moment"

#: So much DuckDB writes before it looks which rows are gone, and gives the others new row ids, at a commit of anybody.
#: It never does that here: overlays know rows by their ids, and `ContentTable` gives space back.
_NEVER: Final = "8000000TB"

#: One that holds more than this when all is dropped is not kept.
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Settings:
    """What a DuckDB is made with. external_access: whether queries may read files and the network."""

    threads: int
    memory_limit: str
    external_access: bool


_guard: Final = threading.Lock()
#: At most one of each settings, empty, by the process that may use it: a fork has none of its threads.
_spares: Final[dict[tuple[int, Settings], duckdb.DuckDBPyConnection]] = {}


def connect(directory: str, settings: Settings) -> duckdb.DuckDBPyConnection:
    """A connection to an empty DuckDB with the schemas of a content. directory: where it spills."""
    with _guard:
        connection = _spares.pop((os.getpid(), settings), None)
    if connection is not None:
        connection.execute("SET temp_directory = $1", [directory])
    else:
        connection = duckdbs.connect(
            memory_limit=settings.memory_limit,
            threads=settings.threads,
            spill_directory=directory,
            external_access=settings.external_access,
            locked=False,  # each query sets its search path
        )
        connection.execute(f"SET checkpoint_threshold = '{_NEVER}'")
    connection.execute(f"CREATE SCHEMA {SPACE}; CREATE SCHEMA {NEWEST}; CREATE TABLE {MOMENT} (n INTEGER)")
    return connection


def give_back(connection: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    """Ends a connection of `connect` that nobody uses any more. Its DuckDB is kept if it can serve again."""
    spare = (os.getpid(), settings)
    # Without access to files its place for spilling can't be changed.
    if settings.external_access and _emptied(connection):
        with _guard:
            if spare not in _spares:
                _spares[spare] = connection
                return
    connection.close()


def _emptied(connection: duckdb.DuckDBPyConnection) -> bool:
    """Makes it as it was before `connect`; False if that is not possible, as after it has spilled."""
    views = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main' AND NOT temporary"
    try:
        connection.execute("SET search_path = 'main'; SET temp_directory = ''")
        drops = [f"DROP VIEW main.{quoted(name)}" for (name,) in connection.execute(views).fetchall()]
        connection.execute("; ".join([*drops, f"DROP SCHEMA {NEWEST} CASCADE", f"DROP SCHEMA {SPACE} CASCADE"]))
        held = connection.execute(
            "SELECT (SELECT count(*) FROM duckdb_tables()) + (SELECT count(*) FROM duckdb_views() WHERE NOT internal), "
            "(SELECT sum(memory_usage_bytes) FROM duckdb_memory())"
        ).fetchone()
    except duckdb.Error:
        return False
    return held is not None and held[0] == 0 and held[1] <= _MOST_BYTES
