"""The nodes of the logical algebra. They are frozen and list their output columns.

Column ids are unique within the tree of a view. An expression reads columns of the node's inputs. Inside the right
input of an `Apply` it may also read columns of the left input, at any depth; `free` lists these. Every node is a
multiset, in which equal rows count separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final, Literal, Self

from watersmeet.algebra.arrivals import LOOKING_AHEAD as LOOKING_AHEAD
from watersmeet.algebra.arrivals import Cause as Cause
from watersmeet.algebra.arrivals import ChangeLog as ChangeLog
from watersmeet.algebra.arrivals import Changes as Changes
from watersmeet.algebra.arrivals import Cut as Cut
from watersmeet.algebra.arrivals import LateRowFilter as LateRowFilter
from watersmeet.algebra.arrivals import Records as Records
from watersmeet.algebra.arrivals import Reopened as Reopened
from watersmeet.algebra.arrivals import Repartition as Repartition
from watersmeet.algebra.arrivals import TopN as TopN
from watersmeet.algebra.arrivals import Window as Window
from watersmeet.algebra.arrivals import WindowCall as WindowCall
from watersmeet.algebra.arrivals import WindowFrame as WindowFrame
from watersmeet.algebra.base import Binary as Binary
from watersmeet.algebra.base import Column as Column
from watersmeet.algebra.base import KeyedJoin as KeyedJoin
from watersmeet.algebra.base import KeyPair as KeyPair
from watersmeet.algebra.base import Leaf as Leaf
from watersmeet.algebra.base import Node as Node
from watersmeet.algebra.base import Partitioned as Partitioned
from watersmeet.algebra.base import PassThrough as PassThrough
from watersmeet.algebra.base import Unary as Unary
from watersmeet.algebra.scalars import AggregateCall as AggregateCall
from watersmeet.algebra.scalars import AggregateFunction as AggregateFunction
from watersmeet.algebra.scalars import Comparison as Comparison
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.scalars import SortKey as SortKey
from watersmeet.values.watermarks import Watermark

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
_KINDS: Final = {"left": "a LEFT JOIN", "right": "a RIGHT JOIN", "full": "a FULL JOIN", "anti": "an anti join"}


@dataclass(frozen=True)
class Scan(Leaf):
    """The changes of a catalog relation.

    relation_id, relation_name: the id and the name in the catalog; the name is for EXPLAIN. outputs, source_names: the
    columns that are read, and their names in the relation. append_only: whether no change has the diff -1. key: the ids
    in `outputs` of the declared primary key, if all its columns are read. watermarks: the watermarks by output id.
    """

    relation_id: str
    relation_name: str
    outputs: tuple[Column, ...]
    source_names: tuple[str, ...]
    append_only: bool
    key: tuple[str, ...] = ()
    watermarks: tuple[tuple[str, Watermark], ...] = ()


@dataclass(frozen=True)
class Values(Leaf):
    """Constant rows, whose scalars read no columns except for those of an enclosing query."""

    rows: tuple[tuple[Scalar, ...], ...]
    outputs: tuple[Column, ...]

    @property
    def grows_with(self) -> tuple[Node, ...]:
        return ()

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(s for row in self.rows for s in row)


@dataclass(frozen=True)
class Clock(Leaf):
    """One row: the time of the epoch in which it is looked up. It is only the right side of a `TemporalJoin`."""

    outputs: tuple[Column, ...]

    @property
    def grows_with(self) -> tuple[Node, ...]:
        return ()


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
    """One row for each input row, where `exprs[i]` computes `outputs[i]`.

    An unchanged column may keep its id.
    """

    grows: ClassVar[bool] = True
    outputs: tuple[Column, ...]
    exprs: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        assert len(self.outputs) == len(self.exprs)

    @property
    def preserved(self) -> tuple[Node, ...]:
        return ()

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.exprs

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Join(KeyedJoin):
    """The pairs of rows with equal `keys` for which `residual` (over both inputs) is true.

    Without keys, one input must have a single row or be small; it is copied to every bucket (`broadcast`). The planner
    rejects all other joins without keys. spread: the numbers of the keys by which rows are distributed if they must be
    exchanged; empty: all keys. scatter: the values by which the rows of the input that is not copied are distributed if
    they must be exchanged. arrival: whether the partners of a row are determined when it arrives and never revised
    (EMIT ON ARRIVAL). partners: for an outer join, the conditions under which a pair counts as a match for its left and
    for its right row. A row without such a pair is also output with NULLs, in addition to its pairs. None: every pair
    counts.
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
    def grows_with(self) -> tuple[Node, ...] | None:
        if self.arrival:
            return self.inputs if self.gives_right else (self.left,)
        return self.inputs if self.kind in ("inner", "semi") else None


