"""The order in which the rows of a stored relation came, for the functions of a bounded query that go by it."""

from __future__ import annotations

from sqlglot import exp

from watersmeet.algebra.relations import SortKey
from watersmeet.algebra.scalars import Scalar
from watersmeet.batch.state import column
from watersmeet.catalog import Relation, Table
from watersmeet.dialects.semantics import Semantics
from watersmeet.expressions.context import RowOrder
from watersmeet.store.tables import ARRIVAL, arrival_view
from watersmeet.types import BIGINT


class StoredOrder(RowOrder):
    """Of the rows of `relation`, which `made` names under an alias: with their order once a function asks for it.

    Rows of a table come in the order of its INSERTs; those of a view have their ROWTIME alone, in dialects with one.
    """

    def __init__(self, relation: Relation, made: exp.Table, semantics: Semantics) -> None:
        self._relation = relation
        self._made = made
        self._view = arrival_view(made.name)
        self._rowtimes = semantics.row_order == "rowtime"

    @property
    def known(self) -> tuple[SortKey, ...] | None:
        relation, table = self._relation, self._made.alias
        time = next(iter(relation.time_columns), None) if self._rowtimes else None
        if self._rowtimes and time is None:
            return None
        found = [] if time is None else [_key(table, relation, time)]
        if relation.append_only and isinstance(relation, Table):
            self._made.set("this", exp.to_identifier(self._view, quoted=True))
            found.append(SortKey(Scalar(column(table, ARRIVAL), BIGINT, nullable=False)))
        return tuple(found) or None


def _key(table: str, relation: Relation, name: str) -> SortKey:
    field = next(f for f in relation.columns if f.name == name)
    return SortKey(Scalar(column(table, name), field.type, field.nullable))


class WindowedOrder(RowOrder):
    """Of rows in time windows: that of the rows below, whose keys pass the two queries that make the windows of them.

    inner, outer: the queries, of which `outer` reads `inner` and stands in FROM as `made`.
    """

    def __init__(self, below: RowOrder, inner: exp.Select, outer: exp.Select, made: exp.Expression) -> None:
        self._below = below
        self._queries = (inner, outer)
        self._made = made
        self._keys: tuple[SortKey, ...] | None = None

    @property
    def known(self) -> tuple[SortKey, ...] | None:
        keys = self._below.known
        if keys is None or self._keys is not None:
            return self._keys
        inner, outer = self._queries
        names = [f"k{i}" for i in range(len(keys))]
        below = outer.args["from_"].this.alias
        read = [exp.alias_(k.value.expression, n, quoted=True) for k, n in zip(keys, names, strict=True)]
        inner.select(*read, copy=False)
        outer.select(*(exp.alias_(column(below, n), n, quoted=True) for n in names), copy=False)
        self._keys = tuple(
            SortKey(Scalar(column(self._made.alias, n), k.value.type, k.value.nullable))
            for k, n in zip(keys, names, strict=True)
        )
        return self._keys
