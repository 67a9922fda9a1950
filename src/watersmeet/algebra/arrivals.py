"""Nodes that depend on the changes of their input instead of its content, window functions, and top rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final, Literal, Self

from watersmeet.algebra.base import Column, Node, Partitioned, PassThrough, Unary
from watersmeet.algebra.scalars import AggregateCall, Scalar, SortKey
from watersmeet.values.types import Schema, SqlType
from watersmeet.values.watermarks import Idle, Watermark


@dataclass(frozen=True)
class Cut(PassThrough):
    """The rows of the input at the start of a query, or only later changes. See `circuit.operators.Cut`.

    keeps: `before` keeps the content at the start, which never changes; `after` keeps only later changes.
    """

    grows: ClassVar[bool] = True
    keeps_times: ClassVar[bool] = True
    keeps: Literal["before", "after"]
    moment: int


@dataclass(frozen=True)
class Reopened(Cut):
    """A scan of a source that the query reads separately from its own offset.

    Only newly bound trees contain this node. start: the position at which reading begins: `earliest`, `latest`, a time
    in ISO 8601, or offsets such as `5,3,11`; empty: the source's default. shards: the partitions to read, as in `0,2`;
    empty: all. strict: whether an undecodable message stops the reading.
    """

    start: str = ""
    shards: str = ""
    strict: bool = False


@dataclass(frozen=True)
class LateRowFilter(PassThrough):
    """The input rows that are not late. In its output the column `column` has the watermark `bound`.

    See `circuit.operators.LateRowFilter`.
    late: whether to keep the late rows instead. age: ids of columns that order the rows of an epoch, the newest first.
    If given, a row is also late if its time is NULL or below what the bound is after an older row.
    """

    grows: ClassVar[bool] = True
    column: str
    bound: Watermark
    relation_id: str = ""
    name: str = ""
    clock: str = ""
    late: bool = False
    age: tuple[str, ...] = ()
    clock_reads: Schema = ()
    idle: Idle | None = None

    @property
    def held(self) -> frozenset[str]:
        """All watermarks except that of its own column, which is replaced."""
        return self.input.ids - {self.column}

    @property
    def filterable(self) -> frozenset[str]:
        """Empty if `age` orders the rows, because a row that a condition removes may make others late."""
        return frozenset() if self.age else self.input.ids

    @property
    def reads(self) -> frozenset[str]:
        return frozenset([self.column, *self.age])


@dataclass(frozen=True)
class Records(Unary):
    """The changes of a relation as ordered log records, which are never deleted. See `circuit.operators.Records`.

    key: ids of the columns that identify a row of a table. The input is then a `Changes`, which adds the last two
    columns. None: the input is a relation without deletions.
    kept: ids of the columns that a tombstone contains. made: two columns: whether the record is a tombstone (boolean),
    and its number in the log (bigint). time: the id of the column with the time of the change, or None. clock: the
    clock of these times.
    """

    key: tuple[str, ...] | None
    kept: tuple[str, ...]
    made: tuple[Column, Column]
    time: str | None = None
    clock: Watermark = ()

    @property
    def preserved(self) -> tuple[Node, ...]:
        return ()

    @property
    def grows_with(self) -> tuple[Node, ...]:
        return ()

    @property
    def held(self) -> frozenset[str]:
        return self.input.ids if self.key is None else frozenset()

    @property
    def filterable(self) -> frozenset[str]:
        """Empty for a table, because its key determines whether a changed row replaces an earlier one."""
        return self.input.ids if self.key is None else frozenset()

    @property
    def own(self) -> tuple[Column, ...]:
        """The columns of the relation."""
        return self.input.columns if self.key is None else self.input.columns[:-2]

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        may_lack = self.key is not None
        own = tuple(replace(c, nullable=c.nullable or (may_lack and c.id not in self.kept)) for c in self.own)
        return (*own, *self.made)


@dataclass(frozen=True)
class ChangeLog(Records):
    """The changes of the input as numbered rows, which are never deleted. See `circuit.operators.ChangeLog`.

    key: ids of the columns that identify a row; None: no row is updated. made: the kind of change (smallint), and the
    number of the change (bigint).
    """

    @property
    def held(self) -> frozenset[str]:
        """Empty, because rows of any time may be deleted."""
        return frozenset()

    @property
    def filterable(self) -> frozenset[str]:
        return self.input.ids if self.key is None else frozenset(self.key)

    @property
    def own(self) -> tuple[Column, ...]:
        return self.input.columns

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.own, *self.made)


@dataclass(frozen=True)
class Cause:
    """A source of times for changed rows: the changes of one side of a join, or of grouped rows.

    changes: a node with the columns of `match` in order, then the time of the change. None: the rows inserted in the
    same epoch. match: ids of the columns by which rows and causes match. time: the id of the column with the rows' own
    time on this side, or None. partners: the number of columns of `match` that must match, without NULL, for a row that
    lacks this side.
    """

    changes: Node | None
    match: tuple[str, ...]
    time: str | None
    partners: int = 0


@dataclass(frozen=True)
class Changes(Node):
    """The inserted and deleted rows of the input, as events that are never deleted. See `circuit.operators.Changes`.

    causes: the sources of a change's time. All of them match by the same first columns (`matched`). made: two columns:
    whether the row was deleted (boolean), and the time of the change (timestamp). whole: whether to keep all columns of
    the input, because another reader needs exactly these.
    """

    input: Node
    causes: tuple[Cause, ...]
    made: tuple[Column, Column]
    whole: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input, *(c.changes for c in self.causes if c.changes is not None))

    def over(self, inputs: Sequence[Node]) -> Self:
        rest = iter(inputs[1:])
        causes = tuple(c if c.changes is None else replace(c, changes=next(rest)) for c in self.causes)
        return replace(self, input=inputs[0], causes=causes)

    @property
    def grows_with(self) -> tuple[Node, ...]:
        return ()

    @property
    def matched(self) -> tuple[str, ...]:
        """The ids of the columns by which rows and their causes are distributed."""
        first = self.causes[0]
        return first.match[: first.partners or len(first.match)]

    @property
    def alone(self) -> bool:
        """Whether deleted rows take their times only from inserted rows."""
        return any(c.changes is None for c in self.causes)

    @property
    def reads(self) -> frozenset[str]:
        """The ids of the input columns that determine times."""
        return frozenset(i for c in self.causes for i in (*c.match, c.time) if i is not None)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.made)


@dataclass(frozen=True)
class Repartition(PassThrough):
    """The unchanged rows of the input, with as many partitions as the relation with which they are joined."""

    grows: ClassVar[bool] = True
    keeps_times: ClassVar[bool] = True
    partitions: int

    @property
    def filterable(self) -> frozenset[str]:
        return self.input.ids


#: The window functions that read only earlier rows and peers.
_BACK: Final = ("row_number", "rank", "dense_rank")

#: The functions of windows that output a row when its window closes, or if no other one precedes it in its window
#: (`circuit.sessions`).
_DELAYING: Final = (
    "session_start", "session_end", "session_epoch", "session_seq", "session_first", "window_closed",
    "window_epoch", "window_seq", "key_epoch", "key_seq",
)  # fmt: skip

#: The window functions that also read later rows, regardless of their frame.
LOOKING_AHEAD: Final = ("ntile", "percent_rank", "cume_dist")


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """A frame as in `circuit.operators.WindowFrame`, but with expressions for value, low and high.

    before, after: in batch queries, the size of a frame if it is a value or not constant.
    """

    mode: Literal["rows", "range", "groups"]
    start: int | None
    end: int | None
    exclude: str = "none"
    value: Scalar | None = None
    low: Scalar | None = None
    high: Scalar | None = None
    before: Scalar | None = None
    after: Scalar | None = None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The expressions of the bounds."""
        return tuple(s for s in (self.value, self.low, self.high, self.before, self.after) if s is not None)

    def changed(self, change: Callable[[Scalar], Scalar]) -> WindowFrame:
        """The frame with each of its expressions replaced."""

        def other(scalar: Scalar | None) -> Scalar | None:
            return None if scalar is None else change(scalar)

        return replace(
            self,
            value=other(self.value),
            low=other(self.low),
            high=other(self.high),
            before=other(self.before),
            after=other(self.after),
        )


