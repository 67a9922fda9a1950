"""The time of epochs: watermarks of sources, late rows, idle inputs, and epochs in which only time passes.

Source: RisingWave, "Joins", "Window joins", "State cleaning"; "Understanding streaming joins", "watermark". A source's
watermark is its greatest event time minus its delay, over all epochs. A row is late, and is dropped and counted, if its
time is below the watermark after the previous epoch. Only sources drop late rows, so all views of a source agree on
them. NULL is never late. A time too far ahead of the epoch's time (a wrong clock, the year 9999) doesn't move the
watermark, because it would make every later row late; such rows are kept and counted.

An idle input (`watermark_idle_timeout`) doesn't hold back the inputs that share a view with it. The clock decides which
inputs are idle, and the intent names them; their watermarks follow the others, in all buckets of the epoch and in its
commit. Watermarks never decrease: later rows of an idle input are late if they are below its watermark. The clock of a
view's windows may rise while its relation is idle (`Idle`), as an override in the intent of an epoch without data. It
depends on rows that wait. So live epochs only note for views that are being filled which clocks may rise, and the
replay decides.

Each epoch reports for every time filter the earliest time that still waits for its bound. So a tick, an epoch without
data, is planned only when time changes the rows of a view.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import Catalog, EventTime, LateRows, PausedQuery, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import ClockInput, Rebuild
from watersmeet.circuit.operators import LateRowFilter, TimeFilter
from watersmeet.circuit.sessions import SessionWindow
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.runtime.taskcontract import Intent, LateOutput, Observed, Receipt, TimedInput
from watersmeet.store.manifests import OperatorCounts, Progress
from watersmeet.values.slices import Slice
from watersmeet.values.watermarks import NOW, value, within

Numbers = Mapping[str, int]

"""Watermarks by relation id, in microseconds."""


def observe(
    times: pa.ChunkedArray,
    diff: npt.NDArray[np.int64],
    event_time: EventTime,
    late_below_us: int | None,
    now_us: int,
    seen: Observed,
) -> npt.NDArray[np.bool_] | None:
    """The mask of rows that are not late, None if no row is late. Counts late rows in `seen`.

    late_below_us: the source's watermark as of earlier epochs; None if no row is late. Deleted rows (diff below 0)
    never are late.
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


def event_times(circuit: Circuit, catalog: Catalog) -> dict[str, TimedInput]:
    """The event times of the relations that the circuit reads, for an intent.

    Tables that keep the last row of each key, and topics, drop no late rows.
    """
    found = {}
    known = catalog.relations
    kept = {} if catalog.late_rows_us == 0 else {r.owner: r for r in known.values() if isinstance(r, LateRows)}
    for relation_id in sorted({s.relation_id for s in circuit.scans}):
        relation = known.get(relation_id)
        if relation is not None and relation.event_time is not None:
            time = relation.event_time
            drops = bool(relation.time_columns) and relation.topic is None
            late = kept.get(relation_id) if drops else None
            found[relation_id] = TimedInput(
                relation.column(time.column),
                time.delay_us,
                time.ahead_us,
                drops,
                "" if late is None else late.id,
                () if late is None else relation.as_stored.columns,
            )
    return found


def clocks(circuit: Circuit, without: Container[str] = ()) -> dict[str, dict[str, ClockInput]]:
    """For an intent and each relation: the watermarks that are the greatest value of a time, and this time. without:
    operators that don't run.
    """
    found: dict[str, dict[str, ClockInput]] = {}
    for op in circuit.operators:
        if isinstance(op, LateRowFilter) and op.clock and op.id not in without:
            found.setdefault(op.relation_id, {})[op.clock] = ClockInput(op.name, op.clock_reads)
    return {i: dict(sorted(columns.items())) for i, columns in sorted(found.items())}


