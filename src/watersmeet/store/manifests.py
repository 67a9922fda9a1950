"""The content of commits: plain data, stored as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple

from watersmeet.errors import error
from watersmeet.store.changes import RelationChange as RelationChange
from watersmeet.values.serialization import from_json, kinds
from watersmeet.values.slices import SourceSlice

#: The prefix of keys of segments that a rebuild has written so far.
REBUILT: Final = "~"

#: The kinds of commits. `fence`: a writer took over. `catalog`, `checkpoint`: there is a new one. These three change no
#: relation.
CommitKind = Literal["transaction", "epoch", "fence", "catalog", "checkpoint"]


@dataclass(frozen=True)
class Purpose:
    """The base class of the reasons to read history. views: the views whose history is read."""

    kind: ClassVar[str]
    views: tuple[str, ...]


@dataclass(frozen=True)
class Filling(Purpose):
    """New views are filled.

    stored: the relations written by the circuit whose stored content is read. parts: the number of ranges of hashes in
    which arrangements of live views are replayed before anything is read. part: the next of these. part_rows: the rows
    of a range, of which an epoch replays several; 0: it replays one. beside: all relations that are read, in order, if
    live views run meanwhile; otherwise their epochs wait. late: for each relation, the number of rows dropped as late
    before the fill. replays: whether later rounds replay live epochs one by one, because the result depends on the
    moment at which rows arrive. time_us, watermarks: then those of the epoch at which the fill began. cloned: whether
    the fill has clones of shared operators' states; false in a fill that an earlier version began. phases, phase: the
    number of further phases of round 0, and the present one. Phase 0 reads the content. In phase n, operators storing
    all their history first (`Fill.waiting`) process it if n - 1 others precede them; `part` then counts ranges of
    hashes of their rows.
    """

    kind: ClassVar[str] = "filling"
    stored: tuple[str, ...] = ()
    parts: int = 0
    part: int = 0
    beside: tuple[str, ...] = ()
    late: dict[str, int] = field(default_factory=dict)
    replays: bool = False
    time_us: int = 0
    watermarks: dict[str, int] = field(default_factory=dict)
    part_rows: int = 0
    cloned: bool = False
    phases: int = 0
    phase: int = 0

    @property
    def gathers(self) -> bool:
        """Whether aggregates store sums of all history before they output groups."""
        return self.phases > 0 and not self.replays


@dataclass(frozen=True)
class Rebuilding(Purpose):
    """The whole state is computed again. before: the fingerprint of the circuit whose state is used until the end."""

    kind: ClassVar[str] = "rebuilding"
    before: str = ""


kinds(Purpose, {cls.kind: cls for cls in (Filling, Rebuilding)})


@dataclass(frozen=True)
class Backfill:
    """The progress of a backfill.

    checkpoint: the number of the checkpoint from which it starts, 0 for none. transaction: the last commit of the
    tables that it reads. head: the last commit of the relations that the circuit writes. relations: those still to be
    read, in order. cursor: the position in the first of these (None for its beginning). started: False before the first
    epoch. round: 0 reads the content; each later one the changes between two moments, of which `before` is the first:
    its `transaction` and `head`. waits: whether live views wait for the end of the round. rows: those of the round.
    read: the rows of the round that were read so far. hurries: whether the round ignores limits of rows per second,
    because rows arrive as fast as such a limit allows to read them. In a round that replays, `relations` are only empty
    or not, `cursor` is the last commit that was replayed, and `rows` and `read` are numbers of epochs. risen: the
    clocks that have risen in replayed epochs because their relation was idle, each with the time in `Progress.silent`.
    """

    purpose: Purpose
    checkpoint: int
    transaction: int
    head: int
    relations: tuple[str, ...]
    cursor: Any = None
    started: bool = False
    round: int = 0
    before: tuple[int, int] = (0, 0)
    waits: bool = True
    rows: int = 0
    read: int = 0
    hurries: bool = False
    risen: dict[str, int] = field(default_factory=dict)

    @property
    def is_read(self) -> bool:
        """Whether the round has read everything."""
        purpose = self.purpose
        return not self.relations and not (isinstance(purpose, Filling) and purpose.part < purpose.parts)

    @property
    def replays(self) -> bool:
        """Whether the round replays live epochs."""
        return self.round > 0 and isinstance(self.purpose, Filling) and self.purpose.replays


def backfill_of(view_id: str, backfill: Backfill | None) -> Backfill | None:
    """The backfill if it fills a view, else None."""
    return backfill if backfill is not None and view_id in backfill.purpose.views else None


@dataclass(frozen=True, slots=True)
class Frontier:
    """The input that an epoch's results reflect.

    transaction: for the tables that the session writes, the number up to which all commits are reflected. sources: by
    relation id, the position in its input (any JSON value). backfill: the progress of the backfill, if any.
    """

    transaction: int = 0
    sources: dict[str, Any] = field(default_factory=dict)
    backfill: Backfill | None = None


@dataclass(frozen=True)
class Progress:
    """Values that an epoch passes on to later ones, in addition to state and offsets. All of them affect later output.

    time_us: the time of the epoch, microseconds since 1970 (UTC). watermarks: those of the sources, see
    `runtime.eventtimes`. waiting: see `runtime.eventtimes.waiting`. taken: for each source, the slices of new input
    that the epoch read, which show a source what it emitted. held, failed: see `runtime.limits`. late: the number of
    late rows of each relation since its creation. left_out: the number of late rows that each view dropped since its
    creation. split: for each spread side, the hashes of the split keys, see `circuit.circuit`. idle, silent: see
    `later` and `silent` of `Live` in `circuit.epochs`.
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
    idle: dict[str, tuple[str, ...]] = field(default_factory=dict)
    silent: dict[str, int] = field(default_factory=dict)

    @property
    def stopped(self) -> dict[str, dict[str, Any]]:
        """The errors of the views in `failed`, without those that are only paused."""
        return {i: f for i, f in self.failed.items() if f.get("condition") != "VIEW_PAUSED"}


