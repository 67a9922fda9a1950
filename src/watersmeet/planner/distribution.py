"""The distribution of an operator's rows: the columns whose hash determines their buckets.

A distribution is a tuple of classes, one for each key of the exchange that spread the rows, in order. A class contains
values that equal the key in every row, and values that equal it or are NULL (the right key of a LEFT JOIN). That
suffices for a join in which NULL matches nothing. `()` means that all rows are in bucket 0; None means that nothing is
known.

If the number of buckets changes, the columns of a kept row must determine its bucket: later changes of the row arrive
there, and operators that rely on the distribution expect the row there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from watersmeet.circuit.epochs import OTHERS, Keys, StateDistribution
from watersmeet.circuit.operators import (
    Aggregate,
    Arrange,
    DynamicFilter,
    Exchange,
    GroupJoin,
    Map,
    MultiJoin,
    Operator,
    PairJoin,
    SlidingWindow,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Upsert,
    Versions,
)
from watersmeet.circuit.sessions import SessionWindow
from watersmeet.planner.display import column_at, columns_of, hash_form, index_of, parsed, renamed, sql


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression over the columns c0, c1, … of an operator."""

    text: str

    @property
    def columns(self) -> frozenset[int]:
        """The columns that the expression reads."""
        return frozenset(map(index_of, columns_of(self.text)))

    def over(self, places: Mapping[int, int]) -> Expression:
        """The expression over other columns."""
        return Expression(renamed(self.text, {f"c{i}": f"c{j}" for i, j in places.items()}))


@dataclass(frozen=True, slots=True)
class FirstNotNull:
    """The first non-NULL of two columns. It determines the bucket of rows of a FULL JOIN, which may have either side's
    key.
    """

    first: int
    second: int

    @property
    def columns(self) -> frozenset[int]:
        """Both columns."""
        return frozenset([self.first, self.second])

    def over(self, places: Mapping[int, int]) -> FirstNotNull:
        """The same over other columns."""
        return FirstNotNull(places[self.first], places[self.second])


#: A column by its position, or a value computed from columns.
Value = int | FirstNotNull | Expression


@dataclass(frozen=True, slots=True)
class Member:
    """A value that equals the key in every row, or is NULL if `or_null`."""

    value: Value
    or_null: bool = False


Class = frozenset[Member]
Distribution = tuple[Class, ...]


def value_of(text: str) -> Value:
    """The value that an expression of a Map computes."""
    column, node = column_at(text), parsed(text)
    if column is not None:
        return column
    if isinstance(node, exp.Coalesce):
        match [column_at(sql(v)) for v in (node.this, *node.expressions)]:
            case [int(first), int(second)]:
                return FirstNotNull(first, second)
    return Expression(text)


class Placement:
    """Distributions and stages of operators, derived from the operators only."""

    def __init__(self, operators: Mapping[str, Operator]) -> None:
        self._operators = operators
        self._distributions: dict[str, Distribution | None] = {}
        self._stages: dict[str, int] = {}

    def stage(self, operator_id: str) -> int:
        """The maximum number of exchanges on a path from a source to the operator, or the stage in which an arrangement
        is kept.
        """
        if operator_id not in self._stages:
            op = self._operators[operator_id]
            steps = [self.arrival(i) for i in op.inputs]
            self._stages[operator_id] = max(
                [op.stage, *steps] if isinstance(op, (Arrange, Versions)) else steps, default=0
            )
        return self._stages[operator_id]

    def arrival(self, operator_id: str) -> int:
        """The first stage in which the operator's output can be read."""
        return self.stage(operator_id) + isinstance(self._operators[operator_id], Exchange)

    def distribution(self, operator_id: str) -> Distribution | None:
        """The distribution of the operator's output; of an exchange, that after the rows have arrived."""
        if operator_id not in self._distributions:
            self._distributions[operator_id] = self._derive(self._operators[operator_id])
        return self._distributions[operator_id]

    def _derive(self, op: Operator) -> Distribution | None:
        if isinstance(op, Exchange):
            return self._exchanged(op)
        if isinstance(op, PairJoin):
            return self._joined(op)
        if isinstance(op, MultiJoin):
            return self._joined_by_one_key(op)
        if isinstance(op, Union):
            return _common([self.distribution(i) for i in op.inputs])
        if isinstance(op, (Arrange, DynamicFilter, TimeFilter)) and not shows_place(self.distribution(op.inputs[0])):
            return None  # with another number of buckets its rows may be in any bucket
        if isinstance(op, Map):
            schema = self._operators[op.inputs[0]].schema
            return self._through(op, [value_of(hash_form(e, schema)) for e in op.exprs])
        return self._through(op, op.passed) if op.inputs else None

    def _through(self, op: Operator, outputs: Sequence[Value | None]) -> Distribution | None:
        return translated(self.distribution(op.inputs[0]), outputs)

    def _exchanged(self, op: Exchange) -> Distribution | None:
        if op.mode == "broadcast":
            return None
        source = self._operators[op.inputs[0]]
        if not isinstance(source, Map):
            return tuple(frozenset([Member(k)]) for k in op.keys)
        schema = self._operators[source.inputs[0]].schema
        outputs = [value_of(hash_form(e, schema)) for e in source.exprs]
        found = translated(tuple(frozenset([Member(outputs[k])]) for k in op.keys), outputs)
        assert found is not None
        return tuple(c | {Member(k)} for c, k in zip(found, op.keys, strict=True))

    def _joined(self, op: PairJoin) -> Distribution | None:
        """The distribution of a join: matching rows are in one bucket, so the keys of both sides determine it."""
        kind = op.join_kind
        left, right = (self.distribution(i) for i in op.inputs)
        if kind in ("inner", "semi") and left is not None:
            left = promoted(left, op.left_keys, op.null_safe)
        if kind in ("inner", "right") and right is not None:
            right = promoted(right, op.right_keys, op.null_safe)
        one = translated(left, [o.column if o.input == 0 else None for o in op.output])
        other = translated(right, [o.column if o.input == 1 else None for o in op.output])
        if one is None or other is None or len(one) != len(other):  # the right side was copied to every bucket
            return one if kind in ("inner", "left", "semi", "anti") else None
        pairs = zip(one, other, strict=True)
        if kind == "inner":
            return tuple(a | b for a, b in pairs)
        if kind == "right":
            return tuple(_weak(a) | b for a, b in pairs)
        if kind == "full":
            return tuple(_coalesced(a, b) | _weak(a) | _weak(b) for a, b in pairs)
        return tuple(a | _weak(b) for a, b in pairs)

    def _joined_by_one_key(self, op: MultiJoin) -> Distribution | None:
        found: Distribution | None = None
        for side, (i, keys) in enumerate(zip(op.inputs, op.keys, strict=True)):
            known = self.distribution(i)
            if known is None:
                return None
            columns = [o.column if o.input == side else None for o in op.output]
            # If the first input's key represents the keys of others, it also determines the buckets of their rows.
            members = translated(promoted(known, keys, [False] * len(keys)), columns)
            assert members is not None
            found = members if found is None else tuple(a | b for a, b in zip(found, members, strict=True))
        return found


