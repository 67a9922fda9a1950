"""Reading slices into the changes that scans give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.blobs import BlobRef
from watersmeet.catalog import EventTime
from watersmeet.circuit.operators import SEQ_ROW_BITS, Scan
from watersmeet.errors import Error, error
from watersmeet.kernel.metrics import Counters
from watersmeet.kernel.runs.delta import Delta
from watersmeet.runtime.eventtimes import Numbers, Observed, observe
from watersmeet.runtime.generated import computed
from watersmeet.runtime.intents import InputSpec, Intent
from watersmeet.runtime.receipts import SourceCounts
from watersmeet.slices import ChangeSlice, Slice, SnapshotSlice, SourceSlice
from watersmeet.sources.base import Unavailable
from watersmeet.sources.dead_letters import DeadLetterWriter
from watersmeet.sources.reading import expect, read_slice
from watersmeet.sources.specs import FileSpec, KafkaSpec
from watersmeet.store.changes import decode_change, fitted
from watersmeet.store.checkpoints import SnapshotFile
from watersmeet.store.layout import Layout
from watersmeet.store.packfiles import PackFiles
from watersmeet.store.snapshots import read_snapshot
from watersmeet.types import Field, arrow_schema

Diff = npt.NDArray[np.int64]

_Part = tuple[pa.Table, Diff, Diff]
"""Columns by name, diff, ordinals."""


@dataclass
class ScanInput:
    """The changes by id of the scan, and what was read by relation."""

    deltas: dict[str, list[Delta]] = field(default_factory=dict)
    counts: dict[str, SourceCounts] = field(default_factory=dict)


def read_slices(
    layout: Layout,
    packs: PackFiles,
    intent: Intent,
    slices: Iterable[Slice],
    scans: Iterable[Scan],
    watermarks: Numbers,
) -> ScanInput:
    """The rows of `slices`, for each of `scans` its columns. Each slice is read once, only the columns asked for.

    watermarks: the sources' numbers as of earlier epochs: live rows below them are left out.
    """
    by_relation: dict[str, list[Scan]] = {}
    for scan in scans:
        by_relation.setdefault(scan.relation_id, []).append(scan)
    found = ScanInput()
    slices = [piece for piece in slices if piece.relation in by_relation]
    expect(slices, {i: s.source for i, s in intent.specs.items() if s.source is not None})
    for piece in slices:
        readers = by_relation[piece.relation]
        fields = {f.name: f for scan in readers for f in _columns(scan)}
        event_time = _event_time(intent, piece.relation, fields)
        counts = found.counts.setdefault(piece.relation, SourceCounts())
        counts.size_bytes += piece.size_bytes
        parts = _read(layout, packs, intent, piece, list(fields.values()), counts)
        late_below_us = watermarks.get(piece.relation) if _drops(intent, piece.relation) else None
        clocks = intent.live.clocks.get(piece.relation, {})
        for table, diff, ordinals in _without_late_rows(parts, event_time, late_below_us, intent.time_us, counts):
            _tell(clocks, table, diff, intent.time_us, counts)
            for scan in readers:
                found.deltas.setdefault(scan.id, []).append(_delta(scan, piece, table, diff, ordinals))
    return found


def _tell(clocks: Mapping[str, str], table: pa.Table, diff: Diff, now_us: int, counts: SourceCounts) -> None:
    """Moves the numbers `clocks` to the greatest times of their columns, but for times that are too far ahead."""
    for name, column in clocks.items():
        seen = Observed(counts.clocks.get(name))
        observe(table.column(column), diff, EventTime(column, 0), None, now_us, seen)
        if seen.watermark_us is not None:
            counts.clocks[name] = seen.watermark_us


def _drops(intent: Intent, relation_id: str) -> bool:
    """Whether late rows of the relation are left out: of what is new, not of history."""
    return not intent.mode.reads_history and relation_id in intent.event_times and intent.event_times[relation_id].drops


def _without_late_rows(
    parts: Iterable[_Part], event_time: EventTime | None, late_below_us: int | None, now_us: int, counts: SourceCounts
) -> Iterator[_Part]:
    """The rows that are not late; all are counted."""
    for table, diff, ordinals in parts:
        counts.rows += len(diff)
        kept = None
        if event_time is not None:
            kept = observe(table.column(event_time.column), diff, event_time, late_below_us, now_us, counts.seen)
        yield (table, diff, ordinals) if kept is None else (table.filter(pa.array(kept)), diff[kept], ordinals[kept])


def _event_time(intent: Intent, relation_id: str, fields: dict[str, Field]) -> EventTime | None:
    """The event time of a relation, if it has one; its column is then among `fields`."""
    timed = intent.event_times.get(relation_id)
    if timed is None:
        return None
    fields.setdefault(timed.column.name, timed.column)
    return EventTime(timed.column.name, timed.delay_us, timed.ahead_us)


def _columns(scan: Scan) -> list[Field]:
    """The relation's columns that the scan reads, by their names there."""
    return [Field(name, f.type, f.nullable) for name, f in zip(scan.names, scan.schema, strict=False)]