ApplyKind = Literal["inner", "left", "semi", "anti", "mark", "scalar", "array"]


@dataclass(frozen=True)
class Apply(Binary):
    r"""A dependent join: `right` is evaluated for each row of `left` and may read its columns. `unnest` replaces it.

    inner, left: LATERAL, with the columns of both sides.
    semi, anti: the left rows for which some right row, or no right row, is equal in all `pairs`. mark: the left columns
    and `mark`, which is true for the rows that semi would output and false otherwise. null_aware (anti, mark): whether
    SQL's rule for IN applies: if no row is equal but a comparison is NULL, the result is NULL; anti outputs only rows
    for which the result is false. arrival: whether `right` is evaluated when the left row arrives, so that its later
    changes have no effect. scalar, array (only in batch queries): the left columns and `mark`, which is the single
    value of `right` (NULL if it has no row, an error if it has several), or the array of all its values.
    """

    revises: ClassVar[str] = "a subquery revises rows"
    kind: ApplyKind
    pairs: tuple[KeyPair, ...] = ()
    mark: Column | None = None
    null_aware: bool = False
    arrival: bool = False

    def __post_init__(self) -> None:
        assert (self.mark is not None) == (self.kind in ("mark", "scalar", "array"))

    @property
    def filterable(self) -> frozenset[str]:
        return self.left.ids

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
    """Each left row with the right rows of its key as of its arrival. Later changes of the right side have no effect.

    kind: with "left", rows without a match are output with NULLs. looked_up: the columns of the primary key and of each
    index by which rows of the right side, a Scan, can be looked up; None if any columns of any right side are allowed.
    waits: whether a row without a match waits for the first matching right rows, and is then output with them once
    (`circuit.operators.TemporalJoin`). ttl_us: the time for which the answer for a key is reused even if the right side
    changes; None if every row is looked up. Empty answers are never reused.
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
    def grows_with(self) -> tuple[Node, ...]:
        return (self.left,)

    @property
    def held(self) -> frozenset[str]:
        """Empty if rows wait, because a waiting row may be output at any age."""
        return frozenset() if self.waits else self.left.ids


@dataclass(frozen=True)
class TimeFilter(PassThrough):
    """The input rows for which the comparison of the column `column` (an id) with `bound` is true. `bound` is a
    watermark or a term of the clock, which never decreases.

    See `circuit.operators.TimeFilter`. final: whether `bound` is a watermark of the column. With `<`, each row is
    output once and is never deleted (EMIT ON WINDOW CLOSE). stays: whether with `<` or `<=` an output row stays even if
    the input deletes it. scatter: the values by which rows are distributed if they must be exchanged. untimed: whether
    rows with NULL in the column are output immediately. same: ids of other columns that equal the column unless it is
    NULL. promised: ids of other columns in which no later row is below `bound`.
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
    def grows_with(self) -> tuple[Node, ...] | None:
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
class OfScan(Node):
    """A node whose input is always a scan; a special way to read the stored rows of a relation."""

    scan: Scan

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.scan,)

    def over(self, inputs: Sequence[Node]) -> Self:
        (scan,) = inputs
        assert isinstance(scan, Scan)
        return replace(self, scan=scan)


@dataclass(frozen=True)
class Versions(OfScan):
    """The versions of a table's rows with their start times, the right side of a temporal join by a time of the left
    side.

    scan: reads all columns of a table with a primary key and an event time. Its `watermarks` are empty, because older
    rows are deleted. time: the id of the column with the event time. made: two columns: the start of a version
    (timestamp or timestamptz), and whether the row exists from then on (boolean). If it doesn't, the other columns are
    those of the deleted row.
    """

    time: str
    made: tuple[Column, Column]

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.scan.columns, *self.made)


