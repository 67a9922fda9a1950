"""Change data capture of PostgreSQL: a replication slot, a publication, and snapshots that are read in chunks.

PostgreSQL, "Logical Replication"; offsets are LSNs.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Captured
from watersmeet.connectors.base.options import refuse
from watersmeet.connectors.databases.captures import (
    AGAIN,
    Added,
    Batch,
    Changed,
    Chunk,
    DatabaseOptions,
    Lineage,
    LostOffsetError,
    Mask,
    Numbers,
    Piece,
    Rows,
    Snapshot,
    Stream,
    System,
    TablePosition,
    TableThere,
    TableVersion,
    Truncation,
)
from watersmeet.connectors.databases.servers import may_not_read
from watersmeet.connectors.databases.tables import texts_of
from watersmeet.connectors.postgres.client import connect, failure, library
from watersmeet.connectors.postgres.publications import (
    CAPTURE_OPTIONS,
    CONNECTOR,
    PostgresOptions,
    database_options,
    default_options,
    drop_publication,
    ensure_publication,
    other_slots,
    publication_entry,
    unpublish,
    unwritten_columns,
    why_unpublished,
)
from watersmeet.connectors.postgres.replication import (
    PostgresBatch,
    PostgresVersion,
    SlotReader,
    lsn_of,
    lsn_text,
    type_text,
)
from watersmeet.connectors.postgres.types import Column, described, without_forms
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.system.process import fault
from watersmeet.values.types import Schema

SLOT, PUBLICATION = "slot", "publication"
#: The offset is committed after this many bytes of the server's log even if no table changed.
_IDLE_BYTES: Final = 16 << 20
#: The interval of polls of running transactions before changes are read again.
_POLL_S: Final = 0.05
#: The maximum time until queries see transactions that the log contains.
_SIGHT_S: Final = 5.0
#: The maximum number of transactions that are kept until snapshots see them as committed.
_REMEMBERED: Final = 100_000
#: SQLSTATE of a slot that another connection reads.
_IN_USE: Final = "55006"

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
#: The query of the value that older rows, stored without a column, have in it.
_ADDED: Final = """
SELECT (attmissingval::text::text[])[1], atthasdef OR attidentity <> '' FROM pg_attribute
WHERE attrelid = %s AND attname = %s AND NOT attisdropped
"""
_ANCESTORS: Final = """
SELECT c.oid::int8, n.nspname, c.relname FROM pg_partition_ancestors(%s::oid) a JOIN pg_class c ON c.oid = a.relid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid <> %s
"""
_PARTITIONS: Final = "SELECT relid::oid::int8 FROM pg_partition_tree(%s) WHERE isleaf"
#: The query of transactions that write a table now. They may have begun before the table was published.
_WRITERS: Final = """
SELECT virtualtransaction FROM pg_locks WHERE mode = 'RowExclusiveLock' AND granted AND locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation IN (SELECT relid FROM pg_partition_tree(%s) UNION ALL SELECT %s::oid::regclass)
    AND pid <> pg_backend_pid()
