"""Reads slices into the changes that scans return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import EventTime, GeneratedColumn
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import ClockInput
from watersmeet.circuit.operators import KEPT, SEQ_ROW_BITS, Operator, Scan, Upsert
from watersmeet.connectors import registry as connectors
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows, Unavailable
from watersmeet.errors import Error, error
from watersmeet.kernel.context import mark_failing
from watersmeet.kernel.evaluation.expressions import generated_values, with_lengths
from watersmeet.kernel.metrics import Counters, Orphan
from watersmeet.kernel.runs.delta import Delta, ones
from watersmeet.runtime.eventtimes import Numbers, observe
from watersmeet.runtime.taskcontract import InputSpec, Intent, Observed, SourceCounts
from watersmeet.store.changes import fitted
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import FailedPart
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system.blobs import BlobRef
from watersmeet.system.process import lazy_import
from watersmeet.values.slices import ChangeSlice, MessageSlice, Slice, SourceSlice
from watersmeet.values.types import TIMESTAMP, TIMESTAMPTZ, Field, arrow_schema

if TYPE_CHECKING:
    from watersmeet.connectors.base import messages
else:
    messages = lazy_import("watersmeet.connectors.base.messages")

Diff = npt.NDArray[np.int64]

#: The limits of milliseconds since 1970 that can be converted to microseconds.
_MOST_MS: Final = np.iinfo(np.int64).max // 1000


class _Part(NamedTuple):
    """Some rows of a slice, with columns by name. kept: as in `SourceRows`."""

    table: pa.Table
    diff: Diff
    ordinals: Diff
    kept: pa.ListArray | None = None

    def filter(self, keep: npt.NDArray[np.bool_]) -> _Part:
        """The part with only the rows to keep."""
        kept = None if self.kept is None else self.kept.filter(pa.array(keep))
        return _Part(self.table.filter(pa.array(keep)), self.diff[keep], self.ordinals[keep], kept)


@dataclass
class ScanInput:
    """The changes for each scan id, and the counts of each relation. late: the late rows for each relation that keeps
    them.
    """

    deltas: dict[str, list[Delta]] = field(default_factory=dict)
    late: dict[str, list[Delta]] = field(default_factory=dict)
    counts: dict[str, SourceCounts] = field(default_factory=dict)


def read_slices(
    layout: Layout,
    segments: SegmentFiles,
    intent: Intent,
    slices: Iterable[Slice],
    scans: Iterable[Scan],
    watermarks: Numbers,
) -> ScanInput:
    """The rows of `slices`, with the columns of each of `scans`. Each slice is read once, with only the columns of its
    scans.

    watermarks: the sources' watermarks as of earlier epochs: live rows below them are dropped.
    """
    by_relation: dict[str, list[Scan]] = {}
    for scan in scans:
        by_relation.setdefault(scan.relation_id, []).append(scan)
    found = ScanInput()
    slices = [piece for piece in slices if piece.relation in by_relation]
    sources = {i: s.source for i, s in intent.specs.items() if s.source is not None}
    if sources:
        connectors.expect(slices, sources)
    for piece in slices:
        readers = by_relation[piece.relation]
        is_earlier = isinstance(piece, ChangeSlice) and piece.earlier
        if is_earlier:
            readers = [scan for scan in readers if intent.mode.begins(scan.id)]
        fields = {f.name: f for scan in readers for f in _columns(scan)}
        event_time = _event_time(intent, piece.relation, fields)
        counts = SourceCounts() if is_earlier else found.counts.setdefault(piece.relation, SourceCounts())
        counts.size_bytes += piece.size_bytes
        parts = _read(layout, segments, intent, piece, list(fields.values()), counts)
        late_below_us = watermarks.get(piece.relation) if intent.drops_late(piece.relation) else piece.late_below_us
        clocks = intent.clocks(piece.relation)
        fields |= {f.name: f for clock in clocks.values() for f in clock.reads}
        late: list[_Part] = []
        with _attributed(piece, readers):
            for part in _without_late_rows(parts, event_time, late_below_us, intent.now_us, counts, late):
                _move_clocks(clocks, part.table, part.diff, intent.now_us, counts)
                for scan in readers:
                    read = _inserted(part) if intent.reads_inserted(scan) else part
                    found.deltas.setdefault(scan.id, []).append(_delta(scan, piece, read))
            timed = intent.event_times.get(piece.relation)
            keeps = intent.drops_late(piece.relation) and intent.counts(piece.relation)
            if late and keeps and timed is not None and timed.late:
                assert late_below_us is not None
                rows = _whole(layout, segments, intent, piece, late, timed.columns)
                found.late.setdefault(timed.late, []).append(late_delta(rows, intent.now_us, late_below_us))
    return found


def _whole(
    layout: Layout, segments: SegmentFiles, intent: Intent, piece: Slice, late: list[_Part], columns: Sequence[Field]
) -> pa.Table:
    """Late rows of a slice with all columns of their relation; those that no scan reads are read again. They are NULL
    in rows that can't be read with these columns.
    """
    names = [c.name for c in columns]
    if set(names) <= set(late[0].table.column_names):
        return pa.concat_tables([part.table.select(names) for part in late])
    wanted = np.concatenate([part.ordinals for part in late])
    found, ordinals = [], [np.zeros(0, np.int64)]
    for part in _read(layout, segments, intent, piece, [*columns], SourceCounts(), again=True):
        chosen = part.filter(np.isin(part.ordinals, wanted))
        found.append(chosen.table.select(names))
        ordinals.append(chosen.ordinals)
    schema = arrow_schema(tuple(columns), positional=False)
    lost = [part.filter(~np.isin(part.ordinals, np.concatenate(ordinals))) for part in late]
    return pa.concat_tables([*found, *(fitted(part.table, schema, {}) for part in lost)])


def late_delta(rows: pa.Table, time_us: int, below_us: Diff | int) -> Delta:
    """Late rows as a relation keeps them: with the time of the epoch, and the watermark that they missed; NULL if there
    was none yet, for rows without a time.
    """
    at = pa.repeat(pa.scalar(time_us, pa.timestamp("us")).cast(TIMESTAMPTZ.arrow), rows.num_rows)
    bounds = np.broadcast_to(np.int64(below_us), rows.num_rows)
    below = pa.array(bounds, mask=bounds == np.iinfo(np.int64).min).cast(pa.timestamp("us"))
    columns = [pa.chunked_array([at]), pa.chunked_array([below]), *rows.columns]
    return Delta(pa.table(columns, names=[f"c{i}" for i in range(len(columns))]), ones(rows.num_rows))


@contextmanager
def _attributed(piece: Slice, readers: Iterable[Scan]) -> Iterator[None]:
    """A context that records in an error of a table's rows which scans read them. An unforeseen error of a source's
    rows stops the source.
    """
    try:
        yield
    except Exception as cause:
        if isinstance(piece, ChangeSlice):
            mark_failing(cause, *(scan.id for scan in readers))
        elif not isinstance(cause, (Error, OSError, MemoryError)):
            stop = error(
                "SOURCE_STOPPED",
                f"a source can't be read: {type(cause).__name__}: {cause}",
                detail="An epoch skips the source after this error; all other sources and tables are read.",
                hint="FLUSH tries again. Drop the source if the error stays.",
            )
            stop.source = piece.relation
            raise stop from cause
        raise


def _move_clocks(
    clocks: Mapping[str, ClockInput], table: pa.Table, diff: Diff, now_us: int, counts: SourceCounts
) -> None:
    """Advance the watermarks `clocks` to the greatest of their times, ignoring times that are too far ahead.

    The operators that read a computed time count its errors.
    """
    for name, clock in clocks.items():
        seen = Observed(counts.clocks.get(name))
        if clock.reads:
            times = generated_values(table, Field(name, TIMESTAMP), clock.reads, clock.name, Counters())
        else:
            times = _times(table, clock.name)
        observe(times, diff, EventTime(clock.name, 0), None, now_us, seen)
        if seen.watermark_us is not None:
            counts.clocks[name] = seen.watermark_us


def _times(table: pa.Table, path: str) -> pa.ChunkedArray:
    """The times of a column, or of a field below it (`details.at`). Integers are milliseconds since 1970."""
    if path in table.column_names:
        found = table.column(path)
    else:
        root, *fields = path.split(".")
        found = pc.struct_field(table.column(root), fields)
    if not pa.types.is_integer(found.type):
        return found
    fits = pc.and_(pc.less_equal(found, _MOST_MS), pc.greater_equal(found, -_MOST_MS))
    return pc.if_else(fits, found, None).cast(pa.timestamp("ms")).cast(pa.timestamp("us"))


def _without_late_rows(
    parts: Iterable[_Part],
    event_time: EventTime | None,
    late_below_us: int | None,
    now_us: int,
    counts: SourceCounts,
    late: list[_Part],
) -> Iterator[_Part]:
    """The rows that are not late; the others are added to `late`. All are counted."""
    for part in parts:
        counts.rows += len(part.diff)
        timely = None
        if event_time is not None:
            times = part.table.column(event_time.column)
            timely = observe(times, part.diff, event_time, late_below_us, now_us, counts.seen)
        if timely is not None:
            late.append(part.filter(~timely))
        yield part if timely is None else part.filter(timely)


def _inserted(part: _Part) -> _Part:
    """Only the inserted rows."""
    inserted = part.diff > 0
    return part if inserted.all() else part.filter(inserted)


def _event_time(intent: Intent, relation_id: str, fields: dict[str, Field]) -> EventTime | None:
    """The event time of a relation, if it has one; its column is then among `fields`."""
    timed = intent.event_times.get(relation_id)
    if timed is None:
        return None
    fields.setdefault(timed.column.name, timed.column)
    return EventTime(timed.column.name, timed.delay_us, timed.ahead_us)


def _columns(scan: Scan) -> list[Field]:
    """The relation's columns that the scan reads, by their names in the relation."""
    return [Field(name, f.type, f.nullable) for name, f in zip(scan.names, scan.schema, strict=False)]


