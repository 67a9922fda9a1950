"""Operators of a circuit.

Columns are positional: every operator's output is an Arrow table with columns `c0`, `c1` … and a diff. Expressions are
DuckDB SQL over them. Operators that are equal in all they do are equal as values, so their `id`, a hash of their
content and of their inputs, is the same in every view and after every restart: equal subplans are one operator with one
state.
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

#: A length of time that never ends.
FOREVER_US: Final = 1 << 61

#: The column of partial changes that says which columns of a row are kept, see `Upsert`.
KEPT: Final = Field("_kept", SqlType("array", element=INTEGER))
#: Bits of `_seq` for the number of a row within what came together.
SEQ_ROW_BITS: Final = 40


@dataclass(frozen=True)
class Scan(Operator):
    """Changes of a relation: its columns `names` become c0, c1, …; no inputs.

    ordered: adds a last column `_seq` (int64, unique in the epoch, in arrival order) after the named ones; without its
    last `SEQ_ROW_BITS` bits it is the number of the slice, or of the transaction, that the row is of.
    partial: adds `_kept` before `_seq`, see `Upsert`.
    late: how many rows of the relation had been left out as late when the view was made. It reads them as history, so
    that it has no operator in common with older views, whose state lacks them.
    """

    kind: ClassVar[str] = "scan"
    relation_id: str
    names: tuple[str, ...]
    ordered: bool = False
    late: int = 0
    partial: bool = False


@dataclass(frozen=True)
class Constant(Operator):
    """Fixed rows, given once in the life of the state, in bucket 0. `rows_sql`: DuckDB expressions by row."""

    kind: ClassVar[str] = "constant"
    rows_sql: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Map(Operator):
    """Filter, then project: rows with `predicate` true (None: all), `exprs[i]` gives column i.

    An expression that raises an error gives NULL (a predicate: false) and is counted.
    required: columns that must not be NULL because of an error; a row with such a column is dropped.
    partitions: an annotation for those who read the plan: here a topic is given as many partitions as the one that it
    is joined with has. Buckets are not partitions, so that nothing moves.
    """

    kind: ClassVar[str] = "map"
    exprs: tuple[str, ...]
    predicate: str | None
    partitions: int | None = None
    required: tuple[int, ...] = ()


@dataclass(frozen=True)
class Exchange(PassThrough):
    """Moves rows to the bucket of `keys` (column positions).

    mode: `hash` by keys (no keys: all rows to bucket 0); `broadcast` copies every row to every bucket; `partial` sends
    the changes of a partial `Upsert` by keys, but those that empty the table to every bucket.
    """

    kind: ClassVar[str] = "exchange"
    keys: tuple[int, ...]
    mode: Literal["hash", "broadcast", "partial"] = "hash"


@dataclass(frozen=True)
class Arrange(PassThrough):
    """Keeps the rows of its input by columns `keys`, once for all that read it; its columns are the input's.

    null_safe: for each key, whether NULL meets NULL; a row with a NULL in another key can't meet any and is not kept.
    stage: the stage in which it is kept, that of its readers; its input's stage or a later one.
    time, retain: after an epoch rows are of use only while their column `time` is not below the bound `retain`, a
    watermark;
    NULL is of no use unless it meets NULL. Of others nobody may ask anything. time None: all rows are of use. newest:
    of the rows of a key that are below the bound the `depth` newest are of use as well, and those with the time of the
    last of these.
    order: of the rows of a key only the first `depth` in this order are of use, and those that are equal to the last of
    these. The input only grows.
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
        """Whether all rows are of use for ever."""
        return self.time is None and not self.order

    @property
    def keeps_null_times(self) -> bool:
        """Whether rows with NULL in `time` are of use: where it is a key in which NULL meets NULL."""
        return self.time in self.keys and self.null_safe[self.keys.index(self.time)]

    def __post_init__(self) -> None:
        assert (self.time is None) == (not self.retain)
        assert self.retain or not self.newest
        assert self.time is None or not self.order


@dataclass(frozen=True)
class Join(Operator):
    """A regular join of two arrangements: inputs (left, right). It keeps nothing itself.

    left_keys, right_keys: positions of key columns of equal types, pairwise, the keys of the arrangements; empty
    for a join whose right input is broadcast. null_safe: per pair, IS NOT DISTINCT FROM.
    residual: DuckDB SQL over l0, l1, … and r0, r1, …, or None. An error in it counts as false.
    output: which columns come out.
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

    inputs: (left, right); the right one has one column, of the type of `column`, and at most one row, which is in every
    bucket. No row, or NULL, passes nothing. keep: positions of the left input's columns that come out.
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

    In place of `_seq` come two columns that put the newest row first: less the number of the epoch, less `_seq`.
    moment: as in `Cut`, if rows of the scan go: its history is then the content at that time.
    """

    kind: ClassVar[str] = "arrivals"
    adds: ClassVar[tuple[str, ...]] = ("_epoch", "_seq")
    moment: int = 0


