"""Trees of the algebra, made by hand."""

from __future__ import annotations

import itertools

from watersmeet.algebra.nodes import Aggregate, AggregateCall, Column, Join, KeyPair, Project, Scan
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.values.types import BIGINT, NUMERIC

_numbers = itertools.count()


def column(name, kind, nullable=True):
    return Column(f"#{next(_numbers)}", name, kind, nullable)


def ref(relation, name):
    found = next(c for c in relation.columns if c.name == name)
    return Scalar(column_ref(found.id), found.type, found.nullable)


def scan(relation, *, append_only=False):
    outputs = tuple(column(f.name, f.type) for f in relation.columns)
    return Scan(relation.id, relation.name, outputs, tuple(f.name for f in relation.columns), append_only)


def join(left, right, kind, key, *columns):
    """Columns are `(side, name)`; side 0 is left."""
    joined = Join(left, right, kind, (KeyPair(ref(left, key), ref(right, key)),))
    by_id = {c.id: c for c in joined.columns}
    picked = [ref((left, right)[side], name) for side, name in columns]
    found = [by_id[s.column] for s in picked]
    outputs = tuple(column(c.name, c.type, c.nullable) for c in found)
    return Project(joined, outputs, tuple(Scalar(column_ref(c.id), c.type, c.nullable) for c in found))


def group(relation, keys, *calls):
    """calls: (name, function, argument or None)."""
    found = tuple(
        AggregateCall(f, None if a is None else ref(relation, a), None, False, BIGINT if f == "count" else NUMERIC)
        for _, f, a in calls
    )
    scalars = tuple(ref(relation, k) for k in keys)
    outputs = tuple(column(k, s.type) for k, s in zip(keys, scalars, strict=True))
    outputs += tuple(column(n, c.type) for (n, _, _), c in zip(calls, found, strict=True))
    return Aggregate(relation, scalars, found, outputs)
