"""The order of rows for functions that depend on it: first_value, last_value, lag and others.

A dialect defines it (`Semantics.row_order`): by arrival, or by ROWTIME with ties by arrival if that is known (rows of a
join have none).
"""

from __future__ import annotations

from watersmeet.algebra.nodes import Filter, Node, Project, Scan, SortKey, Unnest
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.clauses.newest import arrivals
from watersmeet.binder.context.binding import read
from watersmeet.binder.context.change_kinds import change_kind
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import Scope
from watersmeet.expressions.context import RowOrder


class StreamOrder(RowOrder):
    """The row order of `relation`. The columns that order it are read only if a function needs them."""

    def __init__(self, relation: Node, scope: Scope, binding: Binding) -> None:
        self.relation = relation
        self._scope = scope
        self._binding = binding
        self._keys: tuple[SortKey, ...] | None = None
        self._asked = False

    @property
    def known(self) -> tuple[SortKey, ...] | None:
        if not self._asked:
            self._keys, self._asked = self._found(), True
        return self._keys

    def _found(self) -> tuple[SortKey, ...] | None:
        time: tuple[SortKey, ...] = ()
        if self._binding.rules.semantics.row_order == "rowtime":
            rowtime = self._rowtime()
            if rowtime is None:
                return None
            time = (SortKey(rowtime),)
        found = (
            arrivals(self.relation, self._binding, unnested=True) if change_kind(self.relation) == "append" else None
        )
        if found is None:
            return time or None
        self.relation, age = found
        return (*time, *(SortKey(read(c), descending=True) for c in age))

    def _rowtime(self) -> Scalar | None:
        """The time of each row of a stream; in a query that ends, of its stored rows."""
        stream = self._scope.stream
        if stream is not None or not self._binding.rules.bounded:
            return None if stream is None else stream.rowtime.value.finish()
        node = self.relation
        while isinstance(node, (Filter, Project, Unnest)):
            node = node.input
        times = {i for i, _ in node.watermarks} if isinstance(node, Scan) else set()
        return next((read(c) for c in self.relation.columns if c.id in times), None)
