"""What capturing changes needs of a PostgreSQL server: its settings, a slot, a publication, tables."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.connectors.base.options import refuse
from watersmeet.connectors.databases.captures import AGAIN, Chunk, LostPlaceError, Snapshot, TablePosition, TableThere
from watersmeet.connectors.databases.servers import may_not_read
from watersmeet.connectors.databases.tables import texts_of
from watersmeet.connectors.postgres.client import connect, failure, library
from watersmeet.connectors.postgres.publications import PostgresOptions, unwritten_columns
from watersmeet.connectors.postgres.replication import lsn_of, lsn_text, type_text
from watersmeet.connectors.postgres.types import described
from watersmeet.errors import did_you_mean, error

_TABLE: Final = """
SELECT c.oid, c.relpersistence, c.relreplident, has_table_privilege(c.oid, 'SELECT'),
    ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k(n, o), pg_attribute a
        WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid AND a.attnum = k.n ORDER BY o)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""

_TYPES: Final = """
SELECT attname, atttypid::int8, atttypmod FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""

_SLOT: Final = """
SELECT plugin, database, active, wal_status, confirmed_flush_lsn::text, active_pid FROM pg_replication_slots
WHERE slot_name = %s
"""

_RETAINED: Final = """
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8, pg_wal_lsn_diff(pg_current_wal_lsn(), %s)::int8
FROM pg_replication_slots WHERE slot_name = %s
"""

#: The value of a column in rows that are older than it, which are stored without it.
_ADDED: Final = """
SELECT (attmissingval::text::text[])[1], atthasdef OR attidentity <> '' FROM pg_attribute
WHERE attrelid = %s AND attname = %s AND NOT attisdropped
"""

_ANCESTORS: Final = """
SELECT c.oid::int8, n.nspname, c.relname FROM pg_partition_ancestors(%s::oid) a JOIN pg_class c ON c.oid = a.relid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid <> %s
"""

_PARTITIONS: Final = "SELECT relid::oid::int8 FROM pg_partition_tree(%s) WHERE isleaf"

#: Who writes a table now. They may have begun before it was published.
_WRITERS: Final = """
SELECT virtualtransaction FROM pg_locks WHERE mode = 'RowExclusiveLock' AND granted AND locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation IN (SELECT relid FROM pg_partition_tree(%s) UNION ALL SELECT %s::oid::regclass)
    AND pid <> pg_backend_pid()
"""


def check_server(connection: Any, options: PostgresOptions) -> None:
    """CONNECTOR_OPTION if the server does not write what is needed, or the user may not read it."""
    (level,) = connection.execute("SHOW wal_level").fetchone()
    if level != "logical":
        refuse(
            f"the PostgreSQL server at {options.server.host}:{options.server.port} has wal_level = {level}",
            detail="Its log does not have what changes are read from.",
            hint="Run ALTER SYSTEM SET wal_level = logical there, and restart the server.",
        )
    (may_replicate,) = connection.execute(
        "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user"
    ).fetchone()
    if not may_replicate:
        refuse(
            f'user "{options.server.user}" may not read changes',
            hint=f'A superuser has to give the right: ALTER ROLE "{options.server.user}" REPLICATION.',
        )


def table_there(connection: Any, options: PostgresOptions, schema: str, name: str) -> TableThere:
    """A table that can be captured. UNDEFINED_OBJECT, CONNECTOR_OPTION."""
    found = connection.execute(_TABLE, [schema, name]).fetchone()
    if found is None:
        others = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
        raise error(
            "UNDEFINED_OBJECT",
            f'there is no table "{schema}.{name}" in {options.server.shown}',
            hint=did_you_mean(name, [n for (n,) in others]) or "Check the table and its schema.",
        )
    oid, persistence, identity, may_read, key = found
    unwritten = unwritten_columns(connection, options, oid)
    table = TableThere(
        schema,
        name,
        oid,
        tuple(c for c in described(connection, oid) if c.name not in unwritten),
        tuple(key),
        {n: type_text(t, m) for n, t, m in connection.execute(_TYPES, [oid]) if n not in unwritten},
        unwritten,
    )
    if not may_read:
        raise may_not_read(options.server, table.shown)
    if persistence != "p":
        refuse(f'the changes of table "{table.shown}" are not in the log of its server: it is not permanent')
    if not key:
        refuse(
            f'table "{table.shown}" has no primary key',
            detail="By their keys changes find the rows that they change.",
            hint=f"ALTER TABLE {table.shown} ADD PRIMARY KEY (…) gives it one.",
        )
    if lacking := [k for k in key if k in unwritten]:
        refuse(f'column "{lacking[0]}" of the primary key of table "{table.shown}" {unwritten[lacking[0]]}')
    check_identity(table.shown, identity)
    return table


def check_identity(shown: str, identity: str) -> None:
    """CONNECTOR_OPTION if changes of a table don't say by its primary key which rows they change."""
    if identity not in ("d", "f"):
        refuse(
            f'the changes of table "{shown}" don\'t have its primary key',
            hint=f"ALTER TABLE {shown} REPLICA IDENTITY DEFAULT lets them have it.",
        )