"""
#: The query of the types of a key, and of the collations of columns that differ from those of their types.
_KEY: Final = """
SELECT a.attname::text, format_type(a.atttypid, NULL), n.nspname, c.collname
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation c ON c.oid = a.attcollation AND a.attcollation <> t.typcollation
LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = %s AND a.attname = ANY(%s)
"""


class PostgresSystem(System):
    """See `System`."""

    connector = CONNECTOR
    title = "PostgreSQL"
    known = CAPTURE_OPTIONS
    wider: ClassVar[Mapping[str, Sequence[str]]] = {
        "smallint": ("integer", "bigint", "numeric"),
        "integer": ("bigint", "numeric"),
        "bigint": ("numeric",),
        "real": ("double precision",),
    }
    has_schemas = True

    def options(self, given: Mapping[str, str]) -> PostgresOptions:
        return database_options(given)

    def defaults(self, given: Mapping[str, str]) -> dict[str, str]:
        return default_options(given)

    @contextlib.contextmanager
    def connected(self, options: DatabaseOptions) -> Iterator[Any]:
        with contextlib.closing(connect(options.server)) as connection:
            try:
                yield connection
            except library().Error as cause:
                raise failure(cause, options.server) from cause

    def check(self, connection: Any, options: DatabaseOptions) -> None:
        server = options.server
        (level,) = connection.execute("SHOW wal_level").fetchone()
        if level != "logical":
            refuse(
                f"the PostgreSQL server at {server.host}:{server.port} has wal_level = {level}",
                detail="Its log does not contain changes of rows.",
                hint="Run ALTER SYSTEM SET wal_level = logical there, and restart the server.",
            )
        (may_replicate,) = connection.execute(
            "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        if not may_replicate:
            refuse(
                f'user "{server.user}" may not read changes',
                hint=f'A superuser has to grant the right: ALTER ROLE "{server.user}" REPLICATION.',
            )

    def table(self, connection: Any, options: DatabaseOptions, name: str) -> TableThere:
        schema, _, table = name.rpartition(".")
        return _table_there(connection, _own(options), schema or options.schema, table)

    def publish(self, connection: Any, options: DatabaseOptions, table: TableThere | None) -> tuple[str, ...]:
        return (PUBLICATION,) if ensure_publication(connection, _own(options), table) else ()

    def published(self, connection: Any, options: DatabaseOptions, table: TableThere) -> str:
        return publication_entry(connection, _own(options), table.oid)

    def begin(self, connection: Any, options: DatabaseOptions) -> tuple[str, tuple[str, ...]]:
        slot = _own(options).slot
        found = connection.execute(_SLOT, [slot]).fetchone()
        if found is None:
            (lsn,) = connection.execute(
                "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", [slot]
            ).fetchone()
            return lsn_text(lsn_of(lsn)), (SLOT,)
        plugin, database, active, _, confirmed, pid = found
        if plugin != "pgoutput" or database != options.server.database:
            refuse(f'replication slot "{slot}" is of plugin {plugin}, in database "{database}"')
        if active:
            refuse(f'replication slot "{slot}" is in use, by process {pid} of the server')
        return lsn_text(lsn_of(confirmed)), ()

    def begin_again(
        self, connection: Any, options: DatabaseOptions, made: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        if SLOT in made:
            drop_slot(connection, _own(options).slot)
        return super().begin_again(connection, options, made)

    def drop(self, options: DatabaseOptions, made: tuple[str, ...], others: Sequence[DatabaseOptions]) -> str:
        own = _own(options)
        try:
            with contextlib.closing(connect(own.server)) as connection:
                if SLOT in made:
                    drop_slot(connection, own.slot)
                if PUBLICATION not in made or any(_same_publication(own, _own(o)) for o in others):
                    return ""
                if own.shares_publication and (slots := other_slots(connection, own)):
                    return (
                        f'publication "{own.publication}" is left in {own.server.shown}: replication slot '
                        f'"{slots[0]}" may use it'
                    )
                drop_publication(connection, own.publication)
        except (Error, library().Error) as problem:
            reason = problem.message if isinstance(problem, Error) else str(problem)
            return (
                f'replication slot "{own.slot}" is left in {own.server.shown}, whose log grows until it is dropped: '
                f"{reason}"
            )
        return ""

    def unpublish(
        self, options: DatabaseOptions, made: tuple[str, ...], table: Captured, others: Sequence[DatabaseOptions]
    ) -> str:
        own = _own(options)
        if PUBLICATION not in made or any(_same_publication(own, _own(o)) for o in others):
            return ""
        why = ""
        with contextlib.suppress(Error, library().Error), contextlib.closing(connect(own.server)) as connection:
            if not (own.shares_publication and (slots := other_slots(connection, own))):
                unpublish(connection, own.publication, table.schema, table.table)
                return ""
            why = f': replication slot "{slots[0]}" may use it'
        return f'publication "{own.publication}" still has table "{table.schema}.{table.table}"{why}'

    def stream(self, options: DatabaseOptions, offset: str, history: str) -> Stream:
        return SlotStream(_own(options), offset, history)

    def end(self, options: DatabaseOptions) -> str:
        with self.connected(options) as connection:
            return lsn_text(_end_of_log(connection))

    def has(self, offset: str, other: str) -> bool:
        return lsn_of(offset) >= lsn_of(other)

    def lag(self, options: DatabaseOptions, offset: str) -> tuple[int | None, int | None]:
        with self.connected(options) as connection:
            found = connection.execute(_RETAINED, [offset, _own(options).slot]).fetchone()
        return (None, None) if found is None else (found[0] or 0, max(0, found[1]))

    def is_in_use(self, problem: BaseException) -> bool:
        return getattr(problem.__cause__, "sqlstate", None) == _IN_USE


def _same_publication(one: PostgresOptions, other: PostgresOptions) -> bool:
    return (one.server, one.publication) == (other.server, other.publication)


class SlotStream(Stream):
    """See `Stream`. It begins at an offset that the slot must still contain."""

    def __init__(self, options: PostgresOptions, offset: str, history: str) -> None:
        self._options = options
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._unseen = np.zeros(0, np.int64)
        """The transactions of the newest batch, unless queries are known to see them."""
        self._writers: dict[int, frozenset[str]] = {}
        self._columns: dict[int, dict[str, Column]] = {}
        self._lineages: dict[int, tuple[TableVersion, list[Lineage]]] = {}
        self._connection = connect(options.server)
        try:
            PostgresSystem().check(self._connection, options)
            _check_slot(self._connection, options, lsn_of(offset))
            self.history = _history_now(self._connection)
            _check_history(options, history, self.history, lsn_of(offset))
            self._reader = SlotReader(options.server, options.slot, [options.publication], lsn_of(offset))
        except BaseException:
            self._connection.close()
            raise
        self.reached = offset

    def read(self, wait_s: float, tables: Callable[[], Collection[tuple[str, str]]]) -> Batch | None:  # noqa: ARG002
        batch = self._reader.read(wait_s)
        if batch is not None:
            self._recent.extend(batch.xids.tolist())
            self._unseen = batch.xids
        self.reached = lsn_text(self._reader.reached)
        return batch

    def committed(self, offset: str) -> None:
        self._reader.confirm(lsn_of(offset))

    def is_far_from(self, offset: str) -> bool:
        return self._reader.reached - lsn_of(offset) >= (1 if self._reader.is_asked else _IDLE_BYTES)

    def ask(self) -> None:
        self._reader.ask()

    def close(self) -> None:
        self._reader.close()
        self._connection.close()

    def table(self, schema: str, name: str) -> TableThere:
        return _table_there(self._connection, self._options, schema, name)

    def piece(
        self, captured: Captured, there: TableThere, columns: Sequence[str], position: TablePosition | None
    ) -> Piece | None:
        if self._waits_for_writers(captured.oid):
            time.sleep(_POLL_S)
            return None
        position = position or TablePosition()
        fault("capture.chunk")
        names = [*columns, *(k for k in there.key if k not in columns)]
        name = (there.schema, there.name)
        try:
            texts, chunk = _read_chunk(self._connection, name, names, there.key, position.upto, captured.batch_rows)
        except library().Error as cause:
            raise failure(cause, self._options.server, ".".join(name)) from cause
        running = {x % (1 << 32) for x in chunk.snapshot.running}
        if running.intersection(self._recent):
            return None  # the read changes include a transaction that the snapshot does not see as committed
        moved = replace(
            position,
            done=not chunk.upto,
            upto=chunk.upto or position.upto,
            rows=position.rows + len(texts[0]),
            chunks=(*position.chunks, chunk),
        )
        return Piece(texts[: len(columns)], moved, replaces=False)

    def _waits_for_writers(self, oid: int) -> bool:
        """Whether a transaction is still running that had written the table before its first chunk.

        The server did not send the changes that it made before the table was published, or this stream may have skipped
        changes that snapshots do not see yet.
        """
        before = self._writers.get(oid)
        if before == frozenset():
            return False
        now = frozenset(w for (w,) in self._connection.execute(_WRITERS, [oid, oid]))
        self._writers[oid] = now if before is None else before & now
        return bool(self._writers[oid])

    def wanted(
        self, captured: Captured, key: Sequence[str], position: TablePosition, batch: Batch, change: Changed
    ) -> Mask:
        """The mask of changes whose rows are neither in an earlier chunk with the change, nor in a chunk that is yet to
        be read.
        """
        assert isinstance(batch, PostgresBatch)
        xids, commits = batch.xids[change.transactions], batch.commit_lsns[change.transactions]
        chunks = _chunks_of(self._connection, captured.oid, key, position, change.keys)
        found: Mask = chunks == 0
        for i, chunk in enumerate(position.chunks):
            found |= (chunks == i + 1) & ~(chunk.snapshot.sees(xids) & (commits < chunk.high_lsn))
        return found

    def behind(self, position: TablePosition, offset: str) -> TablePosition:
        return position.behind(lsn_of(offset))

    def lineage(self, version: TableVersion) -> Sequence[Lineage]:
        known = self._lineages.get(version.oid)
        if known is None or known[0] is not version:
            self._wait_for_sight()  # changes of the transaction that made it a partition
            above = self._connection.execute(_ANCESTORS, [version.oid, version.oid])
            own = Lineage(version.oid, version.schema, version.name)
            known = self._lineages[version.oid] = version, [own, *(Lineage(*a) for a in above)]
        return known[1]

    def is_emptied(self, captured: Captured, truncation: Truncation) -> bool:
        if super().is_emptied(captured, truncation):
            return True
        self._wait_for_sight()
        with_rows = {o for (o,) in self._connection.execute(_PARTITIONS, [captured.oid])}
        return bool(with_rows) and {t.oid for t in truncation.tables} >= with_rows

    def why_unpublished(self, captured: Captured) -> str:
        return why_unpublished(
            self._connection,
            self._options,
            captured.oid,
            captured.schema,
            captured.table,
            captured.published,
            {*captured.types},
        )

    def check(self, version: TableVersion) -> None:
        assert isinstance(version, PostgresVersion)
        _check_identity(f"{version.schema}.{version.name}", version.identity)

    def may_lack(self, captured: Captured, batch: Batch, rows: Rows) -> set[str]:
        assert isinstance(batch, PostgresBatch)
        last = int(batch.commit_lsns[rows.transactions[-1]])
        return {c for c, added in captured.added.items() if last <= lsn_of(added)}

    def added(self, captured: Captured, batch: Batch) -> Added | None:
        assert isinstance(batch, PostgresBatch)
        own = [r for r in batch.rows if (of := self.is_of(captured, r.table)) and of.oid == captured.oid]
        if not own:
            return None
        newest = max(own, key=lambda r: int(r.offsets[0]))
        names, transaction = tuple(newest.table.types), newest.transactions[0]
        if not captured.types.keys() >= {*names} - {*captured.left_out}:
            self._wait_for_sight()
        return Added(names, lsn_text(int(batch.commit_lsns[transaction])))

    def _wait_for_sight(self) -> None:
        """Waits until queries see the transactions of the newest batch, which the log may contain earlier.

        Raises RUNTIME_UNAVAILABLE if this takes too long, for example with a synchronous standby.
        """
        end = time.monotonic() + _SIGHT_S
        while len(self._unseen) and not _snapshot_now(self._connection).sees(self._unseen).all():
            if time.monotonic() > end:
                raise error("RUNTIME_UNAVAILABLE", "a transaction that was committed can't be seen yet")
            time.sleep(_POLL_S)
        self._unseen = self._unseen[:0]

    def added_now(self, there: TableThere, position: TablePosition | None) -> Added | None:  # noqa: ARG002
        return Added(tuple(there.types), lsn_text(_end_of_log(self._connection)))

    def value_before(self, there: TableThere, column: str) -> str | None:
        found = self._connection.execute(_ADDED, [there.oid, column]).fetchone()
        if found is None:
            raise error("UNDEFINED_COLUMN", f'column "{column}" of table "{there.shown}" is gone')
        value: str | None = found[0]
        if value is None and found[1]:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'column "{column}" was added to table "{there.shown}", and each row got a value of its own',
                detail="The server writes no changes of rows for that.",
            )
        return value

    def plain(self, captured: Captured, columns: Schema, texts: Sequence[pa.Array]) -> list[pa.Array]:
        known = self._columns.get(captured.oid, {})
        if any(c.name not in known for c in columns):
            known = self._columns[captured.oid] = {c.name: c for c in described(self._connection, captured.oid)}
        if gone := [c.name for c in columns if c.name not in known]:
            raise error("UNDEFINED_COLUMN", f'column "{gone[0]}" of table "{captured.schema}.{captured.table}" is gone')
        return without_forms([*texts], [known[c.name] for c in columns], [c.type for c in columns])


def _own(options: DatabaseOptions) -> PostgresOptions:
    assert isinstance(options, PostgresOptions)
    return options


def _table_there(connection: Any, options: PostgresOptions, schema: str, name: str) -> TableThere:
    """A table that can be captured. Raises UNDEFINED_OBJECT, CONNECTOR_OPTION."""
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
    _check_identity(table.shown, identity)
    return table


def _check_identity(shown: str, identity: str) -> None:
    """Raises CONNECTOR_OPTION if changes of a table do not contain its primary key."""
    if identity not in ("d", "f"):
        refuse(
            f'the changes of table "{shown}" don\'t have its primary key',
            hint=f"ALTER TABLE {shown} REPLICA IDENTITY DEFAULT lets them have it.",
        )


def _check_slot(connection: Any, options: PostgresOptions, lsn: int) -> None:
    """Raises LostOffsetError if the slot does not contain all changes from an LSN on."""
    found = connection.execute(_SLOT, [options.slot]).fetchone()
    if found is None:
        raise LostOffsetError(f'replication slot "{options.slot}" is gone. {AGAIN}')
    _, _, _, status, confirmed, _ = found
    if status == "lost":
        raise LostOffsetError(
            f'the server has taken replication slot "{options.slot}" away what it still needed. {AGAIN}'
        )
    if confirmed is not None and lsn_of(confirmed) > lsn:
        raise LostOffsetError(f'replication slot "{options.slot}" was read by another reader. {AGAIN}')
    end = _end_of_log(connection)
    if end < lsn:
        raise LostOffsetError(
            f"the log of the server ends at {lsn_text(end)}, and {lsn_text(lsn)} was read already: it is another "
            f"server, or an older state of this one. {AGAIN}"
        )


def _history_now(connection: Any) -> str:
    """The server's identifier and its timeline, which changes with each promotion of a standby."""
    found = connection.execute(
        "SELECT system_identifier, pg_walfile_name(pg_current_wal_insert_lsn()) FROM pg_control_system()"
    ).fetchone()
    return f"{found[0]}/{int(found[1][:8], 16)}"


