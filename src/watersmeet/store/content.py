"""The content of relations at one moment, in an in-memory DuckDB that follows the commit log.

Each relation is loaded when a query first reads it; then only changes are applied.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.catalog import Catalog, Relation, Table
from watersmeet.errors import Error, error
from watersmeet.store.changes import Diff, fitted, quoted
from watersmeet.store.checkpoints import (
    Checkpoint,
    Moment,
    PastContent,
    Undoing,
    checkpoint_upto,
    moment_at,
    newest_checkpoint,
)
from watersmeet.store.commits import CommitLog, RelationChange
from watersmeet.store.inplace import ContentHash, Needed, PinnedFiles, StoredRows, pin_changes
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Commit
from watersmeet.store.readers import ATTEMPTS, Reader, deleted_early, low_water_number
from watersmeet.store.segmentfiles import KEPT_COMMITS, SegmentFiles
from watersmeet.store.tables import MOMENT, NEWEST, ContentTable, Overlay, Settings, connect, copied_bytes, give_back
from watersmeet.system import duckdbs
from watersmeet.system.blobs import BlobRef
from watersmeet.system.duckdbs import arrival_view
from watersmeet.system.process import make_folder, remove_folder
from watersmeet.values.serialization import prepare
from watersmeet.values.types import arrow_schema

#: A loaded relation that no query reads is updated when it is this many commits old.
_LAG_COMMITS: Final = 64

#: Relations with more stored rows are only loaded …
_LOADED_ROWS: Final = 1 << 18

#: … when this many queries have read them, …
_COPIED_READS: Final = 4

#: … and if all of them together take at most this much memory, which is half of DuckDB's.
_COPIED_BYTES: Final = 1 << 30

#: The name under which DuckDB reads the rows of a relation that is not loaded.
_STREAM: Final = "_watersmeet_stream"

_PIECE_ROWS: Final = 1 << 16
#: DuckDB keeps a small record of each freed block, 3 KB for each join and up to 35 MB in total, until it searches for
#: blocks to spill. `Content` triggers that search after this many refreshes, …
_TIDY_REFRESHES: Final = 2048
#: … if all loaded relations together have at most this many bytes, because all of them may be spilled.
_TIDY_BYTES: Final = 16 << 20


class Content:
    """The relations of a database at one moment, as DuckDB views with their names.

    Safe for several threads. n equal rows are n rows. external_access: whether queries may read files and the network.
    After `refresh`, the named relations show the same moment (views the newest epoch, tables as that epoch reflects
    them); `newest` queries see tables as of the newest transaction, with the overlay on top.
    """

    def __init__(
        self,
        layout: Layout,
        log: CommitLog,
        segments: SegmentFiles,
        *,
        external_access: bool = True,
        threads: int = 2,
        memory_limit: str = "2GB",
    ) -> None:
        prepare(read=(Checkpoint, Commit))
        self._layout = layout
        self._log = log
        self._segments = segments
        self._lock = threading.RLock()
        self._reader = Reader(layout)
        self._directory = make_folder("content")
        self._settings = Settings(threads, memory_limit, external_access)
        self._connection = connect(str(self._directory), self._settings)
        self._refreshes = 0
        self._path = ""
        self._idle = [duckdbs.another(self._connection)]
        self._reading = 0
        self._moving = threading.Lock()
        self._movable: list[duckdb.DuckDBPyConnection] = []
        self._overlaid = 0
        #: The queries that have read a large relation from its files, by its id.
        self._reads: dict[str, int] = {}
        self._closed = False
        self._tables: dict[str, ContentTable] = {}
        self._overlays: dict[str, Overlay] = {}
        #: Overlays by relation id and identity of the transaction.
        self._own: dict[tuple[str, int], list[tuple[pa.Table, Diff]]] = {}
        self._moment = Moment(0, 0)
        #: The relation that a view of DuckDB shows, by schema and name in lower case. A name may later belong to
        #: another relation.
        self._shown: dict[tuple[str, str], str] = {}

    @property
    def moment(self) -> Moment:
        """The moment of the last refresh."""
        return self._moment

    def refresh(
        self,
        catalog: Catalog,
        relation_ids: Iterable[str],
        *,
        to_commit: int | None = None,
        newest: bool = False,
        owner: object = None,
    ) -> Moment:
        """Updates the relations `relation_ids` to the newest moment (or to that of commit `to_commit`).

        newest: also prepares them for `query(…, newest=True)`, with the uncommitted changes of `owner`. After an error
        the content is unchanged. Raises DATABASE_DAMAGED; SNAPSHOT_TOO_OLD if files are repeatedly deleted while they
        are read.
        """
        with self._lock:
            relations = [_stored(catalog, i) for i in sorted(set(relation_ids))]
            try:
                try:
                    self._moment = self._refresh_in_time(catalog, relations, to_commit)
                except duckdb.OutOfMemoryException:
                    self.move_others()
                    self._moment = self._refresh_in_time(catalog, relations, to_commit)
                if newest:
                    # A separate transaction, because rows only get their final row ids at COMMIT.
                    with self._transaction():
                        self._cover(relations, owner)
            finally:
                self._keep_idle_lease()
            self._tidy()
            return self._moment

    def query(self, sql: str, parameters: Sequence[Any] | dict[str, Any] = (), *, newest: bool = False) -> pa.Table:
        """The result of a SELECT in DuckDB's dialect over refreshed relations. Raises duckdb.Error."""
        with self._lock:
            self._search(newest=newest)
            return self._connection.execute(sql, parameters or None).to_arrow_table()

    def look_up(self, catalog: Catalog, relation_id: str, column: str, sql: str, most_rows: int) -> pa.Table:
        """The rows of a SELECT that looks up a column of a loaded relation, or more than `most_rows` of them."""
        with self._lock:
            if not self._shows(catalog, [relation_id]):
                self.refresh(catalog, [relation_id])
            self._tables[relation_id].look_up(column)
            self._search(newest=False)
            return duckdbs.first_rows(self._connection.execute(sql), most_rows)

    @contextlib.contextmanager
    def session(self, *, newest: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        """The DuckDB connection, which within the context only this thread uses. It must not change relations."""
        with self._lock:
            self._search(newest=newest)
            yield self._connection

    @contextlib.contextmanager
    def reader(
        self,
        catalog: Catalog,
        relation_ids: Sequence[str],
        *,
        newest: bool = False,
        owner: object = None,
        lookups: Sequence[tuple[str, str]] = (),
        past: Sequence[PastContent] = (),
        reads: Callable[[], Mapping[str, Needed]] = dict,
    ) -> Iterator[tuple[duckdb.DuckDBPyConnection, Moment]]:
        """A connection that shows relations as `refresh` does, and the moment that they show. Large relations are not
        loaded for it: their rows are read from files while a query runs.

        Within the context, its relations stay unchanged while other threads refresh and read. Only one thread may use
        the connection at a time, and it must not change relations.

        lookups: columns, as (relation id, name), by whose values the query looks up rows. past: earlier content to
        show, of relations among `relation_ids`; later commits are pinned. reads: returns what the query needs of
        relations, by id; it needs all columns of others.
        """
        with contextlib.ExitStack() as held:
            files, large = self._large([_stored(catalog, i) for i in relation_ids], held)
            needed = reads() if large else {}
            loaded = [i for i in relation_ids if i not in large]
            overlaid = [one for one in past if one.relation_id not in large]
            undoing = Undoing(self._changes, moment_at(self._log, catalog), catalog, overlaid) if overlaid else None
            with self._lock:
                if loaded and (newest or not self._shows(catalog, loaded)):
                    moment = self.refresh(catalog, loaded, newest=newest, owner=owner)
                else:
                    moment = moment_at(self._log, catalog) if large and not loaded else self._moment
                covered = [self._overlays[i].upto for i in loaded if newest and i in self._overlays]
                head = covered[0] if covered else self._log.head() if large else 0
                own = {i: list(self._own.get((i, id(owner)), ())) for i in large if newest}
                for relation_id, column in lookups:
                    if relation_id in self._tables:
                        self._tables[relation_id].look_up(column)
                made = self._undo(undoing) if undoing is not None else {}
                connection = self._idle.pop() if self._idle else duckdbs.another(self._connection)
                self._reading += 1
                path = f"{NEWEST},main" if newest else "main"
                # From this SELECT on, the connection shows this moment.
                connection.execute(f"SET search_path = '{path}'; BEGIN; SELECT 1 FROM {MOMENT}")
                for name, overlay in made.items():
                    connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS {overlay.select}")
            broken = True
            streams: dict[str, StoredRows] = {}
            try:
                for relation in (catalog.relations[i] for i in sorted(large)):
                    assert files is not None
                    upto = head if newest and isinstance(relation, Table) else moment.upto(relation)
                    wanted = needed.get(relation.id, Needed(arrival=relation.append_only))
                    streams[relation.shown] = files.rows(relation, upto, wanted, own.get(relation.id, ()))
                    for one in past:
                        if one.relation_id == relation.id:
                            streams[one.name] = files.rows(relation, one.upto, Needed())
                for number, (name, rows) in enumerate(streams.items()):
                    rows.show(connection, name, f"{_STREAM}_{number}")
                yield connection, moment
                broken = False
            except duckdb.Error as cause:
                failed = next((rows.failure for rows in streams.values() if rows.failure is not None), None)
                if failed is None or files is None:
                    raise
                raise files.explain(failed) from cause
            finally:
                with self._lock:
                    self._reading -= 1
                    with contextlib.suppress(duckdb.Error):
                        connection.execute("ROLLBACK")
                        broken = False
                    for overlay in made.values() if not self._closed else ():
                        overlay.drop()
                    for number in range(len(streams)):
                        with contextlib.suppress(duckdb.Error):
                            connection.unregister(f"{_STREAM}_{number}")
                    if broken or self._closed:
                        connection.close()
                    else:
                        self._idle.append(connection)

    def _large(self, relations: Sequence[Relation], held: contextlib.ExitStack) -> tuple[PinnedFiles | None, set[str]]:
        """The relations whose rows are read from files, and these files, which stay until `held` ends.

        Small relations are loaded, and larger ones that are read repeatedly, as long as all of these together have at
        most `_COPIED_BYTES`.
        """
        with self._lock:
            for relation in relations:
                table = self._tables.get(relation.id)
                if table is not None and copied_bytes(relation, table.rows) > _COPIED_BYTES:
                    self._unload(relation.id)
            unloaded = [r for r in relations if r.id not in self._tables]
        if not unloaded:
            return None, set()
        files = held.enter_context(
            contextlib.closing(PinnedFiles(self._layout, self._log, self._segments, self._changes))
        )
        sizes = files.stored_rows(unloaded)
        large = {r.id for r in unloaded if sizes[r.id] > _LOADED_ROWS}
        with self._lock:
            for relation in unloaded:
                if relation.id in large and self._takes_copy(relation, sizes[relation.id], {r.id for r in relations}):
                    large.remove(relation.id)
        return files, large

    def _takes_copy(self, relation: Relation, rows: int, wanted: set[str]) -> bool:
        """Whether a large relation is read often enough to be loaded. If so, makes room for it, by unloading other
        large relations that the query does not read.
        """
        reads = self._reads[relation.id] = self._reads.get(relation.id, 0) + 1
        needed = copied_bytes(relation, rows)
        if reads < _COPIED_READS or needed > _COPIED_BYTES:
            return False
        others = [t for t in self._tables.values() if t.rows > _LOADED_ROWS]
        used = sum(copied_bytes(t.relation, t.rows) for t in others)
        for table in others:
            if used + needed > _COPIED_BYTES and table.relation.id not in wanted:
                used -= copied_bytes(table.relation, table.rows)
                self._reads[table.relation.id] = 0
                self._unload(table.relation.id)
        return used + needed <= _COPIED_BYTES

    @contextlib.contextmanager
    def movable(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """A context in which `move_others` of another thread may interrupt the connection's query."""
        with self._moving:
            self._movable.append(connection)
        try:
            yield
        finally:
            with self._moving:
                self._movable.remove(connection)

    def move_others(self) -> None:
        """Interrupts all queries that may move to a separate process, because memory is short."""
        with self._moving:
            for connection in self._movable:
                connection.interrupt()

    def overlay(self, relation_id: str, table: pa.Table, diff: Diff, owner: object = None) -> None:
        """Adds a change of the open transaction `owner` (columns in the relation's order), for its `newest` queries.

        It is visible after the next `refresh(…, newest=True)` with this owner.
        """
        with self._lock:
            self._own.setdefault((relation_id, id(owner)), []).append((table, diff))

    def clear_overlay(self, relation_ids: Iterable[str], owner: object = None) -> None:
        """Drops the changes of the transaction `owner`, which was rolled back or is now in the log."""
        with self._lock:
            for relation_id in relation_ids:
                overlay = self._overlays.get(relation_id)
                if self._own.pop((relation_id, id(owner)), None) and overlay is not None and overlay.owner == id(owner):
                    self._drop_overlay(relation_id)

    def drop(self, relation_id: str) -> None:
        """Unloads a relation that was dropped, or is not worth its memory."""
        with self._lock:
            for key in [k for k in self._own if k[0] == relation_id]:
                del self._own[key]
            self._unload(relation_id)

    def finds(self, relation_id: str, column: str) -> bool:
        """Whether a look-up by a column of a relation is quick: it is loaded, and small or has an index."""
        table = self._tables.get(relation_id)
        return table is not None and table.finds(column)

    def pinned(self, checkpoint: int) -> contextlib.closing[PinnedFiles]:
        """The files of a checkpoint, see `PinnedFiles`."""
        return contextlib.closing(PinnedFiles(self._layout, self._log, self._segments, self._changes, checkpoint))

    def rows_at(self, relation: Relation, upto: int) -> pa.Table:
        """The rows of a small relation at commit `upto`; the caller pins the later commits."""
        with contextlib.closing(PinnedFiles(self._layout, self._log, self._segments, self._changes)) as files:
            return pa.table(files.rows(relation, upto, Needed()))

    def content_hash(self, relation: Relation, upto: int) -> ContentHash:
        """The hash of the content of a relation at commit `upto`; the caller pins the later commits."""
        with contextlib.closing(PinnedFiles(self._layout, self._log, self._segments, self._changes)) as files:
            return files.rows(relation, upto, Needed()).content_hash()

    def rows(self, relation_id: str) -> int | None:
        """The number of rows of a loaded relation at the last refresh; None if it is not loaded."""
        table = self._tables.get(relation_id)
        return None if table is None else table.rows

    def close(self) -> None:
        """Releases everything. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for connection in self._idle:
                connection.close()
            if self._reading:
                self._connection.close()
            else:
                give_back(self._connection, self._settings)
            self._reader.close()
            self._tables.clear()
            remove_folder(self._directory)

    def _search(self, *, newest: bool) -> None:
        """Chooses what names mean in the content's own connection."""
        path = f"{NEWEST},main" if newest else "main"
        if path != self._path:
            self._connection.execute(f"SET search_path = '{path}'")
            self._path = path

    def _shows(self, catalog: Catalog, relation_ids: Sequence[str]) -> bool:
        """Whether the shown relations are current, so that a refresh would change nothing."""
        if self._log.head() != self._moment.head or moment_at(self._log, catalog) != self._moment:
            return False
        for relation_id in relation_ids:
            table = self._tables.get(relation_id)
            if table is None or table.relation is not catalog.relations.get(relation_id):
                return False
            if table.applied < self._moment.upto(table.relation):
                return False
            if self._shown.get(_place("main", table.relation)) != relation_id:
                return False
        return True

    def _refresh_in_time(self, catalog: Catalog, relations: list[Relation], to_commit: int | None) -> Moment:
        for _ in range(ATTEMPTS):
            try:
                with self._transaction():
                    return self._refresh(catalog, relations, to_commit)
            except Error as cause:
                # In an object store, a writer only waits a limited time for a reader of another process.
                refused = self._log.explain(cause)
                if refused is not cause:
                    raise refused from cause
                if self._layout.directory is not None or low_water_number(self._layout) <= self._reader.lease.commit:
                    raise
                late = cause
                self._log.head(anew=True)
        raise deleted_early() from late

    def _refresh(self, catalog: Catalog, relations: list[Relation], to_commit: int | None) -> Moment:
        """Loads and updates relations, with a lease on everything that it reads."""
        if to_commit is not None and to_commit < self._moment.head:
            for relation_id in list(self._tables):
                self._unload(relation_id)
        known = [t for i, t in self._tables.items() if i in catalog.relations]
        start = min((t.applied for t in known), default=None)
        if start is not None and not pin_changes(self._log, self._reader, start):
            # Needed commits were deleted while this content was idle: start again from the checkpoint.
            for table in known:
                self._unload(table.relation.id)
        for relation in relations:
            loaded = self._tables.get(relation.id)
            if loaded is not None and _is_other(loaded.relation, relation):
                self._unload(relation.id)
        missing = [r for r in relations if r.id not in self._tables]
        if missing:
            checkpoint = self._pin_checkpoint(to_commit)
            for relation in missing:
                self._load(relation, checkpoint)
        for relation in relations:
            self._name(relation)
        moment = moment_at(self._log, catalog, to_commit)
        wanted = {r.id for r in relations}
        behind = {}
        for relation_id, table in self._tables.items():
            relation = catalog.relations.get(relation_id, table.relation)
            upto = max(moment.upto(relation), table.applied)
            if relation_id in wanted or upto - table.applied > _LAG_COMMITS:
                behind[relation_id] = (table.applied, upto)
        changes = self._changes(behind)
        for relation_id, (_, upto) in behind.items():
            self._advance(self._tables[relation_id], changes.get(relation_id, []), upto)
        self._segments.age(moment.head, KEPT_COMMITS)
        return moment

    def _pin_checkpoint(self, to_commit: int | None) -> Checkpoint:
        """A checkpoint that stays, with all commits above it, until the reader is idle."""
        starts = [t.applied for t in self._tables.values()]
        while True:
            if to_commit is None:
                checkpoint = newest_checkpoint(self._layout, self._log)
            else:
                checkpoint = checkpoint_upto(self._layout, self._log, to_commit)
            if pin_changes(self._log, self._reader, min([checkpoint.moment.transaction, *starts])):
                return checkpoint
            if self._log.writer:
                self._log.check()  # An overtaken writer never sees a newer checkpoint.
            self._log.head(anew=True)
            if to_commit is not None:
                raise error("INVALID_PARAMETER", f"commit {to_commit} is too old: its content was compacted")

    def _load(self, relation: Relation, checkpoint: Checkpoint) -> None:
        snapshot = checkpoint.relations.get(relation.id)
        if snapshot is None and int(relation.id.lstrip("abcdefghijklmnopqrstuvwxyz")) < checkpoint.next_number:
            raise error("UNDEFINED_RELATION", f'relation "{relation.shown}" was dropped meanwhile')
        table = ContentTable(self._connection, relation)
        self._tables[relation.id] = table
        table.applied = checkpoint.moment.transaction
        if snapshot is None:
            return
        self._segments.prefetch({blob.file for blob in snapshot.blobs})
        for level in snapshot.levels:
            self._add(table, self._parts(table, level.blobs), insert_only=level.insert_only)
        table.applied = snapshot.upto

    def _name(self, relation: Relation) -> None:
        """Makes the relation's name show this relation, and no earlier one."""
        table = self._tables[relation.id]
        if self._shown.get(_place("main", relation)) != relation.id:
            self._hide(table.relation, "main")
            self._show(relation, "main", f"SELECT {table.select} FROM {table.table}", table.arrival)
        other = self._shown.get(_place(NEWEST, relation))
        if other is not None and other != relation.id:
            self._drop_overlay(other)
        if table.relation.shown != relation.shown:
            self._drop_overlay(relation.id)
        table.relation = relation

    def _changes(self, bounds: dict[str, tuple[int, int]], *, fetch: bool = True) -> dict[str, list[RelationChange]]:
        """The changes by relation id, in the commits within each relation's bounds (after, up to). fetch: whether all
        their files will be read.
        """
        found: dict[str, list[RelationChange]] = {}
        bounds = {i: b for i, b in bounds.items() if b[0] < b[1]}
        if not bounds:
            return found
        numbers = range(min(a for a, _ in bounds.values()) + 1, max(u for _, u in bounds.values()) + 1)
        self._log.prefetch(numbers)
        for number in numbers:
            for relation_id, change in self._log.read(number).relations.items():
                after, upto = bounds.get(relation_id, (0, 0))
                if after < number <= upto:
                    found.setdefault(relation_id, []).append(change)
        if fetch:
            self._segments.prefetch(
                {blob.file for changes in found.values() for change in changes for blob in change.blobs}
            )
        return found

    def _undo(self, undoing: Undoing) -> dict[str, Overlay]:
        """The overlays that turn the current content into that of earlier moments, by the names of their views."""
        with self._transaction():
            made = {}
            for one in undoing.past:
                table = self._tables[one.relation_id]
                self._overlaid += 1
                overlay = Overlay(self._connection, table, f"past{self._overlaid}")
                changes = undoing.changes(one, table.applied)
                if table.relation.only_grows:
                    overlay.cut(sum(c.inserted_rows for c in changes))
                else:
                    blobs = (blob for change in changes for blob in change.blobs)
                    undone = _joined((rows, -diff) for rows, diff in self._parts(table, blobs))
                    if undone is not None:
                        overlay.apply(*undone)
                made[one.name] = overlay
            return made

    def _advance(self, table: ContentTable, changes: list[RelationChange], upto: int) -> None:
        if changes:
            insert_only = not any(c.deleted_rows for c in changes)
            blobs = [blob for change in changes for blob in change.blobs]
            self._add(table, self._parts(table, blobs), insert_only=insert_only)
        table.applied = upto

    def _parts(self, table: ContentTable, blobs: Iterable[BlobRef]) -> Iterator[tuple[pa.Table, Diff]]:
        stored = table.relation.as_stored
        schema = arrow_schema(stored.columns, positional=False)
        for blob in blobs:
            rows, diff = self._segments.read_change(blob)
            if not {*rows.column_names} <= {*schema.names, *stored.dropped}:
                raise error("DATABASE_DAMAGED", f'{blob.file} has other columns than "{table.relation.name}"')
            yield fitted(rows, schema, stored.fills).rename_columns(table.names), diff

    def _add(self, table: ContentTable, parts: Iterable[tuple[pa.Table, Diff]], *, insert_only: bool) -> None:
        if insert_only:
            for piece in _pieces(parts):
                table.append(*piece)
            return
        change = _joined(parts)
        if change is not None:
            table.apply(*change)

    def _cover(self, relations: list[Relation], owner: object) -> None:
        """Updates the overlays of session tables to the newest commit and the open transaction `owner`."""
        head = self._log.head()
        tables = [self._tables[r.id] for r in relations if isinstance(r, Table)]
        for table in tables:
            overlay = self._overlays.get(table.relation.id)
            if overlay is not None and not (overlay.is_valid and (not overlay.own or overlay.owner == id(owner))):
                self._drop_overlay(table.relation.id)
        covers = {t.relation.id: self._overlays.get(t.relation.id) or Overlay(self._connection, t) for t in tables}
        # A base that was updated further than an overlay, without a change, contains all commits up to there, which may
        # be deleted.
        changes = self._changes({i: (max(o.upto, o.base.applied), head) for i, o in covers.items()})
        for relation_id, overlay in covers.items():
            blobs = [blob for change in changes.get(relation_id, []) for blob in change.blobs]
            parts = self._parts(overlay.base, blobs)
            own = self._own.get((relation_id, id(owner)), [])
            change = _joined([*parts, *own[overlay.own :]])
            if change is not None:
                overlay.apply(*change)
            overlay.upto, overlay.own, overlay.owner = max(head, overlay.upto), len(own), id(owner)
            if change is not None or relation_id not in self._overlays:
                self._show(overlay.base.relation, NEWEST, overlay.select, overlay.arrival)
            self._overlays[relation_id] = overlay

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction of DuckDB. Rolling it back also rolls back this process's state of the tables."""
        saved = [(t, t.mark()) for t in self._tables.values()]
        shown = dict(self._shown)
        self._connection.execute("BEGIN")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            self._tables = {table.relation.id: table for table, _ in saved}
            self._shown = shown
            for table, mark in saved:
                table.restore(mark)
            for relation_id in list(self._overlays):
                self._drop_overlay(relation_id)
            raise

    def _show(self, relation: Relation, schema: str, sql: str, arrival: str) -> None:
        """Shows a relation by a SELECT. arrival: the SELECT with the order of arrival, for insert-only relations."""
        self._connection.execute(f"CREATE OR REPLACE VIEW {schema}.{quoted(relation.shown)} AS {sql}")
        if relation.append_only:
            self._connection.execute(f"CREATE OR REPLACE VIEW {schema}.{_arrivals(relation)} AS {arrival}")
        self._shown[_place(schema, relation)] = relation.id

    def _hide(self, relation: Relation, schema: str) -> None:
        if self._shown.get(_place(schema, relation)) == relation.id:
            self._connection.execute(f"DROP VIEW IF EXISTS {schema}.{quoted(relation.shown)}")
            self._connection.execute(f"DROP VIEW IF EXISTS {schema}.{_arrivals(relation)}")
            del self._shown[_place(schema, relation)]

    def _drop_overlay(self, relation_id: str) -> None:
        overlay = self._overlays.pop(relation_id, None)
        if overlay is not None:
            self._hide(overlay.base.relation, NEWEST)
            overlay.drop()

    def _unload(self, relation_id: str) -> None:
        self._drop_overlay(relation_id)
        table = self._tables.pop(relation_id, None)
        if table is not None:
            self._hide(table.relation, "main")
            table.drop()

    def _keep_idle_lease(self) -> None:
        """Leaves a lease that lets the next refresh proceed by changes."""
        if self._tables:
            self._reader.idle(min(t.applied for t in self._tables.values()))
        else:
            self._reader.release()

    def _tidy(self) -> None:
        """From time to time, makes DuckDB drop the records of freed blocks. Must not be called within a transaction of
        DuckDB.
        """
        self._refreshes += 1
        if self._refreshes % _TIDY_REFRESHES or self._reading:
            return
        row = self._connection.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchone()
        if row is None or row[0] > _TIDY_BYTES:
            return
        try:
            # No database is this small, so the statement fails after it has searched all blocks.
            with contextlib.suppress(duckdb.OutOfMemoryException):
                self._connection.execute("SET memory_limit = '1B'")
        finally:
            self._connection.execute(f"SET memory_limit = '{self._settings.memory_limit}'")


def _arrivals(relation: Relation) -> str:
    return quoted(arrival_view(relation.shown))


def _joined(parts: Iterable[tuple[pa.Table, Diff]]) -> tuple[pa.Table, Diff] | None:
    found = list(parts)
    if not found:
        return None
    first = found[0][0].column_names
    return pa.concat_tables([t.rename_columns(first) for t, _ in found]), np.concatenate([d for _, d in found])


def _pieces(parts: Iterable[tuple[pa.Table, Diff]]) -> Iterator[tuple[pa.Table, Diff]]:
    """The parts, with small ones joined, because a statement costs more than its rows."""
    pending: list[tuple[pa.Table, Diff]] = []
    rows = 0
    for part in parts:
        pending.append(part)
        rows += part[0].num_rows
        if rows >= _PIECE_ROWS:
            yield _joined(pending) or part
            pending, rows = [], 0
    last = _joined(pending)
    if last is not None:
        yield last


def _is_other(before: Relation, now: Relation) -> bool:
    """Whether the loaded content of a relation is outdated: its columns changed, or all its rows were replaced."""
    return before.columns != now.columns or (before.is_there and before.since != now.since)


def _place(schema: str, relation: Relation) -> tuple[str, str]:
    return schema, relation.shown.lower()


def _stored(catalog: Catalog, relation_id: str) -> Relation:
    relation = catalog.relations.get(relation_id)
    if relation is None or not relation.is_stored:
        raise error("INTERNAL_ERROR", f"relation {relation_id} has no stored content")
    return relation