def translated(distribution: Distribution | None, outputs: Sequence[Value | None]) -> Distribution | None:
    """The distribution in terms of output columns; output column j is `outputs[j]`.

    Classes may become empty; then no downstream operator can use the distribution.
    """
    if distribution is None:
        return None
    places = {value: j for j, value in reversed(list(enumerate(outputs))) if isinstance(value, int)}
    found = []
    for members in distribution:
        new: set[Member] = set()
        for member in members:
            value = member.value
            new.update(replace(member, value=j) for j, output in enumerate(outputs) if output == value)
            if not isinstance(value, int) and value.columns and value.columns <= places.keys():
                new.add(replace(member, value=value.over(places)))
        found.append(frozenset(new))
    return tuple(found)


def matching(
    distribution: Distribution | None, keys: Sequence[int], null_safe: Sequence[bool] | None = None
) -> list[int] | None:
    """For each class, the index in `keys` (column positions) of one member; None if a class has none there.

    null_safe: for each key of a join, whether it matches NULL; where it is False, rows with a NULL key may be in any
    bucket.
    """
    if distribution is None:
        return None
    found = []
    for members in distribution:
        index = next(
            (
                i
                for i, k in enumerate(keys)
                if Member(k) in members
                or (null_safe is not None and not null_safe[i] and Member(k, or_null=True) in members)
            ),
            None,
        )
        if index is None:
            return None
        found.append(index)
    return found


def plain_keys(distribution: Distribution | None) -> tuple[int, ...] | None:
    """The position of one column of each class; None if a class contains no column."""
    if distribution is None:
        return None
    found = []
    for members in distribution:
        positions = _columns(members, or_null=False)
        if not positions:
            return None
        found.append(positions[0])
    return tuple(found)


def key_columns(distribution: Distribution | None, *, exact: bool = False) -> Keys | None:
    """For each class, the columns whose first non-NULL value determines the bucket of a row.

    None if the columns of a row do not determine its bucket. If all of them are NULL, the row may be in any bucket,
    unless an operator relies on their COALESCE: then it is in the bucket of NULL. exact: require this for every row,
    also for rows with NULLs.
    """
    found: list[tuple[int, ...]] = []
    for members in distribution or ():
        plain, weak = (_columns(members, or_null=n) for n in (False, True))
        others = [m for m in members if not isinstance(m.value, int)]
        if plain:
            found.append((plain[0],))
        elif (
            weak
            and all(isinstance(m.value, FirstNotNull) and m.value.columns <= set(weak) for m in others)
            and not (exact and all(m.or_null for m in others))
        ):
            found.append(tuple(weak))
        else:
            return None
    return None if distribution is None else tuple(found)


def shows_place(distribution: Distribution | None, *, exact: bool = False) -> bool:
    """Whether the columns of a row determine its bucket, or (unless `exact`) no operator relies on it.

    exact: as in `key_columns`.
    """
    if distribution is None or not all(distribution):
        return not exact
    return key_columns(distribution, exact=exact) is not None


def _columns(members: Class, *, or_null: bool) -> list[int]:
    return sorted(m.value for m in members if isinstance(m.value, int) and m.or_null == or_null)


