"""Where the rows of an operator are: by the hash of which columns they were sent to their buckets.

A distribution is a tuple of classes, one for each key of the exchange that spread the rows, in order; a class holds the
texts (over the operator's columns) that have the key's value in every row, and behind `?` those that have it or are
NULL (the right key of a LEFT JOIN): enough for a join in which NULL meets nothing. `()` means that all rows are in
bucket 0, None that nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from watersmeet.circuit.operators import (
    Aggregate,
    Arrange,
    Arrivals,
    AsofJoin,
    Changes,
    Cut,
    DynamicFilter,
    Exchange,
    Join,
    Map,
    MultiJoin,
    Operator,
    Punctual,
    Records,
    Repeat,
    Sink,
    TemporalJoin,
    TimeFilter,
    TopN,
    Union,
    Unnest,
    Upsert,
    Versions,
    Window,
)
from watersmeet.planner.texts import columns_of, hash_form, renamed

#: What `_coalesced` gives.
_COALESCED: Final = re.compile(r"\??COALESCE\(c\d+, c\d+\)")

Class = frozenset[str]
Distribution = tuple[Class, ...]


class Placement:
    """Distribution and stage of operators, worked out from the operators alone."""

    def __init__(self, operators: Mapping[str, Operator]) -> None:
        self._operators = operators
        self._distributions: dict[str, Distribution | None] = {}
        self._stages: dict[str, int] = {}

    def stage(self, operator_id: str) -> int:
        """The number of exchanges on the longest way from a source to the operator, or where an arrangement is kept."""
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
        """Where the rows of the operator's output are (of an exchange: when they have arrived)."""
        if operator_id not in self._distributions:
            self._distributions[operator_id] = self._derive(self._operators[operator_id])
        return self._distributions[operator_id]

    def _derive(self, op: Operator) -> Distribution | None:
        if isinstance(op, Exchange):
            return self._exchanged(op)
        if isinstance(op, (AsofJoin, Join, TemporalJoin)):
            return self._joined(op)
        if isinstance(op, MultiJoin):
            return self._joined_by_one_key(op)
        if isinstance(op, Union):
            return _common([self.distribution(i) for i in op.inputs])
        if isinstance(op, (Unnest, DynamicFilter, TimeFilter)):
            return translated(self.distribution(op.inputs[0]), [f"c{k}" for k in op.keep])
        if isinstance(op, Aggregate):
            return self._through(op, [f"c{k}" for k in op.keys])
        if isinstance(
            op, (Arrange, Arrivals, Cut, Punctual, Upsert, Repeat, TopN, Window, Sink)
        ):  # what a window adds comes after the input's columns
            width = len(self._operators[op.inputs[0]].schema)
            return self._through(op, [f"c{i}" for i in range(min(width, len(op.schema)))])
        if isinstance(op, Records):  # a record without value has NULL in the other columns
            width = len(op.schema) - 2
            return translated(
                self.distribution(op.inputs[0]),
                [f"c{i}" if op.keys is None or i in op.kept else None for i in range(width)],
            )
        if isinstance(op, Changes):
            return self._through(op, [f"c{i}" for i in range(len(op.schema) - 2)])
        if isinstance(op, Versions):
            return self._through(op, [f"c{i}" for i in range(len(op.schema) - 2)])
        if isinstance(op, Map):
            schema = self._operators[op.inputs[0]].schema
            return self._through(op, [hash_form(e, schema) for e in op.exprs])
        return None

    def _through(self, op: Operator, outputs: Sequence[str]) -> Distribution | None:
        return translated(self.distribution(op.inputs[0]), outputs)

    def _exchanged(self, op: Exchange) -> Distribution | None:
        if op.mode == "broadcast":
            return None
        source = self._operators[op.inputs[0]]
        if not isinstance(source, Map):
            return tuple(frozenset([f"c{k}"]) for k in op.keys)
        schema = self._operators[source.inputs[0]].schema
        outputs = [hash_form(e, schema) for e in source.exprs]
        known = tuple(frozenset([outputs[k]]) for k in op.keys)
        found = translated(known, outputs)
        assert found is not None
        return tuple(c | {f"c{k}"} for c, k in zip(found, op.keys, strict=True))

    def _joined(self, op: AsofJoin | Join | TemporalJoin) -> Distribution | None:
        """Rows that meet are in one bucket, so that the keys of both sides say where they are."""
        kind = op.join_kind
        left, right = (self.distribution(i) for i in op.inputs)
        if kind in ("inner", "semi") and left is not None:
            left = _promoted(left, op.left_keys, op.null_safe)
        if kind in ("inner", "right") and right is not None:
            right = _promoted(right, op.right_keys, op.null_safe)
        one = translated(left, [f"c{o[1:]}" if o[0] == "l" else None for o in op.output])
        other = translated(right, [f"c{o[1:]}" if o[0] == "r" else None for o in op.output])
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
            prefix = f"t{side}_"
            columns = [f"c{o.removeprefix(prefix)}" if o.startswith(prefix) else None for o in op.output]
            # Where the first input's key stands for those of the others, it says where their rows are, too.
            members = translated(_promoted(known, keys, [False] * len(keys)), columns)
            assert members is not None
            found = members if found is None else tuple(a | b for a, b in zip(found, members, strict=True))
        return found


