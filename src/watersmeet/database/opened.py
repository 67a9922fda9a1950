"""An open database: its directory, its catalog, its content and, for the one writer, its engine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from watersmeet.catalog import Catalog, Relation, Subscription
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Operator
from watersmeet.connectors.base.targets import deliveries
from watersmeet.database.locks import lock
from watersmeet.database.outside import Outside, Problems
from watersmeet.database.plans import Plans
from watersmeet.database.transaction import Change
from watersmeet.database.workers import Service
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.runtime import handover
from watersmeet.runtime.database import Clock, Database
from watersmeet.runtime.engine import Engine
from watersmeet.runtime.memory import Meter, give_back
from watersmeet.runtime.plans import begin_parallelism, check_parallelism, parallelism, store_parallelism
from watersmeet.runtime.workers import merge_bytes, workers_here
from watersmeet.store.commits import (
    Commit,
    CommitLog,
    catalog_commit,
    catalog_name,
    load_catalog,
    saving,
    write_transaction,
)
from watersmeet.store.compaction import Compactor, RelationSizes
from watersmeet.store.content import Content
from watersmeet.store.layout import FilePermissions, Layout, WriterLock, check_storage
from watersmeet.store.positions import StatusFile, drop_unused, nameless_secrets, sink_positions, subscription_positions
from watersmeet.store.retention import clean_at_start, kept_history, reading_s
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system.process import lazy_import, scratch_folder

if TYPE_CHECKING:
    from watersmeet import planner
    from watersmeet.database import engines, rebuild
    from watersmeet.planner import names
else:
    planner = lazy_import("watersmeet.planner")
    names = lazy_import("watersmeet.planner.names")
    rebuild = lazy_import("watersmeet.database.rebuild")
    engines = lazy_import("watersmeet.database.engines")

#: In-process databases are compacted after so many commits, in the thread that made them.
_INPROCESS_COMPACTION: Final = 256


S = TypeVar("S", bound=Service)


class OpenDatabase:
    """One database as this process has it open.

    guard: held for whatever reads and then changes the catalog or tables. ddl: held for the whole of a
    statement that changes the catalog, of which waiting for a view is the longest part; taken before guard. clocks: by
    relation id, the times of the newest rows of ordered streams to which this process wrote, in microseconds.
    unwritten: of views with INTO, why their streams do not take what they give. positions, sink_positions: of the
    writer, how far subscriptions were read and sinks were delivered.

    Services run on top of it. They register by `add`, and statements find them by their class.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        read_only: bool,
        parallelism: int | None,
        runtime: str,
        spark: Any,
        rebuild: bool,
        tick_seconds: float,
        permissions: FilePermissions,
        files: bool,
    ) -> None:
        """Open or create. files: whether statements may read files of the machine.

        DATABASE_IN_USE, DATABASE_FORMAT, DATABASE_DAMAGED, PARALLELISM_MISMATCH, FILE_SYSTEM_UNSUITABLE and the like.
        """
        self.guard = lock("guard")
        self.ddl = lock("ddl")
        self.read_only = read_only
        self.runtime = runtime
        self.files = files
        if not tick_seconds > 0:
            raise error("INVALID_PARAMETER", f"tick_seconds can't be {tick_seconds}", hint="It must be above 0.")
        self.clock = Clock(round(tick_seconds * 1e6))
        self.clocks: dict[str, int] = {}
        self.meter = Meter()
        self._closed = False
        self._stale = False
        with contextlib.ExitStack() as opened:
            if not read_only:
                check_environment()
            root = _directory(path, opened)
            self.layout = Layout(root, durable=path is not None, create=not read_only, permissions=permissions)
            opened.callback(self.layout.close)
            if not read_only:
                check_storage(self.layout)
                opened.callback(WriterLock(self.layout).release)
            self.log = CommitLog(self.layout)
            self._newest = StatusFile(self.layout, "NEWEST.json")
            self.segments = SegmentFiles(self.layout.segments)
            opened.callback(self.segments.close)
            if read_only:
                self._catalog, self._catalog_name = load_catalog(self.layout, self.log)
            else:
                self._take_over(parallelism, rebuild=rebuild)
            with self.log.explaining():  # Another writer may take over at any time.
                if not read_only:
                    self.plans.restore()
                    clean_at_start(self.layout, self.log, self.segments)
                    drop_unused(self.layout, self._secrets, json.dumps(self._catalog.to_json()))
                    self.plans.discard_unused()
                self.content = Content(self.layout, self.log, self.segments, external_access=files)
                opened.callback(self.content.close)
                self.outside = Outside(Problems(self.layout, "OUTSIDE.json", read_only=read_only))
                self.unwritten = Problems(self.layout, "UNWRITTEN.json", read_only=read_only)
                self._services: list[Service] = []
                self.sizes = RelationSizes(self.layout, self.log)
                opened.callback(self.sizes.close)
                self._engine: Engine | None = None
                if not read_only:
                    self._start(parallelism, spark, opened, rebuild=rebuild)
            self._opened = opened.pop_all()

    @property
    def catalog(self) -> Catalog:
        """The newest catalog."""
        if self.read_only and catalog_name(self.log) != self._catalog_name:
            self._catalog, self._catalog_name = load_catalog(self.layout, self.log)
        return self._catalog

    @property
    def engine(self) -> Engine:
        """The engine of the writer."""
        assert self._engine is not None
        return self._engine

    def change_catalog(self, catalog: Catalog) -> None:
        """Make `catalog` the newest. If that fails, the one before stays, under a version that nobody may have seen."""
        with self._saving(catalog) as name:
            self.log.append(catalog_commit(catalog, name))

    def forget(self, ids: set[str]) -> bool:
        """Take relations out of the newest catalog; False if that holds for this process only, as it can't be
        stored.
        """
        catalog = self._catalog.without(ids)
        try:
            self.change_catalog(catalog)
        except Error:
            self._catalog = catalog
            return False
        return True

    @property
    def buckets(self) -> int:
        """The number of state buckets."""
        return (parallelism(self.layout, self.log) or 1) if self.read_only else self.plans.buckets

    def rescale(self, buckets: int) -> None:
        """Let the state have another number of buckets from the next epoch on: one commit, nothing is computed.

        INVALID_PARAMETER; PARALLELISM_MISMATCH, with nothing done, if the state of a view can't be split.
        """
        check_parallelism(buckets)
        if buckets == self.buckets:
            return
        if self._stale:
            self.reinstall()
        if self.engine.circuit is not None:
            circuit = planner.assemble(self.plans.producers.values(), buckets)
            found = rebuild.distributions_of(circuit, self._catalog)
            try:
                self.engine.rescale(circuit, found)
            except BaseException:
                self.plans.buckets = parallelism(self.layout, self.log) or self.buckets  # it may have happened
                raise
        store_parallelism(self.layout, buckets)
        self.plans.buckets = buckets

    def reinstall(self) -> None:
        """Let the circuit of all plans run. If that is not possible now, the next `flush` tries again."""
        self._stale = True
        self.engine.install(self.plans.circuit, ())
        self._stale = False

    def resume(self) -> None:
        """Let the engine run again, from its newest commit on, if it has failed for lack of space."""
        failure = self.engine.failure
        if failure is not None and failure.condition == "DISK_FULL":
            with self.ddl:
                self.reinstall()

    def commit(
        self,
        changes: Mapping[str, Change],
        copied: Mapping[str, int] | None = None,
        rejected: Mapping[str, int] | None = None,
        catalog: Catalog | None = None,
        captured: Mapping[str, Any] | None = None,
    ) -> Commit:
        """Commit changes (by relation id) in one step, with the number of rows that were not taken, and tell the
        engine.

        copied, captured: as in `store.manifests.Commit`. catalog: becomes the newest by the same step. After an error
        it is that only if the commit is in the log.
        """
        known = (catalog or self._catalog).relations
        rows = {i: (_as_stored(c.table, known.get(i)), c.diff) for i, c in changes.items()}
        with contextlib.nullcontext("") if catalog is None else self._saving(catalog) as name:
            made = write_transaction(
                self.layout,
                self.log,
                rows,
                copied=copied,
                rejected=rejected,
                captured=captured,
                catalog=name,
                follows=catalog is not None and catalog.follows_epochs,
            )
        if self.layout.directory is not None:
            self._note_newest()  # in an object store it would be one more request: there it is only done at the end
        for relation_id in changes.keys() & self.clocks.keys():
            time = self._catalog.relations[relation_id].event_time
            assert time is not None
            self.rise(relation_id, int(microseconds(changes[relation_id].table.column(time.column))[0].max()))
        self.engine.notify()
        return made

    @contextlib.contextmanager
    def _saving(self, catalog: Catalog) -> Iterator[str]:
        """Store a catalog, which becomes the newest by the commit that is made inside the block; gives its name.

        If there is no such commit, the one before stays, under a version that nobody may have seen.
        """
        found = replace(self._catalog, version=catalog.version)
        try:
            with saving(self.layout, self.log, catalog) as name:
                try:
                    yield name
                finally:
                    if catalog_name(self.log) == name:
                        found = catalog
        finally:
            self._catalog = found

    def rise(self, relation_id: str, time_us: int) -> None:
        """The clock of an ordered stream is at least that from now on, if it is known."""
        if relation_id in self.clocks:
            self.clocks[relation_id] = max(time_us, self.clocks[relation_id])

    def flush(self, *, topics: bool = False) -> None:
        """Wait until all views reflect all transactions.

        What streams don't take of views is in `unwritten`. topics: views also reflect what processors write to topics
        outside of the database; one may read what another writes.
        """
        written = self._delivered(wait=False) if topics else {}
        self._flush()
        for _ in range(len(written)):
            before, written = written, self._delivered(wait=True)
            if written == before:
                return
            self._flush()

    def _delivered(self, *, wait: bool) -> dict[str, int]:
        return {i: rows for service in self._services for i, rows in service.delivered(wait=wait).items()}

    def _flush(self) -> None:
        self.log.check()
        if self._stale:
            self.reinstall()
        for service in self._services:
            service.before_epochs()
        self.engine.flush()
        while any(service.after_epochs() for service in self._services):
            self.engine.flush()
        if self.runtime == "inprocess" and self._compactor.due():
            self._compactor.run()

    def settle(self, relations: frozenset[str]) -> None:
        """Let the history of tables, as a new view reads it, be their content alone: no row that was replaced or
        deleted before.
        """
        self.flush()
        while not self._compactor.settle(relations):
            self.commit({})
            self.flush()

    def has_difference(self, view: str, hidden: str) -> bool:
        """Whether a view can get the content of a hidden one by a change: its own can be read, and a view that only
        grows loses no row.
        """
        known = self._catalog.relations
        self.content.drop(view)
        try:
            self.content.refresh(self._catalog, [view])
            return not known[view].append_only or (
                known[hidden].append_only and not handover.deletes(self._runtime, view, hidden)
            )
        except Error as damage:
            if damage.condition != "DATABASE_DAMAGED":
                raise
            return False

    def replace_content(self, made: Mapping[str, str]) -> None:
        """Let views have the content of hidden ones without a change: `made`, by view. Readers load it again."""
        if not made:
            return
        while not self._compactor.replace(made):
            self.commit({})
            self.flush()
        with self.guard:
            catalog = self._catalog
            version = catalog.version + 1
            known = catalog.relations
            loaded = {
                view: replace(known[view], since=version, append_only=known[hidden].append_only)
                for view, hidden in made.items()
            }
            self.change_catalog(replace(catalog, version=version, relations={**known, **loaded}))
        for relation_id in made:
            self.content.drop(relation_id)

    def refresh(self, plans: Mapping[str, Sequence[Operator]], made: Mapping[str, str]) -> None:
        """Let stopped views run again, with `plans`, after hidden views were filled for them: `made`, by view."""
        for relation_id, operators in plans.items():
            if operators != self.plans.producers[relation_id]:
                self.plans.add(relation_id, operators)
        hidden = set(made.values())
        producers = [operators for i, operators in self.plans.producers.items() if i not in hidden]
        self.engine.refresh(planner.assemble(producers, self.buckets), made)

    def add(self, service: S) -> S:
        """Register a service, and start it. It ends when the database is closed."""
        self._services.append(service)
        service.start()
        return service

    def service(self, kind: type[S]) -> S | None:
        """The service of that class; None where none runs, as in processes that only read."""
        return next((s for s in self._services if isinstance(s, kind)), None)

    def follow(self) -> None:
        """Tell the services that the definitions of the catalog have changed."""
        for service in self._services:
            service.follow()

    def catch_up(self) -> list[str]:
        """Wait until tables have what was committed before in the databases that they are captured from. A notice for
        each that is not waited for.
        """
        return [notice for service in self._services for notice in service.catch_up()]

    def at_close(self, callback: Callable[[], None]) -> None:
        """Have something given back when the database is closed."""
        self._opened.callback(callback)

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def close(self) -> None:
        """Stop the engine and give everything back. May be called again."""
        if not self._closed:
            self._closed = True
            with self._opened:  # given back whatever becomes of the note
                if not self.read_only:
                    self._note_newest()

    def _take_over(self, wanted: int | None, *, rebuild: bool) -> None:
        """Become the writer of what is there: a database that is refused is left as it is."""
        first = engines.default_parallelism(self.runtime) if wanted is None else wanted
        check_parallelism(first)
        taken = False
        while not taken:
            # Read before the log: another writer may make commits, and note them, at any moment.
            noted = None if rebuild else self._newest.read().get("commit")
            with self.log.one_look():
                head = self.log.head()
                if isinstance(noted, int):
                    self._check_newest(noted, head)
                self._secrets = nameless_secrets(self.layout)
                self._catalog, self._catalog_name = load_catalog(self.layout, self.log)
                buckets = parallelism(self.layout, self.log)
                if buckets is None:
                    begin_parallelism(self.layout, first)
                    buckets = parallelism(self.layout, self.log)  # another process may have been faster
                self.plans = Plans(self.layout, self.log, self._catalog, buckets or first)
                taken = self.log.head() == head and self.log.take_over(head)

    def _check_newest(self, noted: int, head: int) -> None:
        """DATABASE_DAMAGED if a writer made commits up to `noted`, and the log ends before: their files are gone."""
        if noted > head:
            raise error(
                "DATABASE_DAMAGED",
                f"the newest commits of the database are missing: the log ends at {head}, the last writer made {noted}",
                detail=f"They are the files {self.layout.commit(head + 1).name} to {self.layout.commit(noted).name} "
                f"in {self.layout.commits}.",
                hint="Restore them from a backup. With rebuild the database opens without them, and without what they "
                "changed.",
            )

    def _note_newest(self) -> None:
        """Tell the next writer which commit is the newest, so that it notices if that is deleted."""
        self._newest.write({"commit": self.log.head()})

    def _start(self, wanted: int | None, spark: Any, opened: contextlib.ExitStack, *, rebuild: bool) -> None:
        """Start the engine. wanted: how many buckets; None: as many as there are. rebuild: all state is to be made
        anew.
        """
        # Queries that ran until they were stopped ended with the process, but for subscriptions.
        ended = {
            r.id
            for r in self._catalog.relations.values()
            if r.hidden and not r.owner and (r.staged or not isinstance(r, Subscription))
        }
        ended |= {
            r.id
            for r in self._catalog.relations.values()
            if r.owner and r.owner not in self._catalog.relations.keys() - ended
        }
        if ended:
            self.change_catalog(self._catalog.without(ended))
            self.plans.remove(ended)
        self._runtime = database = Database(
            self.layout, self.log, self.segments, lambda: self._catalog.as_stored, self.clock, _column_names
        )
        self._compactor = Compactor(
            self.layout,
            self.log,
            self.segments,
            lambda: self._catalog.as_stored,
            commits=_INPROCESS_COMPACTION,
            history=kept_history,
            after=give_back,
        )
        self._engine = engines.make_engine(self.runtime, database, wanted or self.buckets, spark)
        opened.callback(self._engine.stop)
        self._engine.start()
        if rebuild:
            self._rebuild(wanted or self.buckets)
        else:
            self._resume()
            if wanted is not None:
                self.rescale(wanted)
        subscribed = [r.id for r in self._catalog.relations.values() if isinstance(r, Subscription)]
        self.positions = subscription_positions(self.layout, self.log, subscribed)
        opened.callback(self.positions.close)
        delivered = [d.id for d in deliveries(self._catalog)]
        self.sink_positions = sink_positions(self.layout, self.log, delivered)
        opened.callback(self.sink_positions.close)
        if self.runtime != "inprocess":
            self._compactor.start()
            opened.callback(self._compactor.stop)

    def _go_on(self) -> None:
        """Let the circuit run. What its epochs stumble over keeps nobody from opening the database: the engine shows
        it, views can be dropped, and the next `flush` tries again.
        """
        try:
            self.reinstall()
        except Error:
            if self.engine.failure is None:
                raise

    def _rebuild(self, buckets: int) -> None:
        """Make all plans and all state anew. An interruption is noticed at the next start."""
        unfinished = {r.id for r in self._catalog.relations.values() if not r.ready}
        if unfinished:
            self.change_catalog(self._catalog.without(unfinished))
            self.plans.remove(unfinished)
        producers = rebuild.plans_made_anew(self._catalog)
        if producers:
            self.engine.rebuild(planner.assemble(producers.values(), buckets))
        self.plans.replace_all(producers, buckets)
        store_parallelism(self.layout, buckets)

    def _resume(self) -> None:
        """Let the circuit run again, and finish the views that were being filled when the last writer ended."""
        if not self.plans.producers and self.engine.circuit is None:
            return
        unfinished = {r.id: r for r in self._catalog.relations.values() if not r.ready}
        try:
            self.engine.install(self.plans.circuit, tuple(unfinished))
        except Error:
            if unfinished:
                # Nobody was told that they exist, and the others must not be kept from going on.
                self.change_catalog(self._catalog.without(set(unfinished)))
                self.plans.remove(unfinished)
            self._go_on()
            return
        for relation in unfinished.values():
            self.change_catalog(self._catalog.with_relation(replace(relation, ready=True)))


def _column_names(
    circuit: Circuit, catalog: Catalog, leaves: Mapping[str, Relation], operator_id: str
) -> Sequence[str]:
    """The columns of an operator as queries call them."""
    return names.Names(circuit.by_id, catalog, leaves).columns(operator_id)


def _as_stored(rows: pa.Table, relation: Relation | None) -> pa.Table:
    """Rows of a relation with its columns as data call them."""
    if relation is None or not relation.stored:
        return rows
    return rows.rename_columns([c.name for c in relation.as_stored.columns])


def check_environment() -> None:
    """INVALID_PARAMETER if the environment says what can't be used, before the writer before this one is overtaken."""
    workers_here()
    merge_bytes()
    reading_s()


def _directory(path: str | Path | None, opened: contextlib.ExitStack) -> str | Path:
    if path is not None:
        if not str(path):
            raise error("INVALID_PARAMETER", "the path of a database is empty")
        return path
    return opened.enter_context(scratch_folder("database")) / "db"
