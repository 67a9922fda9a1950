"""The operators of a circuit.

Columns are positional: every operator's output is an Arrow table with columns `c0`, `c1` … and a diff. Expressions are
DuckDB SQL over them. An operator's `id` is a hash of its content and of its inputs, so equal subplans of different
views are one operator with one state, also after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from watersmeet.circuit.base import KINDS as KINDS
from watersmeet.circuit.base import CauseSpec as CauseSpec
from watersmeet.circuit.base import ChangeLog as ChangeLog
from watersmeet.circuit.base import Changes as Changes
from watersmeet.circuit.base import InputColumn as InputColumn
from watersmeet.circuit.base import Operator as Operator
from watersmeet.circuit.base import PassThrough as PassThrough
from watersmeet.circuit.base import Records as Records
from watersmeet.values import ConflictAction
from watersmeet.values.types import INTEGER, Field, SqlType
from watersmeet.values.watermarks import Idle, LateSide, Watermark

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]

#: An unbounded interval.
FOREVER_US: Final = 1 << 61

#: The column of partial changes with the columns that keep their value; see `Upsert`.
KEPT: Final = Field("_kept", SqlType("array", element=INTEGER))
#: The bits of `_seq` that number the rows of one slice or transaction.
SEQ_ROW_BITS: Final = 40


@dataclass(frozen=True)
class Scan(Operator):
    """The changes of a relation, whose columns `names` become c0, c1, … It has no inputs.

    ordered: whether to add a last column `_seq` (int64, unique in the epoch, in arrival order); its bits above
    `SEQ_ROW_BITS` number the row's slice or transaction. partial: whether to add `_kept` before `_seq`; see `Upsert`.
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
    """Sends rows to the bucket of `keys` (column positions).

    mode: `hash` by keys (no keys: all rows to bucket 0); `broadcast` copies every row to every bucket; `partial` is
    `hash`, but copies changes that empty the table (`Upsert`) to every bucket.
    """

    kind: ClassVar[str] = "exchange"
    keys: tuple[int, ...]
    mode: Literal["hash", "broadcast", "partial"] = "hash"


@dataclass(frozen=True)
class Arrange(PassThrough):
    """Stores the rows of its input by the columns `keys`, once for all its readers, and outputs its input.

    null_safe: for each key, whether NULL equals NULL; a row with NULL in any other key is not stored. stage: the stage
    of its readers, which is its input's stage or a later one. time, retain: after an epoch, rows whose `time` is below
    the watermark `retain`, or a NULL that equals nothing, are no longer needed, and no operator may look them up. time
    None: all rows are needed. newest: whether the `depth` newest rows of each key below the bound are also needed, with
    rows of the same time as the last of these. order: only the first `depth` rows of each key in this order are needed,
    with rows equal to the last of these. The input must be append-only.
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
        """Whether all rows are always needed."""
        return self.time is None and not self.order

    @property
    def keeps_null_times(self) -> bool:
        """Whether rows with NULL in `time` are needed, because it is a key in which NULL equals NULL."""
        return self.time in self.keys and self.null_safe[self.keys.index(self.time)]

    def __post_init__(self) -> None:
        assert (self.time is None) == (not self.retain)
        assert self.retain or not self.newest
        assert self.time is None or not self.order


@dataclass(frozen=True)
class Join(Operator):
    """A regular join of two arrangements: inputs (left, right). It has no state of its own.

    left_keys, right_keys: the positions of the arrangements' key columns, which have equal types; empty if the right
    input is broadcast. null_safe: for each pair, whether it is IS NOT DISTINCT FROM. residual: DuckDB SQL over l0, l1,
    … and r0, r1, …, or None; an error in it counts as false. output: the output columns.
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
    """The rows of the left input for which the comparison of `column` with the single value of the right input is true.

    The right input has one column with the type of `column`, and at most one row, which is in every bucket. Without a
    row, or if the value is NULL, no row is output. keep: the positions of the left input's columns to output.
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
    """The inserted rows (diff above 0) of an ordered scan.

    `_seq` is replaced by two columns that sort the newest row first: minus the epoch, minus `_seq`. moment: see `Cut`;
    set if the scanned relation deletes rows, whose history is then the content at this commit.
    """

    kind: ClassVar[str] = "arrivals"
    adds: ClassVar[tuple[str, ...]] = ("_epoch", "_seq")
    moment: int = 0


@dataclass(frozen=True)
class Cut(PassThrough):
    """The input's changes from before the creation of a view (keeps before: its content never changes), or only later
    changes.

    moment: the newest commit at the creation. Cuts at different commits are different operators with different state.
    """

    kind: ClassVar[str] = "cut"
    keeps: Literal["before", "after"]
    moment: int


@dataclass(frozen=True)
class LateRowFilter(PassThrough):
    """The input's rows without late rows, whose `column` is below the bound of the previous epoch.

    bound: see `TimeFilter`; if it is unknown, no row is late. NULLs, deleted rows and history are never late. clock:
    the source of the bound whose number is the greatest time that live epochs have read of the relation `relation_id`
    (`name`, `clock_reads`: `ClockInput`; `idle`: `Idle`), or empty. age: columns that order the rows of an epoch, the
    newest first; the bound, a single term, then rises with each row, and NULL is late. late: whether to output only the
    late rows. apart: differs if an equal operator dropped rows that this view reads as history.
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
    clock_reads: tuple[Field, ...] = ()
    idle: Idle | None = None