def translated(distribution: Distribution | None, outputs: Sequence[str | None]) -> Distribution | None:
    """The distribution in terms of output columns, of which number j is the text `outputs[j]`.

    Classes may become empty (then no operator above can use the distribution); None stays None.
    """
    if distribution is None:
        return None
    plain = {text: f"c{j}" for j, text in reversed(list(enumerate(outputs))) if text and text[1:].isdecimal()}
    found = []
    for members in distribution:
        new: set[str] = set()
        for member in members:
            mark, text = ("?", member[1:]) if member[0] == "?" else ("", member)
            new.update(f"{mark}c{j}" for j, output in enumerate(outputs) if output == text)
            if text not in plain and columns_of(text) and columns_of(text) <= plain.keys():
                new.add(mark + renamed(text, plain))
        found.append(frozenset(new))
    return tuple(found)


def matching(
    distribution: Distribution | None, keys: Sequence[int], null_safe: Sequence[bool] | None = None
) -> list[int] | None:
    """For each class the index in `keys` (column positions) of a member; None if a class has none.

    null_safe: for the keys of a join; where it is False, rows with a NULL key may be anywhere.
    """
    if distribution is None:
        return None
    found = []
    for members in distribution:
        index = next(
            (
                i
                for i, k in enumerate(keys)
                if f"c{k}" in members or (null_safe is not None and not null_safe[i] and f"?c{k}" in members)
            ),
            None,
        )
        if index is None:
            return None
        found.append(index)
    return found


def plain_keys(distribution: Distribution | None) -> tuple[int, ...] | None:
    """One column position for each class; None if some class has none."""
    if distribution is None:
        return None
    found = []
    for members in distribution:
        positions = sorted(int(m[1:]) for m in members if m[1:].isdecimal())
        if not positions:
            return None
        found.append(positions[0])
    return tuple(found)


def key_columns(distribution: Distribution | None) -> tuple[tuple[int, ...], ...] | None:
    """For each class the columns of which the first that is not NULL says where a row is.

    None: nobody can tell from a row.

    Where all are NULL, rows may be anywhere if nobody relies on more, and are where NULL is sent if somebody relies on
    a COALESCE of them.
    """
    found: list[tuple[int, ...]] = []
    for members in distribution or ():
        plain = sorted(int(m[1:]) for m in members if m[1:].isdecimal() and m[0] != "?")
        weak = sorted(int(m[2:]) for m in members if m[0] == "?" and m[2:].isdecimal())
        texts = [m for m in members if not m.removeprefix("?")[1:].isdecimal()]
        if plain:
            found.append((plain[0],))
        elif weak and all(
            _COALESCED.fullmatch(t) and columns_of(t.removeprefix("?")) <= {f"c{k}" for k in weak} for t in texts
        ):
            found.append(tuple(weak))
        else:
            return None
    return None if distribution is None else tuple(found)


def _promoted(distribution: Distribution, keys: Sequence[int], null_safe: Sequence[bool]) -> Distribution:
    """Keys that matched are not NULL."""
    sure = {f"c{k}" for k, safe in zip(keys, null_safe, strict=True) if not safe}
    return tuple(members | {m[1:] for m in members if m[0] == "?" and m[1:] in sure} for members in distribution)


def _weak(members: Class) -> Class:
    return frozenset(m if m[0] == "?" else f"?{m}" for m in members)


def _coalesced(left: Class, right: Class) -> Class:
    """FULL JOIN: a row is where the key of either side says, which is what COALESCE of both gives."""
    plain = [[m for m in members if m[1:].isdecimal()] for members in (left, right)]
    pairs = [(a, b) for a in plain[0] for b in plain[1]]
    return frozenset(f"COALESCE({a}, {b})" for one, other in pairs for a, b in ((one, other), (other, one)))


def _common(parts: Sequence[Distribution | None]) -> Distribution | None:
    first = parts[0]
    if first is None or any(p is None or len(p) != len(first) for p in parts):
        return None
    return tuple(frozenset.intersection(*[p[i] for p in parts if p is not None]) for i in range(len(first)))
