"""Nodes of the logical algebra: frozen, each with its output columns.

`columns` of a node are what it gives; ids are unique within one view's tree. Expressions read
columns of the node's inputs, and inside the right input of an `Apply` those of its left input, at any
depth: `free` tells which. Multiplicities count: every node is a multiset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final, Literal, Self

from watersmeet.algebra.base import Binary as Binary
from watersmeet.algebra.base import Column as Column
from watersmeet.algebra.base import KeyedJoin as KeyedJoin
from watersmeet.algebra.base import KeyPair as KeyPair
from watersmeet.algebra.base import Partitioned as Partitioned
from watersmeet.algebra.base import PassThrough as PassThrough
from watersmeet.algebra.base import Relation as Relation
from watersmeet.algebra.base import Unary as Unary
from watersmeet.algebra.changes import Cause as Cause
from watersmeet.algebra.changes import Changes as Changes
from watersmeet.algebra.changes import Cut as Cut
from watersmeet.algebra.changes import LateRowFilter as LateRowFilter
from watersmeet.algebra.changes import Records as Records
from watersmeet.algebra.changes import Repartition as Repartition
from watersmeet.algebra.comparisons import Comparison as Comparison
from watersmeet.algebra.ordered import SortKey as SortKey
from watersmeet.algebra.ordered import TopN as TopN
from watersmeet.algebra.ordered import Window as Window
from watersmeet.algebra.ordered import WindowCall as WindowCall
from watersmeet.algebra.ordered import WindowFrame as WindowFrame
from watersmeet.algebra.scalars import Scalar
from watersmeet.types import SqlType
from watersmeet.watermarks import Watermark

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
_KINDS: Final = {"left": "a LEFT JOIN", "right": "a RIGHT JOIN", "full": "a FULL JOIN", "anti": "an anti join"}


@dataclass(frozen=True)
class Scan(Relation):
    """The changes of a catalog relation.

    relation_id, relation_name: of the catalog (for EXPLAIN the name). outputs: the columns read.
    source_names: the relation's own name of each output. append_only: no change ever has diff -1.
    key: ids among `outputs` that identify a row (the declared primary key), if all are read.
    watermarks: by id of an output.
    """

    relation_id: str
    relation_name: str
    outputs: tuple[Column, ...]
    source_names: tuple[str, ...]
    append_only: bool
    key: tuple[str, ...] = ()
    watermarks: tuple[tuple[str, Watermark], ...] = ()

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Values(Relation):
    """Constant rows. No scalar reads columns, except those of a query around it."""

    rows: tuple[tuple[Scalar, ...], ...]
    outputs: tuple[Column, ...]

    @property
    def grows_with(self) -> tuple[Relation, ...]:
        return ()

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(s for row in self.rows for s in row)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Filter(PassThrough):
    """The rows for which `predicate` is true (not false, not NULL)."""

    grows: ClassVar[bool] = True
    keeps_times: ClassVar[bool] = True
    predicate: Scalar

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return (self.predicate,)

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:
        return replace(self, predicate=change(self.predicate))


@dataclass(frozen=True)
class Project(Unary):
    """One row for each input row: `exprs[i]` gives `outputs[i]`.

    A pass-through column keeps its id or gets a new one.
    """

    grows: ClassVar[bool] = True
    outputs: tuple[Column, ...]
    exprs: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        assert len(self.outputs) == len(self.exprs)

    @property
    def preserved(self) -> tuple[Relation, ...]:
        return ()

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.exprs

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Join(KeyedJoin):
    """A join: pairs with equal `keys` for which `residual` (over both inputs) is true.

    Without keys the right input must be `single_row` or small: it is then copied to every bucket (`broadcast`); the
    planner refuses all else. spread: which keys say where rows that have to move go; none: all.
    scatter: of a join without keys, what says where rows of the input that is not copied go if they have to move.
    arrival: whether a row has partners is decided when it comes, and never revised (EMIT ON ARRIVAL).
    partners: of an outer join, which of its pairs make a left (right) row one with a partner; a row without one comes
    out alone as well, beside the pairs that it has. None: all of them.
    """

    kind: JoinKind
    residual: Scalar | None = None
    broadcast: bool = False
    spread: tuple[int, ...] = ()
    scatter: tuple[Scalar, ...] = ()
    arrival: bool = False
    partners: tuple[Scalar, Scalar] | None = None

    def __post_init__(self) -> None:
        assert self.partners is None or (self.kind in ("left", "right", "full") and not self.arrival)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return (*self.key_scalars, *(() if self.residual is None else (self.residual,)), *(self.partners or ()))

    @property
    def revises(self) -> str:
        return f"{_KINDS[self.kind]} revises rows"

    @property
    def grows_with(self) -> tuple[Relation, ...] | None:
        if self.arrival:
            return self.inputs if self.gives_right else (self.left,)
        return self.inputs if self.kind in ("inner", "semi") else None


ApplyKind = Literal["inner", "left", "semi", "anti", "mark"]


@dataclass(frozen=True)
class Apply(Binary):
    """A dependent join: `right` is evaluated for each row of `left`, whose columns it may read. Gone after `unnest`.

    inner, left: LATERAL; the columns of both sides. semi, anti: the left rows for which some, or no, right
    row has all `pairs` (left side over left, right side over right) equal. mark: the left columns and
    `mark`, true where semi passes the row and false elsewhere. null_aware (anti, mark): SQL's rule for IN: without
    an equal row the result is NULL if a comparison was NULL; anti passes a row only where it is false.
    arrival: `right` is evaluated when the left row comes, and what changes in it later changes nothing.
    """

    revises: ClassVar[str] = "a subquery revises rows"
    kind: ApplyKind
    pairs: tuple[KeyPair, ...] = ()
    mark: Column | None = None
    null_aware: bool = False
    arrival: bool = False

    def __post_init__(self) -> None:
        assert (self.mark is not None) == (self.kind == "mark")

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(s for k in self.pairs for s in (k.left, k.right))

    @cached_property
    def free(self) -> frozenset[str]:
        own = frozenset[str]().union(*[s.columns for s in self.scalars]) - self.right.ids
        return self.left.free | ((own | self.right.free) - self.left.ids)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return super().columns if self.mark is None else (*self.left.columns, self.mark)


@dataclass(frozen=True)
class TemporalJoin(KeyedJoin):
    """Each left row with the right rows of its key as they are when it comes; later changes of the right side change
    nothing.

    kind left: rows that meet nothing stay, with NULLs. looked_up: the column ids of the primary key and the indexes of
    the right
    side, a Scan, by which rows can be looked up; None: by any column, of any right side. waits: a row that met nothing
    when it
    came waits for the first right rows that fit it and then comes out with them, once
    (`circuit.operators.TemporalJoin`).
    ttl_us: the answer for a key serves that long again, whatever becomes of the right side; nothing found is no answer.
    None: every row asks.
    """

    called: ClassVar[str] = "a temporal join"
    kind: Literal["inner", "left"]
    residual: Scalar | None
    looked_up: tuple[tuple[str, ...], ...] | None
    waits: bool = False
    ttl_us: int | None = None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.key_scalars if self.residual is None else (*self.key_scalars, self.residual)

    @property
    def reads(self) -> frozenset[str]:
        return super().reads.union(*(self.looked_up or ()))

    @property
    def grows_with(self) -> tuple[Relation, ...]:
        return (self.left,)

    @property
    def held(self) -> frozenset[str]:
        """A row that waited comes out however old it is."""
        return frozenset() if self.waits else self.left.ids


@dataclass(frozen=True)
class TimeFilter(PassThrough):
    """The input's rows whose column `column` (an id) compares with `bound`, a watermark or a term of the clock, which
    only rises.

    As `circuit.operators.TimeFilter`. final: `bound` is a watermark of the column, so that with `<` each row comes once
    and is never taken back (EMIT ON WINDOW CLOSE). stays: with `<` or `<=`, rows that come out are not taken back
    whatever becomes
    of them below. scatter: what says where rows go if they have to move. untimed: rows with NULL in the column come and
    go at once.
    same: ids of further columns that have the column's value where it has one. promised: ids of further columns in
    which no later row is below `bound` either.
    """

    revises: ClassVar[str] = "time takes rows back"
    column: str
    comparison: Comparison
    bound: Watermark
    final: bool = False
    scatter: tuple[Scalar, ...] = ()
    stays: bool = False
    untimed: bool = False
    same: tuple[str, ...] = ()
    promised: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert not self.stays or self.comparison[0] == "<"
        assert self.column in self.input.ids
        assert self.bound

    @property
    def grows_with(self) -> tuple[Relation, ...] | None:
        if self.final or self.stays:
            return ()
        return None if self.comparison[0] == ">" else self.inputs

    @property
    def filterable(self) -> frozenset[str]:
        return self.input.ids

    @property
    def rejected(self) -> frozenset[str]:
        return frozenset() if self.untimed else frozenset([self.column])

    @property
    def reads(self) -> frozenset[str]:
        return frozenset([self.column])


@dataclass(frozen=True)
class Versions(Relation):
    """What the rows of a table were from when on: the right side of a temporal join with a time of the left side.

    scan: of all columns of a table with a primary key and an event time; its `watermarks` are empty, as older rows go.
    time: the
    id of that time's column. made: from when a version is valid (timestamp or timestamptz), and whether there is a row
    from then on (boolean); where there is none, the other columns are those of the row that was deleted.
    """

    scan: Scan
    time: str
    made: tuple[Column, Column]

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.scan,)

    def over(self, inputs: Sequence[Relation]) -> Self:
        (scan,) = inputs
        assert isinstance(scan, Scan)
        return replace(self, scan=scan)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.scan.columns, *self.made)


@dataclass(frozen=True)
class Arrivals(Relation):
    """Each row that was written to a relation, as an event of its own: nothing that replaces or deletes it takes it
    back.

    scan: of a table or source. age: two columns (bigint) that order the rows, the newest first. moment: as in `Cut`,
    where rows
    of the scan are replaced or deleted: of those that came before a query started only the ones count that are there
    then.
    """

    keeps_times: ClassVar[bool] = True
    scan: Scan
    age: tuple[Column, Column]
    moment: int = 0

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return (self.scan,)

    def over(self, inputs: Sequence[Relation]) -> Self:
        (scan,) = inputs
        assert isinstance(scan, Scan)
        return replace(self, scan=scan)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.scan.columns, *self.age)


@dataclass(frozen=True)
class AsofJoin(KeyedJoin):
    """Each left row with the nearest right row among those with equal `keys` and `left_value comparison right_value`.

    At most one row for each left row; kind left: rows without partner stay, with NULLs. Both values have one type.
    ties: ids
    of right columns; of equally near rows the first by them counts, by all right columns that are read if there are
    none.
    residual: over both sides, asked of the nearest row alone: where it is not true there is no partner.
    arrival: which row is the nearest is decided when the left row comes, and never revised (EMIT ON ARRIVAL).
    """

    revises: ClassVar[str] = "an ASOF join revises partners"
    called: ClassVar[str] = "an ASOF join"
    kind: Literal["inner", "left"]
    comparison: Comparison
    left_value: Scalar
    right_value: Scalar
    ties: tuple[str, ...] = ()
    residual: Scalar | None = None
    arrival: bool = False

    def __post_init__(self) -> None:
        assert self.keys
        assert self.right.ids.issuperset(self.ties)

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        condition = () if self.residual is None else (self.residual,)
        return (*self.key_scalars, self.left_value, self.right_value, *condition)

    @property
    def reads(self) -> frozenset[str]:
        return super().reads.union(self.ties)

    @property
    def at_most_one(self) -> bool:
        return True

    @property
    def grows_with(self) -> tuple[Relation, ...] | None:
        return (self.left,) if self.arrival else None


AggregateFunction = Literal[
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "bool_and",
    "bool_or",
    "var_pop",
    "var_samp",
    "stddev_pop",
    "stddev_samp",
    "array_agg",
    "string_agg",
    "jsonb_agg",
    "jsonb_object_agg",
    "first_value",
    "last_value",
    "mode",
    "percentile_cont",
    "percentile_disc",
    "bit_and",
    "bit_or",
    "bit_xor",
]


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """`function(argument, extra … ORDER BY order) FILTER (WHERE filter)`; `argument` None is count(*).

    order: also that of WITHIN GROUP. extra: the value of jsonb_object_agg, the delimiter of string_agg unless it is the
    `constant`. constant: also the fraction of percentile_cont and percentile_disc.
    """

    function: AggregateFunction
    argument: Scalar | None
    filter: Scalar | None
    distinct: bool
    type: SqlType
    extra: tuple[Scalar, ...] = ()
    order: tuple[SortKey, ...] = ()
    constant: str | float | None = None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """All that it reads."""
        found = (self.argument, *self.extra, *(key.value for key in self.order), self.filter)
        return tuple(s for s in found if s is not None)

    def changed(self, change: Callable[[Scalar], Scalar]) -> AggregateCall:
        """The call with another expression for each."""
        argument, condition = (None if s is None else change(s) for s in (self.argument, self.filter))
        order = tuple(replace(key, value=change(key.value)) for key in self.order)
        return replace(self, argument=argument, filter=condition, extra=tuple(map(change, self.extra)), order=order)


@dataclass(frozen=True)
class Aggregate(Unary):
    """Groups by `keys` (NULLs are one group) and one value for each call.

    Outputs: first the keys, then the calls. No calls: DISTINCT. `keys` empty and calls
    present: exactly one row, also for no input.
    """

    revises: ClassVar[str] = "an aggregate revises its groups"
    keys: tuple[Scalar, ...]
    calls: tuple[AggregateCall, ...]
    outputs: tuple[Column, ...]
    spread: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.outputs) == len(self.keys) + len(self.calls)

    @property
    def preserved(self) -> tuple[Relation, ...]:
        return ()

    @property
    def grows_with(self) -> tuple[Relation, ...] | None:
        return None if self.calls else self.inputs

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.keys + tuple(s for c in self.calls for s in c.scalars)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Unnest(Unary):
    """Each input row once for every element of its `arrays`: a set-returning function whose values are arrays.

    Outputs: the input's columns, then `elements[i]` of `arrays[i]`, then `ordinality` (bigint, from 1) if it is
    asked for. A row has as many results as its longest array has elements; shorter ones are filled up with NULL,
    and NULL counts as empty (PostgreSQL 17, 7.2.1.4 Table Functions; 9.26 Set Returning Functions).
    condition: over all columns; results for which it is not true do not count. outer: a row without results
    comes out once with NULLs (LEFT JOIN LATERAL … ON condition); without it there is no condition.
    """

    grows: ClassVar[bool] = True
    keeps_times: ClassVar[bool] = True
    arrays: tuple[Scalar, ...]
    elements: tuple[Column, ...]
    ordinality: Column | None = None
    outer: bool = False
    condition: Scalar | None = None

    def __post_init__(self) -> None:
        assert len(self.arrays) == len(self.elements) > 0
        assert self.outer or self.condition is None
        for array in self.arrays:
            assert array.type.name == "array"

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.arrays

    @property
    def reads(self) -> frozenset[str]:
        return super().reads | (frozenset[str]() if self.condition is None else self.condition.columns)

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:
        condition = None if self.condition is None else change(self.condition)
        return replace(self, arrays=tuple(map(change, self.arrays)), condition=condition)

    @cached_property
    def free(self) -> frozenset[str]:
        own = self.condition.columns - self.ids if self.condition is not None else frozenset[str]()
        return own.union(self.input.free, *[a.columns - self.input.ids for a in self.arrays])

    @property
    def made(self) -> tuple[Column, ...]:
        """The columns that the input does not have."""
        return self.elements if self.ordinality is None else (*self.elements, self.ordinality)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.made)


@dataclass(frozen=True)
class Union(Relation):
    """UNION ALL: column i of the output is column i of every input. UNION is an Aggregate above it."""

    grows: ClassVar[bool] = True
    parts: tuple[Relation, ...]
    outputs: tuple[Column, ...]

    def __post_init__(self) -> None:
        assert all(len(p.columns) == len(self.outputs) for p in self.parts)

    @property
    def inputs(self) -> tuple[Relation, ...]:
        return self.parts

    def over(self, inputs: Sequence[Relation]) -> Self:
        return replace(self, parts=tuple(inputs))

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Repeat(Unary):
    """Each row of the input `times` times more often: not at all where `times`, a bigint, is NULL or below 1."""

    keeps_times: ClassVar[bool] = True
    revises: ClassVar[str] = "INTERSECT ALL or EXCEPT ALL revises rows"
    times: Scalar

    @property
    def filterable(self) -> frozenset[str]:
        return self.input.ids

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return (self.times,)

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:
        return replace(self, times=change(self.times))


@dataclass(frozen=True)
class Expand(Unary):
    """Each input row once for each of `sets`: with the keys of that set, NULL in place of the others (GROUPING SETS).

    sets: positions in `keys`. Outputs: the input's columns, then one for each key, then the number of the set
    (integer).
    """

    grows: ClassVar[bool] = True
    keeps_times: ClassVar[bool] = True
    keys: tuple[Scalar, ...]
    sets: tuple[tuple[int, ...], ...]
    made: tuple[Column, ...]

    def __post_init__(self) -> None:
        assert len(self.made) == len(self.keys) + 1

    @property
    def filterable(self) -> frozenset[str]:
        return self.input.ids

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.keys

    def changed(self, change: Callable[[Scalar], Scalar]) -> Self:
        return replace(self, keys=tuple(map(change, self.keys)))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.made)
