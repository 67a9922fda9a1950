"""An open database: its directory, its catalog, its content and, for the one writer, its engine."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from watersmeet.catalog import Catalog
from watersmeet.dialects.secrets import has_secrets
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays.times import microseconds
from watersmeet.planner import assemble
from watersmeet.runtime.clock import Clock
from watersmeet.runtime.database import Database, fix_parallelism, store_parallelism
from watersmeet.runtime.engine import Engine
from watersmeet.session.engines import default_parallelism, make_engine
from watersmeet.session.outside import Outside
from watersmeet.session.plans import Plans
from watersmeet.session.problems import Problems
from watersmeet.session.rebuild import plans_made_anew
from watersmeet.session.transaction import Change
from watersmeet.store.catalogs import catalog_version, load_catalog, save_catalog
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.compaction import Compactor
from watersmeet.store.content import Content
from watersmeet.store.layout import Layout
from watersmeet.store.lock import WriterLock
from watersmeet.store.packfiles import PackFiles
from watersmeet.store.retention import clean_at_start
from watersmeet.store.sizes import RelationSizes
from watersmeet.store.transactions import write_transaction

#: In-process databases are compacted after so many commits, in the thread that made them.
_INPROCESS_COMPACTION: Final = 256


class Upkeep(Protocol):
    """What is to be done whenever views are brought up to date."""

    def before(self) -> None:
        """Before it."""

    def after(self) -> bool:
        """After it; whether that gave them something to do."""

    def follow(self) -> None:
        """There are new hidden views that feed streams."""


class OpenDatabase:
    """One database as this process has it open.

    guard: held for whatever reads and then changes the catalog or tables. ddl: held for the whole of a
    statement that changes the catalog, of which waiting for a view is the longest part; taken before guard. clocks: by relation id, the times
    of the newest rows of ordered streams to which this process wrote, in microseconds. unwritten: of views with INTO, why their streams do not take
    what they give.
    """

    def __init__(self, path: str | Path | None, *, read_only: bool, parallelism: int | None, runtime: str,
                 spark: Any, rebuild: bool, tick_seconds: float) -> None:
        """Open or create. DATABASE_IN_USE, DATABASE_FORMAT, DATABASE_DAMAGED, PARALLELISM_MISMATCH and the like."""
        self.guard = threading.RLock()
        self.ddl = threading.RLock()
        self.read_only = read_only
        self.runtime = runtime
        if not tick_seconds > 0:
            raise error("INVALID_PARAMETER", f"tick_seconds can't be {tick_seconds}", hint="It is above 0.")
        self.clock = Clock(round(tick_seconds * 1e6))
        self.clocks: dict[str, int] = {}
        self._closed = False
        self._stale = False
        with contextlib.ExitStack() as opened:
            root = _directory(path, opened)
            self.layout = Layout(root, durable=path is not None, create=not read_only)
            if not read_only:
                opened.callback(WriterLock(self.layout).release)
            self.log = CommitLog(self.layout, writer=not read_only)
            opened.callback(self.log.close)
            self.packs = PackFiles(self.layout.packs)
            opened.callback(self.packs.close)
            if not read_only:
                clean_at_start(self.layout, self.log, self.packs)
            self._catalog = load_catalog(self.layout)
            self.content = Content(self.layout, self.log, self.packs)
            opened.callback(self.content.close)
            self.outside = Outside(Problems(self.layout, "OUTSIDE.json", read_only=read_only))
            self.unwritten = Problems(self.layout, "UNWRITTEN.json", read_only=read_only)
            self.upkeep: Upkeep | None = None
            self.sizes = RelationSizes(self.layout, self.log)
            opened.callback(self.sizes.close)
            self._engine: Engine | None = None
            self.buckets = 1
            if not read_only:
                self._start(parallelism, spark, opened, rebuild=rebuild)
            self._opened = opened.pop_all()

    @property
    def catalog(self) -> Catalog:
        """The newest catalog."""
        if self.read_only and catalog_version(self.layout) != self._catalog.version:
            self._catalog = load_catalog(self.layout)
        return self._catalog

    @property
    def engine(self) -> Engine:
        """The engine of the writer."""
        assert self._engine is not None
        return self._engine

    def change_catalog(self, catalog: Catalog) -> None:
        """Make `catalog` the newest. If that fails, the one before stays, under a version that nobody may have seen."""
        try:
            save_catalog(self.layout, catalog, private=any(has_secrets(r.sql, r.dialect) for r in catalog.relations.values()))
        except Error:
            self._catalog = replace(self._catalog, version=catalog.version)
            raise
        self._catalog = catalog

    def forget(self, ids: set[str]) -> bool:
        """Take relations out of the newest catalog; False if that holds for this process only, as it can't be stored."""
        catalog = self._catalog.without(ids)
        try:
            self.change_catalog(catalog)
        except Error:
            self._catalog = catalog
            return False
        return True

    def reinstall(self) -> None:
        """Let the circuit of all plans run. If that is not possible now, the next `flush` tries again."""
        self._stale = True
        self.engine.install(self.plans.circuit, ())
        self._stale = False

    def commit(self, changes: Mapping[str, Change], metrics: Mapping[str, Any] | None = None,
               rejected: Mapping[str, int] | None = None) -> Commit:
        """Commit changes (by relation id) in one step, with what `metrics` say of it and the number of rows that were not taken, and tell the engine."""
        rows = {i: (c.table, c.diff) for i, c in changes.items()}
        made = write_transaction(self.layout, self.log, rows, catalog_version=self._catalog.version, metrics=metrics, rejected=rejected)
        for relation_id in changes.keys() & self.clocks.keys():
            time = self._catalog.relations[relation_id].event_time
            assert time is not None
            self.rise(relation_id, int(microseconds(changes[relation_id].table.column(time.column))[0].max()))
        self.engine.notify()
        return made

    def rise(self, relation_id: str, time_us: int) -> None:
        """The clock of an ordered stream is at least that from now on, if it is known."""
        if relation_id in self.clocks:
            self.clocks[relation_id] = max(time_us, self.clocks[relation_id])

    def flush(self, transaction: int | None = None) -> None:
        """Wait until all views reflect transaction `transaction` (None: all of them). What streams don't take of views is in `unwritten`."""
        if self._stale:
            self.reinstall()
        if self.upkeep is not None:
            self.upkeep.before()
        self.engine.flush(transaction)
        while self.upkeep is not None and self.upkeep.after():
            self.engine.flush()
        if self.runtime == "inprocess" and self._compactor.due():
            self._compactor.run()

    def settle(self, relations: frozenset[str]) -> None:
        """Let the history of tables, as a new view reads it, be their content alone: no row that was replaced or deleted before."""
        self.flush()
        while not self._compactor.settle(relations):
            self.commit({})
            self.flush()

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
            self._opened.close()

    def _start(self, parallelism: int | None, spark: Any, opened: contextlib.ExitStack, *, rebuild: bool) -> None:
        """Start the engine. rebuild: all state is to be made anew."""
        default = default_parallelism(self.runtime)
        stored = fix_parallelism(self.layout, None if rebuild else parallelism, default)
        self.buckets = parallelism or stored
        self.plans = Plans(self.layout, self._catalog, stored)
        # Queries that ran until they were stopped ended with the process.
        ended = {r.id for r in self._catalog.relations.values() if r.hidden and not r.owner}
        ended |= {r.id for r in self._catalog.relations.values() if r.owner and r.owner not in self._catalog.relations.keys() - ended}
        if ended:
            self.change_catalog(self._catalog.without(ended))
            self.plans.remove(ended)
        database = Database(self.layout, self.log, self.packs, lambda: self._catalog, self.clock)
        self._compactor = Compactor(self.layout, self.log, self.packs, lambda: self._catalog,
                                    commits=_INPROCESS_COMPACTION)
        self._engine = make_engine(self.runtime, database, self.buckets, spark)
        opened.callback(self._engine.stop)
        self._engine.start()
        if rebuild:
            self._rebuild()
        else:
            self._resume()
        if self.runtime != "inprocess":
            self._compactor.start()
            opened.callback(self._compactor.stop)


    def _rebuild(self) -> None:
        """Make all plans and all state anew, for `buckets`. An interruption is noticed at the next start."""
        unfinished = {r.id for r in self._catalog.relations.values() if not r.ready}
        if unfinished:
            self.change_catalog(self._catalog.without(unfinished))
            self.plans.remove(unfinished)
        producers = plans_made_anew(self._catalog, self.buckets)
        if producers:
            self.engine.rebuild(assemble(producers.values(), self.buckets))
        self.plans.replace_all(producers, self.buckets)
        store_parallelism(self.layout, self.buckets)

    def _resume(self) -> None:
        """Let the circuit run again, and finish the views that were being filled when the last writer ended."""
        if not self.plans.producers and self.engine.circuit is None:
            return
        unfinished = {r.id: r for r in self._catalog.relations.values() if not r.ready}
        try:
            self.engine.install(self.plans.circuit, tuple(unfinished))
        except Error:
            if not unfinished:
                raise
            # Nobody was told that they exist, and the others must not be kept from going on.
            self.change_catalog(self._catalog.without(set(unfinished)))
            self.plans.remove(unfinished)
            self.engine.install(self.plans.circuit, ())
            return
        for relation in unfinished.values():
            self.change_catalog(self._catalog.with_relation(replace(relation, ready=True)))


def _directory(path: str | Path | None, opened: contextlib.ExitStack) -> Path:
    if path is not None:
        if not str(path):
            raise error("INVALID_PARAMETER", "the path of a database is empty")
        return Path(path)
    made = tempfile.mkdtemp(prefix="watersmeet-")
    opened.callback(shutil.rmtree, made, ignore_errors=True)
    return Path(made) / "db"
