"""What a commit says: plain data, stored as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple

from watersmeet.errors import error
from watersmeet.store.changes import RelationChange as RelationChange
from watersmeet.values.serialization import from_json, kinds
from watersmeet.values.slices import SourceSlice

#: Keys of packs that a rebuild has made so far start so.
REBUILT: Final = "~"

#: `fence`: a writer took over. `catalog`, `checkpoint`: there is a new one. These three change no relation.
CommitKind = Literal["transaction", "epoch", "fence", "catalog", "checkpoint"]


@dataclass(frozen=True)
class Purpose:
    """Base: what history is read for. views: those whose history it is."""

    kind: ClassVar[str]
    views: tuple[str, ...]


@dataclass(frozen=True)
class Filling(Purpose):
    """New views are filled.

    stored: the relations written by the circuit that are read from what is stored. parts: in how many epochs
    arrangements of live views are replayed, before anything is read. part: the next of them.
    """

    kind: ClassVar[str] = "filling"
    stored: tuple[str, ...] = ()
    parts: int = 0
    part: int = 0


@dataclass(frozen=True)
class Rebuilding(Purpose):
    """The whole state is made anew. before: fingerprint of the circuit whose state is in use until it is through."""

    kind: ClassVar[str] = "rebuilding"
    before: str = ""


kinds(Purpose, {cls.kind: cls for cls in (Filling, Rebuilding)})


@dataclass(frozen=True)
class Backfill:
    """How far a backfill is.

    checkpoint: number of the checkpoint that it starts from, 0 for none. transaction: the last commit of the tables
    that it reads. head: the same of what the circuit writes. relations: what is left to read, in order. cursor: where
    in the first of them (None: its beginning). started: False before its first epoch.
    """

    purpose: Purpose
    checkpoint: int
    transaction: int
    head: int
    relations: tuple[str, ...]
    cursor: Any = None
    started: bool = False


@dataclass(frozen=True, slots=True)
class Frontier:
    """What of the inputs an epoch's results reflect.

    transaction: all commits up to this number, of the tables that the session writes.
    sources: by relation id, the position in what feeds it (any JSON value).
    backfill: how far the content of new views has been worked through, None if none is under way.
    """

    transaction: int = 0
    sources: dict[str, Any] = field(default_factory=dict)
    backfill: Backfill | None = None


@dataclass(frozen=True)
class Progress:
    """What an epoch leaves to those after it, beside state and positions. All of it decides what they do.

    time_us: the time of the epoch, microseconds since 1970 (UTC). watermarks: the sources' numbers, see
    `runtime.eventtimes`. waiting: see `runtime.ticks`. taken: by source, the slices that the epoch took of what was
    new: with them the sources remember what they gave. held, failed: see `runtime.limits`. late: by relation, how many
    of its rows came late since it was made. left_out: by view, how many rows it left out as late since it was made.
    split: by driver, the hashes of the keys that are split, see `circuit.splitting`.
    """

    time_us: int = 0
    watermarks: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    taken: dict[str, tuple[SourceSlice, ...]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    split: dict[str, tuple[int, ...]] = field(default_factory=dict)


class OperatorCounts(NamedTuple):
    """What an operator did in one epoch. made_rows: as in `kernel.metrics.Counters`. took_us: its time in all tasks."""

    rows_in: int = 0
    rows_out: int = 0
    expression_errors: int = 0
    made_rows: int = 0
    took_us: int = 0


class FailedPart(NamedTuple):
    """A part of an expression that failed, so that it was NULL. column, sql, reason, rows: as in
    `kernel.metrics.Failure`. name: of the generated column of a source, else empty.
    """

    column: int | None
    sql: str
    reason: str
    rows: int
    name: str = ""


class RelationTotals(NamedTuple):
    """What there was of a relation since it was made.

    rows, size_bytes, dead, ahead, expression_errors: of one that is read, see `runtime.receipts.SourceCounts`.
    inserted, deleted: rows of its changes. rows_in: of one that the circuit writes, the rows that scans gave for it.
    """

    rows: int = 0
    size_bytes: int = 0
    dead: int = 0
    ahead: int = 0
    inserted: int = 0
    deleted: int = 0
    rows_in: int = 0
    expression_errors: int = 0


@dataclass(frozen=True)
class Metrics:
    """Figures of an epoch, and sums of such figures.

    rows: that it read. duration_us: how long its tasks took, with their start. tasks_us: the sum of the times of all
    tasks, without the writing of packs; more than duration_us if they ran beside each other. idle: inputs that are.
    operators: all that did something. operators_us: the time of all operators. busiest: by join and arrangement, the
    keys with most rows: their hashes, and their rows in all buckets. totals: by relation. first_dead: by relation, the
    first dead letter since it was made. errors: by operator, the expression errors since it was made. failures: by
    operator, and by source with generated columns, the first few parts that failed since it was made. requests: to the
    object store, of the tasks and, since the epoch before, of the process that writes; its own commit counts for the
    next one. cache_hits, cache_misses, fetched_bytes: of the tasks, as in `databasefiles.Requests`. local, moved: as in
    `runtime.homes.Returns`.
    """

    rows: int = 0
    duration_us: int = 0
    idle: tuple[str, ...] = ()
    operators: dict[str, OperatorCounts] = field(default_factory=dict)
    busiest: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    totals: dict[str, RelationTotals] = field(default_factory=dict)
    first_dead: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    failures: dict[str, tuple[FailedPart, ...]] = field(default_factory=dict)
    requests: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    fetched_bytes: int = 0
    local: int = 0
    moved: int = 0
    tasks_us: int = 0
    operators_us: int = 0


@dataclass(frozen=True)
class Process:
    """Who took over: the number of a process on a host."""

    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of the database: a transaction of the session, an epoch of the circuit, or a fact for those to come.

    number: its place in the log, from 1; 0 before it is appended. Commits are contiguous.
    time_us: UTC microseconds when it was made, later than that of the commit before by at least a millisecond.
    relations: changes by relation id.
    epoch, frontier, circuit, packs: of epochs only. `packs` names for each "stage/bucket" the pack that has a section
        with its whole state as of this epoch, those that did not change included; after `REBUILT`, of those that a
        rebuild has made so far.
    progress: what the epoch leaves to those after it.
    copied: of transactions that keep the cache of a dictionary: by view, the commit up to which its changes are in it.
    process: of fences only.
    metrics: of epochs only. Nothing depends on them: they may be lost.
    last_epoch, epoch_before: numbers of the newest epoch commit up to this one (itself, if it is one)
        and of the one before that; 0 if there is none. Set by the log.
    last_transaction: number of the newest transaction up to this one; 0 if there is none. Set by the log.
    rejected: by relation id, the rows that ordered streams did not take: of this step until it is appended, then of all
    steps up to it.
    captured: by captured database, how far its changes are in the tables (JSON): in this step until it is appended,
        then as of it.
    catalog: the name of the catalog as of this commit, "" for an empty one. checkpoint: the number of the newest
        checkpoint, 0 if there is none. Both given in commits of their kind, otherwise set by the log.
    follows: whether tables are shown as the newest epoch reflects them as of this commit, because there are views.
        Given with a catalog, otherwise set by the log.
    writer: which writer made it: 1 for the first one, one more for each that took over. Never falls. Set by the log.
    token: random, the same in all commits of a writer. Set by the log.
    """

    kind: CommitKind
    time_us: int = 0
    relations: dict[str, RelationChange] = field(default_factory=dict)
    epoch: int | None = None
    frontier: Frontier | None = None
    packs: dict[str, str] = field(default_factory=dict)
    circuit: str | None = None
    progress: Progress = field(default_factory=Progress)
    copied: dict[str, int] = field(default_factory=dict)
    process: Process | None = None
    metrics: Metrics = field(default_factory=Metrics)
    number: int = 0
    last_epoch: int = 0
    epoch_before: int = 0
    last_transaction: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    captured: dict[str, Any] = field(default_factory=dict)
    catalog: str = ""
    checkpoint: int = 0
    follows: bool = True
    writer: int = 0
    token: str = ""

    @property
    def sections(self) -> list[tuple[str, str]]:
        """(pack, "stage/bucket") of all state."""
        return [(pack, key.removeprefix(REBUILT)) for key, pack in self.packs.items()]

    @property
    def changed_files(self) -> set[str]:
        """The files in packs/ that its changes lie in."""
        return {blob.file for change in self.relations.values() for blob in change.blobs}

    @property
    def change_bytes(self) -> int:
        """The bytes of its changes, of all relations."""
        return sum(change.size_bytes for change in self.relations.values())

    @property
    def taken_over_by(self) -> str:
        """Of a fence: the process that took over, for messages."""
        return f"process {self.process.pid} on host {self.process.host}" if self.process else "another process"

    @property
    def catalog_version(self) -> int:
        """The version of the catalog as of this commit; 0 for an empty one."""
        return int(self.catalog.partition("-")[0] or 0)

    @property
    def moment_us(self) -> int:
        """The time of what it changes: of an epoch that of the epoch, else when it was made."""
        return self.progress.time_us or self.time_us


def commit_from_json(value: Any, name: str) -> Commit:
    """The commit with the JSON form `value`; DATABASE_DAMAGED, naming the file `name`, if it is no commit."""
    try:
        return from_json(Commit, value)
    except (ValueError, IndexError) as cause:
        raise error("DATABASE_DAMAGED", f"{name} is not a commit") from cause