def _read(
    layout: Layout,
    segments: SegmentFiles,
    intent: Intent,
    piece: Slice,
    fields: list[Field],
    counts: SourceCounts,
    *,
    again: bool = False,
) -> Iterable[_Part]:
    """The rows of a slice, in parts. again: whether its dead letters already are written."""
    schema = arrow_schema(tuple(fields), positional=False)
    spec = intent.specs.get(piece.relation, InputSpec())
    if isinstance(piece, ChangeSlice):
        blob = BlobRef(piece.file, piece.offset_bytes, piece.size_bytes, piece.rows)
        start, end = piece.part or (0, piece.rows)
        if piece.part is None:
            table, diff = segments.read_change(blob, schema.names)
        else:
            table, diff = segments.read_rows(blob, start, end, schema.names)
        ordinals = np.arange(piece.first + start, piece.first + end, dtype=np.int64)
        yield _Part(fitted(table, schema, spec.fills), diff, ordinals)
    elif isinstance(piece, SourceSlice):
        yield _read_source(layout, intent, piece, fields, counts, again=again)
    else:
        raise error("INTERNAL_ERROR", f"there is no reader for slices of kind {piece.kind}")


def _read_source(
    layout: Layout, intent: Intent, piece: SourceSlice, fields: list[Field], counts: SourceCounts, *, again: bool
) -> _Part:
    spec = intent.specs[piece.relation]
    assert spec.source is not None
    # A backfill reads records again. Undecodable ones already are dead letters, and must not be counted twice.
    again = again or intent.mode.reads_history
    directory = None if again else layout.dead(piece.relation)
    with DeadLetterWriter(directory, intent.epoch, piece.ordinal) as dead:
        arrivals = [f for f in fields if f.name in spec.arrivals]
        generated = {f: spec.generated[f.name] for f in fields if f.name in spec.generated}
        read = {f.name: f for f in fields if f not in arrivals and f not in generated}
        read |= {f.name: f for column in generated.values() for f in column.reads}
        try:
            rows = connectors.read_slice(piece, spec.source, list(read.values()), dead)
        except (Unavailable, Error) as cause:
            if isinstance(cause, Error) and not isinstance(spec.source, messages.MessageSpec):
                raise
            # For messages, this may also be a schema that doesn't fit the columns, which a user must fix. Other sources
            # continue.
            reason = cause.message if isinstance(cause, Error) else str(cause)
            problem = error("SOURCE_UNAVAILABLE", f"a source can't be read for now: {reason}")
            problem.source = piece.relation
            raise problem from cause
        if rows.kept is not None and generated:
            rows = _with_kept_generated(rows, generated, piece, dead)
        if not again:
            count_dead(dead, piece.relation, spec, counts)
    table = with_lengths(rows.table, spec.lengths)
    for column in arrivals:  # AS PROCTIME(): the time of the epoch that reads the row
        moment = pa.scalar(intent.now_us, pa.timestamp("us")).cast(column.type.arrow)
        table = table.append_column(column.name, pa.repeat(moment, len(rows.ordinals)))
    for column, made in generated.items():
        own = Counters()
        table = table.append_column(column.name, generated_values(table, column, made.reads, made.sql, own))
        counts.expression_errors += own.expression_errors
        counts.failures += tuple(
            FailedPart(f.column, f.sql, f.reason, f.rows, column.name) for f in own.failures.values()
        )
    diff = ones(len(rows.ordinals)) if rows.diff is None else rows.diff
    return _Part(table, diff, rows.ordinals, rows.kept)


