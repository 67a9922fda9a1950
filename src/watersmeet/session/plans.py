"""The compiled plan of each view and connector table, kept beside the catalog.

What a database runs is what was compiled when the view was made: it is read from here at every
start, and never planned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from watersmeet.catalog import Catalog
from watersmeet.circuit.circuit import STATE_FORMAT_VERSION, Circuit
from watersmeet.circuit.operators import Operator, operator_from_json
from watersmeet.errors import error
from watersmeet.planner import assemble
from watersmeet.store import files
from watersmeet.store.layout import Layout, check_id
from watersmeet.store.manifests import sealed, unsealed


class Plans:
    """The operators of the relations that the circuit feeds, by relation id (inputs first, the Sink last).

    Not thread-safe: only DDL, which runs one statement at a time, touches it.
    """

    def __init__(self, layout: Layout, catalog: Catalog, buckets: int) -> None:
        """Read the plans of all relations in `catalog`. DATABASE_DAMAGED, STATE_MISMATCH."""
        self._layout = layout
        self._buckets = buckets
        self.producers: dict[str, Sequence[Operator]] = {
            r.id: _load(layout, r.id) for r in catalog.relations.values() if r.is_fed_by_circuit
        }

    @property
    def circuit(self) -> Circuit:
        """The circuit of the whole database."""
        return assemble(self.producers.values(), self._buckets)

    def add(self, relation_id: str, operators: Sequence[Operator]) -> None:
        """Save the plan of a new relation."""
        value = {"state_format": STATE_FORMAT_VERSION, "operators": [o.to_json() for o in operators]}
        path = self._layout.plan(check_id(relation_id))
        files.replace_file(path, sealed(value), durable=self._layout.durable)
        self.producers[relation_id] = operators

    def replace_all(self, producers: Mapping[str, Sequence[Operator]], buckets: int) -> None:
        """Save other plans for all relations, for another number of buckets."""
        self._buckets = buckets
        for relation_id, operators in producers.items():
            self.add(relation_id, operators)

    def remove(self, relation_ids: Iterable[str], *, stored: bool = True) -> None:
        """Forget relations that the catalog no longer has. stored False: the catalog on disk still has them."""
        gone = [i for i in relation_ids if i in self.producers]
        for relation_id in gone:
            del self.producers[relation_id]
        if stored:
            files.remove_files(self._layout.plan(check_id(i)) for i in gone)


def _load(layout: Layout, relation_id: str) -> tuple[Operator, ...]:
    path = layout.plan(check_id(relation_id))
    try:
        value = unsealed(files.read_file(path), path.name)
    except FileNotFoundError as cause:
        raise error("DATABASE_DAMAGED", f"plan {path.name} is missing from {path.parent}") from cause
    if value.get("state_format") != STATE_FORMAT_VERSION:
        raise error("STATE_MISMATCH", f"the plan {path.name} has state format {value.get('state_format')}, "
                    f"this release has {STATE_FORMAT_VERSION}", hint="Use the release that wrote it.")
    return tuple(operator_from_json(o) for o in value["operators"])
