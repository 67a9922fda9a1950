"""The order in which rows came, for functions that go by it: first_value, last_value, lag and their kin.

A dialect says what it is (`Semantics.row_order`): the order of arrival; or ROWTIME, and of equal ones arrival, where it
is known: rows of a join have none.
"""

from __future__ import annotations

from watersmeet.algebra.relations import Relation, SortKey
from watersmeet.binder.binding import read
from watersmeet.binder.change_kinds import change_kind
from watersmeet.binder.newest import arrivals
from watersmeet.binder.rules import Binding
from watersmeet.binder.scope import Scope
from watersmeet.expressions.context import RowOrder


class StreamOrder(RowOrder):
    """Of the rows of `relation`, which is read with what orders them once a function asks for it."""

    def __init__(self, relation: Relation, scope: Scope, binding: Binding) -> None:
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
        stream = self._scope.stream
        time: tuple[SortKey, ...] = ()
        if self._binding.rules.semantics.row_order == "rowtime":
            if stream is None:
                return None
            time = (SortKey(stream.rowtime.value.finish()),)
        found = (
            arrivals(self.relation, self._binding, unnested=True) if change_kind(self.relation) == "append" else None
        )
        if found is None:
            return time or None
        self.relation, age = found
        return (*time, *(SortKey(read(c), descending=True) for c in age))