def count_dead(dead: DeadLetterWriter, relation_id: str, spec: InputSpec, counts: SourceCounts) -> None:
    """Count dead letters of a relation before they are written. Raises SOURCE_STOPPED if its source has on_error =
    'stop'.
    """
    if dead.first is None:
        return
    counts.dead += dead.rows
    counts.first_dead = counts.first_dead or dead.first
    if spec.source is not None and spec.source.stops_on_error:
        stop = _stopped(dead.first)
        stop.source = relation_id
        raise stop


def set_row_aside(dead: DeadLetterSink, piece: Slice | None, ordinal: int, reason: str) -> None:
    """Write a row that is a change to the dead letters, by its position in its slice."""
    if isinstance(piece, MessageSlice):
        dead.add_messages(piece.topic, piece.partition, [piece.offset_of(ordinal)], [reason], [None], [None])
    else:
        dead.add("", None, reason)


def _with_kept_generated(
    rows: SourceRows, generated: Mapping[Field, GeneratedColumn], piece: SourceSlice, dead: DeadLetterSink
) -> SourceRows:
    """Adds generated columns to the kept columns of updates. A generated column is kept if all columns from which it is
    computed are kept; rows that keep only some of these become dead letters.
    """
    assert rows.kept is not None
    names, parents = pc.list_flatten(rows.kept), pc.list_parent_indices(rows.kept).to_numpy()
    count = len(rows.kept)
    lacking = np.zeros(count, np.bool_)
    all_names, all_parents = [names], [parents]
    for column, made in generated.items():
        reads = pa.array([f.name for f in made.reads], pa.string())
        found = np.bincount(parents[pc.is_in(names, value_set=reads).to_numpy(zero_copy_only=False)], minlength=count)
        kept = np.flatnonzero((found == len(reads)) & (found > 0))
        all_names.append(pa.array([column.name] * len(kept), pa.string()))
        all_parents.append(kept)
        part = (found > 0) & (found < len(reads)) & ~lacking
        for i in np.flatnonzero(part).tolist():
            why = f'generated: column "{column.name}" is computed from a value that was not sent, and from one that was'
            set_row_aside(dead, piece, int(rows.ordinals[i]), why)
        lacking |= part
    order = np.argsort(np.concatenate(all_parents), kind="stable")
    ends = np.cumsum(np.bincount(np.concatenate(all_parents), minlength=count))
    whole = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], ends]), pa.int32()),
        pa.concat_arrays(all_names).take(pa.array(order)),
        mask=rows.kept.is_null(),
    )
    good = pa.array(~lacking)
    diff = None if rows.diff is None else rows.diff[~lacking]
    return replace(
        rows, table=rows.table.filter(good), ordinals=rows.ordinals[~lacking], diff=diff, kept=whole.filter(good)
    )