@dataclass(frozen=True)
class Cut(PassThrough):
    """Of the input's changes those from before a view was made (keeps before: its content stands still), or those that
    come after.

    moment: the newest commit at that time. It makes cuts at other moments other operators, with other state above them.
    """

    kind: ClassVar[str] = "cut"
    keeps: Literal["before", "after"]
    moment: int


@dataclass(frozen=True)
class LateRowFilter(PassThrough):
    """The input's rows but for those that are late: whose time in `column` is below the bound by the numbers of the
    epochs before.

    bound: as in `TimeFilter`; unknown: nothing is late. NULL never is, nor what goes. clock: the greatest time that
    live epochs read of the
    column `name` of the relation `relation_id` is the number of this source, which the bound reads; empty: it reads
    those that are there
    anyway. Nothing that is read as history is late. age: columns that order the rows of an epoch, the newest first: a
    row is also late if an older one has a greater time, or if it has none. late: the rows that are late instead. apart:
    tells it from equal ones that had left rows out when its view was made: it reads these as history, so that it has no
    operator in common with those above the others.
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
    """The changes of an epoch as records, which are never taken back: the columns of the relation that changed,
    `deleted` (boolean), the epoch's number (bigint).

    keys: positions; the input is `Changes`, whose last two columns do not come out. What comes and goes again is no
    change. Of a key, the rows that came, if any; else one record that is `deleted`, with NULLs but for the columns
    `kept`: of one of the rows that went, which the content decides. time: position of the column that has the time of
    the change instead of its own; of one that is `deleted`, the greatest one. All changes of a key are in one bucket.
    keys None: the rows of the input that come.
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
    """A side of what changes rows have. `match`, `time`: positions; see `algebra.arrivals.Cause`."""

    match: tuple[int, ...]
    time: int | None
    partners: int


@dataclass(frozen=True)
class Changes(PassThrough):
    """The rows of the first input that came or went in an epoch, none of which is ever taken back: its columns, `went`
    (boolean), `at` (timestamp): the time of what caused it.

    That is the greatest time of its sides (`causes`). Of a side whose match changed in the epoch, as the further inputs
    tell, one for each cause (without any: the rows of the first input that come), it is the greatest time of these
    changes, and of the row's own if it came; of another one the row's own. A side that the row lacks (its time is NULL)
    has those that agree with the row in the first `partners` columns, none of them NULL. All that agree in the columns
    of `match` (or the first `partners`, if there are any) are in one bucket.

    The law: the columns add up to the content of the input.
    """

    kind: ClassVar[str] = "changes"
    adds: ClassVar[tuple[str, ...]] = ("@went", "@at")
    causes: tuple[CauseSpec, ...]


@dataclass(frozen=True)
class TimeFilter(Operator):
    """The input's rows whose column `column`, a timestamp or date, compares with a bound that only rises.

    bound: a watermark (`values.watermarks`) by the sources' numbers of the epoch, which may be unknown. `<`, `<=`: rows
    wait until the bound has passed them; with an unknown bound all do. `>`, `>=`: rows come out at once and are taken
    back
    when the bound passes them. NULL never passes. What the bound has passed is not kept. keep: positions of the
    input's columns that come out. append_only: no change is ever below the bound (of `<`), or it is an error. stays:
    (of `<`, `<=`)
    what has come out is not taken back, whatever becomes of it below. untimed: rows with NULL in the column come at
    once.
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
    """Each left row with the right rows of its key as they are when it comes; inputs (left, right), right arranged.

    Changes of the right side change nothing that came out. left_keys, right_keys, null_safe, residual, output: as in
    `Join`;
    no keys: right is copied to every bucket. memo: left rows may go: what each met is remembered, to be taken back.
    identity: positions of the left columns that the memo keeps: they tell left rows apart, and include all left columns
    of `output`. Empty: all left columns.
    waits: a left row that met nothing when it came (in a left join it came out with NULLs) waits; in the first epoch
    that ends with right rows that fit it, it comes out with all of them, and waits no more. Not with a memo.
    ttl_us: the right rows that a key was answered with serve it again until the epoch's time is so much later
    (`kernel.operators.temporal`); a key for which nothing was found asks again. None: every row asks. Not for rows that wait.
    owner: the view whose history it is. What its rows met when they came is not what those of a later view meet, so
    that this one has no operator in common with those above it.
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