@dataclass(frozen=True)
class Arrivals(OfScan):
    """All rows that were written to a relation, as events: replacing or deleting a row does not remove its event.

    scan: reads a table or source. age: two columns (bigint) that order the rows, the newest first. moment: see `Cut`;
    it is for scans whose rows may be replaced or deleted. Rows written before the start of the query count only if they
    were still present at its start.
    """

    keeps_times: ClassVar[bool] = True
    age: tuple[Column, Column]
    moment: int = 0

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.scan.columns, *self.age)


@dataclass(frozen=True)
class AsofJoin(KeyedJoin):
    """Each left row with the nearest of the right rows that have equal `keys` and satisfy `left_value comparison
    right_value`.

    A left row has at most one partner. With kind left, rows without a partner are output with NULLs. Both values have
    one type.
    ties: ids of right columns. Among equally near rows, the first one in the order of these columns counts; if empty,
    the first one in the order of all right columns that are read. residual: a condition over both sides. If it is not
    true for the nearest row, the left row has no partner. arrival: whether the nearest row is determined when the left
    row arrives, and never revised (EMIT ON ARRIVAL).
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
    def grows_with(self) -> tuple[Node, ...] | None:
        return (self.left,) if self.arrival else None


@dataclass(frozen=True)
class Aggregate(Unary):
    """The groups by `keys` (NULLs form one group) with one value for each call.

    Outputs: the keys, then the calls. Without calls it is DISTINCT. With calls but no keys it always has exactly one
    row, also for an empty input. whole: whether all rows of a group arrive in one epoch, so that it is never revised.
    """

    revises: ClassVar[str] = "an aggregate revises its groups"
    keys: tuple[Scalar, ...]
    calls: tuple[AggregateCall, ...]
    outputs: tuple[Column, ...]
    spread: tuple[int, ...] = ()
    whole: bool = False

    def __post_init__(self) -> None:
        assert len(self.outputs) == len(self.keys) + len(self.calls)

    @property
    def preserved(self) -> tuple[Node, ...]:
        return ()

    @property
    def grows_with(self) -> tuple[Node, ...] | None:
        return None if self.calls and not self.whole else self.inputs

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return self.keys + tuple(s for c in self.calls for s in c.scalars)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Unnest(Unary):
    """Each input row once for each element of its `arrays`: a set-returning function whose values are arrays.

    Outputs: the input's columns, then `elements[i]` of `arrays[i]`, then `ordinality` (bigint, from 1) if present. A
    row produces as many rows as its longest array has elements. Shorter arrays are padded with NULL; a NULL array
    counts as empty (PostgreSQL 17, 7.2.1.4 Table Functions; 9.26 Set Returning Functions). condition: a condition over
    all columns that removes results; it requires `outer`. outer: whether a row without results is output once with
    NULLs (LEFT JOIN LATERAL … ON condition).
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
        """The columns that the node adds to those of the input."""
        return self.elements if self.ordinality is None else (*self.elements, self.ordinality)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return (*self.input.columns, *self.made)


@dataclass(frozen=True)
class Union(Node):
    """UNION ALL, where column i of the output is column i of each input. UNION is an Aggregate over this node."""

    grows: ClassVar[bool] = True
    parts: tuple[Node, ...]
    outputs: tuple[Column, ...]

    def __post_init__(self) -> None:
        assert all(len(p.columns) == len(self.outputs) for p in self.parts)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.parts

    def over(self, inputs: Sequence[Node]) -> Self:
        return replace(self, parts=tuple(inputs))

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.outputs


@dataclass(frozen=True)
class Repeat(Unary):
    """Each input row repeated `times` times; a row is dropped if `times` (bigint) is NULL or below 1."""

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
    """Each input row once for each set of keys in `sets`, with NULL for all other keys (GROUPING SETS).

    sets: each set is a list of indexes in `keys`. Outputs: the input's columns, then one for each key, then the number
    of the set (integer).
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
