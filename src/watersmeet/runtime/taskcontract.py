"""The contract of tasks: the intent and the job of an epoch, and the receipts that its tasks return."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from watersmeet.catalog import GeneratedColumn
from watersmeet.circuit.epochs import ClockInput, Live, Mode, Recompute
from watersmeet.circuit.operators import Scan
from watersmeet.connectors.base.sources import SourceSpec
from watersmeet.errors import error
from watersmeet.kernel.runs.trace import MERGE_BYTES
from watersmeet.runtime.workers import Workers
from watersmeet.store.manifests import FailedPart, Frontier, OperatorCounts, RelationChange
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.slices import ChangeSlice, Slice
from watersmeet.values.types import Field

#: The minimum input of a task.
_TASK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class InputSpec:
    """The rules for reading the slices of one relation.

    fills: the values of columns that were added later. source: for slices of a connector. arrivals: columns with the
    time of the epoch (AS PROCTIME()), which slices lack. generated: the other columns that slices lack. lengths: see
    `Relation`.
    """

    fills: Mapping[str, str] = field(default_factory=dict)
    source: SourceSpec | None = None
    arrivals: tuple[str, ...] = ()
    generated: Mapping[str, GeneratedColumn] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TimedInput:
    """The event time of a relation. drops: whether late rows are dropped. late: the id of the relation that keeps
    them; empty for none. columns: those of the relation, which it keeps. For the other fields, see `catalog.EventTime`.
    """

    column: Field
    delay_us: int
    ahead_us: int
    drops: bool
    late: str = ""
    columns: tuple[Field, ...] = ()


@dataclass(frozen=True)
class LateOutput:
    """A relation that keeps rows that an operator drops as late: `columns`, at `positions` of the operator's input.

    view: the relation whose content lacks the rows. counts: whether the rows are only counted.
    """

    relation_id: str
    view: str
    positions: tuple[int, ...]
    columns: tuple[str, ...]
    counts: bool = False


@dataclass(frozen=True)
class Intent:
    """A planned epoch.

    circuit: its fingerprint. frontier: the offsets in the inputs after the epoch. tasks: the slices that each task of
    stage 0 reads; the `seq` of a slice is its position in the order of arrival. everywhere: whether every bucket runs,
    even without rows. specs: how to read each relation. time_us: the time of the epoch (microseconds since 1970, UTC);
    only `StopViews` may have an earlier one than the last epoch. event_times: those of relations with WATERMARK FOR,
    see `eventtimes.event_times`. most_rows: the least and the greatest limit of each join's views, see
    `limits.most_rows`. late: for each operator, the relations that keep the late rows that it drops.
    """

    epoch: int
    circuit: str
    frontier: Frontier
    mode: Mode = field(default_factory=Live)
    tasks: tuple[tuple[Slice, ...], ...] = ()
    everywhere: bool = False
    specs: dict[str, InputSpec] = field(default_factory=dict)
    time_us: int = 0
    event_times: dict[str, TimedInput] = field(default_factory=dict)
    most_rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    late: dict[str, tuple[LateOutput, ...]] = field(default_factory=dict)

    @property
    def live(self) -> Live:
        """The mode of a live epoch; an empty one in others."""
        return self.mode if isinstance(self.mode, Live) else Live()

    def reads_inserted(self, scan: Scan) -> bool:
        """Whether a scan only reads the inserted rows of its relation."""
        mode = self.mode
        return isinstance(mode, Recompute) and scan.relation_id in mode.emptied and mode.begins(scan.id)

    @property
    def is_complete(self) -> bool:
        """Whether operators have no history left to read after the epoch."""
        as_of = self.mode.as_of
        if as_of is not None:
            return as_of.is_live or as_of.is_end
        return not self.mode.reads_history or self.frontier.backfill is None

    @property
    def now_us(self) -> int:
        """The time of epochs for operators."""
        return self.time_us if self.mode.as_of is None else self.mode.as_of.time_us

    def clocks(self, relation_id: str) -> Mapping[str, ClockInput]:
        """See `Live`."""
        as_of = self.mode.as_of
        return (self.live.clocks if as_of is None else as_of.clocks).get(relation_id, {})

    def drops_late(self, relation_id: str) -> bool:
        """Whether the epoch drops late rows of the relation; history never is late."""
        return not self.mode.is_filling and relation_id in self.event_times and self.event_times[relation_id].drops

    def counts(self, relation_id: str) -> bool:
        """Whether the epoch counts and keeps the late rows of the relation: no other epoch reads them as new input."""
        as_of = self.mode.as_of
        return not self.mode.is_filling and (as_of is None or relation_id in as_of.own)

    @property
    def has_work(self) -> bool:
        """Whether a task runs; otherwise only the frontier moves."""
        return self.everywhere or any(self.tasks)

    @property
    def slices(self) -> list[Slice]:
        """All slices, in order of arrival."""
        return sorted((s for task in self.tasks for s in task), key=lambda s: s.seq)

    @property
    def rows(self) -> int:
        """The estimated number of input rows."""
        return sum(s.rows for task in self.tasks for s in task)

    @property
    def bytes(self) -> int:
        """The estimated number of input bytes."""
        return sum(s.size_bytes for task in self.tasks for s in task)

    def to_text(self) -> str:
        """The intent as JSON text."""
        return json.dumps(to_json(self), separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> Intent:
        """The inverse of `to_text`. Raises DATABASE_DAMAGED for other text."""
        try:
            return from_json(Intent, json.loads(text))
        except ValueError as cause:
            raise error("DATABASE_DAMAGED", "an intent can't be read") from cause


def divide(slices: Sequence[Slice], buckets: int) -> tuple[tuple[Slice, ...], ...]:
    """The slices, numbered in order of arrival, as one task or (with several buckets) as balanced tasks.

    There is at least one task, and at most `buckets`. All changes of a relation in one transaction have the same
    number.
    """
    numbered: list[Slice] = []
    for number, piece in enumerate(slices):
        follows = numbered and isinstance(piece, ChangeSlice) and piece.first > 0
        numbered.append(replace(piece, seq=numbered[-1].seq if follows else number))
    total = sum(s.size_bytes for s in numbered)
    count = max(1, min(buckets, len(numbered), -(-total // _TASK_BYTES)))
    if count == 1:
        return (tuple(numbered),)
    loads = [0] * count
    groups: list[list[Slice]] = [[] for _ in range(count)]
    # The largest slices are first; each is added to the task with the least input so far.
    for piece in sorted(numbered, key=lambda s: (-s.size_bytes, s.seq)):
        least = loads.index(min(loads))
        loads[least] += piece.size_bytes
        groups[least].append(piece)
    return tuple(tuple(sorted(g, key=lambda s: s.seq)) for g in groups)


#: The channel of frames whose body is a receipt.
RECEIPT: Final = "receipt"

#: The channel of frames that make a bucket run and contain the event times that a task has seen (JSON, by relation).
CONTROL: Final = "control"


@dataclass
class Observed:
    """The event times of a source's rows. watermark_us: that of these rows only. late, ahead: the numbers of rows that
    are late, or too far ahead.
    """

    watermark_us: int | None = None
    late: int = 0
    ahead: int = 0


@dataclass
class SourceCounts:
    """The rows read of one relation. dead: the number of dead letters; first_dead: the first of them. seen: the event
    times.

    clocks: see `epochs.Live`. expression_errors: the number of errors in generated columns; failures: the failed parts
    of their expressions.
    """

    rows: int = 0
    size_bytes: int = 0
    dead: int = 0
    first_dead: dict[str, Any] | None = None
    seen: Observed = field(default_factory=Observed)
    clocks: dict[str, int] = field(default_factory=dict)
    expression_errors: int = 0
    failures: tuple[FailedPart, ...] = ()


@dataclass(frozen=True)
class Receipt:
    """The work of one task in one stage.

    segment: the name of the segment with the bucket's new state, None if it did not change. relations: written changes.
    operators, sources: their counts. waiting: see `eventtimes.waiting`. grown: for each operator, the growth of its
    state in bytes. hottest: for each join that may exceed its limit, the number of rows of the key with the most, and
    the key's values. failures: for each operator, the failed parts of its expressions. busiest: for each join and
    arrangement, as in `kernel.metrics.Counters`. late: the number of rows that each operator dropped as late. requests,
    cache_hits, cache_misses, fetched_bytes: as in `databasefiles.Requests`, for the whole task, in one of its receipts.
    executor: the id of the executor, "" outside of a cluster. began_ns: the start in nanoseconds since 1970, by the
    clock of its machine. took_ns: the duration.
    """

    stage: int
    bucket: int
    segment: str | None = None
    relations: dict[str, RelationChange] = field(default_factory=dict)
    operators: dict[str, OperatorCounts] = field(default_factory=dict)
    sources: dict[str, SourceCounts] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    grown: dict[str, int] = field(default_factory=dict)
    hottest: dict[str, tuple[int, tuple[str | None, ...]]] = field(default_factory=dict)
    failures: dict[str, tuple[FailedPart, ...]] = field(default_factory=dict)
    busiest: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    fetched_bytes: int = 0
    executor: str = ""
    began_ns: int = 0
    took_ns: int = 0

    def to_bytes(self) -> bytes:
        """Compact JSON."""
        return json.dumps(to_json(self), separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Receipt:
        """The inverse of `to_bytes`."""
        return from_json(Receipt, json.loads(data))


@dataclass(frozen=True)
class Job:
    """The description of one epoch that all its tasks receive.

    database: its `Layout.identity`. segments: by "stage/bucket", the segment with the state before the epoch.
    watermarks: those of the sources before the epoch. writer: that of the epoch, as in commits. stopped: operators of
    views that failed after the epoch was planned. split: the split keys of each spread side. merge_bytes: the limit for
    merges in each bucket of a stage. is_sent: whether Spark transports rows between stages.
    """

    root: str
    database: str
    durable: bool
    intent: Intent
    segments: dict[str, str]
    watermarks: dict[str, int]
    writer: int
    stopped: tuple[str, ...] = ()
    split: dict[str, tuple[int, ...]] = field(default_factory=dict)
    merge_bytes: int = MERGE_BYTES
    workers: Workers = field(default_factory=Workers)
    is_sent: bool = False