def _read(
    layout: Layout, packs: PackFiles, intent: Intent, piece: Slice, fields: list[Field], counts: SourceCounts
) -> Iterable[_Part]:
    """The rows of a slice, in parts."""
    schema = arrow_schema(tuple(fields), positional=False)
    spec = intent.specs.get(piece.relation, InputSpec())
    if isinstance(piece, ChangeSlice):
        blob = BlobRef(piece.file, piece.offset_bytes, piece.size_bytes, piece.rows)
        table, diff = decode_change(packs.read_blob(blob, "DATABASE_DAMAGED"))
        ordinals = np.arange(piece.first, piece.first + len(diff), dtype=np.int64)
        yield fitted(table, schema, spec.fills), diff, ordinals
    elif isinstance(piece, SnapshotSlice):
        first = 0
        file = SnapshotFile(piece.name, piece.rows, piece.size_bytes)
        whole = arrow_schema(spec.columns, positional=False)
        for table, diff in read_snapshot(layout, file, whole, spec.fills):
            yield table.select(schema.names), diff, np.arange(first, first + len(diff), dtype=np.int64)
            first += len(diff)
    elif isinstance(piece, SourceSlice):
        yield _read_source(layout, intent, piece, fields, counts)
    else:
        raise error("INTERNAL_ERROR", f"there is no reader for slices of kind {piece.kind}")


def _read_source(
    layout: Layout, intent: Intent, piece: SourceSlice, fields: list[Field], counts: SourceCounts
) -> _Part:
    spec = intent.specs[piece.relation]
    assert spec.source is not None
    # In a backfill the same records were set aside before: they are not set aside, nor counted, twice.
    again = intent.mode.reads_history
    directory = None if again else layout.dead(piece.relation)
    with DeadLetterWriter(directory, intent.epoch, piece.ordinal) as dead:
        arrivals = [f for f in fields if f.name in spec.arrivals]
        generated = {f: spec.generated[f.name] for f in fields if f.name in spec.generated}
        read = {f.name: f for f in fields if f not in arrivals and f not in generated}
        read |= {f.name: f for column in generated.values() for f in column.reads}
        try:
            rows = read_slice(piece, spec.source, list(read.values()), dead)
        except (Unavailable, Error) as cause:
            if isinstance(cause, Error) and not isinstance(spec.source, KafkaSpec):
                raise
            # Of messages, also what somebody has to mend: a schema that the columns don't fit. Other sources go on.
            told = cause.message if isinstance(cause, Error) else str(cause)
            problem = error("SOURCE_UNAVAILABLE", f"a source can't be read for now: {told}")
            problem.source = piece.relation
            raise problem from cause
    if dead.count and not again:
        counts.dead += dead.rows
        counts.first_dead = counts.first_dead or dead.first
        if isinstance(spec.source, (FileSpec, KafkaSpec)) and spec.source.options.on_error == "stop":
            raise _stopped(dead.first or {})
    table = rows.table
    for column in arrivals:  # AS PROCTIME(): the time of the epoch that reads the row
        moment = pa.scalar(intent.time_us, pa.timestamp("us")).cast(column.type.arrow)
        table = table.append_column(column.name, pa.repeat(moment, len(rows.ordinals)))
    counters = Counters()
    for column, made in generated.items():
        table = table.append_column(column.name, computed(table, column, made, counters))
    counts.expression_errors += counters.expression_errors
    diff = np.ones(len(rows.ordinals), np.int64) if rows.diff is None else rows.diff
    return table, diff, rows.ordinals


def _stopped(first: dict[str, Any]) -> Exception:
    place = first.get("file", "the input")
    if first.get("line") is not None:
        place = f"{place}, line {first['line']}"
    if "topic" in first:
        place = f"partition {first['partition']} of topic {first['topic']}, offset {first['offset']}"
    return error(
        "VIEW_FAILED",
        f"a record can't be read: {first.get('reason', 'unknown reason')}",
        detail=f"It is in {place}, and the source says on_error = 'stop'.",
        hint="Correct the input, or use on_error = 'skip' to set such records aside.",
    )


def _delta(scan: Scan, piece: Slice, table: pa.Table, diff: Diff, ordinals: Diff) -> Delta:
    columns = [table.column(name) for name in scan.names]
    if scan.ordered:
        columns.append(pa.chunked_array([pa.array((piece.seq << SEQ_ROW_BITS) | ordinals, pa.int64())]))
    return Delta(pa.table(columns, names=[f"c{i}" for i in range(len(columns))]), diff)