def _stopped(first: dict[str, Any]) -> Error:
    place = first.get("file", "the input")
    if first.get("line") is not None:
        place = f"{place}, line {first['line']}"
    if "topic" in first:
        place = f"partition {first['partition']} of topic {first['topic']}, offset {first['offset']}"
    return error(
        "SOURCE_STOPPED",
        f"a record can't be read: {first['reason']} ({place})",
        detail="The source has on_error = 'stop'.",
        hint="Correct the input, or use on_error = 'skip' to set such records aside.",
    )


def _delta(scan: Scan, piece: Slice, part: _Part) -> Delta:
    columns = [part.table.column(name) for name in scan.names]
    if scan.partial:
        columns.append(pa.chunked_array([_kept_positions(part, scan.names)]))
    elif part.kept is not None and part.kept.null_count < len(part.kept):
        raise error(
            "STATE_MISMATCH",
            f"the plan of relation {piece.relation} does not take changes that keep values or empty a table",
            hint="An earlier release made it. Drop the table and create it again.",
        )
    if scan.ordered:
        columns.append(pa.chunked_array([pa.array((piece.seq << SEQ_ROW_BITS) | part.ordinals, pa.int64())]))
    return Delta(pa.table(columns, names=[f"c{i}" for i in range(len(columns))]), part.diff)


