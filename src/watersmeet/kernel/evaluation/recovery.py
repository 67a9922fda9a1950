"""The evaluation of expressions that raise an error for some rows. For these rows, the innermost part that fails is
NULL.

All rows are evaluated at once inside DuckDB's TRY. Only failing rows are then evaluated part by part (`tolerant`): each
part that can fail is inside its own TRY, and the parts around it read NULL if it fails. If all parts on which a row's
value depends succeed, the value is the same as without TRY; it never depends on other rows. A part always has the same
value in a larger expression as in a column of a subquery.

Expressions are trees of DuckDB's own parser, as `json_serialize_sql` returns them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.kernel.evaluation.duck import (
    VALUE_ERRORS,
    Columns,
    Rows,
    Statement,
    as_type,
    cast_to,
    connect,
    drop,
    prepare,
    run,
)
from watersmeet.kernel.evaluation.functioncalls import called_in_batches, functions_of
from watersmeet.kernel.metrics import Counters
from watersmeet.values.calledfunctions import CalledFunction, decoded, is_called, is_volatile, readable, wired
from watersmeet.values.types import BOOLEAN, SqlType

Tree = dict[str, Any]

#: Above this number of parts, errors are counted for the whole expression only.
_MOST_PARTS: Final = 200

#: Classes and types of nodes that never raise an error themselves, or have no value.
_SAFE: Final = frozenset(
    {"COLUMN_REF", "CONSTANT", "CONJUNCTION", "LAMBDA"}
    | {"OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_NOT", "OPERATOR_TRY"}
)

#: Functions that TRY does not accept, because each call may return another value.
_VOLATILE: Final = frozenset({"error", "gen_random_uuid", "nextval", "random", "setseed", "uuid", "uuidv4", "uuidv7"})


@dataclass(frozen=True)
class Part:
    """A part of an expression that can fail by itself.

    node: the part. written: its SQL. tried: its SQL with NULL for failing inner parts, so that only the part itself can
    fail. reached: the condition for rows whose value depends on the part. opaque: whether TRY does not accept it.
    """

    node: Tree
    written: str
    tried: str
    reached: str
    opaque: bool

    @property
    def status(self) -> str:
        """SQL that is true where the part is reached and fails itself."""
        return f"CASE WHEN {self.reached} THEN {boxed(self.tried)} IS NULL ELSE false END"

    @property
    def where_reached(self) -> str:
        """SQL for the value of the part where it is reached; it may fail."""
        return f"CASE WHEN {self.reached} THEN {self.tried} END"


@dataclass(frozen=True)
class Tolerant:
    """An expression prepared for evaluation with errors.

    sql: the expression. tried: the expression with NULL for failing parts. opaque: whether TRY does not accept the
    whole expression. parts: the parts that can fail, the innermost first.
    """

    tree: Tree
    sql: str
    tried: str
    opaque: bool
    parts: tuple[Part, ...]


def boxed(sql: str) -> str:
    """SQL for a struct with the value of an expression; NULL where the expression fails."""
    return f"TRY({{'v': {sql}}})"


def parse(connection: duckdb.DuckDBPyConnection, sql: str) -> Tree:
    """The tree of an expression."""
    tree: Tree = _items(_serialized(connection, sql))[0]
    return tree


def tolerant(connection: duckdb.DuckDBPyConnection, tree: Tree) -> Tolerant:
    """The expression `tree` for evaluation with errors."""
    found = _Parts()
    found.visit(tree, ())
    if len(found.parts) > _MOST_PARTS:
        found.parts = found.parts[-1:]  # the whole expression
    trees = [tree, _tried(tree)]
    for part in found.parts:
        trees += [part.node, part.tried, *(condition for _, condition in part.reached)]
    texts = iter(_sql_of(connection, trees))
    sql, tried = next(texts), next(texts)
    parts = []
    for part in found.parts:
        written, inner = next(texts), next(texts)
        reached = " AND ".join(form.format(next(texts)) for form, _ in part.reached)
        parts.append(Part(part.node, written, inner, reached or "true", _is_opaque(part.node)))
    return Tolerant(tree, sql, tried, _is_opaque(tree), tuple(parts))


def without(connection: duckdb.DuckDBPyConnection, tree: Tree, part: Part) -> Tree:
    """The expression with a part replaced by NULL of the same type."""
    null = parse(connection, "CASE WHEN false THEN 1 END")
    null["case_checks"][0]["then_expr"] = {**part.node, "alias": ""}

    return _replaced(tree, part.node, null)


def _serialized(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    found = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {sql}"]).fetchone()
    assert found is not None
    statement = json.loads(found[0])
    if statement["error"]:
        raise duckdb.ParserException(statement["error_message"])
    return statement


def _items(statement: Any) -> list[Tree]:
    items: list[Tree] = statement["statements"][0]["node"]["select_list"]
    return items


def _sql_of(connection: duckdb.DuckDBPyConnection, trees: Sequence[Tree]) -> list[str]:
    """The SQL of each expression."""
    statement = _serialized(connection, "1")
    texts = []
    for tree in trees:
        _items(statement)[:] = [{**tree, "alias": ""}]
        texts.append(json.dumps(statement))
    found = connection.execute("SELECT json_deserialize_sql(t) FROM (SELECT unnest(?::VARCHAR[]) AS t)", [texts])
    return [str(sql).removeprefix("SELECT ") for (sql,) in found.fetchall()]


def _with_children(node: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """A copy of the node with its operands changed. The parameters of a lambda are not operands."""
    return {k: v if k == "lhs" else _changed(v, change) for k, v in node.items()}


def _changed(value: Any, change: Callable[[Tree], Tree]) -> Any:
    if isinstance(value, list):
        return [_changed(v, change) for v in value]
    if isinstance(value, dict):
        return change(value) if "class" in value else {k: _changed(v, change) for k, v in value.items()}
    return value


def _children(node: Tree) -> list[Tree]:
    """The operands of a node."""
    found: list[Tree] = []

    def collect(child: Tree) -> Tree:
        found.append(child)
        return child

    _with_children(node, collect)
    return found


def _tried(node: Tree) -> Tree:
    """The expression, in which each part that can fail is inside TRY."""
    if node["type"] == "OPERATOR_TRY":
        return node
    made = _with_children(node, _tried)
    if not _can_fail(node) or _is_opaque(node):
        return made
    return {
        "class": "OPERATOR",
        "type": "OPERATOR_TRY",
        "alias": node["alias"],  # the name of a field if the parent is a struct
        "query_location": node["query_location"],
        "children": [{**made, "alias": ""}],
    }


def _within(node: Tree) -> Tree:
    """The node with operands that do not fail. An error inside a lambda is an error of the node."""
    return _with_children(node, lambda child: child if child["class"] == "LAMBDA" else _tried(child))


def _can_fail(node: Tree) -> bool:
    return node["class"] not in _SAFE and node["type"] not in _SAFE and not node.get("try_cast")


def _is_opaque(node: Tree) -> bool:
    """Whether TRY does not accept the expression."""
    name = str(node.get("function_name")).lower()
    if node["class"] == "SUBQUERY" or name in _VOLATILE or is_volatile(name):
        return True
    return any(map(_is_opaque, _children(node)))


#: A condition: a text with {} for the SQL of an expression, and the expression.
_Condition = tuple[str, Tree]


@dataclass(frozen=True)
class _Found:
    node: Tree
    tried: Tree
    reached: tuple[_Condition, ...]


@dataclass
class _Parts:
    """Collects the parts of an expression that can fail, the innermost first."""

    parts: list[_Found] = field(default_factory=list)

    def visit(self, node: Tree, reached: tuple[_Condition, ...]) -> None:
        """Adds the parts of `node`, whose value counts where the conditions are true."""
        if node["class"] == "CASE":
            self._visit_case(node, reached)
        elif node["class"] == "CONJUNCTION":
            # A failing operand counts unless another operand determines the result.
            undecided = "coalesce({}, true)" if node["type"] == "CONJUNCTION_AND" else "NOT coalesce({}, false)"
            others = [(undecided, _tried(child)) for child in node["children"]]
            for i, child in enumerate(node["children"]):
                self.visit(child, (*reached, *others[:i], *others[i + 1 :]))
        elif node["type"] == "OPERATOR_COALESCE":
            before = reached
            for child in node["children"]:
                self.visit(child, before)
                before = (*before, ("({}) IS NULL", _tried(child)))
        elif node["class"] not in ("LAMBDA", "SUBQUERY") and node["type"] != "OPERATOR_TRY":
            for child in _children(node):
                self.visit(child, reached)
        if _can_fail(node):
            self.parts.append(_Found(node, _within(node), reached))

    def _visit_case(self, node: Tree, reached: tuple[_Condition, ...]) -> None:
        before = reached
        for check in node["case_checks"]:
            condition = _tried(check["when_expr"])
            self.visit(check["when_expr"], before)
            self.visit(check["then_expr"], (*before, ("({}) IS TRUE", condition)))
            before = (*before, ("({}) IS NOT TRUE", condition))
        self.visit(node["else_expr"], before)


def _innermost_call(node: Tree) -> Tree | None:
    """The first call of a function of another language whose arguments contain no such call, except within lambdas and
    queries.
    """
    if node["class"] in ("LAMBDA", "SUBQUERY"):
        return None
    for child in _children(node):
        found = _innermost_call(child)
        if found is not None:
            return found
    return node if is_called(node.get("function_name")) else None


def _replaced(tree: Tree, node: Tree, other: Tree) -> Tree:
    if tree is node:
        return {**other, "alias": node["alias"]}
    return _with_children(tree, lambda child: _replaced(child, node, other))


#: A part of the names of columns with the values of calls.
_FIRST: Final = 900
_PLANS: Final = 128
_SOURCE: Final = " when casting from source column "


@dataclass
class _Plan:
    """An expression and its statements."""

    names: tuple[str, ...]
    types: tuple[SqlType, ...]
    kind: SqlType
    tolerant: Tolerant
    whole: Statement
    by_parts: Statement | None = None

    @property
    def reported(self) -> list[int]:
        """The parts whose errors `by_parts` finds."""
        return [i for i, part in enumerate(self.tolerant.parts) if not part.opaque]


@dataclass(frozen=True)
class _Call:
    """A call of a function of another language, computed before the expression around it, as the column `column`.

    name: the function's name in expressions. arguments: their plans. reached: the plan of the condition for rows whose
    value depends on the call. written: the SQL of the call.
    """

    column: str
    name: str
    function: CalledFunction
    arguments: tuple[_Plan, ...]
    reached: _Plan | None
    written: str


@dataclass(frozen=True)
class _Steps:
    """The calls in an expression (innermost first), and the expression over their values."""

    calls: tuple[_Call, ...]
    plan: _Plan

    @property
    def plans(self) -> list[_Plan]:
        below = [p for c in self.calls for p in (*c.arguments, c.reached) if p is not None]
        return [*below, self.plan]


@dataclass(frozen=True)
class _Given:
    """Rows to evaluate, and the output column for which their errors are counted (None for a predicate).

    rows: their positions in the first table. failed: positions of rows with an error, in any order.
    """

    table: pa.Table
    count: int
    counters: Counters
    column: int | None
    rows: Rows
    failed: list[Rows] = field(default_factory=list)

    def take(self, rows: Rows) -> _Given:
        table = self.table.take(pa.array(rows)) if self.table.num_columns else self.table
        return replace(self, table=table, count=len(rows), rows=self.rows[rows])

    def fail(self, sql: str, reason: str, rows: Rows) -> None:
        """Counts an error of the expression `sql` in the rows at these positions of the table."""
        self.counters.failed(self.column, readable(sql), reason, len(rows))
        self.failed.append(self.rows[rows])


class Recovery:
    """Evaluates expressions with errors, in a separate DuckDB without optimizer, which would compute equal parts of two
    TRYs once, outside of both.
    """

    def __init__(self, memory_limit_bytes: int | None) -> None:
        self._connection = connect(memory_limit_bytes, optimizers=())
        functions_of(self._connection).lenient = True
        self._plans: OrderedDict[tuple[object, ...], _Steps] = OrderedDict()

    def project(
        self,
        names: tuple[str, ...],
        types: tuple[SqlType, ...],
        table: pa.Table,
        count: int,
        exprs: Sequence[tuple[int, str, SqlType]],
        predicate: str | None,
        counters: Counters,
        required: Sequence[int] = (),
    ) -> tuple[Columns, Rows | None]:
        """The values of `exprs` in the rows where `predicate` is true, and the positions of these rows.

        exprs: (position in the output for the counters, expression, type). required: positions in the output that must
        not be NULL because of an error: such rows are dropped.
        """
        given, rows = _Given(table, count, counters, None, np.arange(count)), None
        if predicate is not None:
            passed = self._evaluate(names, types, given, predicate, BOOLEAN).fill_null(False).to_numpy()
            functions_of(self._connection).check()
            rows = np.flatnonzero(passed)
            given = given.take(rows)
        columns, keep = [], np.ones(given.count, np.bool_)
        for position, sql, kind in exprs:
            own = _Given(given.table, given.count, counters, position, np.arange(given.count))
            values = self._evaluate(names, types, own, sql, kind)
            functions_of(self._connection).check()
            if position in required and own.failed:
                failed = np.unique(np.concatenate(own.failed))
                keep[failed[values.take(pa.array(failed)).is_null().to_numpy()]] = False
            columns.append(values)
        if keep.all():
            return columns, rows
        rows = np.flatnonzero(keep) if rows is None else rows[keep]
        return [column.filter(pa.array(keep)) for column in columns], rows

    def _evaluate(
        self, names: tuple[str, ...], types: tuple[SqlType, ...], given: _Given, sql: str, kind: SqlType
    ) -> pa.ChunkedArray:
        if given.count == 0:
            return pa.chunked_array([], kind.arrow)
        key = (names, types, sql, kind)
        plan = self._plans.get(key)
        if plan is None:
            try:
                plan = self._steps(names, types, kind, sql)
            except VALUE_ERRORS as cause:  # raised by a constant, which DuckDB evaluates while it plans
                given.fail(sql, _reason(cause), np.arange(given.count))
                return pa.chunked_array([pa.nulls(given.count, kind.arrow)])
            self._plans[key] = plan
            if len(self._plans) > _PLANS:
                for old in self._plans.popitem(last=False)[1].plans:
                    self._drop(old)
        else:
            self._plans.move_to_end(key)
        for step in plan.calls:
            given = self._called(step, given)
        return self._values(plan.plan, given)

    def _steps(self, names: tuple[str, ...], types: tuple[SqlType, ...], kind: SqlType, sql: str) -> _Steps:
        """The plan of an expression. Calls of functions of other languages become columns: within TRY, DuckDB would
        repeat them row by row.
        """
        tree = parse(self._connection, cast_to(sql, kind))
        calls: list[_Call] = []
        while (node := _innermost_call(tree)) is not None:
            name = str(node["function_name"]).lower()
            function = decoded(name)
            assert function is not None
            parts = tolerant(self._connection, tree).parts
            part = next((p for p in parts if p.node is node), None)
            arguments = (
                self._planned(names, types, wired(k), child)
                for child, k in zip(node["children"], function.arguments, strict=True)
            )
            reached = None
            if part is not None and part.reached != "true":
                reached = self._planned(names, types, BOOLEAN, parse(self._connection, part.reached))
            written = _sql_of(self._connection, [node])[0]
            calls.append(_Call(f"t{_FIRST}_{len(calls)}", name, function, tuple(arguments), reached, written))
            tree = _replaced(tree, node, parse(self._connection, calls[-1].column))
            names, types = (*names, calls[-1].column), (*types, wired(function.value))
        return _Steps(tuple(calls), self._planned(names, types, kind, tree))

    def _called(self, step: _Call, given: _Given) -> _Given:
        """The rows with the values of a call, which are NULL for failing rows. Counts these."""
        rows = np.arange(given.count)
        if step.reached is not None:
            rows = np.flatnonzero(self._values(step.reached, given).fill_null(False).to_numpy())
        here = given.take(rows)
        columns = [self._values(plan, here) for plan in step.arguments] if here.count else []
        values, failures = called_in_batches(step.name, step.function, columns, here.count)
        by_reason: dict[str, list[int]] = {}
        for row, reason in failures:
            by_reason.setdefault(reason, []).append(row)
        for reason, failed in by_reason.items():
            here.fail(step.written, reason, np.array(failed, np.int64))
        if len(rows) < given.count:
            places = np.full(given.count, -1)
            places[rows] = np.arange(len(rows))
            values = values.take(pa.array(places, mask=places < 0))
        if not given.table.num_columns:
            return replace(given, table=pa.table({step.column: values}))
        return replace(given, table=given.table.append_column(step.column, values))

    def _planned(self, names: tuple[str, ...], types: tuple[SqlType, ...], kind: SqlType, tree: Tree) -> _Plan:
        found = tolerant(self._connection, tree)
        item = f"{{'v': {found.sql}}}" if found.opaque else boxed(found.sql)
        return _Plan(names, types, kind, found, prepare(self._connection, names, types, [item]))

    def _drop(self, plan: _Plan) -> None:
        drop(self._connection, plan.whole)
        if plan.by_parts is not None:
            drop(self._connection, plan.by_parts)

    def _values(self, plan: _Plan, given: _Given) -> pa.ChunkedArray:
        """The value of each row."""
        ran, columns, escaped = self._run(plan.whole, given)
        pieces = []
        failing = np.array(sorted(escaped), np.int64)
        if len(ran):
            (structs,) = columns
            values = pa.chunked_array([chunk.flatten()[0] for chunk in structs.chunks])
            valid = structs.is_valid().to_numpy()
            if valid.all() and not escaped:
                return as_type(values, plan.kind.arrow)
            pieces = [(ran[valid], as_type(values, plan.kind.arrow).filter(pa.array(valid)))]
            failing = np.sort(np.concatenate([failing, ran[~valid]]))
        pieces.append((failing, self._values_by_parts(plan, given.take(failing))))
        return _together(pieces)

    def _values_by_parts(self, plan: _Plan, given: _Given) -> pa.ChunkedArray:
        """The value of each row, with NULL for its innermost failing parts. Counts their errors."""
        if plan.by_parts is None:
            parts = [plan.tolerant.parts[i] for i in plan.reported]
            items = [plan.tolerant.tried, *(part.status for part in parts)]
            plan.by_parts = prepare(self._connection, plan.names, plan.types, items)
        ran, columns, escaped = self._run(plan.by_parts, given)
        pieces = []
        if len(ran):
            values, *failures = columns
            for i, failed in zip(plan.reported, failures, strict=True):
                rows = ran[failed.to_numpy()]
                if len(rows):
                    self._count(plan, i, given, rows)
            pieces.append((ran, as_type(values, plan.kind.arrow)))
        if escaped:
            pieces += self._without_escaping_parts(plan, given, np.array(sorted(escaped), np.int64))
        return _together(pieces)

    def _without_escaping_parts(self, plan: _Plan, given: _Given, rows: Rows) -> list[tuple[Rows, pa.ChunkedArray]]:
        """The values of rows in which a part raises an error of a class that TRY does not catch."""
        pieces: list[tuple[Rows, pa.ChunkedArray]] = []
        for i, part in enumerate(plan.tolerant.parts):
            if not len(rows):
                return pieces
            statement = prepare(self._connection, plan.names, plan.types, [part.where_reached])
            try:
                _, _, escaped = self._run(statement, given.take(rows))
            finally:
                drop(self._connection, statement)
            found = np.array(sorted(escaped), np.int64)
            if len(found):
                self._count(plan, i, given, rows[found])
                pieces.append((rows[found], self._values_without(plan, part, given.take(rows[found]))))
                rows = np.delete(rows, found)
        if len(rows):
            given.fail(plan.tolerant.sql, "", rows)
            pieces.append((rows, pa.chunked_array([pa.nulls(len(rows), plan.kind.arrow)])))
        return pieces

    def _values_without(self, plan: _Plan, part: Part, given: _Given) -> pa.ChunkedArray:
        """The values with a part replaced by NULL."""
        tree = without(self._connection, plan.tolerant.tree, part)
        simpler = self._planned(plan.names, plan.types, plan.kind, tree)
        try:
            return self._values(simpler, given)
        finally:
            self._drop(simpler)

    def _run(self, statement: Statement, given: _Given) -> tuple[Rows, Columns, dict[int, Exception]]:
        """The rows for which the statement raises no error, with its columns, and the errors of the others.

        Halves the rows until each half has no error or one row.
        """
        ran: list[Rows] = []
        found: list[Columns] = []
        escaped: dict[int, Exception] = {}
        waiting = [(0, given.count)]
        while waiting:
            start, stop = waiting.pop()
            try:
                columns, _ = run(self._connection, statement, given.table.slice(start, stop - start), stop - start)
            except VALUE_ERRORS as cause:
                if stop - start == 1:
                    escaped[start] = cause
                else:
                    middle = (start + stop) // 2
                    waiting += [(middle, stop), (start, middle)]
            else:
                ran.append(np.arange(start, stop, dtype=np.int64))
                found.append(columns)
        if not ran:
            return np.zeros(0, np.int64), [], escaped
        together = [pa.chunked_array([chunk for c in same for chunk in c.chunks]) for same in zip(*found, strict=True)]
        return np.concatenate(ran), together, escaped

    def _count(self, plan: _Plan, i: int, given: _Given, rows: Rows) -> None:
        """Counts the errors of a part. The recorded reason is that of the first failing row."""
        part, reason = plan.tolerant.parts[i], ""
        if (given.column, readable(part.written)) not in given.counters.failures:
            statement = prepare(self._connection, plan.names, plan.types, [part.where_reached])
            try:
                _, _, escaped = self._run(statement, given.take(rows[:1]))
            finally:
                drop(self._connection, statement)
            reason = _reason(*escaped.values()) if escaped else ""
        given.fail(part.written, reason, rows)


def _reason(cause: Exception) -> str:
    """DuckDB's message, without its kind and without the column's name, which differs in the query."""
    if not isinstance(cause, duckdb.Error):
        return "a text is malformed"
    line = readable(str(cause).splitlines()[0])
    return (line.split(": ", 1)[1] if ": " in line else line).split(_SOURCE)[0]


def _together(pieces: Sequence[tuple[Rows, pa.ChunkedArray]]) -> pa.ChunkedArray:
    """The values in the order of their rows."""
    if len(pieces) == 1:
        return pieces[0][1]
    order = np.argsort(np.concatenate([rows for rows, _ in pieces]))
    values = pa.chunked_array([chunk for _, column in pieces for chunk in column.chunks])
    return values.take(pa.array(order))