def _check_history(options: PostgresOptions, before: str, now: str, lsn: int) -> None:
    """Raises LostOffsetError if an LSN of one history is not in another one. before: the first history; empty if
    unknown.

    PostgreSQL, "Streaming Replication Protocol", TIMELINE_HISTORY.
    """
    if before in ("", now):
        return
    (server, timeline), (server_now, timeline_now) = before.split("/"), now.split("/")
    where = f"{options.server.host}:{options.server.port}"
    if server != server_now:
        raise LostOffsetError(f"the server at {where} is another one than that whose changes were read. {AGAIN}")
    with contextlib.closing(connect(options.server, replication=True)) as connection:
        try:
            ((_, content),) = connection.cursor().execute(f"TIMELINE_HISTORY {timeline_now}").fetchall()
        except library().Error as cause:
            raise failure(cause, options.server) from cause
    text = content if isinstance(content, str) else bytes(content).decode()  # servers before version 14 send bytea
    lines = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    ended = next((lsn_of(line[1]) for line in lines if line[0] == timeline), 0)
    if lsn > ended:
        raise LostOffsetError(
            f"the server was promoted at {lsn_text(ended)}, and {lsn_text(lsn)} of the one before it was read already: "
            f"it lacks changes that are here. {AGAIN}"
        )