@dataclass(frozen=True, slots=True)
class WindowCall:
    """`function(arguments) FILTER (WHERE filter) OVER (ORDER BY order frame)`, as in `circuit.operators.WindowSpec`.

    Only in batch queries: `varying` replaces a constant `number`; `aggregate` is the whole call of an aggregate
    function. Only in windows `in_order`: distinct; exp_avg as function.
    """

    function: str
    arguments: tuple[Scalar, ...]
    number: int
    filter: Scalar | None
    order: tuple[SortKey, ...]
    frame: WindowFrame
    type: SqlType
    varying: Scalar | None = None
    aggregate: AggregateCall | None = None
    skips_nulls: bool = False
    distinct: bool = False

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """All expressions in the call."""
        own = tuple(s for s in (self.filter, self.varying) if s is not None)
        inner = () if self.aggregate is None else self.aggregate.scalars
        return (*self.arguments, *own, *inner, *(k.value for k in self.order), *self.frame.scalars)

    def changed(self, change: Callable[[Scalar], Scalar]) -> WindowCall:
        """The call with each of its expressions replaced."""
        return replace(
            self,
            arguments=tuple(map(change, self.arguments)),
            filter=None if self.filter is None else change(self.filter),
            order=tuple(k.changed(change) for k in self.order),
            frame=self.frame.changed(change),
            varying=None if self.varying is None else change(self.varying),
            aggregate=None if self.aggregate is None else self.aggregate.changed(change),
        )

    @property
    def looks_back(self) -> bool:
        """Whether its value depends only on the rows up to the last peer of a row."""
        if self.function in ("lag", "lead"):  # their offset may be negative
            return (self.number if self.function == "lag" else -self.number) >= 0
        ends = self.frame.end is not None and self.frame.end <= 0 and self.frame.high is None
        return self.function in _BACK or (self.function not in LOOKING_AHEAD and ends)