def promoted(distribution: Distribution, keys: Sequence[int], null_safe: Sequence[bool]) -> Distribution:
    """The distribution of the rows without NULL in keys that NULL does not match."""
    sure = {k for k, safe in zip(keys, null_safe, strict=True) if not safe}
    return tuple(
        members | {Member(m.value) for m in members if m.or_null and m.value in sure} for members in distribution
    )


def _weak(members: Class) -> Class:
    return frozenset(replace(m, or_null=True) for m in members)


def _coalesced(left: Class, right: Class) -> Class:
    """The distribution of a FULL JOIN: the key of either side, and so COALESCE of both, determines the bucket."""
    pairs = [(a, b) for a in _columns(left, or_null=False) for b in _columns(right, or_null=False)]
    return frozenset(Member(FirstNotNull(a, b)) for one, other in pairs for a, b in ((one, other), (other, one)))


def _common(parts: Sequence[Distribution | None]) -> Distribution | None:
    first = parts[0]
    if first is None or any(p is None or len(p) != len(first) for p in parts):
        return None
    return tuple(frozenset.intersection(*[p[i] for p in parts if p is not None]) for i in range(len(first)))


_COPIED: Final = StateDistribution("copied")
_POOLED: Final = StateDistribution("pooled")


class StateDistributions:
    """The buckets of the rows of traces, derived from operators only. operators: by id, including all that they
    read.
    """

    def __init__(self, operators: Mapping[str, Operator]) -> None:
        self._operators = operators
        self._placement = Placement(operators)
        self._copied: dict[str, bool] = {}

    def of(self, op: Operator) -> dict[str, StateDistribution | None]:
        """For each trace (or `OTHERS`), the distribution of its rows; None if their columns don't determine it.

        Empty for an operator without state.
        """
        if isinstance(op, Arrange):
            anywhere = not op.keys  # joins with copies of the other side work with any distribution
            return {OTHERS: self._rows(op, keys=op.keys, null_safe=op.null_safe, anywhere=anywhere)}
        if isinstance(op, Aggregate):
            return {OTHERS: self._rows(op, columns=op.keys)}  # the keys come first in all traces
        if isinstance(op, GroupJoin):
            return {
                "left": self._rows(op, columns=op.left_keys),
                "right": self._rows(op, 1, columns=op.right_keys),
            }
        if isinstance(op, (TopN, Upsert)):
            return {OTHERS: self._rows(op, columns=range(len(op.schema)))}
        if isinstance(op, SessionWindow):
            rows = self._rows(op, columns=range(len(op.schema) - op.made))
            return {OTHERS: rows, "idle": self._rows(op, columns=op.keys)} if op.idle_us else {OTHERS: rows}
        if isinstance(op, SlidingWindow):
            return {OTHERS: self._rows(op, columns=op.kept)}
        if isinstance(op, Versions):
            return {OTHERS: self._rows(op, columns=range(len(op.schema) - len(op.adds)))}
        if isinstance(op, TimeFilter):
            # Final output may be retracted later, so its row must be found.
            final = op.append_only and not self._operators[op.inputs[0]].append_only
            return {"passed": _POOLED, OTHERS: self._rows(op, anywhere=not final)}
        if isinstance(op, DynamicFilter):
            return {"bound": self._rows(op, 1), OTHERS: self._rows(op, anywhere=True)}
        if isinstance(op, TemporalJoin):
            waiting = self._rows(op, keys=op.left_keys, null_safe=op.null_safe, anywhere=not op.left_keys)
            answers = self._rows(op, 1, keys=op.right_keys, null_safe=op.null_safe)
            return {"memo": self._rows(op, columns=op.identity or None), "waiting": waiting, "answers": answers}
        return {}

    def _rows(
        self,
        op: Operator,
        number: int = 0,
        *,
        columns: Sequence[int] | None = None,
        keys: Sequence[int] = (),
        null_safe: Sequence[bool] = (),
        anywhere: bool = False,
    ) -> StateDistribution | None:
        """The distribution of an input's rows in a trace.

        columns: the input's columns that the trace contains; by default all, at their positions. keys, null_safe: the
        trace omits rows with NULL in a key that is not null-safe. anywhere: whether rows on whose bucket no operator
        relies may be in any bucket.
        """
        source = op.inputs[number]
        if self._is_copied(source):
            return _COPIED
        known = self._placement.distribution(source)
        if known is not None and all(known):
            known = promoted(known, keys, null_safe)
            found = key_columns(known if columns is None else translated(known, columns), exact=not anywhere)
            if found is not None:
                return StateDistribution("keyed", found)
        if not anywhere:
            return None
        return StateDistribution("anywhere", tuple((i,) for i in range(len(self._operators[source].schema))))

    def _is_copied(self, operator_id: str) -> bool:
        if operator_id not in self._copied:
            op = self._operators[operator_id]
            self._copied[operator_id] = (
                op.mode == "broadcast"
                if isinstance(op, Exchange)
                else bool(op.inputs) and all(self._is_copied(i) for i in op.inputs)
            )
        return self._copied[operator_id]