def drop_slot(connection: Any, slot: str) -> None:
    """Drops a slot if it exists, and ends its reader."""
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


def _snapshot_now(connection: Any) -> Snapshot:
    """The snapshot of a query that begins now; in a transaction, the snapshot of all its queries."""
    (text,) = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    return Snapshot.parsed(text)


def _end_of_log(connection: Any) -> int:
    """The LSN after all transactions that are committed now."""
    (lsn,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    return lsn_of(lsn)


def _read_chunk(
    connection: Any, table: tuple[str, str], columns: Sequence[str], key: Sequence[str], after: Sequence[str], rows: int
) -> tuple[list[pa.Array], Chunk]:
    """The texts by column of the next rows after the key `after`, and their chunk. Raises errors of the library.

    columns: must include the columns of the key.
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
        seen = _snapshot_now(connection)
        with connection.cursor().copy(query) as copying:
            received.writelines(copying)
    finally:
        connection.execute("ROLLBACK")
    texts = texts_of(received.getbuffer(), len(columns))
    count = len(texts[0])
    upto = () if count < rows else tuple(texts[list(columns).index(k)][count - 1].as_py() for k in key)
    return texts, Chunk(upto, seen, _end_of_log(connection))


def _chunks_of(
    connection: Any, oid: int, key: Sequence[str], position: TablePosition, keys: Sequence[pa.Array]
) -> Numbers:
    """The number of the chunk with each change's key, from 1; 0 for settled keys, the number of chunks plus 1 for
    unread keys.
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
