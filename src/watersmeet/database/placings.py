"""Where the rows are that operators keep, for a database whose number of buckets is to change."""

from __future__ import annotations

from watersmeet.catalog import Catalog
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Operator
from watersmeet.circuit.placing import Placing
from watersmeet.errors import Error, error
from watersmeet.kernel.operators import STATEFUL
from watersmeet.planner.distribution import Placings


def placings_of(circuit: Circuit, catalog: Catalog) -> dict[str, dict[str, Placing]]:
    """By stateful operator, by trace, where its rows are. circuit: for the number of buckets that there will be.

    PARALLELISM_MISMATCH if they don't show it, or if a plan is for one bucket alone.
    """
    every = Placings(circuit.by_id)
    found: dict[str, dict[str, Placing]] = {}
    for op in circuit.operators:
        if op.kind not in STATEFUL:
            continue
        placed = {name: placing for name, placing in every.of(op).items() if placing is not None}
        if len(placed) < len(every.of(op)) or (circuit.buckets > 1 and circuit.stages[op.id] == 0):
            raise _unplaced(op, circuit, catalog)
        found[op.id] = placed
    return found


def _unplaced(op: Operator, circuit: Circuit, catalog: Catalog) -> Error:
    reading = [s.relation_id for s in circuit.sinks if op.id in circuit.upstream({s.id})]
    names = [catalog.relations[i].title for i in reading if i in catalog.relations]
    return error(
        "PARALLELISM_MISMATCH",
        f"the state of {' and '.join(names)} can't be split into other buckets",
        detail=f"The rows that {op.id} keeps don't show in which bucket they belong.",
        hint="Drop it and create it again; or close the database and open it with rebuild = True (watersmeet run "
        "--rebuild --parallelism N), which computes all state anew.",
    )
