"""The compiled plan of each view and connector table, kept beside the catalog.

What a database runs is what was compiled when the view was made: it is read from here at every start, and never
planned again. Each writer has files of its own, so that one that was overtaken never replaces the plan of another
relation that has the same id; the newest writer's counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from watersmeet import storage
from watersmeet.catalog import Catalog
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.circuit.operators import Cut, Operator, Scan, TemporalJoin
from watersmeet.errors import error
from watersmeet.lazyimport import lazy_import
from watersmeet.serialization import from_json
from watersmeet.storage import Place
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout, WriterFile, writer_files

if TYPE_CHECKING:
    from watersmeet import planner
else:
    planner = lazy_import("watersmeet.planner")


class Plans:
    """The operators of the relations that the circuit feeds, by relation id (inputs first, the Sink last).

    Not thread-safe: only DDL, which runs one statement at a time, changes it.
    buckets: for how many they run.
    """

    def __init__(self, layout: Layout, log: CommitLog, catalog: Catalog, buckets: int) -> None:
        """Read the plans of all relations in `catalog`. DATABASE_DAMAGED, STATE_MISMATCH."""
        self._layout = layout
        self._log = log
        self.buckets = buckets
        paths = {f.id: f.path for f in writer_files(layout.plans)}
        self.producers: dict[str, Sequence[Operator]] = {
            r.id: _load(paths.get(r.id), layout, r.id) for r in catalog.relations.values() if r.is_fed_by_circuit
        }

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


def _load(path: Place | None, layout: Layout, relation_id: str) -> tuple[Operator, ...]:
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
