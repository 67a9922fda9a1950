"""Databases of PostgreSQL are captured: a thread for each reads a replication slot and commits what its transactions
changed, several tables in one commit, together with the place up to which that is.

The server is told to forget changes only behind that commit. So whatever is killed goes on where it was.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import CapturedDatabase, CapturedTable
from watersmeet.database.transaction import Change, consolidated
from watersmeet.errors import Error, error
from watersmeet.faults import fault
from watersmeet.postgresclient import connect
from watersmeet.serialization import from_json, to_json
from watersmeet.session.access.context import Session
from watersmeet.session.access.reading import Bounded, fetch, rows_with_keys
from watersmeet.session.access.rows import as_kept, check_rows, with_generated
from watersmeet.session.access.writing import replacement
from watersmeet.session.services.addedcolumns import add_columns, names_added, newest_version
from watersmeet.sources.capture.changes import KeyedChanges, concatenated, last_rows
from watersmeet.sources.capture.chunks import read_chunk, wanted
from watersmeet.sources.capture.options import DatabaseOptions, database_options
from watersmeet.sources.capture.pgoutput import Batch, Rows, Values
from watersmeet.sources.capture.positions import SlotPosition, TablePosition
from watersmeet.sources.capture.servers import (
    check_identity,
    check_server,
    check_slot,
    end_of_log,
    lag,
    table_there,
    writers,
)
from watersmeet.sources.capture.slots import SlotReader, lsn_text
from watersmeet.sources.databasetables import typed
from watersmeet.sources.postgrescolumns import Column, described, without_forms
from watersmeet.store.merging import quoted
from watersmeet.types import Schema, arrow_schema

#: So long a thread waits for changes before it looks whether anything else is to be done.
_LOOK_S: Final = 0.05
#: After a failure the server is tried again after this time, twice that after the next failure, and so on up to …
_FIRST_RETRY_S: Final = 0.1
#: … this.
_LAST_RETRY_S: Final = 5.0
#: How long closing the database waits for a thread to let go of its slot.
_CLOSE_S: Final = 10.0
#: While no change comes for the tables, the place is committed again after so many bytes of the server's log.
_IDLE_BYTES: Final = 16 << 20
#: So many transactions are remembered, of which a snapshot that comes later may not know yet that they were committed.
_REMEMBERED: Final = 100_000
_NUMERIC_OID: Final = 1700
#: The code of PostgreSQL's for a slot that another connection reads.
_IN_USE: Final = "55006"


class _LostSlotError(Exception):
    """The slot does not have what is needed."""


@dataclass
class _Change:
    """What a commit changes: the changes of tables by their ids, and where they are then."""

    changes: dict[str, Change]
    position: SlotPosition


class Captures:
    """The captured databases of an open database. Safe for several threads."""

    def __init__(self, session: Session) -> None:
        """session: one of its own, without transactions."""
        self._session = session
        self._lock = threading.Lock()
        self._threads: dict[str, _Capturing] = {}

    def start(self) -> None:
        """Captures what the catalog says, until the database is closed."""
        self._session.database.captures = self
        self._session.database.at_close(self._close)
        self.follow()

    def follow(self) -> None:
        """The captured databases and tables of the catalog are others now."""
        known = self._session.database.catalog.relations
        wanted_ids = {
            i
            for i, r in known.items()
            if isinstance(r, CapturedDatabase) and not r.staged and not (r.of_table and known[r.of_table].staged)
        }
        with self._lock:
            gone = [self._threads.pop(i) for i in self._threads.keys() - wanted_ids]
            for capturing in gone:
                capturing.stop()
            for database_id in wanted_ids - self._threads.keys():
                self._threads[database_id] = _Capturing(self._session, database_id)
                self._threads[database_id].start()
        for capturing in gone:
            capturing.join(_CLOSE_S)

    def flush(self) -> list[str]:
        """Waits until the tables have what was committed there before. A notice for each database that is not waited
        for.
        """
        with self._lock:
            threads = [*self._threads.values()]
        return [notice for t in threads for notice in t.flush()]

    def status(self, database_id: str) -> dict[str, Any] | None:
        """For SHOW SOURCES; None for one that is not captured."""
        with self._lock:
            capturing = self._threads.get(database_id)
        return None if capturing is None else capturing.status()

    def _close(self) -> None:
        with self._lock:
            found, self._threads = [*self._threads.values()], {}
        for capturing in found:
            capturing.stop()
        for capturing in found:
            capturing.join(_CLOSE_S)


class _Capturing(threading.Thread):
    """Captures one database until it is stopped."""

    def __init__(self, session: Session, database_id: str) -> None:
        super().__init__(name="watersmeet-capture", daemon=True)
        self._session = session
        self._database = session.database
        self._id = database_id
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._flushing = 0
        self._began_s = time.monotonic()
        self._pause_s = _FIRST_RETRY_S
        self._recent: deque[int] = deque(maxlen=_REMEMBERED)
        self._writers: dict[str, frozenset[str]] = {}
        self._columns: dict[str, dict[str, Column]] = {}
        self._reached = 0
        self.state = "starting"
        self.reason: str | None = None
        self._position = self._committed()

    def stop(self) -> None:
        """Ends it soon."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def flush(self) -> list[str]:
        """See `Captures.flush`."""
        name = self._relation().shown
        try:
            with contextlib.closing(connect(self._options().server)) as connection:
                end = end_of_log(connection)
        except Error as problem:
            return [f'source "{name}" was not waited for, as it is waiting: {problem.message}']
        with self._changed:
            self._flushing += 1
            try:
                self._changed.wait_for(lambda: self._stopping.is_set() or self._has(end) or not self._goes_on)
            finally:
                self._flushing -= 1
            if self._goes_on:
                stalled = {i: p.stalled for i, p in self._position.tables.items() if p.stalled}
                tables = {t.id: t.shown for t in self._tables()}
                return [f'table "{tables[i]}" follows no more: {why}' for i, why in stalled.items() if i in tables]
            return [f'source "{name}" was not waited for, as it is {self.state}: {self.reason}']

    def status(self) -> dict[str, Any]:
        """state, reason, tables by name, and what the server says of the slot, as far as it can be asked."""
        tables = {
            t.shown: {
                "state": "stalled" if p and p.stalled else "running" if p and p.done else "snapshot",
                "rows": p.rows if p else 0,
                **({"reason": p.stalled} if p and p.stalled else {}),
            }
            for t in self._tables()
            for p in [self._position.of(t.id)]
        }
        found: dict[str, Any] = {"state": self.state, "reason": self.reason, "tables": tables}
        found["lsn"] = lsn_text(self._position.lsn)
        with contextlib.suppress(Error), contextlib.closing(connect(self._options().server)) as connection:
            sizes = lag(connection, self._options().slot, lsn_text(max(self._position.lsn, self._reached)))
            if sizes is not None:
                found["retained_bytes"], found["lag_bytes"] = sizes
        stalled = next((f'table "{n}": {t["reason"]}' for n, t in tables.items() if t["state"] == "stalled"), None)
        if self.state == "running" and stalled is not None:
            found["state"], found["reason"] = "stalled", stalled
        elif self.state == "running" and any(t["state"] == "snapshot" for t in tables.values()):
            found["state"] = "filling"
        return found

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._capture()
            except _LostSlotError as cause:
                self._wait_after("stalled", str(cause))
            except Error as cause:
                if self._is_in_use(cause):
                    self._stopping.wait(_LOOK_S)
                    continue
                explained = self._database.log.explain(cause)
                problem = explained if isinstance(explained, Error) else cause
                self._wait_after("waiting", problem.message + (f" ({problem.detail})" if problem.detail else ""))
            except Exception as cause:
                if self._stopping.is_set() or self._database.is_closed:
                    return
                self._wait_after("waiting", f"{type(cause).__name__}: {cause}")

    def _is_in_use(self, cause: Error) -> bool:
        """Whether the reader before this one still has the slot: the server notices late that its connection ended."""
        in_use = getattr(cause.__cause__, "sqlstate", None) == _IN_USE
        return in_use and self.state == "starting" and time.monotonic() < self._began_s + _CLOSE_S

    def _wait_after(self, state: str, reason: str) -> None:
        if self._stopping.is_set() or self._database.is_closed:
            return
        self._show(state, reason)
        self._stopping.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LAST_RETRY_S)

    def _show(self, state: str, reason: str | None = None) -> None:
        with self._changed:
            self.state, self.reason = state, reason
            self._changed.notify_all()

    @property
    def _goes_on(self) -> bool:
        return self.state in ("starting", "running")

    def _has(self, lsn: int) -> bool:
        """Whether the tables have everything that was committed before that place."""
        known = [self._position.of(t.id) for t in self._tables()]
        return max(self._position.lsn, self._reached) >= lsn and all(p and (p.done or p.stalled) for p in known)

    def _relation(self) -> CapturedDatabase:
        found = self._database.catalog.relations.get(self._id)
        if not isinstance(found, CapturedDatabase):
            self._stopping.set()
            raise error("UNDEFINED_RELATION", "a captured database was dropped")
        return found

    def _options(self) -> DatabaseOptions:
        return database_options(self._relation().connector)

    def _tables(self) -> list[CapturedTable]:
        known = [*self._database.catalog.relations.values()]
        return [t for t in known if isinstance(t, CapturedTable) and t.captured.database == self._id and not t.staged]

    def _committed(self) -> SlotPosition:
        """How far the newest commit is."""
        log = self._database.log
        found = log.read(log.head()).captured.get(self._id)
        if found is None:
            return SlotPosition(self._relation().start_lsn)
        return from_json(SlotPosition, found)

    # Reading.

    def _capture(self) -> None:
        """Reads the slot until it is stopped, or an error comes."""
        self._database.log.check()
        options = self._options()
        self._position = self._committed()
        self._reached = self._position.lsn
        self._writers.clear()
        self._columns.clear()
        with contextlib.closing(connect(options.server)) as connection:
            check_server(connection, options)
            if lost := check_slot(connection, options, self._position.lsn):
                raise _LostSlotError(lost)
            reader = SlotReader(options.server, options.slot, [options.publication], self._position.lsn)
            with contextlib.closing(reader):
                self._show("running")
                while not self._stopping.is_set():
                    self._step(connection, reader)
                    self._pause_s = _FIRST_RETRY_S

    def _step(self, connection: Any, reader: SlotReader) -> None:
        """Takes what has come; then reads the next rows of a table that is not complete."""
        batch = reader.read(0 if self._to_be_read() is not None else _LOOK_S)
        if batch is not None:
            self._take(connection, batch)
            reader.confirm(self._position.lsn)
        elif reader.reached - self._position.lsn >= _IDLE_BYTES:
            self._commit(_Change({}, self._moved(reader.reached)))
            reader.confirm(self._position.lsn)
        elif self._flushing:
            reader.ask()
        filling = self._to_be_read()
        if filling is not None:
            self._fill(connection, filling)
        with self._changed:
            self._reached = max(self._reached, reader.reached)
            self._changed.notify_all()

    def _to_be_read(self) -> CapturedTable | None:
        """A table that is not complete."""
        found = ((t, self._position.of(t.id)) for t in self._tables())
        return next((t for t, p in found if p is None or not (p.done or p.stalled)), None)

    def _moved(self, lsn: int) -> SlotPosition:
        """The position when everything before that place is in the tables."""
        known = {t.id for t in self._tables()}
        return SlotPosition(lsn, {i: p.behind(lsn) for i, p in self._position.tables.items() if i in known})

    def _put(self, change: _Change, table: CapturedTable, position: TablePosition) -> None:
        change.position = replace(change.position, tables={**change.position.tables, table.id: position})

    def _commit(self, change: _Change) -> None:
        """Commits changes with their position; the caller holds the guard if there are any."""
        fault("capture.commit")
        with self._database.guard:
            known = self._database.catalog.relations
            changes = {i: consolidated(c) if c.diff is not None else c for i, c in change.changes.items() if i in known}
            changes = {i: c for i, c in changes.items() if c.table.num_rows}
            if self._id not in known or self._stopping.is_set():
                return
            self._database.commit(changes, captured={self._id: to_json(change.position)})
            self._position = change.position
        fault("capture.committed")

    # Rows that are there already.

    def _fill(self, connection: Any, table: CapturedTable) -> None:
        """Reads the next rows of a table, or finds that it has none that are wanted."""
        captured = table.captured
        position = self._position.of(table.id) or TablePosition(done=not captured.has_snapshot)
        change = _Change({}, self._position)
        if position.done:
            self._put(change, table, position)
            self._commit(change)
            return
        if self._waits_for_writers(connection, table):
            self._stopping.wait(_LOOK_S)
            return
        fault("capture.chunk")
        try:
            there = table_there(connection, self._options(), captured.schema, captured.table)
            self._check(table, there.oid, there.types)
            added = names_added(table, there.types) if self._options().adds_columns else ()
            if added:
                add_columns(replace(self._session), connection, table, there, added, end_of_log(connection))
                self._columns.pop(table.id, None)
                return
            names = [c.name for c in _read(table)]
            texts, chunk = read_chunk(
                connection,
                (captured.schema, captured.table),
                [*names, *(k for k in table.primary_key if k not in names)],
                table.primary_key,
                position.upto,
                captured.batch_rows,
            )
            own = {c.name: c for c in there.columns}
            rows = self._values(table, [own[n] for n in names], texts[: len(names)], None)
        except Error as cause:
            if cause.condition == "RUNTIME_UNAVAILABLE":
                raise
            self._put(change, table, replace(position, stalled=_why(cause)))
            self._commit(change)
            return
        running = set(self._recent)
        if running & {x % (1 << 32) for x in chunk.snapshot.running}:
            return  # of a transaction whose changes came already, the snapshot did not know that it is committed
        self._put(
            change,
            table,
            replace(
                position,
                done=not chunk.upto,
                upto=chunk.upto or position.upto,
                rows=position.rows + rows.num_rows,
                chunks=(*position.chunks, chunk),
            ),
        )
        change.changes[table.id] = Change(rows)
        self._commit(change)

    def _waits_for_writers(self, connection: Any, table: CapturedTable) -> bool:
        """Whether a transaction still runs that wrote the table when this thread first wanted to read it. Before the
        table was published, its changes were not sent; before this thread began, they may have been taken already,
        while snapshots don't see them yet.
        """
        before = self._writers.get(table.id)
        if before == frozenset():
            return False
        now = writers(connection, table.captured.oid)
        self._writers[table.id] = now if before is None else before & now
        return bool(self._writers[table.id])

    # Changes.

    def _take(self, connection: Any, batch: Batch) -> None:
        """Commits what whole transactions changed."""
        change = _Change({}, self._position)
        lsn = int(batch.end_lsns[-1])
        if self._options().adds_columns:
            self._add_columns(connection, batch, change)
        with self._database.guard:
            for table in self._tables():
                position = change.position.of(table.id)
                if position is None or position.stalled:
                    continue
                try:
                    self._change(connection, table, position, batch, change)
                except Error as cause:
                    if cause.condition == "RUNTIME_UNAVAILABLE":
                        raise
                    self._put(change, table, replace(position, stalled=_why(cause)))
            tables = {i: p.behind(lsn) for i, p in change.position.tables.items()}
            change.position = SlotPosition(max(lsn, self._position.lsn), tables)
            self._commit(change)
        self._recent.extend(batch.xids.tolist())

    def _add_columns(self, connection: Any, batch: Batch, change: _Change) -> None:
        """Adds what was added there to the tables; a table that can't have it follows no more."""
        for table in self._tables():
            found, position = newest_version(table, batch), change.position.of(table.id)
            if found is None or position is None or position.stalled:
                continue
            columns, lsn = found
            names = names_added(table, columns)
            if not names:
                continue
            try:
                captured = table.captured
                there = table_there(connection, self._options(), captured.schema, captured.table)
                add_columns(replace(self._session), connection, table, there, names, lsn)
            except Error as cause:
                if cause.condition == "RUNTIME_UNAVAILABLE":
                    raise
                self._put(change, table, replace(position, stalled=_why(cause)))
            self._columns.pop(table.id, None)

    def _change(
        self, connection: Any, table: CapturedTable, position: TablePosition, batch: Batch, change: _Change
    ) -> None:
        """Adds what the transactions changed of one table."""
        captured = table.captured
        own = [r for r in batch.rows if (r.table.schema, r.table.name) == (captured.schema, captured.table)]
        emptied = max((t.place for t in batch.truncations if captured.oid in t.tables), default=-1)
        if not own and emptied < 0:
            return
        for rows in own:
            check_identity(f"{captured.schema}.{captured.table}", rows.table.identity)
            last = int(batch.commit_lsns[rows.transactions[-1]])
            later = {c for c, added in captured.added.items() if last <= added}
            self._check(table, rows.table.oid, {c.name: (c.type_oid, c.modifier) for c in rows.table.columns}, later)
        if emptied >= 0 and not position.takes_all:
            # From here on everything is read again.
            change.changes[table.id] = replacement(self._content(table), self._content(table).slice(0, 0))
            self._put(change, table, TablePosition())
            return
        changes = self._keyed(connection, table, position, batch, own, emptied)
        keys = changes.keys()
        if emptied < 0 and not keys.num_rows:
            return
        there = self._content(table) if emptied >= 0 else rows_with_keys(self._session, table, keys)
        rows, complete = last_rows(changes, there.slice(0, 0) if emptied >= 0 else there)
        if not complete:
            raise error(
                "INVALID_VALUE",
                f'a change of table "{captured.schema}.{captured.table}" leaves values as they were, of a row that is '
                "not here",
            )
        rows = with_generated(table, rows, None)
        rows = as_kept(table, rows)
        check_rows(table, rows, None)
        change.changes[table.id] = replacement(there, rows)

    def _content(self, table: CapturedTable) -> pa.Table:
        listed = ", ".join(quoted(c.name) for c in table.columns)
        query = Bounded(
            f"SELECT {listed} FROM {quoted(table.shown)}",
            table.columns,
            (table.id,),
            self._session.catalog,
            exact=table.columns,
        )
        return fetch(self._session, query, newest=True)

    def _keyed(
        self,
        connection: Any,
        table: CapturedTable,
        position: TablePosition,
        batch: Batch,
        own: Sequence[Rows],
        emptied: int,
    ) -> KeyedChanges:
        """The changes behind `emptied` that are to be made, in the types of the table."""
        read = _read(table)
        keys = [c for c in read if c.name in table.primary_key]
        gone, gone_at, written, written_at = [], [], [], []
        kept: dict[str, list[npt.NDArray[np.bool_]]] = {c.name: [] for c in read}
        kinds = self._described(connection, table)
        for rows in own:
            places = {c.name: i for i, c in enumerate(rows.table.columns)}
            for is_new, mask, values in ((False, rows.gone, rows.old), (True, rows.written, rows.new)):
                at = rows.places[mask]
                wants = at > emptied
                if not position.takes_all and len(at):
                    texts = [values[places[k]].texts for k in table.primary_key]
                    of = rows.transactions[mask]
                    wants &= wanted(
                        connection,
                        table.captured.oid,
                        table.primary_key,
                        position,
                        texts,
                        batch.xids[of],
                        batch.commit_lsns[of],
                    )
                chosen = pa.array(wants)
                columns = read if is_new else keys
                taken = [
                    values[places[c.name]] if c.name in places else _older(table, c.name, len(at)) for c in columns
                ]
                texts = [v.texts.filter(chosen) for v in taken]
                if is_new:
                    times = pa.array(batch.times_us[rows.transactions[mask][wants]], pa.int64())
                    written.append(self._values(table, [kinds[c.name] for c in columns], texts, times))
                    written_at.append(2 * at[wants] + 1)
                    for column, found in zip(columns, taken, strict=True):
                        kept[column.name].append(found.kept[wants])
                else:
                    what = f'table "{table.captured.schema}.{table.captured.table}"'
                    forms = without_forms(texts, [kinds[c.name] for c in keys], [c.type for c in keys])
                    gone.append(typed(forms, tuple(keys), what).select(list(table.primary_key)))
                    gone_at.append(2 * at[wants])
        schema = arrow_schema(table.columns, positional=False)
        key_schema = pa.schema([schema.field(k) for k in table.primary_key])
        return KeyedChanges(
            table.primary_key,
            pa.concat_tables([key_schema.empty_table(), *(g.cast(key_schema) for g in gone)]),
            np.concatenate([np.zeros(0, np.int64), *gone_at]),
            pa.concat_tables([schema.empty_table(), *written]),
            np.concatenate([np.zeros(0, np.int64), *written_at]),
            {n: concatenated(m) for n, m in kept.items()},
        )

    def _values(
        self, table: CapturedTable, theirs: Sequence[Column], texts: Sequence[pa.Array], times_us: pa.Array | None
    ) -> pa.Table:
        """Rows of the table by the texts of the columns that are read. times_us: of their transactions."""
        read, captured = _read(table), table.captured
        what = f'table "{captured.schema}.{captured.table}"'
        found = typed(without_forms([*texts], theirs, [c.type for c in read]), read, what)
        schema = arrow_schema(table.columns, positional=False)
        count = len(texts[0])
        constants = {
            "database_name": self._options().server.database,
            "schema_name": captured.schema,
            "table_name": captured.table,
        }
        columns = []
        for field in schema:
            part = table.message_parts.get(field.name)
            if field.name in found.column_names:
                column = found.column(field.name).cast(field.type)
            elif part == "timestamp" and times_us is not None:
                column = times_us.cast(pa.timestamp("us")).cast(field.type) if count else pa.nulls(0, field.type)
            elif part in constants:
                column = pa.repeat(pa.scalar(constants[part], field.type), count)
            else:
                column = pa.nulls(count, field.type)
            columns.append(column)
        rows = pa.Table.from_arrays(columns, schema=schema)
        if times_us is None:
            rows = as_kept(table, with_generated(table, rows, None))
            check_rows(table, rows, None)
        return rows

    def _described(self, connection: Any, table: CapturedTable) -> dict[str, Column]:
        """The columns of the table there, by name."""
        if table.id not in self._columns:
            self._columns[table.id] = {c.name: c for c in described(connection, table.captured.oid)}
        return self._columns[table.id]

    def _check(
        self, table: CapturedTable, oid: int, now: dict[str, tuple[int, int]], later: Collection[str] = ()
    ) -> None:
        """Raises the error that stops the table if the table there is another one now. later: columns that it need not
        have yet.
        """
        captured = table.captured
        shown = f"{captured.schema}.{captured.table}"
        again = f'Run DROP TABLE and CREATE TABLE again for "{table.shown}".'
        if oid != captured.oid:
            raise error("CATALOG_TYPE_MISMATCH", f'table "{shown}" was dropped and created again', hint=again)
        for column in _read(table):
            if column.name in later and column.name not in now:
                continue
            if column.name not in now:
                raise error("UNDEFINED_COLUMN", f'column "{column.name}" of table "{shown}" is gone', hint=again)
            before, found = captured.types[column.name], now[column.name]
            if before[0] != found[0] or (before[0] == _NUMERIC_OID and before != found):
                raise error(
                    "DATATYPE_MISMATCH", f'column "{column.name}" of table "{shown}" has another type now', hint=again
                )


def _why(cause: Error) -> str:
    """Why a table follows no more, and what goes on."""
    return f"{cause.message}. {cause.hint}" if cause.hint else cause.message


def _older(table: CapturedTable, column: str, count: int) -> Values:
    """The values of a column in rows that are older than it."""
    text = pa.scalar(table.fills.get(column), pa.string())
    return Values(pa.repeat(text, count), np.zeros(count, np.bool_))


def _read(table: CapturedTable) -> Schema:
    """The columns that are columns there, too."""
    return tuple(c for c in table.columns if c.name not in table.message_parts and c.name not in table.generated)