#: How left and right values of an ASOF join compare: `<>` (they differ) and `<=>` (they are there) look on both sides.
AsofComparison = Literal["<", "<=", ">", ">=", "<>", "<=>"]
#: Those that look for smaller right values, for greater ones, and for equal ones.
BACKWARD: Final = (">", ">=", "<>", "<=>")
FORWARD: Final = ("<", "<=", "<>", "<=>")
EXACT: Final = ("<=", ">=", "<=>")


@dataclass(frozen=True)
class AsofJoin(Operator):
    """Each left row with the one nearest right row of its key; inputs (left, right), both arranged by the keys.

    left_keys, right_keys, null_safe, output: as in `Join`. A pair needs `left_value comparison right_value` (positions
    of columns of one type, one with distances if both sides count); of these the right row with the nearest value
    counts, of a smaller and a greater one that are equally near the smaller one, of several with that value the one
    that is first by the columns `ties`. residual: as in `Join`; it is asked of the nearest row alone: if it is not
    true, there is no partner. join_kind left: rows without partner come out with NULLs.
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


#: Joins of two inputs by key columns, with what else has to hold and which columns come out.
PairJoin = Join | AsofJoin | TemporalJoin


@dataclass(frozen=True)
class Versions(PassThrough):
    """Keeps the versions of the rows of a table by its primary key, columns `keys`, once for all joins that read them.

    The input is an ordered scan (last column `_seq`) of a table. The output is an arrangement: the input's columns
    without `_seq`, then from when the version is valid (timestamp or timestamptz), then whether there is a row from
    then on
    (boolean; if not, it was deleted and the columns are those that it had). Of each key and time there is one version.
    time: position of the event time; a row with NULL there is no version. source: the relation whose number is the
    watermark of that time. stage: as in `Arrange`. retain: a watermark: nobody asks for moments below it, so that of
    the versions from before it only the newest of each key is kept; empty: all are.
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
        """As in `Arrange`: a key with a NULL meets nothing."""
        return (False,) * len(self.keys)


@dataclass(frozen=True)
class ArrivalJoin(Join):
    """As `Join`, but never revised: whether a row has partners is decided when it comes.

    Its inputs only grow; a semi or anti join decides each left row by what is right, which may change. Rows that come
    in one epoch see
    each other. Pairs come when the second of their rows does, also where the first one came out without partner. The
    left
    input of semi and anti joins is not arranged: nothing is kept of it.
    """

    kind: ClassVar[str] = "arrivaljoin"


@dataclass(frozen=True)
class ArrivalAsofJoin(AsofJoin):
    """As `AsofJoin`, but never revised: which row is the nearest is decided when the left row comes.

    The left input, of which nothing is kept, only grows and is not arranged. Rows that come in one epoch see each
    other.
    depth: of the right rows of a key only those count that have fewer than so many rows with a greater value; None:
    all.
    history: the view whose history it is: no other one has what it met (`TemporalJoin.owner`).
    """

    kind: ClassVar[str] = "arrivalasof"
    depth: int | None = None
    history: str = ""


@dataclass(frozen=True)
class MultiJoin(Operator):
    """An inner join of three or more arrangements by one key: rows that agree in it meet. It keeps nothing.

    keys: for each input the positions of its key columns, those of its arrangement; types are equal across inputs,
    and NULL meets nothing. residual: DuckDB SQL over t0_0, t0_1, …, t1_0, … (input, column), or None. An error in it
    counts as false. output: which columns come out.
    """

    kind: ClassVar[str] = "multijoin"
    keys: tuple[tuple[int, ...], ...]
    residual: str | None
    output: tuple[InputColumn, ...]


@dataclass(frozen=True)
class AggregateSpec:
    """One aggregate: function over column `argument` (None: count(*)), of rows where column `filter` is true.

    function: count, sum, avg, min, max, bool_and, bool_or, var_pop, var_samp, stddev_pop, stddev_samp, or one of
    `COLLECTED`. extra: columns of further arguments: the delimiter of string_agg, if it is no `constant`; the value of
    jsonb_object_agg, whose argument is the key as jsonb. order: of the values. constant: the delimiter, or the
    fraction of percentile_cont (whose argument is float64) and percentile_disc.
    """

    function: str
    argument: int | None
    filter: int | None
    distinct: bool
    extra: tuple[int, ...] = ()
    order: tuple[SortKey, ...] = ()
    constant: str | float | None = None


#: Aggregates that follow from the sum of the values and that of their squares.
DEVIATIONS: Final = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")

#: Aggregates that need all values of a group, in the order of `AggregateSpec.order` and then in their own, NULLs last.
COLLECTED: Final = frozenset({
    "array_agg", "string_agg", "jsonb_agg", "jsonb_object_agg", "first_value", "last_value", "mode", "percentile_cont",
    "percentile_disc", "bit_and", "bit_or", "bit_xor",
})  # fmt: skip