@dataclass(frozen=True)
class TimeFilter(Operator):
    """The input's rows for which the comparison of `column`, a timestamp or date, with a bound that never decreases is
    true.

    bound: a watermark (`values.watermarks`) over the sources' numbers of the epoch, which may be unknown. `<`, `<=`:
    rows wait until the bound has passed them; while it is unknown, all wait. `>`, `>=`: rows are output immediately and
    retracted when the bound passes them. Rows with NULL are output immediately if `untimed` is set, else never. The
    operator does not store rows that the bound has passed. keep: the positions of the input's columns to output.
    append_only (`<`): whether a change below the bound is an error. stays (`<`, `<=`): whether output rows are never
    retracted.
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
    """Each left row with the right rows of its key as of its arrival. Inputs: left, and right, which is arranged.

    Changes of the right side never change earlier output. left_keys, right_keys, null_safe, residual, output: see
    `Join`; without keys, right is copied to every bucket.
    memo: whether left rows may be deleted, so that their matches are stored. identity: the positions of the left
    columns that the memo stores; they identify a left row and include those of `output`; empty: all. waits: whether a
    left row without a match waits, and is output with the matching right rows of the first epoch that ends with some.
    Never combined with a memo. ttl_us: the time of epochs for which the right rows found for a key are reused
    (`kernel.operators.temporal`); a key without rows is looked up again. None: every row is looked up. Not for rows
    that wait. owner: the view of this history. No other view shares the operator, because its rows would match other
    right rows. clock: whether the right side is one row with the time of the epoch, whatever its input contains.
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
    clock: bool = False

    def __post_init__(self) -> None:
        assert not (self.memo and self.waits)
        assert self.ttl_us is None or (self.right_keys and not self.waits)


#: The comparisons in an ASOF join; `<>` (values differ) and `<=>` (both are not NULL) search in both directions.
AsofComparison = Literal["<", "<=", ">", ">=", "<>", "<=>"]
#: The comparisons that search for smaller right values, for greater ones, and for equal ones.
BACKWARD: Final = (">", ">=", "<>", "<=>")
FORWARD: Final = ("<", "<=", "<>", "<=>")
EXACT: Final = ("<=", ">=", "<=>")


@dataclass(frozen=True)
class AsofJoin(Operator):
    """Each left row with the nearest right row of its key. Inputs: left and right, both arranged by the keys.

    left_keys, right_keys, null_safe, output: see `Join`. A pair must satisfy `left_value comparison right_value`
    (positions of columns of one type, which must have distances if both directions are searched). The nearest value
    counts, the smaller of two equally near ones; among equal values, the first row by the columns `ties`. residual: see
    `Join`; it is evaluated only for the nearest row, which is no partner if it is not true. join_kind left: rows
    without a partner are output with NULLs.
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
    """Stores the versions of the rows of a table by its primary key, the columns `keys`, once for all joins that read
    them.

    The input is an ordered scan (last column `_seq`) of a table. The output is an arrangement: the input's columns
    without `_seq`, then the start of the version's validity (timestamp or timestamptz), then whether the row exists
    from then on (boolean; if not, it was deleted, and the columns are its last values). For each key and time there is
    one version.
    time: the position of the event time; a row with NULL in it is not a version. source: the relation whose number is
    the watermark of this time. stage: see `Arrange`. retain: a watermark before which only the newest version of each
    key is stored; empty: all versions are stored.
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
        """As in `Arrange`; a key with NULL matches nothing."""
        return (False,) * len(self.keys)