def ensure_slot(connection: Any, options: PostgresOptions) -> tuple[int, bool]:
    """(the place from which the slot has changes, whether it was made). CONNECTOR_OPTION for one of another use."""
    found = connection.execute(_SLOT, [options.slot]).fetchone()
    if found is None:
        (lsn,) = connection.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", [options.slot]
        ).fetchone()
        return lsn_of(lsn), True
    plugin, database, active, _, confirmed, pid = found
    if plugin != "pgoutput" or database != options.server.database:
        refuse(f'replication slot "{options.slot}" is of plugin {plugin}, in database "{database}"')
    if active:
        refuse(f'replication slot "{options.slot}" is in use, by process {pid} of the server')
    return lsn_of(confirmed), False


def check_slot(connection: Any, options: PostgresOptions, lsn: int) -> None:
    """LostPlaceError if the slot does not have all changes from that place on."""
    found = connection.execute(_SLOT, [options.slot]).fetchone()
    if found is None:
        raise LostPlaceError(f'replication slot "{options.slot}" is gone. {AGAIN}')
    _, _, _, status, confirmed, _ = found
    if status == "lost":
        raise LostPlaceError(
            f'the server has taken replication slot "{options.slot}" away what it still needed. {AGAIN}'
        )
    if confirmed is not None and lsn_of(confirmed) > lsn:
        raise LostPlaceError(f'replication slot "{options.slot}" was read by another reader. {AGAIN}')
    end = end_of_log(connection)
    if end < lsn:
        raise LostPlaceError(
            f"the log of the server ends at {lsn_text(end)}, and {lsn_text(lsn)} was read already: it is another "
            f"server, or an older state of this one. {AGAIN}"
        )


def history_now(connection: Any) -> str:
    """The server's identifier and its timeline, which is another one after each promotion of a standby."""
    found = connection.execute(
        "SELECT system_identifier, pg_walfile_name(pg_current_wal_insert_lsn()) FROM pg_control_system()"
    ).fetchone()
    return f"{found[0]}/{int(found[1][:8], 16)}"


def check_history(options: PostgresOptions, before: str, now: str, lsn: int) -> None:
    """LostPlaceError if a place of one history is not in another one. before: empty if it is not known.

    PostgreSQL, "Streaming Replication Protocol", TIMELINE_HISTORY.
    """
    if before in ("", now):
        return
    (server, timeline), (server_now, timeline_now) = before.split("/"), now.split("/")
    where = f"{options.server.host}:{options.server.port}"
    if server != server_now:
        raise LostPlaceError(f"the server at {where} is another one than that whose changes were read. {AGAIN}")
    with contextlib.closing(connect(options.server, replication=True)) as connection:
        try:
            ((_, content),) = connection.cursor().execute(f"TIMELINE_HISTORY {timeline_now}").fetchall()
        except library().Error as cause:
            raise failure(cause, options.server) from cause
    text = content if isinstance(content, str) else bytes(content).decode()  # servers before 14 send bytea
    lines = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    ended = next((lsn_of(line[1]) for line in lines if line[0] == timeline), 0)
    if lsn > ended:
        raise LostPlaceError(
            f"the server was promoted at {lsn_text(ended)}, and {lsn_text(lsn)} of the one before it was read already: "
            f"it lacks changes that are here. {AGAIN}"
        )


def drop_slot(connection: Any, slot: str) -> None:
    """Drops a slot, if it is there; who reads it is ended."""
    connection.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active", [slot]
    )
    for _ in range(100):
        gone = connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active",
            [slot],
        )
        if gone.fetchone() or not connection.execute(_SLOT, [slot]).fetchone():
            return
        connection.execute("SELECT pg_sleep(0.05)")
    raise error("RUNTIME_UNAVAILABLE", f'replication slot "{slot}" is in use')


def value_before(connection: Any, table: TableThere, column: str) -> str | None:
    """The text of an added column's value in rows that are older than it; None is NULL. FEATURE_NOT_SUPPORTED if they
    need not have the same.
    """
    found = connection.execute(_ADDED, [table.oid, column]).fetchone()
    if found is None:
        raise error("UNDEFINED_COLUMN", f'column "{column}" of table "{table.shown}" is gone')
    value: str | None = found[0]
    if value is None and found[1]:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'column "{column}" was added to table "{table.shown}", and each row got a value of its own',
            detail="The server writes no changes of rows for that.",
        )
    return value


def snapshot_now(connection: Any) -> Snapshot:
    """What a query sees that begins now; in a transaction, what all its queries see."""
    (text,) = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    return Snapshot.parsed(text)


def ancestors(connection: Any, oid: int) -> list[tuple[int, str, str]]:
    """The partitioned tables of a partition: number, schema, name; none of a table that is no partition."""
    found: list[tuple[int, str, str]] = connection.execute(_ANCESTORS, [oid, oid]).fetchall()
    return found


