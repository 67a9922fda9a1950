"""Operators of a circuit.

Columns are positional: every operator's output is an Arrow table with columns `c0`, `c1` … and a diff. Expressions are
DuckDB SQL over them. An operator's `id` is a hash of its content and of its inputs, so equal subplans of different
views are one operator with one state, also after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from watersmeet.circuit.base import KINDS as KINDS
from watersmeet.circuit.base import InputColumn as InputColumn
from watersmeet.circuit.base import Operator as Operator
from watersmeet.circuit.base import PassThrough as PassThrough
from watersmeet.values.types import INTEGER, Field, SqlType
from watersmeet.values.watermarks import Watermark

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]

#: An interval without end.
FOREVER_US: Final = 1 << 61

#: The column of partial changes that lists the columns of a row which keep their value, see `Upsert`.
KEPT: Final = Field("_kept", SqlType("array", element=INTEGER))
#: The bits of `_seq` that number the rows of one slice or transaction.
SEQ_ROW_BITS: Final = 40


@dataclass(frozen=True)
class Scan(Operator):
    """Changes of a relation: its columns `names` become c0, c1, …; no inputs.

    ordered: adds a last column `_seq` (int64, unique in the epoch, in arrival order); without its last `SEQ_ROW_BITS`
    bits it is the number of the row's slice or transaction. partial: adds `_kept` before `_seq`, see `Upsert`.
    late: the number of rows of the relation that had been dropped as late when the view was created. The view reads
    them as history, so it shares no operator with older views, whose state lacks them.
    """

    kind: ClassVar[str] = "scan"
    relation_id: str
    names: tuple[str, ...]
    ordered: bool = False
    late: int = 0
    partial: bool = False


@dataclass(frozen=True)
class Constant(Operator):
    """Fixed rows, output once, in bucket 0. `rows_sql`: DuckDB expressions by row."""

    kind: ClassVar[str] = "constant"
    rows_sql: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Map(Operator):
    """Filter, then project: rows with `predicate` true (None: all); `exprs[i]` is column i.

    An expression that raises an error is NULL (a predicate: false), and the error is counted.
    required: columns that must not be NULL because of an error; a row with such a column is dropped. partitions: shown
    in plans: the number of partitions of the topic that the input is joined with; no row moves.
    """

    kind: ClassVar[str] = "map"
    exprs: tuple[str, ...]
    predicate: str | None
    partitions: int | None = None
    required: tuple[int, ...] = ()


@dataclass(frozen=True)
class Exchange(PassThrough):
    """Moves rows to the bucket of `keys` (column positions).

    mode: `hash` by keys (no keys: all rows to bucket 0); `broadcast` copies every row to every bucket; `partial` is
    `hash`, but copies changes that empty the table (`Upsert`) to every bucket.
    """

    kind: ClassVar[str] = "exchange"
    keys: tuple[int, ...]
    mode: Literal["hash", "broadcast", "partial"] = "hash"


@dataclass(frozen=True)
class Arrange(PassThrough):
    """Keeps the rows of its input by columns `keys`, once for all its readers; outputs its input.

    null_safe: for each key, whether NULL equals NULL; a row with NULL in any other key is not kept. stage: that of its
    readers; its input's stage or a later one.
    time, retain: after an epoch, rows with `time` below the watermark `retain`, or with a NULL there that equals
    nothing, are no longer needed, and no operator may probe for them. time None: all rows are needed. newest: the
    `depth` newest rows of each key below the bound stay needed, with the rows of the same time as the last of these.
    order: only the first `depth` rows of each key in this order are needed, and those equal to the last of these. The
    input is append-only.
    """

    kind: ClassVar[str] = "arrange"
    keys: tuple[int, ...]
    null_safe: tuple[bool, ...]
    stage: int
    time: int | None = None
    retain: Watermark = ()
    newest: bool = False
    depth: int = 1
    order: tuple[SortKey, ...] = ()

    @property
    def is_timed(self) -> bool:
        return self.time is not None

    @property
    def keeps_all(self) -> bool:
        """Whether all rows are needed for ever."""
        return self.time is None and not self.order

    @property
    def keeps_null_times(self) -> bool:
        """Whether rows with NULL in `time` are needed: if it is a key in which NULL equals NULL."""
        return self.time in self.keys and self.null_safe[self.keys.index(self.time)]

    def __post_init__(self) -> None:
        assert (self.time is None) == (not self.retain)
        assert self.retain or not self.newest
        assert self.time is None or not self.order


@dataclass(frozen=True)
class Join(Operator):
    """A regular join of two arrangements: inputs (left, right). It has no state of its own.

    left_keys, right_keys: positions of key columns of equal types, the keys of the arrangements; empty if the right
    input is broadcast. null_safe: for each pair, IS NOT DISTINCT FROM. residual: DuckDB SQL over l0, l1, … and r0, r1,
    …, or None; an error in it counts as false. output: the output columns.
    """

    kind: ClassVar[str] = "join"
    join_kind: JoinKind
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_safe: tuple[bool, ...]
    residual: str | None
    output: tuple[InputColumn, ...]


Comparison = Literal["<", "<=", ">", ">="]


@dataclass(frozen=True)
class DynamicFilter(Operator):
    """The rows of the left input whose column `column` compares with the only value of the right input.

    The right input has one column, of the type of `column`, and at most one row, which is in every bucket; without a
    row, or with NULL, nothing passes. keep: positions of the left input's columns that are output.
    """

    kind: ClassVar[str] = "dynamicfilter"
    column: int
    comparison: Comparison
    keep: tuple[int, ...]

    @property
    def passed(self) -> tuple[int | None, ...]:
        return self.keep


@dataclass(frozen=True)
class Arrivals(PassThrough):
    """The rows with diff above 0 of an ordered scan.

    `_seq` is replaced by two columns that sort the newest row first: minus the epoch, minus `_seq`. moment: as in
    `Cut`, if the scanned relation deletes rows: its history is then the content at that commit.
    """

    kind: ClassVar[str] = "arrivals"
    adds: ClassVar[tuple[str, ...]] = ("_epoch", "_seq")
    moment: int = 0


@dataclass(frozen=True)
class Cut(PassThrough):
    """The input's changes from before a view was created (keeps before: its content never changes), or only later ones.

    moment: the newest commit at that time. Cuts at different commits are different operators with different state.
    """

    kind: ClassVar[str] = "cut"
    keeps: Literal["before", "after"]
    moment: int


@dataclass(frozen=True)
class LateRowFilter(PassThrough):
    """The input's rows without late ones: those with `column` below the bound, as of the previous epoch.

    bound: as in `TimeFilter`; if it is unknown, no row is late. NULLs, deleted rows and history are never late. clock:
    the source of the bound whose number is the greatest time that live epochs read of column `name` of the relation
    `relation_id`; empty: the bound reads existing sources.
    age: columns that order the rows of an epoch, the newest first: a row is also late if an older one has a greater
    time, or if it has none. late: outputs the late rows instead. apart: distinguishes the operator from an equal one
    that had dropped rows when this view was created: this one reads them as history.
    """

    kind: ClassVar[str] = "laterowfilter"
    column: int
    bound: Watermark
    relation_id: str
    name: str
    clock: str
    late: bool = False
    age: tuple[int, ...] = ()
    apart: int = 0


@dataclass(frozen=True)
class Records(Operator):
    """The changes of an epoch as records, which are never retracted: the changed relation's columns, `deleted`
    (boolean), and the epoch (bigint).

    keys: positions; the input is `Changes`, whose last two columns are not output. A row that is inserted and deleted
    in one epoch is no change. For each key: the inserted rows, if there are any; otherwise one record with `deleted`
    and with NULLs except in the columns `kept`, which are those of one of the deleted rows, chosen by content. keys
    None: the inserted rows of the input.
    time: position of the column that holds the time of the change instead of its own value; of a `deleted` record, the
    greatest time. All changes of a key are in one bucket.
    """

    kind: ClassVar[str] = "records"
    adds: ClassVar[tuple[str, ...]] = ("@deleted", "@offset")
    keys: tuple[int, ...] | None
    kept: tuple[int, ...]
    time: int | None = None

    @property
    def passed(self) -> tuple[int | None, ...]:
        """A record without value has NULL in the columns that are not `kept`."""
        own = range(len(self.schema) - len(self.adds))
        return (*(i if self.keys is None or i in self.kept else None for i in own), *(None,) * len(self.adds))


@dataclass(frozen=True)
class CauseSpec:
    """One side of the causes of changes. `match`, `time`: positions; see `algebra.arrivals.Cause`."""

    match: tuple[int, ...]
    time: int | None
    partners: int


@dataclass(frozen=True)
class Changes(PassThrough):
    """The inserted and deleted rows of the first input, never retracted: its columns, `went` (boolean: deleted), `at`
    (timestamp): the time of the cause.

    `at` is the greatest time of its sides (`causes`). If a side's match changed in the epoch (one further input for
    each cause has these changes; without further inputs, the inserted rows of the first input), its time is the
    greatest of these changes, and the row's own time if the row was inserted; otherwise the row's own time. A side that
    the row lacks (its time is NULL) is matched by the first `partners` columns, none of them NULL. All rows that agree
    in `match` (or in the first `partners` columns, if there are any) are in one bucket.

    The law: the columns always add up to the content of the input.
    """

    kind: ClassVar[str] = "changes"
    adds: ClassVar[tuple[str, ...]] = ("@went", "@at")
    causes: tuple[CauseSpec, ...]


@dataclass(frozen=True)
class TimeFilter(Operator):
    """The input's rows whose `column`, a timestamp or date, meets a comparison with a bound that never decreases.

    bound: a watermark (`values.watermarks`) over the sources' numbers of the epoch; it may be unknown. `<`, `<=`:
    rows wait until the bound has passed them; while it is unknown, all wait. `>`, `>=`: rows are output at once and
    retracted when the bound passes them. Rows with NULL are not output, unless `untimed` is set: then they are output
    at once. The operator does not store rows that the bound has passed. keep: positions of the input's columns that
    are output. append_only (`<`): whether a change below the bound is an error. stays (`<`, `<=`): whether output rows
    are never retracted.
    """

    kind: ClassVar[str] = "timefilter"
    column: int
    comparison: Comparison
    bound: Watermark
    keep: tuple[int, ...]
    stays: bool = False
    untimed: bool = False

    @property
    def passed(self) -> tuple[int | None, ...]:
        return self.keep

    def __post_init__(self) -> None:
        assert not self.stays or (self.append_only and self.comparison[0] == "<")

    @property
    def is_timed(self) -> bool:
        return True


@dataclass(frozen=True)
class SortKey:
    """One key of an order: the column at position `column`, from the largest value down if `descending`."""

    column: int
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True)
class TemporalJoin(Operator):
    """Each left row with the right rows of its key at the time it arrives; inputs (left, right), right arranged.

    Changes of the right side never change earlier output. left_keys, right_keys, null_safe, residual, output: as in
    `Join`; without keys, right is copied to every bucket.
    memo: left rows may be deleted: the matches of each are kept, to be retracted. identity: positions of the left
    columns that the memo keeps: they identify a left row, and include all left columns of `output`; empty: all.
    waits: a left row without a match (in a left join it is output with NULLs) waits; in the first epoch that ends with
    matching right rows, it is output with all of them. Not with a memo.
    ttl_us: the right rows found for a key are used again until the epoch's time is that much later
    (`kernel.operators.temporal`); a key without rows is looked up again. None: every row is looked up. Not for rows
    that wait.
    owner: the view whose history it is. A later view's rows would have met other right rows, so no view shares this
    operator.
    """

    kind: ClassVar[str] = "temporal"
    join_kind: Literal["inner", "left"]
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_safe: tuple[bool, ...]
    residual: str | None
    memo: bool
    owner: str
    output: tuple[InputColumn, ...]
    waits: bool = False
    ttl_us: int | None = None
    identity: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert not (self.memo and self.waits)
        assert self.ttl_us is None or (self.right_keys and not self.waits)


#: How left and right values of an ASOF join compare; `<>` (they differ) and `<=>` (both exist) search both sides.
AsofComparison = Literal["<", "<=", ">", ">=", "<>", "<=>"]
#: The comparisons that search smaller right values, greater ones, and equal ones.
BACKWARD: Final = (">", ">=", "<>", "<=>")
FORWARD: Final = ("<", "<=", "<>", "<=>")
EXACT: Final = ("<=", ">=", "<=>")


@dataclass(frozen=True)
class AsofJoin(Operator):
    """Each left row with the one nearest right row of its key; inputs (left, right), both arranged by the keys.

    left_keys, right_keys, null_safe, output: as in `Join`. A pair needs `left_value comparison right_value` (positions
    of columns of one type, which has distances if both sides are searched); the nearest value counts, the smaller one
    of two equally near ones, and of several rows with that value the first by the columns `ties`. residual: as in
    `Join`, evaluated for the nearest row only: if it is not true, there is no partner. join_kind left: rows without
    partner are output with NULLs.
    """

    kind: ClassVar[str] = "asof"
    join_kind: Literal["inner", "left"]
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    null_safe: tuple[bool, ...]
    comparison: AsofComparison
    left_value: int
    right_value: int
    ties: tuple[int, ...]
    output: tuple[InputColumn, ...]
    residual: str | None = None


#: Joins of two inputs by key columns, with a residual condition and output columns.
PairJoin = Join | AsofJoin | TemporalJoin


@dataclass(frozen=True)
class Versions(PassThrough):
    """Keeps the versions of the rows of a table by its primary key, columns `keys`, once for all joins that read them.

    The input is an ordered scan (last column `_seq`) of a table. The output is an arrangement: the input's columns
    without `_seq`, then the start of the version's validity (timestamp or timestamptz), then whether the row exists
    from then on (boolean; if not, it was deleted, and the columns are its last values). For each key and time there is
    one version.
    time: position of the event time; a row with NULL there is no version. source: the relation whose number is the
    watermark of that time. stage: as in `Arrange`. retain: a watermark: of the versions from before it only the newest
    of each key is kept; empty: all are.
    """

    kind: ClassVar[str] = "versions"
    adds: ClassVar[tuple[str, ...]] = ("_since", "_live")
    keys: tuple[int, ...]
    time: int
    source: str
    stage: int
    retain: Watermark = ()

    @property
    def is_timed(self) -> bool:
        return bool(self.retain)

    @property
    def null_safe(self) -> tuple[bool, ...]:
        """As in `Arrange`: a key with a NULL matches nothing."""
        return (False,) * len(self.keys)


@dataclass(frozen=True)
class ArrivalJoin(Join):
    """As `Join`, but never revised: a row's partners are decided when it arrives.

    Its inputs are append-only; a semi or anti join decides each left row by the current right rows, which may change.
    Rows of one epoch see each other. A pair is output when the second of its rows arrives, also if the first one was
    output without partner. The left input of semi and anti joins is not arranged.
    """

    kind: ClassVar[str] = "arrivaljoin"


@dataclass(frozen=True)
class ArrivalAsofJoin(AsofJoin):
    """As `AsofJoin`, but never revised: the nearest row is decided when the left row arrives.

    The left input is append-only and not arranged. Left rows match right rows of the same epoch.
    depth: if set, only the `depth` right rows of a key with the greatest values count. history: the view to which the
    stored history belongs; no other view shares it (`TemporalJoin.owner`).
    """

    kind: ClassVar[str] = "arrivalasof"
    depth: int | None = None
    history: str = ""


@dataclass(frozen=True)
class MultiJoin(Operator):
    """An inner join of three or more arrangements by one key. It has no state of its own.

    keys: for each input the positions of its key columns, those of its arrangement; types are equal across inputs, and
    NULL matches nothing. residual: DuckDB SQL over t0_0, t0_1, …, t1_0, … (input, column), or None; an error in it
    counts as false. output: the output columns.
    """

    kind: ClassVar[str] = "multijoin"
    keys: tuple[tuple[int, ...], ...]
    residual: str | None
    output: tuple[InputColumn, ...]


@dataclass(frozen=True)
class AggregateSpec:
    """One aggregate: function over column `argument` (None: count(*)), of rows where column `filter` is true.

    function: count, sum, avg, min, max, bool_and, bool_or, one of `DEVIATIONS`, or one of `COLLECTED`. extra: columns
    of further arguments: the delimiter of string_agg, if it is not `constant`; the value of jsonb_object_agg, whose
    argument is the key as jsonb. order: of the values. constant: the delimiter, or the fraction of percentile_cont
    (whose argument is float64) and percentile_disc.
    """

    function: str
    argument: int | None
    filter: int | None
    distinct: bool
    extra: tuple[int, ...] = ()
    order: tuple[SortKey, ...] = ()
    constant: str | float | None = None


#: Aggregates that follow from the sum of the values and the sum of their squares.
DEVIATIONS: Final = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")

#: Aggregates that need all values of a group, in the order of `AggregateSpec.order` and then in their own, NULLs last.
COLLECTED: Final = frozenset({
    "array_agg", "string_agg", "jsonb_agg", "jsonb_object_agg", "first_value", "last_value", "mode", "percentile_cont",
    "percentile_disc", "bit_and", "bit_or", "bit_xor",
})  # fmt: skip


@dataclass(frozen=True)
class Aggregate(Operator):
    """GROUP BY columns `keys`; the output is the keys, then the calls (types in `schema`).

    No calls: distinct rows. No keys and some calls: always exactly one row, in bucket 0, from the first epoch on. time,
    retain: groups whose key number `time` is below the watermark `retain` no longer change and are deleted from the
    state, except where that key is NULL. time None: all groups may change.
    """

    kind: ClassVar[str] = "aggregate"
    keys: tuple[int, ...]
    calls: tuple[AggregateSpec, ...]
    time: int | None = None
    retain: Watermark = ()

    @property
    def passed(self) -> tuple[int | None, ...]:
        return (*self.keys, *(None,) * len(self.calls))

    @property
    def is_timed(self) -> bool:
        return self.time is not None

    def __post_init__(self) -> None:
        assert (self.time is None) == (not self.retain)


@dataclass(frozen=True)
class Unnest(Operator):
    """Each input row once for every element of its arrays; stateless.

    arrays: positions of array columns, walked side by side; shorter ones are filled up with NULL. keep: positions of
    the input's columns, output first; then the elements; then, if `ordinality`, the number of the element (bigint, from
    1). condition: DuckDB SQL over the input's columns l0, l1, … and over r0, r1, … (elements, then the number), or
    None; only elements for which it is true are output. outer: a row without elements is output once, with NULLs.
    """

    kind: ClassVar[str] = "unnest"
    arrays: tuple[int, ...]
    keep: tuple[int, ...]
    ordinality: bool
    outer: bool
    condition: str | None

    @property
    def passed(self) -> tuple[int | None, ...]:
        return (*self.keep, *(None,) * (len(self.schema) - len(self.keep)))


@dataclass(frozen=True)
class Union(Operator):
    """All rows of all inputs, which have equal schemas."""

    kind: ClassVar[str] = "union"


@dataclass(frozen=True)
class Repeat(PassThrough):
    """The input's columns except the last, each row repeated as often as its last column (bigint) says.

    Not at all if that is NULL or below 1. Never append-only: a lower number retracts part of the row's copies.
    """

    kind: ClassVar[str] = "repeat"


@dataclass(frozen=True)
class Upsert(PassThrough):
    """Last row per key wins: turns an ordered scan (last column `_seq`) into a retracting changelog.

    keys: positions of the key. The output has the input's columns without `_seq`. A row with diff -1 deletes the row of
    its key; only its key counts.

    partial: changes may depend on existing rows. The input then has one more column, `_kept`, right before `_seq`:
    integer[] (Arrow list<int32>), positions of columns in this operator's schema, in any order.

    - NULL: a whole row, or a deletion. With diff 1 an empty list is the same.
    - diff 1 and a list: an update of the row of its key. The columns in the list (never the key) keep the value from
    just before, in the order of `_seq`. An update that finds no row is ignored and counted (`Counters.orphans`).
    - diff -1 and any list: all earlier rows are deleted, in all buckets. Other columns do not count.

    "Before" means the result of earlier epochs and of all changes of this one with a lower `_seq`.
    """

    kind: ClassVar[str] = "upsert"
    keys: tuple[int, ...]
    partial: bool = False


@dataclass(frozen=True)
class Sort(PassThrough):
    """The changes of each epoch in `order`, stably. order: over the input's columns, of which the output has only the
    first ones.
    """

    kind: ClassVar[str] = "sort"
    order: tuple[SortKey, ...]


@dataclass(frozen=True)
class TopN(PassThrough):
    """For each key, the rows in `order` after the first `offset`: at most `limit` (None: all).

    keys: positions; if there are none, all rows are one group, in bucket 0. with_ties: also output the rows that are
    equal in `order` to the last one. Ties are broken by the other columns, ascending, NULLs last. The output has the
    input's columns. time, retain: as in `Aggregate`; `time` is a position.
    """

    kind: ClassVar[str] = "topn"
    keys: tuple[int, ...]
    order: tuple[SortKey, ...]
    limit: int | None
    offset: int = 0
    with_ties: bool = False
    time: int | None = None
    retain: Watermark = ()

    @property
    def is_timed(self) -> bool:
        return self.time is not None


@dataclass(frozen=True)
class WindowFrame:
    """The rows of a key that a window function sees from a row, from `start` to `end`, both included.

    start, end: number of rows, groups of peers or neither (`range`) before (below 0) or after the row; None: unbounded;
    0 in `range` and `groups`: with all peers. low, high: positions of columns that replace start and end in a `range`:
    the frame begins with the first row whose `value` is not before `low`, and ends with the last one not after `high`,
    in the order of the one sort key; rows with NULL in `value` have their peers instead. exclude: rows that are left
    out again: none, the current row, its group, its ties.
    """

    mode: Literal["rows", "range", "groups"]
    start: int | None
    end: int | None
    exclude: str = "none"
    value: int | None = None
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True)
class WindowSpec:
    """One window function over the rows of a key in `order`.

    function: row_number, rank, dense_rank, percent_rank, cume_dist, ntile, lag, lead, first_value, last_value,
    nth_value, or one of `AggregateSpec`; in `SlidingWindow` also exp_avg. arguments: columns: the value; for lag and
    lead also the default, of the same type, if there is one; for exp_avg the time. number: the constant of ntile and
    nth_value (above 0; below 0: counted from the end of the frame), lag and lead (rows back, rows ahead), exp_avg (the
    half-life in microseconds). filter: of an aggregate. Only in `SlidingWindow`: skips_nulls, where `number` does not
    count rows with NULL as value, and distinct, for aggregates that count equal values once.
    """

    function: str
    arguments: tuple[int, ...]
    number: int
    filter: int | None
    order: tuple[SortKey, ...]
    frame: WindowFrame
    skips_nulls: bool = False
    distinct: bool = False


@dataclass(frozen=True)
class Window(PassThrough):
    """Window functions over the rows of each key (columns `keys`; none: all rows are one key, in bucket 0).

    The input is the arrangement by `keys`, in which NULL equals NULL. The output has the input's columns, then one for
    each of `functions` (types in `schema`). Ties are broken as in `TopN`.
    """

    kind: ClassVar[str] = "window"
    keys: tuple[int, ...]
    functions: tuple[WindowSpec, ...]

    @property
    def made(self) -> int:
        return len(self.functions)


@dataclass(frozen=True)
class SlidingWindow(Window):
    """Window functions over rows that are never deleted and arrive in the order of the functions, so that each row is
    output once, in the epoch in which it arrives. The input is not arranged.

    All functions have the same order, by times that are not NULL or by arrival. A frame ends at its own row, or before
    it; with peers that precede it, but not those that follow. In a range with `value`, start and end are microseconds.
    kept: positions of the columns that later rows need: keys, order, values. time, retain: rows are needed until the
    column `time` is below the watermark. depth: only the newest rows of each key are needed, that many. Without time
    and depth all rows are.
    """

    kind: ClassVar[str] = "sliding"
    kept: tuple[int, ...] = ()
    time: int | None = None
    retain: Watermark = ()
    depth: int | None = None

    @property
    def is_timed(self) -> bool:
        return self.time is not None


@dataclass(frozen=True)
class Sink(PassThrough):
    """Publishes its input as the changes of relation `relation_id`. `schema` has the relation's column names.

    keys: the values whose hash decides a row's bucket: each is the first non-NULL one of some columns. None: no reader
    depends on the bucket.
    """

    kind: ClassVar[str] = "sink"
    relation_id: str
    keys: tuple[tuple[int, ...], ...] | None = None