def late_outputs(circuit: Circuit, catalog: Catalog, runs: Callable[[str], bool]) -> dict[str, tuple[LateOutput, ...]]:
    """For each operator that drops late rows of views, the relations that keep them. runs: whether an operator runs.

    The operators of a paused view run on, so its late rows are kept as before.
    """
    if not circuit.dropping:
        return {}
    only = catalog.late_rows_us == 0
    kept = {(r.owner, r.number): r for r in catalog.relations.values() if isinstance(r, LateRows) and r.number}
    found: dict[str, dict[str, LateOutput]] = {}
    for sink in circuit.dropping:
        owner = catalog.relations.get(sink.relation_id)
        view = owner.owner if isinstance(owner, PausedQuery) else sink.relation_id
        for number, side in enumerate(sink.late, 1):
            late, names = kept.get((view, number)), tuple(c.name for c in side.columns)
            if late is not None and runs(sink.id) and tuple(c.name for c in late.columns[2:]) == names:
                found.setdefault(side.operator, {})[late.id] = LateOutput(
                    late.id, sink.relation_id, side.positions, names, only
                )
    return {i: tuple(outputs.values()) for i, outputs in found.items()}


def late_rows(circuit: Circuit, operators: Mapping[str, OperatorCounts], runs: Callable[[str], bool]) -> dict[str, int]:
    """For each view, the number of rows that it dropped as late in an epoch. runs: whether an operator runs."""
    lost = {
        o.id: operators[o.id].rows_in - operators[o.id].rows_out
        for o in circuit.operators
        if isinstance(o, LateRowFilter) and not o.late and o.id in operators
    }
    if not any(lost.values()):
        return {}
    return {s.relation_id: sum(lost.get(o, 0) for o in circuit.upstream({s.id})) for s in circuit.sinks if runs(s.id)}


def risen(before: Numbers, *more: Numbers) -> dict[str, int]:
    """The greatest watermark of each source."""
    numbers = dict(before)
    for others in more:
        for source, number in others.items():
            numbers[source] = max(number, numbers.get(source, number))
    return numbers


def promised(numbers: Numbers, now_us: int, *, complete: bool) -> dict[str, int]:
    """The watermarks for operators, with the time of the epoch. complete: False while history is read, which drops no
    rows.
    """
    return {**(numbers if complete else {}), NOW: now_us}


Idle = Mapping[str, tuple[str, ...]]

"""For each idle relation, the relations with an event time that are not idle and share a view with it."""