@dataclass(frozen=True)
class Aggregate(Operator):
    """GROUP BY columns `keys`; the output is the keys, then the calls (types in `schema`).

    No calls: distinct rows. No keys and some calls: always exactly one row, in bucket 0,
    from the first epoch on. time, retain: no later change is of a group whose key number `time` is below the watermark
    `retain`, so that what is kept of it goes; groups in which that key is NULL stay. time None: all may change.
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
    the input's columns that come out, first; then the elements; then, if `ordinality`, the number of the element
    (bigint, from 1). condition: DuckDB SQL over the input's columns l0, l1, … and over r0, r1, … (elements, then the
    number), or None; elements for which it is not true are left out. outer: a row without elements comes out once,
    with NULLs.
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
    """The input's columns but the last, each row as many times more often as its last column (bigint) says.

    Not at all where that is NULL or below 1. Never append-only: a row whose number falls is partly taken back.
    """

    kind: ClassVar[str] = "repeat"


@dataclass(frozen=True)
class Upsert(PassThrough):
    """Last row per key wins: turns an ordered scan (last column `_seq`) into a retracting changelog.

    keys: positions of the key. The output has the input's columns without `_seq`.
    A row with diff -1 deletes the row of its key; of such a row only the key counts.

    partial: changes may depend on the rows that are there. The input then has one more column, `_kept`, right before
    `_seq`: integer[] (Arrow list<int32>), the positions of columns in this operator's schema, in any order.

    - NULL: a whole row, or a deletion. With diff 1 an empty list is the same.
    - diff 1 and a list: the row is an update of the row of its key. Columns in the list keep the value which that row
      has just before, in the order of `_seq`; what this row has there does not count. The key is never in the list. An
      update that finds no row of its key changes nothing, and is counted (`Counters.orphans`).
    - diff -1 and a list, whatever is in it: the table is emptied: all rows from before go, in all buckets. What the row
      has in other columns does not count.

    What is in order before a change is what earlier epochs left and, in this one, all changes with a lower `_seq`.
    """

    kind: ClassVar[str] = "upsert"
    keys: tuple[int, ...]
    partial: bool = False


@dataclass(frozen=True)
class Sort(PassThrough):
    """The changes of each epoch in `order`; equal ones stay as they came. order: over the input's columns, of which the
    output has the first ones.
    """

    kind: ClassVar[str] = "sort"
    order: tuple[SortKey, ...]


@dataclass(frozen=True)
class TopN(PassThrough):
    """Of the rows of each key, in `order`, those after the first `offset`: at most `limit` (None: all).

    keys: positions; none: all rows are one key, in bucket 0. with_ties: also the rows that are equal in `order` to the
    last of them. Rows that are equal in `order` are ordered by their other columns, in order, ascending, NULLs last.
    The output has the input's columns. time, retain: as in `Aggregate`; `time` is a position.
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

    start, end: rows, groups of peers or nothing else (`range`) before (below 0) or after the row; None: unbounded;
    0 in `range` and `groups`: with all peers. low, high: positions of columns; of a `range` the frame begins with the
    first row whose column `value` is not before `low`, and ends with the last one not behind `high`, in the one sort
    key's order; rows with NULL in `value` have their peers instead. They stand for start and end.
    exclude: which of these rows are left out again: none, current row, group, ties.
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
    nth_value, or one of `AggregateSpec`. arguments: columns: the value; of lag and lead maybe also the default, of the
    same type.
    number: the constant of ntile and nth_value (above 0), lag and lead (rows back, rows ahead). filter: of an
    aggregate.
    """

    function: str
    arguments: tuple[int, ...]
    number: int
    filter: int | None
    order: tuple[SortKey, ...]
    frame: WindowFrame


@dataclass(frozen=True)
class Window(PassThrough):
    """Window functions over the rows of each key (columns `keys`; none: all rows are one key, in bucket 0).

    The input is the arrangement by `keys`, in which NULL is a key like any other; nothing else is kept. The output has
    the input's columns, then one for each of `functions` (types in `schema`). Ties are broken as in `TopN`.
    """

    kind: ClassVar[str] = "window"
    keys: tuple[int, ...]
    functions: tuple[WindowSpec, ...]

    @property
    def made(self) -> int:
        return len(self.functions)


@dataclass(frozen=True)
class Sink(PassThrough):
    """Publishes its input as the changes of relation `relation_id`. `schema` has the relation's names.

    keys: by whose hash its rows lie in the buckets: each the first of some columns that is not NULL. None: nobody
    relies on where they are.
    """

    kind: ClassVar[str] = "sink"
    relation_id: str
    keys: tuple[tuple[int, ...], ...] | None = None