class OperatorCounts(NamedTuple):
    """Counters of an operator in one epoch. made_rows: as in `kernel.metrics.Counters`. took_us: its time in all
    tasks.
    """

    rows_in: int = 0
    rows_out: int = 0
    expression_errors: int = 0
    made_rows: int = 0
    took_us: int = 0


class FailedPart(NamedTuple):
    """A failed part of an expression. column, sql, reason, rows: as in `kernel.metrics.Failure`. name: that of a
    source's generated column, else empty.
    """

    column: int | None
    sql: str
    reason: str
    rows: int
    name: str = ""


class RelationTotals(NamedTuple):
    """Totals of a relation since it was created.

    rows, size_bytes, dead, ahead, expression_errors: only for sources, see `runtime.taskcontract.SourceCounts`.
    inserted, deleted: the numbers of rows in its changes. rows_in: for a relation that the circuit writes, the rows
    that scans read for it.
    """

    rows: int = 0
    size_bytes: int = 0
    dead: int = 0
    ahead: int = 0
    inserted: int = 0
    deleted: int = 0
    rows_in: int = 0
    expression_errors: int = 0
    recomputed: int = 0


@dataclass(frozen=True)
class Metrics:
    """Metrics of an epoch, and sums of such metrics.

    rows: the number of input rows. duration_us: the duration of its tasks, including their start. tasks_us: the sum
    over all tasks, without writing segments; more than duration_us if they ran in parallel. idle: idle inputs.
    operators: those with rows or noticeable time. operators_us: the time of all operators. busiest: for each join and
    arrangement, the hashes of the keys with the most rows, and their rows in all buckets. totals: those of each
    relation. Since creation: first_dead: the first dead letter of each relation; errors: the expression errors of each
    operator; failures: the first few failed parts of each operator, and of each source with generated columns.
    requests: the requests to the object store by the tasks and, since the previous epoch, by the writing process; the
    epoch's own commit counts for the next epoch. cache_hits, cache_misses, fetched_bytes: those of the tasks, as in
    `databasefiles.Requests`. local, moved: as in `runtime.committer.Locality`.
    recomputed: the views that the epoch computed again.
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
    recomputed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Process:
    """The process that took over: its number and host."""

    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of the database: a transaction of the session, an epoch of the circuit, or a fact for later commits.

    number: its position in the log, from 1 and without gaps; 0 before it is appended. time_us: the time of its
    creation, in UTC; at least a millisecond after the previous commit. relations: changes by relation id. epoch,
    frontier, circuit, segments: only epochs have these. `segments` names for each "stage/bucket" the segment with a
    section of its whole state as of this epoch, even if unchanged; after `REBUILT`, those that a rebuild has written so
    far. progress: for later epochs. metrics: only epochs have these; nothing depends on them, so they may be lost.
    copied: for transactions that write the cache of a dictionary, by view the commit up to which the cache contains its
    changes. process: only fences have it. The log sets: last_epoch, the number of the newest epoch commit up to this
    one (possibly itself); epoch_before, that of the previous one; last_transaction, that of the newest transaction up
    to this one. 0 stands for none. rejected: by relation id, the number of rows that ordered streams did not accept.
    captured: by captured database, the position (JSON) up to which its changes are in the tables. Before the commit is
    appended, both only describe this commit; `append` adds those of earlier commits. catalog: the name of the catalog
    as of this commit, "" for an empty one. checkpoint: the number of the newest checkpoint, 0 if there is none.
    follows: whether tables are shown as the newest epoch reflects them, because there are views; set with a catalog.
    Commits of other kinds get these from the log. writer: the number of its writer: 1 for the first, increased by each
    take-over. token: random, the same in all commits of a writer. The log sets both.
    promoted: the fork whose state the database has from this epoch on.
    """

    kind: CommitKind
    time_us: int = 0
    relations: dict[str, RelationChange] = field(default_factory=dict)
    epoch: int | None = None
    frontier: Frontier | None = None
    segments: dict[str, str] = field(default_factory=dict)
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
    promoted: str = ""

    @property
    def sections(self) -> list[tuple[str, str]]:
        """(segment, "stage/bucket") of all state."""
        return [(segment, key.removeprefix(REBUILT)) for key, segment in self.segments.items()]

    @property
    def changed_files(self) -> set[str]:
        """The segment and run files with its changes."""
        return {blob.file for change in self.relations.values() for blob in change.blobs}

    @property
    def change_bytes(self) -> int:
        """The bytes of its changes of all relations."""
        return sum(change.size_bytes for change in self.relations.values())

    @property
    def taken_over_by(self) -> str:
        """The process that took over, for messages; set for fences."""
        return f"process {self.process.pid} on host {self.process.host}" if self.process else "another process"

    @property
    def catalog_version(self) -> int:
        """The version of the catalog as of this commit; 0 for an empty one."""
        return int(self.catalog.partition("-")[0] or 0)

    @property
    def moment_us(self) -> int:
        """The time of its changes: for an epoch that of the epoch, otherwise that of the commit's creation."""
        return self.progress.time_us or self.time_us


def commit_from_json(value: Any, name: str) -> Commit:
    """The commit with the JSON form `value`. Raises DATABASE_DAMAGED, naming the file `name`, for any other value."""
    try:
        return from_json(Commit, value)
    except (ValueError, IndexError) as cause:
        raise error("DATABASE_DAMAGED", f"{name} is not a commit") from cause