@dataclass(frozen=True)
class ArrivalJoin(Join):
    """Like `Join`, but never revised: a row's partners are determined when it arrives.

    Its inputs are append-only, except for the right input of a semi or anti join, which tests each left row with the
    current right rows. Rows of one epoch match each other. A pair is output when the second of its rows arrives, even
    if the first row was output without a partner. The left input of semi and anti joins is not arranged.
    """

    kind: ClassVar[str] = "arrivaljoin"


@dataclass(frozen=True)
class ArrivalAsofJoin(AsofJoin):
    """Like `AsofJoin`, but never revised: the nearest row is determined when the left row arrives.

    The left input is append-only and not arranged. Left rows match right rows of the same epoch.
    depth: the number of right rows of a key, those with the greatest values, that can match; or None for all. history:
    the view to which the stored history belongs and which no other view shares (`TemporalJoin.owner`).
    """

    kind: ClassVar[str] = "arrivalasof"
    depth: int | None = None
    history: str = ""


@dataclass(frozen=True)
class MultiJoin(Operator):
    """An inner join of three or more arrangements by one key. It has no state of its own.

    keys: for each input the positions of the key columns of its arrangement; their types are equal in all inputs, and
    NULL matches nothing. residual: DuckDB SQL over t0_0, t0_1, …, t1_0, … (input, column), or None; an error in it
    counts as false. output: the output columns.
    """

    kind: ClassVar[str] = "multijoin"
    keys: tuple[tuple[int, ...], ...]
    residual: str | None
    output: tuple[InputColumn, ...]


@dataclass(frozen=True)
class AggregateSpec:
    """An aggregate: `function` over the column `argument` (None: count(*)) of the rows whose column `filter` is true.

    function: count, sum, avg, min, max, bool_and, bool_or, one of `DEVIATIONS`, or one of `COLLECTED`. extra: the
    columns of other arguments: the delimiter of string_agg if it is not `constant`; the value of jsonb_object_agg,
    whose argument is the key as jsonb. order: the order of the values. constant: the delimiter, or the fraction of
    percentile_cont (whose argument is float64) and percentile_disc.
    """

    function: str
    argument: int | None
    filter: int | None
    distinct: bool
    extra: tuple[int, ...] = ()
    order: tuple[SortKey, ...] = ()
    constant: str | float | None = None


#: The aggregates that are computed from the sum of the values and the sum of their squares.
DEVIATIONS: Final = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")

#: The aggregates whose value over pairs of rows follows from sums over the rows of one side and the number of rows of
#: the other.
ADDITIVE: Final = ("count", "sum", "avg", "bool_and", "bool_or", *DEVIATIONS)

#: The aggregates that need all values of a group, in the order of `AggregateSpec.order` and then of the values, NULLs
#: last.
COLLECTED: Final = frozenset({
    "array_agg", "string_agg", "jsonb_agg", "jsonb_object_agg", "first_value", "last_value", "mode", "percentile_cont",
    "percentile_disc", "bit_and", "bit_or", "bit_xor",
})  # fmt: skip


@dataclass(frozen=True)
class Aggregate(Operator):
    """GROUP BY columns `keys`; the output is the keys, then the calls (types in `schema`).

    Without calls it outputs distinct rows. With calls but no keys it always has exactly one row, in bucket 0, from the
    first epoch on. time, retain: groups whose key number `time` is below the watermark `retain` and not NULL no longer
    change and are deleted from the state. time None: all groups may change.
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
class GroupJoin(Operator):
    """A join of two arrangements (left, right) and GROUP BY its key in one operator, without the pairs of rows.

    The output is the left key columns `keys`, each once, then the calls (types in `schema`). The argument of a call is
    an index in `arguments`. NULL matches nothing; left rows with a NULL in the key have no group. The calls are those
    of `ADDITIVE`, not of floats, without FILTER and DISTINCT.
    """

    kind: ClassVar[str] = "groupjoin"
    join_kind: Literal["inner", "left"]
    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    keys: tuple[int, ...]
    arguments: tuple[InputColumn, ...]
    calls: tuple[AggregateSpec, ...]

    @property
    def null_safe(self) -> tuple[bool, ...]:
        """As in `Join`."""
        return (False,) * len(self.left_keys)

    @property
    def passed(self) -> tuple[int | None, ...]:
        return (*self.keys, *(None,) * len(self.calls))


@dataclass(frozen=True)
class Unnest(Operator):
    """Each input row once for every element of its arrays; stateless.

    arrays: the positions of array columns, unnested in parallel; shorter arrays are padded with NULL. keep: the
    positions of the input's columns to output first, followed by the elements and, if `ordinality` is set, the number
    of the element (bigint, from 1). condition: DuckDB SQL over the input's columns l0, l1, … and over r0, r1, …
    (elements, then the number), or None; only elements for which it is true are output. outer: a row without elements
    is output once, with NULLs.
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
    """The input's columns except the last one, with each row repeated as often as its last column (bigint) specifies.

    A row is dropped if the number is NULL or below 1. The output is never append-only, because a lower number retracts
    copies of the row.
    """

    kind: ClassVar[str] = "repeat"


