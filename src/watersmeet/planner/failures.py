"""Parts of expressions that failed while a view was computed, as people read them."""

from __future__ import annotations

from functools import cached_property

from watersmeet.catalog import Catalog, GeneratedColumn, Relation
from watersmeet.circuit.operators import Aggregate, Map, MultiJoin, Operator, PairJoin, Window
from watersmeet.planner.display import columns_of, display, index_of, parsed
from watersmeet.planner.explain import leaves
from watersmeet.planner.lowering import Producers
from watersmeet.planner.names import Names, window_text

_Cell = tuple[str, int]


def generated_text(column: GeneratedColumn, sql: str) -> str:
    """A part of the expression of a generated column."""
    return display(parsed(sql), {f"c{i}": f.name for i, f in enumerate(column.reads)})


class Failures:
    """Names the operators' expressions by the columns of the relations that a view reads."""

    def __init__(self, view: Relation, catalog: Catalog, producers: Producers) -> None:
        self._view = view
        self._operators = {op.id: op for op in producers[view.id]}
        self._sink = producers[view.id][-1]
        below = catalog.upstream(view.depends_on)
        others = {i: ops for i, ops in producers.items() if i in below}
        self._names = Names(self._operators, catalog, leaves(self._operators, catalog, others))

    @property
    def operators(self) -> list[str]:
        """The ids of the operators that compute the view, without those of views that it reads."""
        found: dict[str, None] = {}
        pending = [self._sink.id]
        while pending:
            operator_id = pending.pop()
            if operator_id not in found and operator_id not in self._names.leaves:
                found[operator_id] = None
                pending += self._operators[operator_id].inputs
        return sorted(found)

    def columns(self, operator_id: str, column: int | None) -> list[str]:
        """The view's columns that are computed from a column of an operator."""
        if column is None:
            return []
        shown = [c.name for c in self._view.columns]
        return [shown[i] for i, cells in enumerate(self._reached[: len(shown)]) if (operator_id, column) in cells]

    def text(self, operator_id: str, column: int | None, sql: str) -> str:
        """A part of an expression of an operator, or an aggregate."""
        op = self._operators[operator_id]
        if sql:
            return display(parsed(sql), self._by_name(op))
        assert column is not None
        if isinstance(op, Window):
            made = len(op.schema) - len(op.functions)
            return window_text(op.functions[column - made], op.keys, self._names.columns(op.inputs[0]))
        return self._names.columns(operator_id)[column]

    def _by_name(self, op: Operator) -> dict[str, str]:
        if isinstance(op, MultiJoin):
            return self._names.by_number(op)
        if isinstance(op, PairJoin):
            left, right = op.inputs[:2]
            return self._names.by_position(left, "l") | self._names.by_position(right, "r")
        return self._names.by_position(op.inputs[0]) if op.inputs else {}

    @cached_property
    def _reached(self) -> list[set[_Cell]]:
        """For each column of the view the columns of operators from which it is computed."""
        found = []
        for i in range(len(self._sink.schema)):
            cells: set[_Cell] = set()
            pending = [(self._sink.id, i)]
            while pending:
                cell = pending.pop()
                if cell not in cells and cell[0] not in self._names.leaves:
                    cells.add(cell)
                    pending += self._read(*cell)
            found.append(cells)
        return found

    def _read(self, operator_id: str, column: int) -> list[_Cell]:
        """The columns of its inputs from which an operator computes a column."""
        op = self._operators[operator_id]
        if isinstance(op, (PairJoin, MultiJoin)):
            found = op.output[column]
            return [(op.inputs[found.input], found.column)]
        if not op.inputs:
            return []
        if isinstance(op, Map):
            read = [index_of(name) for name in columns_of(op.exprs[column])]
        elif isinstance(op, Aggregate):
            call = op.calls[column - len(op.keys)] if column >= len(op.keys) else None
            argument = None if call is None else call.argument
            read = [op.keys[column]] if call is None else [] if argument is None else [argument, *call.extra]
        elif isinstance(op, Window) and column >= len(op.schema) - len(op.functions):
            read = list(op.functions[column - len(op.schema) + len(op.functions)].arguments)
        else:
            passed = op.passed[column]
            read = [] if passed is None else [passed]
        return [(op.inputs[0], i) for i in read]
