"""The compiled plan of each view and connector table, kept beside the catalog.

What a database runs is what was compiled when the view was made: it is read from here at every start, and never
planned again. A plan whose file is missing or damaged is taken from the circuit of the newest epoch, else from the
statement of its view; a circuit whose file is missing or damaged is taken from the plans. Each writer has files of its
own, so that one that was overtaken never replaces the plan of another relation that has the same id; the newest
writer's counts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from watersmeet.catalog import Catalog, Relation
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.circuit.operators import Cut, Operator, Scan, TemporalJoin
from watersmeet.errors import Error, error
from watersmeet.objectstores import storage
from watersmeet.objectstores.storage import AnyPath
from watersmeet.runtime.plans import load_circuit, save_circuit
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout, WriterFile, writer_files
from watersmeet.system.process import lazy_import
from watersmeet.values.serialization import from_json

if TYPE_CHECKING:
    from watersmeet import planner
    from watersmeet.database import rebuild
else:
    planner = lazy_import("watersmeet.planner")
    rebuild = lazy_import("watersmeet.database.rebuild")

_logger: Final = logging.getLogger(__name__)


class Plans:
    """The operators of the relations that the circuit feeds, by relation id (inputs first, the Sink last).

    Not thread-safe: only DDL, which runs one statement at a time, changes it.
    buckets: for how many they run.
    """

    def __init__(self, layout: Layout, log: CommitLog, catalog: Catalog, buckets: int) -> None:
        """Read the plans of all relations in `catalog`. STATE_MISMATCH; DATABASE_DAMAGED if a plan is nowhere."""
        self._layout = layout
        self._log = log
        self.buckets = buckets
        paths = {f.id: f.path for f in writer_files(layout.plans)}
        self.producers: dict[str, Sequence[Operator]] = {}
        self._unsaved: dict[str, Error] = {}
        """Why plans were not read from their files."""
        for relation in catalog.relations.values():
            if relation.is_fed_by_circuit:
                self.producers[relation.id] = self._read(paths.get(relation.id), relation, catalog)

    def _read(self, path: AnyPath | None, relation: Relation, catalog: Catalog) -> Sequence[Operator]:
        try:
            return _load(path, self._layout, relation.id)
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
        """Save the plans, and the circuit of the newest epoch, whose files are missing or damaged. Only for the writer.

        DATABASE_DAMAGED if the circuit's file is, and no plans give that circuit.
        """
        for relation_id, damage in self._unsaved.items():
            _logger.warning("a plan is restored: %s", damage.message)
            self.add(relation_id, self.producers[relation_id])
        self._unsaved.clear()
        last = self._log.last_epoch()
        if last is None or last.circuit is None:
            return
        try:
            load_circuit(self._layout, last.circuit)
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
        """Ids of the relations whose changes queries look up; not of those that stand still. For any thread."""
        made = {o.id: o for operators in list(self.producers.values()) for o in operators}
        found, pending = set(), [o.inputs[1] for o in made.values() if isinstance(o, TemporalJoin)]
        while pending:
            operator = made.pop(pending.pop(), None)
            if isinstance(operator, Scan):
                found.add(operator.relation_id)
            elif operator is not None and not isinstance(operator, Cut):
                pending += operator.inputs
        return found

    def add(self, relation_id: str, operators: Sequence[Operator]) -> None:
        """Save the plan of a new relation."""
        text = f'{{"state_format":{STATE_FORMAT_VERSION},"operators":[{",".join([o.text for o in operators])}]}}'
        path = self._layout.plan(relation_id, self._log.writer)
        storage.replace_file(path, self._layout.seal_text(path, text), durable=self._layout.durable)
        self.producers[relation_id] = operators

    def replace_all(self, producers: Mapping[str, Sequence[Operator]], buckets: int) -> None:
        """Save other plans for all relations, for another number of buckets."""
        self.buckets = buckets
        for relation_id, operators in producers.items():
            self.add(relation_id, operators)

    def remove(self, relation_ids: Iterable[str], *, stored: bool = True) -> None:
        """Forget relations that the catalog no longer has. stored False: the catalog on disk still has them."""
        gone = [i for i in relation_ids if i in self.producers]
        for relation_id in gone:
            del self.producers[relation_id]
        if stored:
            _discard(writer_files(self._layout.plans), gone, self._log.writer)

    def discard_unused(self) -> None:
        """Delete what writers before this one saved of relations that the catalog does not have."""
        saved = writer_files(self._layout.plans)
        _discard(saved, {f.id for f in saved} - self.producers.keys(), self._log.writer - 1)


def _discard(saved: Iterable[WriterFile], relation_ids: Collection[str], writer: int) -> None:
    """Deletes those of the plans `saved` that are of relations, as far as writers up to that one saved them: later ones
    may have given the same id to others.
    """
    storage.remove_files(f.path for f in saved if f.id in relation_ids and f.writer <= writer)


def _load(path: AnyPath | None, layout: Layout, relation_id: str) -> tuple[Operator, ...]:
    if path is None:
        raise error("DATABASE_DAMAGED", f"the plan of relation {relation_id} is missing from {layout.plans}")
    value = layout.unseal(path)
    if value.get("state_format") != STATE_FORMAT_VERSION:
        raise error(
            "STATE_MISMATCH",
            f"the plan {path.name} has state format {value.get('state_format')}, "
            f"this release has {STATE_FORMAT_VERSION}",
            hint="Use the release that wrote it.",
        )
    return from_json(tuple[Operator, ...], value["operators"])
