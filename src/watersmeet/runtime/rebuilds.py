"""When state can be made from the inputs' history, and when not."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.catalog import ARRIVAL, Relation, Source
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill
from watersmeet.circuit.operators import (
    ArrivalAsofJoin,
    ArrivalJoin,
    Cut,
    LateRowFilter,
    Records,
    Scan,
    TemporalJoin,
    Versions,
)
from watersmeet.errors import OperationalError, error
from watersmeet.store.manifests import Progress


class LateRowsError(OperationalError):
    """Rows were left out as late between the compilation of a view and its filling: it has to be compiled again."""

    def __init__(self) -> None:
        super().__init__(
            "STATE_MISMATCH", "late rows arrived while a view was being created", hint="Create the view again."
        )


def check_shared(circuit: Circuit, live: frozenset[str], fill: Fill, progress: Progress) -> None:
    """LateRowsError if operators of live views, which new views are to read from their beginning on, left rows out
    since these were compiled.

    live: the live views. fill: of the new ones. progress: of the newest epoch.
    """
    read = [circuit.by_id[i] for i in fill.roles.keys() - fill.having("replayed")]
    scans = {o.id for o in read if isinstance(o, Scan) and o.late != progress.late.get(o.relation_id, 0)}
    filters = {o.id for o in read if isinstance(o, LateRowFilter)}
    if not scans and not (filters and progress.left_out):
        return
    for sink in circuit.sinks:
        if sink.relation_id not in live:
            continue
        below = circuit.upstream({sink.id})
        if below & scans or (progress.left_out.get(sink.relation_id) and below & filters):
            raise LateRowsError


def check_rebuild(circuit: Circuit, progress: Progress, known: Mapping[str, Relation]) -> None:
    """FEATURE_NOT_SUPPORTED if what the history gives now is not what the views' content was made of.

    progress: of the newest epoch.
    """
    found = next((o for o in circuit.operators if isinstance(o, (ArrivalAsofJoin, ArrivalJoin, TemporalJoin))), None)
    if found is not None:
        what = "a temporal join" if isinstance(found, TemporalJoin) else "EMIT ON ARRIVAL"
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the state of a view with {what} can't be rebuilt",
            detail="What its rows matched when they arrived is stored only in the state and in the view's content.",
            hint="Drop the view, rebuild, and create it again: its rows are then joined with what is there.",
        )
    if any(isinstance(o, Cut) for o in circuit.operators):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "the state of a view that begins at a moment can't be rebuilt",
            detail="Which rows its inputs had when it was created is stored only in the state.",
            hint="Drop the view, rebuild, and create it again: it then begins at that moment.",
        )
    if any(isinstance(o, Versions) for o in circuit.operators):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "the state of a view that reads versions of a table can't be rebuilt",
            detail="Which rows the table had earlier is stored only in the state.",
            hint="Drop the view, rebuild, and create it again: it then starts with the rows that are there.",
        )
    if any(
        isinstance(o, Records) and o.keys is None and not circuit.by_id[o.inputs[0]].append_only
        for o in circuit.operators
    ):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "the state of a view with join_restore_nulls = 0 can't be rebuilt",
            detail="Which rows once had a partner is stored only in the state.",
            hint="Drop the view, rebuild, and create it again: rows without a partner then show NULLs.",
        )
    for sink in circuit.sinks:
        late = progress.left_out.get(sink.relation_id, 0)
        if late:
            name = known[sink.relation_id].reader if sink.relation_id in known else sink.relation_id
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"the state of {name} can't be rebuilt",
                detail=f"{late} of the rows that it joins arrived late: its state lacks them, their history has them.",
                hint="Drop it, rebuild, and create it again: nothing is late for it then.",
            )
    for relation_id in sorted({s.relation_id for s in circuit.scans}):
        relation = known.get(relation_id)
        if isinstance(relation, Source) and ARRIVAL in relation.defaults.values():
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'the state of views over "{relation.shown}" can\'t be rebuilt',
                detail="When its rows arrived is stored only in the state and in the views' content.",
                hint="Drop the views over it, rebuild, and create them again: its rows then arrive again.",
            )
        late = progress.late.get(relation_id, 0)
        if late:
            name = known[relation_id].shown if relation_id in known else relation_id
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'the state of views over "{name}" can\'t be rebuilt',
                detail=f"{late} of its rows arrived late: the views don't have them, but its history does.",
                hint="Drop the views over it, rebuild, and create them again: they then show these rows, too.",
            )


def check_whole(lost: Mapping[str, str]) -> None:
    """FEATURE_NOT_SUPPORTED if a part of the history is no longer there. lost: see `coordinator.Coordinator.lost`."""
    for what in lost.values():
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the state can't be rebuilt without {what}",
            detail="What they were joined with, or counted in, is stored only in the state.",
            hint="Drop the views that read them, rebuild, and create the views again.",
        )