class Idleness:
    """The last time at which each input had rows; for an input without rows, the time since which it is watched."""

    def __init__(self) -> None:
        self._last_us: dict[str, int] = {}
        self._risen: dict[str, int] = {}
        """For each clock that has risen (`Idle`), the time of the last rows before it rose."""
        self._noted: dict[str, int] = {}
        """The result of `note_silent` if the last epoch had no rows."""

    def watch(self, circuit: Circuit, now_us: int) -> None:
        """Begins to watch the inputs of a circuit, unless they are watched."""
        for relation_id in (*(s.relation_id for s in circuit.scans), *(o.relation_id for o in circuit.idle_filters)):
            self._last_us.setdefault(relation_id, now_us)

    def note(self, relations: Iterable[str], now_us: int) -> None:
        """Records that relations have rows at `now_us`."""
        self._last_us |= dict.fromkeys(relations, now_us)

    def note_silent(self, filters: Iterable[LateRowFilter], slices: Sequence[Slice], now_us: int) -> dict[str, int]:
        """As `_silent`; records that the epoch that reads the slices notes the result."""
        silent = self._silent(filters, slices, now_us)
        self._noted = {} if slices else silent  # the next epoch may find that rows of this one wait
        return silent

    def is_tick_due(
        self,
        circuit: Circuit,
        new: Container[str],
        known: Mapping[str, Relation],
        sources: Container[str],
        progress: Progress,
        now_us: int,
    ) -> bool:
        """Whether an epoch at `now_us` without data would change a row, move a watermark, or be the first one after all
        rows to note that a clock may rise. new: the operators that live epochs don't run. sources: as in
        `own_filters`. progress: that of the newest epoch.
        """
        numbers = progress.watermarks
        idle = {i: others for i, others in self.idle(circuit, known, now_us).items() if i not in progress.idle}
        rises = circuit.is_timed and raised(numbers, idle, {}) != numbers
        silent = self._silent(own_filters(circuit, new, known, sources), (), now_us)
        return rises or not silent.items() <= self._noted.items() or _is_due(circuit, new, progress, now_us)

    def has_risen(self, risen: Mapping[str, int]) -> None:
        """Records that the replay of epochs has let clocks rise. risen: see `Backfill`."""
        self._risen |= risen

    def _silent(self, filters: Iterable[LateRowFilter], slices: Iterable[Slice], now_us: int) -> dict[str, int]:
        """The clocks that may rise at `now_us` because their relation is idle, each with the time of its last rows.
        slices: the input of the epoch.
        """
        reading = {piece.relation for piece in slices}
        return {
            o.clock: last_us
            for o in filters
            if (last_us := self._last_us.get(o.relation_id, now_us)) + (o.idle.after_us if o.idle else 0) <= now_us
            and o.relation_id not in reading
        }

    def rise(
        self,
        circuit: Circuit,
        new: Container[str],
        slices: Iterable[Slice],
        progress: Progress,
        now_us: int,
        *,
        drained: bool,
    ) -> dict[str, int]:
        """The new numbers of the clocks that rise at `now_us`, because their relation is idle and rows wait for them.

        new: the operators that live epochs don't run. slices: the input of the epoch. progress: that of the newest
        committed epoch; drained: whether no later one is planned.
        """
        found = self._silent([o for o in circuit.idle_filters if o.id not in new], slices, now_us)
        silent = {clock: last_us for clock, last_us in found.items() if drained or last_us <= progress.time_us}
        rises = rising(circuit, lambda i: i not in new, silent, self._risen, progress)
        self._risen |= {clock: silent[clock] for clock in rises}
        return rises

    def idle(self, circuit: Circuit, known: Mapping[str, Relation], now_us: int) -> dict[str, tuple[str, ...]]:
        """The idle inputs at `now_us`, and the inputs that each would hold back."""
        timed = {
            i: r.event_time
            for i in {s.relation_id for s in circuit.scans}
            if (r := known.get(i)) is not None and r.event_time is not None
        }
        silent = {
            i for i, t in timed.items() if t.idle_us is not None and now_us - self._last_us.get(i, now_us) >= t.idle_us
        }
        found: dict[str, set[str]] = {}
        for inputs in inputs_of_views(circuit).values() if silent else ():
            for relation_id in inputs & silent:
                found.setdefault(relation_id, set()).update(inputs & timed.keys() - silent)
        return {i: tuple(sorted(others)) for i, others in sorted(found.items()) if others}

    def beside(
        self, circuit: Circuit, views: Container[str], own: Container[str], known: Mapping[str, Relation], now_us: int
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """As `idle`, for live views, and for the relations `own`, which only `views` read that are being filled."""
        found = self.idle(circuit, known, now_us)
        live = self.idle(circuit.without(views), known, now_us) if found else {}
        return live, {i: others for i, others in found.items() if i in own}


def rising(
    circuit: Circuit, runs: Callable[[str], bool], silent: Numbers, risen: Numbers, progress: Progress
) -> dict[str, int]:
    """The new numbers of clocks that rise because their relation is idle and rows wait for them.

    runs: whether the epoch runs an operator. silent: the clocks that may rise, each with the time of its relation's
    last rows. risen: those that have risen, with that time. progress: that of the epoch before.
    """
    filters = (o for o in circuit.operators if isinstance(o, TimeFilter) and o.id in progress.waiting and runs(o.id))
    waited = {t.source for o in filters for t in o.bound}
    return {
        o.clock: progress.watermarks[o.clock] + o.idle.rises_us
        for o in circuit.idle_filters
        if o.idle is not None
        and o.clock in waited & silent.keys() & progress.watermarks.keys()
        and risen.get(o.clock) != silent[o.clock]
    }


def inputs_of_views(circuit: Circuit) -> dict[str, set[str]]:
    """For each view, the relations that it reads, directly or through other views."""
    scanned = {s.id: s.relation_id for s in circuit.scans}
    return {i: {scanned[o] for o in below if o in scanned} for i, below in circuit.below_sinks.items()}


def raised(numbers: Numbers, idle: Idle, overrides: Numbers) -> dict[str, int]:
    """The sources' watermarks if `idle` inputs don't hold back others. overrides: minimum watermarks."""
    found = risen(numbers, overrides)
    for relation_id, others in idle.items():
        known = [found[i] for i in others if i in found]
        if len(known) == len(others):
            found[relation_id] = max(min(known), found.get(relation_id, min(known)))
    return found


def own_filters(
    circuit: Circuit, new: Container[str], known: Mapping[str, Relation], sources: Container[str]
) -> list[LateRowFilter]:
    """The filters among the operators `new` whose clock may rise and is not that of other operators. sources: those
    that live epochs read; no other source is idle.
    """
    filters = [o for o in circuit.operators if isinstance(o, LateRowFilter)] if circuit.idle_filters else []
    others = {o.clock for o in filters if o.id not in new}
    return [
        o
        for o in filters
        if o.idle
        and o.id in new
        and o.clock not in others
        and (o.relation_id in sources or not known[o.relation_id].connector)
    ]


Waiting = Mapping[str, int]

"""For each operator id, the least time of a row that waits for the operator's bound, in microseconds."""


def clocked(circuit: Circuit) -> list[TimeFilter | SessionWindow]:
    """The operators whose bound follows the clock."""
    return [
        o
        for o in circuit.operators
        if (isinstance(o, SessionWindow) and o.is_timed)
        or (isinstance(o, TimeFilter) and any(t.source == NOW for t in o.bound))
    ]


def _is_due(circuit: Circuit, new: Container[str], progress: Progress, now_us: int) -> bool:
    """Whether an epoch at `now_us` without new input would change a row. progress: that of the newest epoch. new: the
    operators that live epochs don't run; the replay of the newest epoch processes their rows that were due then.
    """
    waited = [o for o in clocked(circuit) if o.id in progress.waiting] if progress.waiting else []
    if not waited:
        return False

    def passed(time_us: int) -> set[str]:
        numbers = promised(progress.watermarks, time_us, complete=True)
        found = set()
        for op in waited:
            bound_us, least_us = value(op.bound, numbers), progress.waiting[op.id]
            if bound_us is not None and (
                least_us < bound_us or (least_us == bound_us and op.comparison in ("<=", ">"))
            ):
                found.add(op.id)
        return found

    due = passed(now_us)
    return any(i not in new for i in due) or bool(due - passed(progress.time_us))


def waiting(circuit: Circuit, intent: Intent, receipts: Iterable[Receipt], before: Waiting) -> dict[str, int]:
    """For each operator, the least time of a waiting row after an epoch."""
    mode = intent.mode

    def has_run(operator_id: str) -> bool:
        return intent.has_work and mode.runs(operator_id) and mode.state_id(operator_id) == operator_id

    # An epoch with work runs all buckets of a timed circuit. A rebuild may be given up.
    found = {i: n for i, n in before.items() if i in circuit.by_id and (isinstance(mode, Rebuild) or not has_run(i))}
    for receipt in receipts:
        for operator_id, least_us in receipt.waiting.items():
            if has_run(operator_id):
                found[operator_id] = min(least_us, found.get(operator_id, least_us))
    return found
