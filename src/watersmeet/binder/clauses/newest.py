"""The newest rows of each key by arrival: for LATEST, the versions of an ASOF join, and `changelog(stream, key)`.

Timeplus, "Multi-JOINs and ASOF JOINs", "ASOF JOIN", "LATEST JOIN", "Changelog Streams"; rulings D-003-04, D-003-06.
Every written row counts, even if it replaces one with the same primary key, as in Proton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watersmeet.algebra.nodes import (
    Apply,
    Arrivals,
    Column,
    Cut,
    Filter,
    Node,
    Project,
    Scan,
    SortKey,
    TemporalJoin,
    TopN,
    Unnest,
)
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.context.binding import read
from watersmeet.binder.context.rules import Binding
from watersmeet.catalog import Input
from watersmeet.types import BIGINT


def newest(
    node: Node, keys: Sequence[Scalar], binding: Binding, *, limit: int = 1, value: Scalar | None = None
) -> tuple[Node, tuple[Column, Column]] | None:
    """For each of `keys`, the `limit` rows of `node` that arrived last, or have the greatest `value` (ties: the
    newest).

    They have the two columns that order rows by arrival, the newest first. None if the order of arrival is unknown:
    only tables and sources know it, also under filters and projections.
    """
    found = arrivals(node, binding)
    if found is None:
        return None
    rows, age = found
    order = [SortKey(read(c)) for c in age]
    if value is not None:
        order.insert(0, SortKey(value, descending=True))
    return TopN(rows, tuple(keys), tuple(order), limit), age


def new_age(binding: Binding) -> tuple[Column, Column]:
    """The two columns of `Arrivals`."""
    return (binding.new_column("_epoch", BIGINT, nullable=False), binding.new_column("_seq", BIGINT, nullable=False))


def arrivals(
    node: Node, binding: Binding, *, unnested: bool = False, joined: bool = False
) -> tuple[Node, tuple[Column, Column]] | None:
    """The rows of `node` as they were written, with the two columns that order them, the newest first; None if the
    order is unknown.

    unnested: also if several rows come from one (HOP); these arrive together. joined: also of joins that are decided
    when a left row arrives; what comes of one row arrives together.
    """
    if isinstance(node, Scan):
        relation = binding.catalog.relations[node.relation_id]
        if not isinstance(relation, Input) or (relation.connector and relation.primary_key):
            return None
        if relation.mode == "changelog":  # what was taken back was never the newest row
            return None
        age = new_age(binding)
        return Arrivals(node, age, 0 if node.append_only else binding.moment), age
    if joined and (
        (isinstance(node, TemporalJoin) and not node.waits)
        or (isinstance(node, Apply) and node.arrival and node.kind in ("inner", "left"))
    ):
        found = arrivals(node.left, binding, unnested=unnested, joined=True)
        return None if found is None else (replace(node, left=found[0]), found[1])
    if not isinstance(node, (Cut, Filter, Project, Unnest)) or (isinstance(node, Cut) and node.keeps == "before"):
        return None
    if isinstance(node, Unnest) and not unnested:
        return None
    found = arrivals(node.input, binding, unnested=unnested, joined=joined)
    if found is None:
        return None
    below, age = found
    if isinstance(node, Project):
        return replace(node, input=below, outputs=(*node.outputs, *age), exprs=(*node.exprs, *map(read, age))), age
    return replace(node, input=below), age
