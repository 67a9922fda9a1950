"""How many rows the last join of a view keeps, counted in its state."""

from __future__ import annotations

from collections.abc import Mapping

from watersmeet.catalog import MaterializedView
from watersmeet.circuit.operators import Operator, TemporalJoin
from watersmeet.database.sessions.context import Session
from watersmeet.dialects.schemas import relation_written
from watersmeet.errors import error
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.operators.temporal import MEMO, WAITING
from watersmeet.kernel.runs.shares import RunRef, load
from watersmeet.runtime.stages import stored_state


def join_state(session: Session, name: str) -> dict[str, int]:
    """How many rows the last join of a view or running query keeps of its `left` and `right` inputs.

    UNDEFINED_RELATION, FEATURE_NOT_SUPPORTED.

    Counts the rows of the arrangements that it reads; for a temporal join, the left rows that wait or whose look-up is
    remembered.
    """
    running = (r for r in session.catalog.relations.values() if r.hidden and r.name == name)
    relation = next(running, None) or relation_written(session.catalog, name)
    if not isinstance(relation, MaterializedView):
        raise error("UNDEFINED_RELATION", f'materialized view "{name}" does not exist')
    operators = session.database.plans.producers[relation.id]
    joins = [o for o in operators if o.kind in ("asof", "arrivalasof", "groupjoin", "join", "multijoin", "temporal")]
    if joins and joins[-1].kind == "multijoin":
        raise error(
            "FEATURE_NOT_SUPPORTED", f'the last join of materialized view "{name}" has {len(joins[-1].inputs)} inputs'
        )
    if not joins:
        raise error("FEATURE_NOT_SUPPORTED", f'materialized view "{name}" has no join')
    epoch = session.database.log.last_epoch()
    held = {"left": 0, "right": 0}
    if epoch is None:
        return held
    kept = [(i, ROWS) for i in joins[-1].inputs]
    if joins[-1].kind == "temporal":
        waits = isinstance(joins[-1], TemporalJoin) and joins[-1].waits
        kept = [
            (joins[-1].id, WAITING if waits else MEMO),
            *_kept_by(joins[-1].inputs[1], {o.id: o for o in operators}),
        ]
    sides = list(zip(held, kept, strict=False))
    for key, segment in epoch.segments.items():
        if key[0].isdigit():
            manifest = stored_state(session.database.segments, segment, key)
            for side, (operator_id, trace) in sides:
                references = manifest.operators.get(operator_id, {}).get(trace, ())
                held[side] += sum(_live_rows(session, r) for r in references)
    return held


def _kept_by(arrangement: str, operators: Mapping[str, Operator]) -> list[tuple[str, str]]:
    """What a look-up join keeps of its right side: nothing if the relation is stored anyway."""
    below = arrangement
    while operators[below].inputs:
        below = operators[below].inputs[0]
        if operators[below].kind in ("topn", "upsert"):
            return [(arrangement, ROWS)]
    return []


def _live_rows(session: Session, ref: RunRef) -> int:
    """The rows of a run, less those that cancel rows of older runs."""
    return int(load(ref, session.database.segments.read_blob(ref.blob)).diff.sum())