@dataclass(frozen=True)
class Upsert(PassThrough):
    """Keeps the last row of each key: turns an ordered scan (last column `_seq`) into a retracting changelog.

    keys: the positions of the key. The output has the input's columns without `_seq`. A row with diff -1, of which only
    the key counts, deletes the row of its key.

    partial: whether changes may depend on existing rows. The input then has one more column before `_seq`, `_kept`
    (integer[], Arrow list<int32>), with positions of columns in this operator's schema, in any order.
    - NULL: a whole row, or a deletion. With diff 1 an empty list is the same.
    - diff 1 and a list: an update of the row of its key. The columns in the list (never the key) keep the value from
    just before, in the order of `_seq`. An update that finds no row is ignored and counted (`Counters.orphans`).
    - diff -1 and any list: all earlier rows are deleted, in all buckets. Other columns do not count.
    "Before" means the result of earlier epochs and of all changes of this one with a lower `_seq`. action, versions:
    what a row does to the row of its key, as in `catalog.Conflict`; versions are positions.
    """

    kind: ClassVar[str] = "upsert"
    keys: tuple[int, ...]
    partial: bool = False
    action: ConflictAction = "overwrite"
    versions: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sort(PassThrough):
    """Sorts each epoch's changes stably by `order`, over the input's columns, and outputs only the first columns."""

    kind: ClassVar[str] = "sort"
    order: tuple[SortKey, ...]


@dataclass(frozen=True)
class TopN(PassThrough):
    """For each key, in `order`, at most `limit` rows (None: all) after the first `offset` rows.

    keys: positions; without keys, all rows are one group in bucket 0. with_ties: whether to also output the rows that
    are equal in `order` to the last one. Ties are broken by the other columns, ascending, NULLs last. The output has
    the input's columns. time, retain: as in `Aggregate`; `time` is a position.
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
    """The rows of a key that a window function reads for a row, from `start` to `end`, both included.

    start, end: the number of rows, or of groups of peers, before (below 0) or after the row; None: unbounded. In
    `range` and `groups`, 0 includes all peers. low, high: the positions of columns that replace start and end in a
    `range`: the frame begins with the first row whose `value` is not before `low`, and ends with the last row whose
    `value` is not after `high`, in the order of the single sort key; rows with NULL in `value` have their peers as
    frame. exclude: the excluded rows: none, the current row, its group, or its ties.
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
    """A window function over the rows of a key in `order`.

    function: row_number, rank, dense_rank, percent_rank, cume_dist, ntile, lag, lead, first_value, last_value,
    nth_value, or one of `AggregateSpec`; in `SlidingWindow` also exp_avg. arguments: columns: the value; for lag and
    lead also the default, of the same type, if there is one; for exp_avg the time. number: the constant of ntile and
    nth_value (above 0; below 0: counted from the end of the frame), lag and lead (rows back, rows ahead), exp_avg (the
    half-life in microseconds). filter: of an aggregate. skips_nulls: rows with NULL as value don't count. Only in
    `SlidingWindow`: distinct, for aggregates that count equal values once.
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
    """Window functions over the rows of each key (columns `keys`; without keys, all rows are one group in bucket 0).

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
    """Publishes its input as the changes of the relation `relation_id`. `schema` has the relation's column names.

    keys: the values whose hash determines a row's bucket, each the first non-NULL value of some columns. None: no
    reader depends on the bucket. late: the operators of the relation's own query that drop late rows.
    """

    kind: ClassVar[str] = "sink"
    relation_id: str
    keys: tuple[tuple[int, ...], ...] | None = None
    late: tuple[LateSide, ...] = ()
