"""Ticks: epochs without data, planned where the time that passes changes what views show.

Each epoch says of every time filter which time waits for its bound next. So a tick is planned when a row is about to
come or go and not before: a database whose rows wait for tomorrow is as idle until then as one without now().
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Operator, TemporalJoin, TimeFilter
from watersmeet.runtime.eventtimes import promised
from watersmeet.runtime.intents import Intent
from watersmeet.runtime.receipts import Receipt
from watersmeet.store.manifests import Progress
from watersmeet.watermarks import NOW, value

Waiting = Mapping[str, int]
"""By operator id, the least time of a row that waits for the operator's bound, in microseconds."""


def clocked(circuit: Circuit) -> list[TimeFilter]:
    """The operators whose bound follows the clock."""
    return [o for o in circuit.operators if isinstance(o, TimeFilter) and any(t.source == NOW for t in o.bound)]


def follows_clock(operator: Operator) -> bool:
    """Whether the time of epochs decides what an operator returns or keeps."""
    kept_for = isinstance(operator, TemporalJoin) and operator.ttl_us is not None
    return kept_for or f'"source":"{NOW}"' in operator.text


def is_due(circuit: Circuit, progress: Progress, now_us: int) -> bool:
    """True if an epoch at `now_us` would move a row though none came. progress: of the newest epoch."""
    if not progress.waiting:
        return False
    numbers = promised(progress.watermarks, now_us, complete=True)
    for op in clocked(circuit):
        bound_us = value(op.bound, numbers)
        least_us = progress.waiting.get(op.id)
        if (
            bound_us is not None
            and least_us is not None
            and (least_us < bound_us or (least_us == bound_us and op.comparison in ("<=", ">")))
        ):
            return True
    return False


def waiting(circuit: Circuit, intent: Intent, receipts: Iterable[Receipt], before: Waiting) -> dict[str, int]:
    """What waits after an epoch."""
    found: dict[str, int] = {}
    # A live epoch with work runs all buckets of a timed circuit; any other one knows of some of the rows only.
    known = (
        {}
        if not intent.mode.reads_history and intent.has_work
        else {i: n for i, n in before.items() if i in circuit.by_id}
    )
    for told in (*(r.waiting for r in receipts), known):
        for operator_id, least_us in told.items():
            found[operator_id] = min(least_us, found.get(operator_id, least_us))
    return found