@dataclass(frozen=True)
class Window(Partitioned):
    """Each input row with the value of each call over the rows of its partition.

    Rows that are equal in an order are ordered by their columns that this node or its readers read, in column order.
    keeps_time: whether the time that orders the rows keeps its watermark although rows below it may change. In these
    rows only the calls' values change, and both the old and the new value are not below the watermark. This is correct
    if readers can't distinguish such values, like a join that compares them with times below the watermark.
    in_order: whether rows are never deleted and arrive in the order of the calls, which is the same for all of them. A
    frame then ends at its own row or before it, without later peers, so that each row is output once; frames are
    those of `circuit.operators.SlidingWindow`. Calls of the functions in `circuit.sessions` are those of one window;
    idle_us: see `SessionWindow`. gaps: whether only the rows that fill gaps depend on the calls (GAP_FILL).
    """

    calls: tuple[WindowCall, ...]
    outputs: tuple[Column, ...]
    keeps_time: bool = False
    in_order: bool = False
    idle_us: int = 0
    gaps: bool = False

    def __post_init__(self) -> None:
        assert len(self.outputs) == len(self.calls)

    @property
    def delays(self) -> bool:
        """Whether rows are output when their window closes, as `circuit.sessions.SessionWindow` does."""
        return self.calls[0].function in _DELAYING if self.calls else False

    @property
    def at_most_one(self) -> bool:
        return not self.delays

    @property
    def held(self) -> frozenset[str]:
        """The watermarks of the partition's columns, and of the time that orders the rows if no later row changes a
        row.
        """
        if self.delays:
            return frozenset()
        further = {c.order[0].value.column for c in self.calls} if self.keeps_time else {self._looking_back()}
        return super().held | {i for i in further if i is not None}

    def _looking_back(self) -> str | None:
        """The column by which all calls order their rows first, ascending, if all calls look back."""
        first = {
            c.order[0].value.column if c.order and not (c.order[0].descending or c.order[0].nulls_first) else None
            for c in self.calls
        }
        return first.pop() if len(first) == 1 and all(c.looks_back for c in self.calls) else None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return (*self.partition, *(s for c in self.calls for s in c.scalars))

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:
        partition = tuple(map(change, self.partition))
        return replace(self, partition=partition, calls=tuple(c.changed(change) for c in self.calls))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.outputs)


@dataclass(frozen=True)
class TopN(Partitioned, PassThrough):
    """For each partition, in `order`, at most `limit` rows (None: all) after the first `offset` ones.

    with_ties: whether to include the rows that are equal in `order` to the last one. Otherwise ties are broken as in
    `Window`.
    """

    order: tuple[SortKey, ...]
    limit: int | None
    offset: int = 0
    with_ties: bool = False

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return (*self.partition, *(k.value for k in self.order))

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:
        partition = tuple(map(change, self.partition))
        return replace(self, partition=partition, order=tuple(k.changed(change) for k in self.order))
