"""PostgreSQL as a system whose databases are captured: a replication slot, a publication, snapshots."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Captured
from watersmeet.connectors.databases.captures import (
    Added,
    Batch,
    Changed,
    DatabaseOptions,
    Lineage,
    Mask,
    Piece,
    Rows,
    Stream,
    System,
    TablePosition,
    TableThere,
    TableVersion,
    Truncation,
)
from watersmeet.connectors.postgres.client import connect, failure, library
from watersmeet.connectors.postgres.publications import (
    CONNECTOR,
    PostgresOptions,
    database_options,
    default_options,
    ensure_publication,
    publication_entry,
    why_unpublished,
)
from watersmeet.connectors.postgres.replication import PostgresBatch, PostgresVersion, SlotReader, lsn_of, lsn_text
from watersmeet.connectors.postgres.servers import (
    ancestors,
    check_history,
    check_identity,
    check_server,
    check_slot,
    drop_slot,
    end_of_log,
    ensure_slot,
    history_now,
    lag,
    partitions,
    read_chunk,
    snapshot_now,
    table_there,
    value_before,
    wanted,
    writers,
)
from watersmeet.connectors.postgres.types import Column, described, without_forms
from watersmeet.errors import error
from watersmeet.system.process import fault
from watersmeet.values.types import Schema

SLOT, PUBLICATION = "slot", "publication"
#: While no change comes for the tables, the place is committed again after so many bytes of the server's log.
_IDLE_BYTES: Final = 16 << 20
#: So long transactions that run are waited for before changes are read again.
_LOOK_S: Final = 0.05
#: How long queries may take to see what is in the log already.
_SIGHT_S: Final = 5.0
#: So many transactions are remembered, of which a snapshot that comes later may not know yet that they were committed.
_REMEMBERED: Final = 100_000
#: The code of PostgreSQL's for a slot that another connection reads.
_IN_USE: Final = "55006"


class PostgresSystem(System):
    """See `System`."""

    connector = CONNECTOR
    title = "PostgreSQL"
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
        check_server(connection, _own(options))

    def table(self, connection: Any, options: DatabaseOptions, name: str) -> TableThere:
        schema, _, table = name.rpartition(".")
        return table_there(connection, _own(options), schema or options.schema, table)

    def publish(self, connection: Any, options: DatabaseOptions, table: TableThere | None) -> tuple[str, ...]:
        return (PUBLICATION,) if ensure_publication(connection, _own(options), table) else ()

    def published(self, connection: Any, options: DatabaseOptions, table: TableThere) -> str:
        return publication_entry(connection, _own(options), table.oid)

    def begin(self, connection: Any, options: DatabaseOptions) -> tuple[str, tuple[str, ...]]:
        lsn, is_made = ensure_slot(connection, _own(options))
        return lsn_text(lsn), (SLOT,) if is_made else ()

    def begin_again(
        self, connection: Any, options: DatabaseOptions, made: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        if SLOT in made:
            drop_slot(connection, _own(options).slot)
        return super().begin_again(connection, options, made)

    def stream(self, options: DatabaseOptions, place: str, history: str) -> Stream:
        return SlotStream(_own(options), place, history)

    def end(self, options: DatabaseOptions) -> str:
        with self.connected(options) as connection:
            return lsn_text(end_of_log(connection))

    def has(self, place: str, other: str) -> bool:
        return lsn_of(place) >= lsn_of(other)

    def lag(self, options: DatabaseOptions, place: str) -> tuple[int | None, int | None]:
        with self.connected(options) as connection:
            return lag(connection, _own(options).slot, place) or (None, None)

    def is_in_use(self, problem: BaseException) -> bool:
        return getattr(problem.__cause__, "sqlstate", None) == _IN_USE


class SlotStream(Stream):
    """See `Stream`. It begins at a place that the slot has to have."""

    def __init__(self, options: PostgresOptions, place: str, history: str) -> None:
        self._options = options
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._unseen = np.zeros(0, np.int64)
        """Transactions of the newest batch, unless queries are known to see them."""
        self._writers: dict[int, frozenset[str]] = {}
        self._columns: dict[int, dict[str, Column]] = {}
        self._lineages: dict[int, tuple[TableVersion, list[Lineage]]] = {}
        self._connection = connect(options.server)
        try:
            check_server(self._connection, options)
            check_slot(self._connection, options, lsn_of(place))
            self.history = history_now(self._connection)
            check_history(options, history, self.history, lsn_of(place))
            self._reader = SlotReader(options.server, options.slot, [options.publication], lsn_of(place))
        except BaseException:
            self._connection.close()
            raise
        self.reached = place

    def read(self, wait_s: float, tables: Callable[[], Collection[tuple[str, str]]]) -> Batch | None:  # noqa: ARG002
        batch = self._reader.read(wait_s)
        if batch is not None:
            self._recent.extend(batch.xids.tolist())
            self._unseen = batch.xids
        self.reached = lsn_text(self._reader.reached)
        return batch

    def committed(self, place: str) -> None:
        self._reader.confirm(lsn_of(place))

    def is_far_from(self, place: str) -> bool:
        return self._reader.reached - lsn_of(place) >= (1 if self._reader.is_asked else _IDLE_BYTES)

    def ask(self) -> None:
        self._reader.ask()

    def close(self) -> None:
        self._reader.close()
        self._connection.close()

    def table(self, schema: str, name: str) -> TableThere:
        return table_there(self._connection, self._options, schema, name)

    def piece(
        self, captured: Captured, there: TableThere, columns: Sequence[str], position: TablePosition | None
    ) -> Piece | None:
        if self._waits_for_writers(captured.oid):
            time.sleep(_LOOK_S)
            return None
        position = position or TablePosition()
        fault("capture.chunk")
        names = [*columns, *(k for k in there.key if k not in columns)]
        name = (there.schema, there.name)
        try:
            texts, chunk = read_chunk(self._connection, name, names, there.key, position.upto, captured.batch_rows)
        except library().Error as cause:
            raise failure(cause, self._options.server, ".".join(name)) from cause
        running = {x % (1 << 32) for x in chunk.snapshot.running}
        if running.intersection(self._recent):
            return None  # of a transaction whose changes came already, the snapshot did not know that it is committed
        moved = replace(
            position,
            done=not chunk.upto,
            upto=chunk.upto or position.upto,
            rows=position.rows + len(texts[0]),
            chunks=(*position.chunks, chunk),
        )
        return Piece(texts[: len(columns)], moved, replaces=False)

    def _waits_for_writers(self, oid: int) -> bool:
        """Whether a transaction still runs that wrote the table when this stream first wanted to read it. Before the
        table was published, its changes were not sent; before this stream began, they may have been taken already,
        while snapshots don't see them yet.
        """
        before = self._writers.get(oid)
        if before == frozenset():
            return False
        now = writers(self._connection, oid)
        self._writers[oid] = now if before is None else before & now
        return bool(self._writers[oid])

    def wanted(
        self, captured: Captured, key: Sequence[str], position: TablePosition, batch: Batch, change: Changed
    ) -> Mask:
        assert isinstance(batch, PostgresBatch)
        of = change.transactions
        return wanted(self._connection, captured.oid, key, position, change.keys, batch.xids[of], batch.commit_lsns[of])

    def behind(self, position: TablePosition, place: str) -> TablePosition:
        return position.behind(lsn_of(place))

    def lineage(self, version: TableVersion) -> Sequence[Lineage]:
        known = self._lineages.get(version.oid)
        if known is None or known[0] is not version:
            self._wait_for_sight()  # of the transaction that made it a partition
            own = Lineage(version.oid, version.schema, version.name)
            above = [Lineage(*a) for a in ancestors(self._connection, version.oid)]
            known = self._lineages[version.oid] = version, [own, *above]
        return known[1]

    def is_emptied(self, captured: Captured, truncation: Truncation) -> bool:
        if super().is_emptied(captured, truncation):
            return True
        self._wait_for_sight()
        with_rows = partitions(self._connection, captured.oid)
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
        check_identity(f"{version.schema}.{version.name}", version.identity)

    def may_lack(self, captured: Captured, batch: Batch, rows: Rows) -> set[str]:
        assert isinstance(batch, PostgresBatch)
        last = int(batch.commit_lsns[rows.transactions[-1]])
        return {c for c, added in captured.added.items() if last <= lsn_of(added)}

    def added(self, captured: Captured, batch: Batch) -> Added | None:
        assert isinstance(batch, PostgresBatch)
        own = [r for r in batch.rows if (of := self.is_of(captured, r.table)) and of.oid == captured.oid]
        if not own:
            return None
        newest = max(own, key=lambda r: int(r.places[0]))
        names, transaction = tuple(newest.table.types), newest.transactions[0]
        if not captured.types.keys() >= {*names} - {*captured.left_out}:
            self._wait_for_sight()
        return Added(names, lsn_text(int(batch.commit_lsns[transaction])))

    def _wait_for_sight(self) -> None:
        """Waits until queries see the transactions of the newest batch: their changes come as soon as they are in the
        log, which may be earlier.

        RUNTIME_UNAVAILABLE if that takes long, as it may when a standby has to have them first.
        """
        end = time.monotonic() + _SIGHT_S
        while len(self._unseen) and not snapshot_now(self._connection).sees(self._unseen).all():
            if time.monotonic() > end:
                raise error("RUNTIME_UNAVAILABLE", "a transaction that was committed can't be seen yet")
            time.sleep(_LOOK_S)
        self._unseen = self._unseen[:0]

    def added_now(self, there: TableThere, position: TablePosition | None) -> Added | None:  # noqa: ARG002
        return Added(tuple(there.types), lsn_text(end_of_log(self._connection)))

    def value_before(self, there: TableThere, column: str) -> str | None:
        return value_before(self._connection, there, column)

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
