"""The compiled plans of views and connector tables, and the circuit that runs them on the writer's engine.

A plan is compiled when its view is created, saved next to the catalog, and loaded at each start. A plan whose file is
missing or damaged is restored from the circuit of the newest epoch, or else compiled from the statement of its view; a
damaged circuit is assembled from the plans. Each writer has its own files, of which the newest writer's count, so that
a replaced writer never overwrites the plan of another relation with the same id.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.catalog.views import is_job
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.circuit.operators import Cut, Operator, Scan, TemporalJoin
from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import AnyPath
from watersmeet.runtime import handover
from watersmeet.runtime.engine import Database, Engine
from watersmeet.runtime.plans import (
    begin_parallelism,
    check_parallelism,
    kept_circuit,
    load_circuit,
    parallelism,
    save_circuit,
    store_parallelism,
)
from watersmeet.runtime.workers import merge_bytes, workers_here
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout, WriterFile, writer_files
from watersmeet.store.retention import reading_s
from watersmeet.system.process import cores, lazy_import, spark_module
from watersmeet.values.serialization import from_json

if TYPE_CHECKING:
    from watersmeet import planner
    from watersmeet.database import rebuild
    from watersmeet.planner import names
    from watersmeet.runtime import inprocess
else:
    inprocess = lazy_import("watersmeet.runtime.inprocess")
    names = lazy_import("watersmeet.planner.names")
    planner = lazy_import("watersmeet.planner")
    rebuild = lazy_import("watersmeet.database.rebuild")

_logger: Final = logging.getLogger(__name__)


def stored_parallelism(layout: Layout, log: CommitLog) -> int:
    """The number of state buckets of a database."""
    return parallelism(layout, log) or 1


def begun_parallelism(layout: Layout, log: CommitLog, first: int) -> int:
    """The number of state buckets of a database; a new database stores `first`. Raises INVALID_PARAMETER."""
    check_parallelism(first)
    found = parallelism(layout, log)
    if found is None:
        begin_parallelism(layout, first)
        found = parallelism(layout, log)  # another process may have stored it first
    return found or first


def read_circuit_ahead(layout: Layout, commit: Commit | None) -> None:
    """Lets `kept_circuit` find the circuit of an epoch. Errors are left to it."""
    if commit is not None and commit.circuit is not None:
        with contextlib.suppress(Error):
            kept_circuit(layout, commit.circuit)


class Plans:
    """The operators of the relations that the circuit feeds, by relation id (inputs first, the Sink last).

    Not thread-safe: only DDL, which runs one statement at a time, changes it. buckets: the number of buckets of the
    plans.
    """

    def __init__(
        self,
        layout: Layout,
        log: CommitLog,
        catalog: Catalog,
        buckets: int,
        saved: Sequence[WriterFile] | None = None,
    ) -> None:
        """Reads the plans of all relations in `catalog`. saved: the files of plans, if the caller has listed them.
        Raises STATE_MISMATCH, and DATABASE_DAMAGED if a plan can't be found.
        """
        self._layout = layout
        self._log = log
        self.buckets = buckets
        self._saved = writer_files(layout.plans) if saved is None else saved
        planned = [r for r in catalog.relations.values() if r.has_plan]
        paths = {f.id: f.path for f in self._saved}
        found = [paths[r.id] for r in planned if r.id in paths]
        files = dict(zip(found, storage.read_files(found), strict=True))
        self.producers: dict[str, Sequence[Operator]] = {}
        self._unsaved: dict[str, Error] = {}
        """The reasons why plans were not read from their files."""
        for relation in planned:
            path = paths.get(relation.id)
            data = None if path is None else files[path]
            self.producers[relation.id] = self._read(path, data, relation, catalog)

    def _read(
        self, path: AnyPath | None, data: bytes | None, relation: Relation, catalog: Catalog
    ) -> Sequence[Operator]:
        try:
            return _load(path, data, self._layout, relation.id)
        except Error as damage:
            if damage.condition != "DATABASE_DAMAGED":
                raise
            self._unsaved[relation.id] = damage
        running = self._running()
        sink = None if running is None else running.sink_of.get(relation.id)
        if running is not None and sink is not None:
            needed = running.upstream({sink.id})
            return tuple(o for o in running.operators if o.id in needed)
        return rebuild.plan_made_anew(relation, self.producers, catalog)

    def _running(self) -> Circuit | None:
        """The circuit of the newest epoch; None if there is none, or its file is damaged."""
        last = self._log.last_epoch()
        try:
            return None if last is None or last.circuit is None else load_circuit(self._layout, last.circuit)
        except Error as damage:
            if damage.condition != "DATABASE_DAMAGED":
                raise
            return None

    def restore(self) -> None:
        """Save missing or damaged plans, and the circuit of the newest epoch. Only the writer calls it.

        Raises DATABASE_DAMAGED if the circuit's file is damaged and the plans don't produce the same circuit.
        """
        for relation_id, damage in self._unsaved.items():
            _logger.warning("a plan is restored: %s", damage.message)
            self.add(relation_id, self.producers[relation_id])
        self._unsaved.clear()
        last = self._log.last_epoch()
        if last is None or last.circuit is None:
            return
        try:
            kept_circuit(self._layout, last.circuit)
        except Error as damage:
            failed = last.progress.failed
            found = [c for c in (self.circuit, self.circuit.without(failed)) if c.fingerprint == last.circuit]
            if damage.condition != "DATABASE_DAMAGED" or not found:
                raise
            _logger.warning("a plan is restored: %s", damage.message)
            save_circuit(self._layout, found[0], over=True)

    @property
    def circuit(self) -> Circuit:
        """The circuit of the whole database."""
        return planner.assemble(self.producers.values(), self.buckets)

    @property
    def followed(self) -> set[str]:
        """The ids of the relations whose changes queries need, except for constant ones. Thread-safe."""
        made = {o.id: o for operators in list(self.producers.values()) for o in operators}
        found, pending = set(), [o.inputs[1] for o in made.values() if isinstance(o, TemporalJoin)]
        while pending:
            operator = made.pop(pending.pop(), None)
            if isinstance(operator, Scan):
                found.add(operator.relation_id)
            elif operator is not None and not isinstance(operator, Cut):
                pending += operator.inputs
        return found

    def put(self, relation_id: str, operators: Sequence[Operator]) -> None:
        """Save the plan of a relation, as the newest one: other relations may read it, but it reads no later one."""
        self.producers.pop(relation_id, None)
        self.add(relation_id, operators)

    def discard_files(self, relation_ids: Collection[str]) -> None:
        """Delete the saved plans of relations. Until they are saved again, they are read from the newest circuit."""
        _discard(writer_files(self._layout.plans), relation_ids, self._log.writer)

    def add(self, relation_id: str, operators: Sequence[Operator]) -> None:
        """Save the plan of a new relation."""
        text = f'{{"state_format":{STATE_FORMAT_VERSION},"operators":[{",".join([o.text for o in operators])}]}}'
        path = self._layout.plan(relation_id, self._log.writer)
        storage.replace_file(path, self._layout.seal_text(path, text), durable=self._layout.durable)
        self.producers[relation_id] = operators

    def replace_all(self, producers: Mapping[str, Sequence[Operator]], buckets: int) -> None:
        """Save new plans for all relations, for a different number of buckets."""
        self.buckets = buckets
        for relation_id, operators in producers.items():
            self.add(relation_id, operators)

    def forget(self, relation_ids: Iterable[str]) -> None:
        """Delete saved plans, which are then those of the circuit of the newest epoch."""
        _discard(writer_files(self._layout.plans), {*relation_ids}, self._log.writer)

    def remove(self, relation_ids: Iterable[str], *, stored: bool = True) -> None:
        """Forget relations that the catalog no longer has. stored: whether the stored catalog also lacks them."""
        dropped = [i for i in relation_ids if i in self.producers]
        for relation_id in dropped:
            del self.producers[relation_id]
        if stored:
            _discard(writer_files(self._layout.plans), dropped, self._log.writer)

    def discard_unused(self) -> None:
        """Delete plans of earlier writers whose relations are not in the catalog."""
        _discard(self._saved, {f.id for f in self._saved} - self.producers.keys(), self._log.writer - 1)


def _discard(saved: Iterable[WriterFile], relation_ids: Collection[str], writer: int) -> None:
    """Deletes saved plans of some relations, except for plans of writers after `writer`.

    Later writers may have given the same id to another relation.
    """
    storage.remove_files(f.path for f in saved if f.id in relation_ids and f.writer <= writer)


def _load(path: AnyPath | None, data: bytes | None, layout: Layout, relation_id: str) -> tuple[Operator, ...]:
    if path is None or data is None:
        raise error("DATABASE_DAMAGED", f"the plan of relation {relation_id} is missing from {layout.plans}")
    value = layout.unsealed(path, data)
    if value.get("state_format") != STATE_FORMAT_VERSION:
        raise error(
            "STATE_MISMATCH",
            f"the plan {path.name} has state format {value.get('state_format')}, "
            f"this release has {STATE_FORMAT_VERSION}",
            hint="Use the release that wrote it.",
        )
    return from_json(tuple[Operator, ...], value["operators"])


#: The number of buckets per core if workers have little memory. Each task then has a small part of an epoch, so that
#: epochs can be large, even if an epoch reads most of the state.
_BUCKETS_OF_SMALL: Final = 4


def default_parallelism(runtime: str) -> int:
    """The number of state buckets of a new database: 1 in process; on Spark the number of cores, or a multiple of it if
    workers have little memory.
    """
    if runtime == "inprocess":
        return 1
    return cores() * (_BUCKETS_OF_SMALL if workers_here(cores()).are_small else 1)


def check_environment() -> None:
    """Raises INVALID_PARAMETER for an invalid environment variable, before this process takes over from another
    writer.
    """
    workers_here()
    merge_bytes()
    reading_s()


def make_engine(runtime: str, database: Database, buckets: int, spark: Any) -> Engine:
    """The engine before its start. Raises RUNTIME_UNAVAILABLE if PySpark, which only the Spark engine imports, is
    missing or too old.
    """
    if runtime == "inprocess":
        return inprocess.InProcessEngine(database)
    module = spark_module("watersmeet.runtime.spark.engine")
    made: Engine = module.SparkEngine(database, spark, parallelism=buckets)
    return made


def column_names(circuit: Circuit, catalog: Catalog, leaves: Mapping[str, Relation], operator_id: str) -> Sequence[str]:
    """The columns of an operator with their names in queries."""
    return names.Names(circuit.by_id, catalog, leaves).columns(operator_id)


class RunningCircuit:
    """The circuit of all plans on the engine. Only DDL changes it, which runs one statement at a time."""

    def __init__(
        self,
        database: Database,
        engine: Engine,
        plans: Plans,
        catalog: Callable[[], Catalog],
        change_catalog: Callable[[Catalog], None],
    ) -> None:
        self.engine = engine
        self._database, self._plans = database, plans
        self._newest, self._change_catalog = catalog, change_catalog
        self._stale = False
        """Whether the circuit of the plans must still be installed on the engine."""

    @property
    def _catalog(self) -> Catalog:
        return self._newest()

    def start(self, wanted: int | None, *, rebuild: bool) -> None:
        """Run the saved circuit. wanted: the number of buckets; None: unchanged. rebuild: whether to compute all state
        again.
        """
        self.engine.start()
        if rebuild:
            self._rebuild(wanted or self._plans.buckets)
            return
        self._resume()
        if wanted is not None:
            self.rescale(wanted)

    def _resume(self) -> None:
        """Run the circuit, and finish the views that were being filled when the last writer ended. Those with a limit,
        and those that no statement waited for, are left to `filling.BackgroundFills`.
        """
        if not self._plans.producers and self.engine.circuit is None:
            return
        lacking = [r for r in self._catalog.relations.values() if not r.ready]
        unfinished = {r.id: r for r in lacking if not (isinstance(r, MaterializedView) and r.fills_later)}
        try:
            self.engine.install(self._plans.circuit, tuple(unfinished))
        except Error:
            if unfinished:
                # no statement has reported that they exist, and they must not stop other views
                self._remove(set(unfinished))
            try:
                self.reinstall()
            except Error:
                # The database opens nevertheless: the engine shows the failure, its views can be dropped, and the next
                # `flush` tries again.
                if self.engine.failure is None:
                    raise
            return
        for relation in unfinished.values():
            self._change_catalog(self._catalog.with_relation(replace(relation, ready=True)))

    def _rebuild(self, buckets: int) -> None:
        """Compile all plans and compute all state again. After an interruption the next start repeats it.

        Views that are filled in the background are filled again from the beginning.
        """
        lacking = [r for r in self._catalog.relations.values() if not r.ready]
        unfinished = [r for r in lacking if not (is_job(r) and r.fills_later)]
        if unfinished:
            self._remove({r.id for r in unfinished})
        for relation in lacking:
            if relation in unfinished:
                _logger.warning("%s is removed: the statement that creates it has not ended", relation.title)
            else:
                _logger.warning("%s is filled again from the beginning", relation.title)
        producers = rebuild.plans_made_anew(self._catalog, self._database.log.head())
        complete = [operators for i, operators in producers.items() if self._catalog.relations[i].ready]
        if complete:
            self.engine.rebuild(planner.assemble(complete, buckets))
        elif self.engine.circuit is not None:  # no view has content
            self.engine.install(planner.assemble((), self._plans.buckets), ())
            self.engine.rescale(planner.assemble((), buckets), {})
        self._plans.replace_all(producers, buckets)
        store_parallelism(self._database.layout, buckets)

    def _remove(self, ids: set[str]) -> None:
        self._change_catalog(self._catalog.without(ids))
        self._plans.remove(ids)

    def reinstall(self) -> None:
        """Run the circuit of all plans. After a failure the next `flush` tries again."""
        self._stale = True
        self.engine.install(self._plans.circuit, ())
        self._stale = False

    def ensure_installed(self, ddl: contextlib.AbstractContextManager[object]) -> None:
        """Try `reinstall` again if it failed. ddl: the lock of statements. Without it, the circuit from before a new
        view could be installed after the one with the view, which the next start would then fill twice.
        """
        if self._stale:
            with ddl:
                if self._stale:
                    self.reinstall()

    def rescale(self, buckets: int) -> None:
        """Change the number of state buckets from the next epoch on by one commit, without computing results.

        Raises INVALID_PARAMETER, and PARALLELISM_MISMATCH without any effect if the state of a view can't be split.
        """
        plans, database = self._plans, self._database
        check_parallelism(buckets)
        if buckets == plans.buckets:
            return
        if self.engine.circuit is not None:
            self.reinstall()  # also the views that wait for a fill in the background
            circuit = planner.assemble(plans.producers.values(), buckets)
            found = rebuild.distributions_of(circuit, self._catalog)
            try:
                self.engine.rescale(circuit, found)
            except BaseException:
                plans.buckets = (
                    parallelism(database.layout, database.log) or plans.buckets
                )  # the change may have been committed
                raise
        store_parallelism(database.layout, buckets)
        plans.buckets = buckets

    def deletes(self, view: Relation, hidden: str) -> bool:
        """Whether replacing the content of a view by that of a hidden view deletes rows."""
        return handover.deletes(self._database, view, hidden)

    def refresh(self, plans: Mapping[str, Sequence[Operator]], made: Mapping[str, str], catalog: str = "") -> None:
        """Run views with `plans` from one commit on, after hidden views were filled for them: `made`, by view.

        catalog: as in `Refresh`. Until the plans are saved again, those of the newest circuit count, so that a crash
        leaves the plans that belong to the newest commit.
        """
        changed = {i: operators for i, operators in plans.items() if operators != self._plans.producers.get(i)}
        hidden = set(made.values())
        producers = {i: ops for i, ops in self._plans.producers.items() if i not in hidden and i not in changed}
        circuit = planner.assemble([*producers.values(), *changed.values()], self._plans.buckets)
        self._plans.discard_files(changed)
        self.engine.refresh(circuit, made, catalog)
        for relation_id, operators in changed.items():
            self._plans.put(relation_id, operators)
