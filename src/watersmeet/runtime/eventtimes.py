"""Event time where a source is read: late rows go, and the source's number rises.

RisingWave, "Joins", "Window joins", "State cleaning"; RisingWave, "Understanding streaming joins", "watermark"; rulings
D-002-05. A source's number is its greatest event time
less its delay, over all that epochs have read. A row is late if its time is below the number as of the epoch before,
and is dropped and counted. Rows are late here and nowhere else, so all views of a source agree on them. NULL is never
late.
A time further ahead of the epoch's own than the source allows (a clock that is wrong, the year 9999) does not move the
number: it would make every later row late. Such rows are kept and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import EventTime, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import LateRowFilter
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.runtime.intents import TimedInput
from watersmeet.store.manifests import OperatorCounts
from watersmeet.values.watermarks import NOW, within

Numbers = Mapping[str, int]
"""By relation id, in microseconds."""


@dataclass
class Observed:
    """What was seen of a source. watermark_us: its number by these rows alone. late, ahead: rows (`SourceCounts`)."""

    watermark_us: int | None = None
    late: int = 0
    ahead: int = 0


def observe(
    times: pa.ChunkedArray,
    diff: npt.NDArray[np.int64],
    event_time: EventTime,
    late_below_us: int | None,
    now_us: int,
    seen: Observed,
) -> npt.NDArray[np.bool_] | None:
    """Which rows are not late (None: all), counting into `seen`.

    late_below_us: the source's number as of earlier epochs; None if nothing is late. Rows that go (diff below 0) never
    are.
    """
    values, valid = microseconds(times)
    if not len(values):
        return None
    usable = values <= now_us + event_time.ahead_us
    if valid is not None:
        usable |= ~valid
    seen.ahead += len(values) - int(np.count_nonzero(usable))
    counted = usable if valid is None else usable & valid
    if counted.any():
        greatest = within(int(values.max(initial=np.iinfo(np.int64).min, where=counted)) - event_time.delay_us)
        seen.watermark_us = greatest if seen.watermark_us is None else max(seen.watermark_us, greatest)
    if late_below_us is None:
        return None
    late = (values < late_below_us) & (diff > 0)
    if valid is not None:
        late &= valid
    count = int(np.count_nonzero(late))
    seen.late += count
    return ~late if count else None


def event_times(circuit: Circuit, known: Mapping[str, Relation]) -> dict[str, TimedInput]:
    """For an intent: the event times of the relations that the circuit reads.

    A table that keeps the last row of each key shows every row that was written, and so does a topic: none goes.
    """
    found = {}
    for relation_id in sorted({s.relation_id for s in circuit.scans}):
        relation = known.get(relation_id)
        if relation is not None and relation.event_time is not None:
            time = relation.event_time
            drops = bool(relation.time_columns) and relation.topic is None
            found[relation_id] = TimedInput(relation.column(time.column), time.delay_us, time.ahead_us, drops)
    return found


def clocks(circuit: Circuit) -> dict[str, dict[str, str]]:
    """For an intent: by relation, the number that the greatest time of a column is, and the column."""
    found: dict[str, dict[str, str]] = {}
    for op in circuit.operators:
        if isinstance(op, LateRowFilter) and op.clock:
            found.setdefault(op.relation_id, {})[op.clock] = op.name
    return {i: dict(sorted(columns.items())) for i, columns in sorted(found.items())}


def late_rows(circuit: Circuit, operators: Mapping[str, OperatorCounts]) -> dict[str, int]:
    """By view, how many rows it left out as late in an epoch."""
    lost = {
        o.id: operators[o.id].rows_in - operators[o.id].rows_out
        for o in circuit.operators
        if isinstance(o, LateRowFilter) and not o.late and o.id in operators
    }
    if not any(lost.values()):
        return {}
    return {s.relation_id: sum(lost.get(o, 0) for o in circuit.upstream({s.id})) for s in circuit.sinks}


def risen(before: Numbers, *more: Numbers) -> dict[str, int]:
    """The greatest number of each source."""
    numbers = dict(before)
    for others in more:
        for source, number in others.items():
            numbers[source] = max(number, numbers.get(source, number))
    return numbers


def promised(numbers: Numbers, now_us: int, *, complete: bool) -> dict[str, int]:
    """What steps are told of the sources.

    complete: False while history is still being read, so that none of it goes.
    """
    return {**(numbers if complete else {}), NOW: now_us}