def _kept_positions(part: _Part, names: Sequence[str]) -> pa.ListArray:
    """The column `_kept`, with positions instead of names."""
    kind = KEPT.type.arrow
    if part.kept is None or part.kept.null_count == len(part.kept):
        return pa.nulls(len(part.diff), kind)
    parents = pc.list_parent_indices(part.kept).to_numpy()
    places = pc.index_in(pc.list_flatten(part.kept), value_set=pa.array(names, pa.string()))
    read = places.is_valid().to_numpy(zero_copy_only=False)
    ends = np.cumsum(np.bincount(parents[read], minlength=len(part.kept)))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, places.drop_null(), type=kind, mask=part.kept.is_null())


def set_orphans_aside(
    layout: Layout,
    intent: Intent,
    circuit: Circuit,
    stage: int,
    bucket: int,
    orphans: Mapping[str, Sequence[Orphan]],
) -> dict[str, SourceCounts]:
    """Write the orphans of each upsert of a stage in a bucket to the dead letters of their relations, and count them.

    Raises SOURCE_STOPPED if the source has on_error = 'stop'. Orphans of history were written before.
    """
    found: dict[str, SourceCounts] = {}
    if intent.mode.reads_history:
        return found
    pieces = {(p.relation, p.seq): p for p in intent.slices} if orphans else {}
    for op in circuit.in_stage(stage):
        if not isinstance(op, Upsert) or not op.partial:
            continue
        scan = _scan(op, circuit)
        with DeadLetterWriter(layout.dead(scan.relation_id), intent.epoch, bucket=bucket) as dead:
            for orphan in sorted(orphans.get(op.id, ()), key=lambda o: o.seq):
                piece = pieces.get((scan.relation_id, orphan.seq >> SEQ_ROW_BITS))
                set_row_aside(dead, piece, orphan.seq & ((1 << SEQ_ROW_BITS) - 1), _reason(op, scan, orphan))
            if dead.count:
                counts = found[scan.relation_id] = SourceCounts()
                count_dead(dead, scan.relation_id, intent.specs.get(scan.relation_id, InputSpec()), counts)
    return found


def _scan(op: Operator, circuit: Circuit) -> Scan:
    """The scan whose changes the upsert reads."""
    while not isinstance(op, Scan):
        op = circuit.by_id[op.inputs[0]]
    return op


def _reason(op: Upsert, scan: Scan, orphan: Orphan) -> str:
    columns = ", ".join(f'"{scan.names[i]}"' for i in orphan.kept)
    key = ", ".join(f"{scan.names[k]} = {v}" for k, v in zip(op.keys, orphan.key, strict=True))
    return f"kept: the value of {columns} did not change, but there is no row with {key}"