def partitions(connection: Any, oid: int) -> set[int]:
    """The numbers of the tables that have the rows of a partitioned table."""
    return {o for (o,) in connection.execute(_PARTITIONS, [oid])}


def writers(connection: Any, oid: int) -> frozenset[str]:
    """The transactions that write a table now."""
    return frozenset(w for (w,) in connection.execute(_WRITERS, [oid, oid]))


def lag(connection: Any, slot: str, lsn: str) -> tuple[int, int] | None:
    """(bytes of the log that the slot keeps, bytes that come after that place); None if there is no such slot."""
    found = connection.execute(_RETAINED, [lsn, slot]).fetchone()
    return None if found is None else (found[0] or 0, max(0, found[1]))


def end_of_log(connection: Any) -> int:
    """Everything that is committed now is before that place."""
    (lsn,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    return lsn_of(lsn)


#: The types of a key, and the collations of columns that have not that of their type.
_KEY = """
SELECT a.attname::text, format_type(a.atttypid, NULL), n.nspname, c.collname
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation c ON c.oid = a.attcollation AND a.attcollation <> t.typcollation
LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = %s AND a.attname = ANY(%s)
"""


def read_chunk(
    connection: Any, table: tuple[str, str], columns: Sequence[str], key: Sequence[str], after: Sequence[str], rows: int
) -> tuple[list[pa.Array], Chunk]:
    """(the texts of the columns of the next rows behind the key `after`, what they are). Errors of the library.

    columns: those of the key among them.
    """
    sql = library().sql
    names = [sql.Identifier(c) for c in columns]
    keys = sql.SQL(", ").join(sql.Identifier(k) for k in key)
    bound = sql.SQL(", ").join(sql.Literal(t) for t in after)
    behind = sql.SQL(" WHERE ({}) > ({})").format(keys, bound) if after else sql.SQL("")
    query = sql.SQL("COPY (SELECT {} FROM {}{} ORDER BY {} LIMIT {}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)").format(
        sql.SQL(", ").join(names), sql.Identifier(*table), behind, keys, sql.Literal(rows)
    )
    received = io.BytesIO()
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        seen = snapshot_now(connection)
        with connection.cursor().copy(query) as copying:
            for block in copying:
                received.write(block)
    finally:
        connection.execute("ROLLBACK")
    texts = texts_of(received.getbuffer(), len(columns))
    count = len(texts[0])
    upto = () if count < rows else tuple(texts[list(columns).index(k)][count - 1].as_py() for k in key)
    return texts, Chunk(upto, seen, end_of_log(connection))


def wanted(
    connection: Any,
    oid: int,
    key: Sequence[str],
    position: TablePosition,
    keys: Sequence[pa.Array],
    xids: npt.NDArray[np.int64],
    commit_lsns: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Which changes of rows are neither in a piece already nor in one that is still to be read.

    keys: by column of the key, the texts of each change. xids, commit_lsns: of each change, its transaction.
    """
    pieces = _pieces(connection, oid, key, position, keys)
    found: npt.NDArray[np.bool_] = pieces == 0
    for i, chunk in enumerate(position.chunks):
        has = chunk.snapshot.sees(xids) & (commit_lsns < chunk.high_lsn)
        found |= (pieces == i + 1) & ~has
    return found


def _pieces(
    connection: Any, oid: int, key: Sequence[str], position: TablePosition, keys: Sequence[pa.Array]
) -> npt.NDArray[np.int64]:
    """By change, in which piece its key is: 0 in one that is settled, else the number of the chunk from 1; one more for
    what was not read.
    """
    count = len(keys[0])
    sql = library().sql
    types = {n: (kind, schema, collation) for n, kind, schema, collation in connection.execute(_KEY, [oid, [*key]])}
    names = [sql.Identifier(f"k{i}") for i in range(len(key))]
    ordered = sql.SQL(", ").join(
        sql.SQL("{} COLLATE {}").format(n, sql.Identifier(*types[k][1:])) if types[k][2] else n
        for n, k in zip(names, key, strict=True)
    )
    bounds = [position.settled, *(c.upto for c in position.chunks)]
    cases = [
        sql.SQL("WHEN ({}) <= ({}) THEN {}").format(ordered, sql.SQL(", ").join(map(sql.Literal, b)), sql.Literal(i))
        for i, b in enumerate(bounds)
        if b
    ]
    last = len(bounds) - 1 if position.done else len(bounds)
    if not cases:
        return np.full(count, last, np.int64)
    query = sql.SQL("SELECT CASE {} ELSE {} END FROM unnest({}) WITH ORDINALITY AS u({}, o) ORDER BY o").format(
        sql.SQL(" ").join(cases),
        sql.Literal(last),
        sql.SQL(", ").join(sql.SQL("%s::text[]::{}[]").format(sql.SQL(types[k][0])) for k in key),
        sql.SQL(", ").join(names),
    )
    rows = connection.execute(query, [k.to_pylist() for k in keys]).fetchall()
    return np.fromiter((r[0] for r in rows), np.int64, count)
