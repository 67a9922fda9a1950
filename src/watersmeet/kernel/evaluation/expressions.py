"""Evaluates DuckDB SQL expressions over Arrow tables, with little overhead for few rows.

An expression never fails a step: where its innermost part raises an error, that part is NULL and the error is counted
(`recovery`). Statements are prepared once per (input types, expressions); columns that only pass through never enter
DuckDB, and comparisons and sums of columns with constants need no statement.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.kernel.evaluation.duck import (
    VALUE_ERRORS,
    Columns,
    Rows,
    Statement,
    as_type,
    cast_to,
    connect,
    drop,
    plan_error,
    prepare,
    run,
)
from watersmeet.kernel.evaluation.functioncalls import functions_of
from watersmeet.kernel.evaluation.recovery import Recovery
from watersmeet.kernel.metrics import Counters
from watersmeet.values.types import BIGINT, INTEGER, SMALLINT, VARCHAR, Field, Schema, SqlType, arrow_schema

_VALUE: Final = r"(?:NULL|TRUE|FALSE|-?\d+(?:\.\d+)?|'(?:[^']|'')*')"
_LITERAL: Final = re.compile(rf"{_VALUE}|CAST\({_VALUE} AS [A-Z][A-Z0-9_ (),]*\)", re.IGNORECASE)

#: The maximum number of prepared statements, and of plans without one.
_PLANS: Final = 512
_SIMPLE_PLANS: Final = 1 << 14

#: Conditions and sums that Arrow computes as DuckDB does, with errors for the same rows, in less time than DuckDB
#: takes to begin.
_INTEGER: Final = r"-?\d{1,18}"
_TEST: Final = re.compile(rf"(\w+) (=|<>|<|<=|>|>=) (?:({_INTEGER})|'((?:[^']|'')*)')")
_NULL_TEST: Final = re.compile(r"(NOT )?(\w+) IS NULL")
_SUM: Final = re.compile(rf"(\w+) ([-+]) ({_INTEGER})")
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
    "+": pc.add_checked, "-": pc.subtract_checked, "NULL": pc.is_null, "NOT NULL": pc.is_valid,
}  # fmt: skip

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
Way = Literal["input", "literal", "computed"]


@dataclass(frozen=True)
class _Request:
    """The key of a plan: the input's columns and the expressions over them."""

    names: tuple[str, ...]
    types: tuple[SqlType, ...]
    exprs: tuple[str, ...]
    results: tuple[SqlType, ...]
    predicate: str | None
    required: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Plan:
    """How each output column is computed.

    outputs: for each column its kind and, depending on it, a position in the input, a value, or a position in
    `computed`. computed: the expressions for DuckDB, with their positions in the output. statement: computes these;
    None if there are none, or if a constant raises an error (`broken`): then each cell is evaluated separately. simple:
    computes these without DuckDB.
    """

    outputs: tuple[tuple[Way, int, pa.Scalar | None], ...]
    computed: tuple[tuple[int, str, SqlType], ...]
    statement: Statement | None
    broken: bool
    simple: _Simple | None = None


class _Step(NamedTuple):
    """A function of a column, and of a constant unless that is None."""

    function: Callable[..., Any]
    position: int
    constant: pa.Scalar | None

    def of(self, table: pa.Table) -> Any:
        """The value for each row."""
        column = table.column(self.position)
        return self.function(column) if self.constant is None else self.function(column, self.constant)


class _Simple(NamedTuple):
    """A predicate and computed columns without DuckDB. tests: all of them are true for the kept rows."""

    tests: tuple[_Step, ...]
    columns: tuple[_Step, ...]

    def run(self, table: pa.Table) -> tuple[Columns, Rows | None]:
        """Like `duck.run`. Raises pa.ArrowInvalid where DuckDB would raise an error."""
        rows = None
        if self.tests:
            kept = self.tests[0].of(table)
            for test in self.tests[1:]:
                kept = pc.and_(kept, test.of(table))
            found = pc.indices_nonzero(kept)
            rows = found.to_numpy().astype(np.int64)
            if not rows.size:
                return [], rows
            if self.columns:
                table = table.take(found)
        return [column.of(table) for column in self.columns], rows


class Evaluator:
    """DuckDB for expressions. One evaluator per process is enough; forked children and several threads may use it."""

    def __init__(self, memory_limit_bytes: int | None = None) -> None:
        """memory_limit_bytes: the limit for DuckDB; by default a share of the machine's memory."""
        self._memory_limit_bytes = memory_limit_bytes
        self._lock = threading.RLock()
        self._pid = 0
        self._connections: list[duckdb.DuckDBPyConnection] = []
        self._recoveries: list[Recovery] = []
        self._recovery: Recovery | None = None
        self._plans: OrderedDict[_Request, _Plan] = OrderedDict()
        self._simple_plans: dict[_Request, _Plan] = {}

    def project(
        self,
        table: pa.Table,
        schema: Schema,
        exprs: Sequence[str],
        output: Schema,
        predicate: str | None = None,
        counters: Counters | None = None,
        num_rows: int | None = None,
        required: Sequence[int] = (),
    ) -> tuple[pa.Table, Rows | None]:
        """The rows of `table` where `predicate` is true, with column c<i> = exprs[i] of type output[i], and the
        ascending positions of these rows (None for all).

        `schema` gives the types of `table`'s columns; expressions use the table's column names (c0… or l0… and r0…).
        num_rows: needed if `table` has no columns, because Arrow then has no number of rows. required: output columns
        that must not be NULL because of an error: such rows are dropped.
        """
        request = _Request(
            tuple(table.column_names),
            tuple(f.type for f in schema),
            tuple(exprs),
            tuple(f.type for f in output),
            predicate,
            tuple(required),
        )
        count = table.num_rows if num_rows is None else num_rows
        with self._lock:
            connection = self._connection()
            try:
                plan = self._plan(connection, request)
                functions_of(connection).check()
                columns, rows = self._compute(connection, plan, request, table, count, counters or Counters())
            except (duckdb.FatalException, duckdb.InternalException):
                # DuckDB rejects all further work on the connection, so other expressions need a new one.
                self._pid = 0
                raise
        if rows is not None and rows.size == count:
            rows = None
        if rows is not None and not rows.size:
            return _no_rows(request.results), rows
        taken = None if rows is None else pa.array(rows)
        count = count if rows is None else rows.size
        arrays = []
        for (way, position, literal), kind in zip(plan.outputs, request.results, strict=True):
            if way == "input":
                column = table.column(position)
                arrays.append(column if taken is None else column.take(taken))
            elif way == "literal":
                arrays.append(pa.chunked_array([pa.repeat(literal, count)]))
            else:
                arrays.append(as_type(columns[position], kind.arrow) if columns else pa.chunked_array([], kind.arrow))
        return pa.Table.from_arrays(arrays, [f"c{i}" for i in range(len(arrays))]), rows

    def mask(
        self,
        table: pa.Table,
        schema: Schema,
        predicate: str,
        counters: Counters | None = None,
        num_rows: int | None = None,
    ) -> Mask:
        """The mask of rows of `table` where `predicate` is true. NULL and errors count as false."""
        count = table.num_rows if num_rows is None else num_rows
        _, rows = self.project(table, schema, (), (), predicate, counters, count)
        if rows is None:
            return np.ones(count, np.bool_)
        found = np.zeros(count, np.bool_)
        found[rows] = True
        return found

    def rows(self, rows_sql: Sequence[Sequence[str]], output: Schema, counters: Counters | None = None) -> pa.Table:
        """The table of constant rows whose cells are the expressions `rows_sql`."""
        pieces = [self.project(pa.table({}), (), row, output, None, counters, 1)[0] for row in rows_sql]
        return pa.concat_tables(pieces) if pieces else arrow_schema(output, positional=True).empty_table()

    def _connection(self) -> duckdb.DuckDBPyConnection:
        """This process's connection. A forked child keeps its parent's, unused: closing it could hang."""
        if self._pid != os.getpid():
            self._connections.append(connect(self._memory_limit_bytes))
            self._recovery = None
            self._plans = OrderedDict()
            self._pid = os.getpid()
        return self._connections[-1]

    def _plan(self, connection: duckdb.DuckDBPyConnection, request: _Request) -> _Plan:
        plan = self._plans.get(request)
        if plan is not None:
            self._plans.move_to_end(request)
            return plan
        plan = self._simple_plans.get(request)
        if plan is not None:
            return plan
        plan = _make_plan(connection, request)
        if plan.simple is not None:
            if len(self._simple_plans) >= _SIMPLE_PLANS:
                self._simple_plans.clear()
            self._simple_plans[request] = plan
            return plan
        self._plans[request] = plan
        if len(self._plans) > _PLANS:
            _, old = self._plans.popitem(last=False)
            if old.statement is not None:
                drop(connection, old.statement)
        return plan

    def _compute(
        self,
        connection: duckdb.DuckDBPyConnection,
        plan: _Plan,
        request: _Request,
        table: pa.Table,
        count: int,
        counters: Counters,
    ) -> tuple[Columns, Rows | None]:
        if count == 0:
            return [], None
        if plan.simple is not None:
            try:
                return plan.simple.run(table)
            except pa.ArrowInvalid:
                plan = _prepared(connection, request, plan.outputs, plan.computed)
                assert plan.statement is not None
                self._plans[request] = plan
        if plan.statement is None and not plan.broken:
            return [], None
        try:
            if plan.statement is not None:
                return run(connection, plan.statement, table, count)
        except VALUE_ERRORS:
            functions_of(connection).check()
        if self._recovery is None:
            self._recovery = Recovery(self._memory_limit_bytes)
            self._recoveries.append(self._recovery)  # kept like connections
        return self._recovery.project(
            request.names, request.types, table, count, plan.computed, request.predicate, counters, request.required
        )


#: This process's evaluator.
EVALUATOR: Final = Evaluator()


@lru_cache(maxsize=4096)
def _no_rows(kinds: tuple[SqlType, ...]) -> pa.Table:
    return pa.schema([pa.field(f"c{i}", kind.arrow) for i, kind in enumerate(kinds)]).empty_table()


def with_lengths(rows: pa.Table, lengths: Mapping[str, int]) -> pa.Table:
    """The rows with texts and bytes cut to the lengths of their columns, in characters and bytes. Columns may be
    missing.
    """
    for name, length in lengths.items():
        place = rows.schema.get_field_index(name)
        if place >= 0:
            is_bytes = pa.types.is_binary(rows.schema.field(place).type)
            cut = (pc.binary_slice if is_bytes else pc.utf8_slice_codeunits)(rows.column(place), 0, length)
            rows = rows.set_column(place, rows.schema.field(place), cut)
    return rows


def generated_values(rows: pa.Table, column: Field, reads: Schema, sql: str, counters: Counters) -> pa.ChunkedArray:
    """The values of a generated column, by its expression over the columns `reads` of `rows`.

    A value whose computation raises an error is NULL, and counted.
    """
    read = rows.select([f.name for f in reads]).rename_columns([f"c{i}" for i in range(len(reads))])
    values, _ = EVALUATOR.project(read, reads, [sql], (column,), counters=counters, num_rows=rows.num_rows)
    return values.column(0)


def _make_plan(connection: duckdb.DuckDBPyConnection, request: _Request) -> _Plan:
    outputs: list[tuple[Way, int, pa.Scalar | None]] = []
    computed: list[tuple[int, str, SqlType]] = []
    for i, (expr, kind) in enumerate(zip(request.exprs, request.results, strict=True)):
        position = request.names.index(expr) if expr in request.names else -1
        if position >= 0 and request.types[position].arrow == kind.arrow:
            outputs.append(("input", position, None))
        elif _LITERAL.fullmatch(expr) and (literal := _literal(connection, expr, kind)) is not None:
            outputs.append(("literal", 0, literal))
        else:
            outputs.append(("computed", len(computed), None))
            computed.append((i, expr, kind))
    simple = _simple(request, computed)
    if simple is not None:
        return _Plan(tuple(outputs), tuple(computed), None, broken=False, simple=simple)
    return _prepared(connection, request, outputs, computed)


def _prepared(
    connection: duckdb.DuckDBPyConnection,
    request: _Request,
    outputs: Sequence[tuple[Way, int, pa.Scalar | None]],
    computed: Sequence[tuple[int, str, SqlType]],
) -> _Plan:
    statement, broken = None, False
    if computed or request.predicate is not None:
        try:
            items = [cast_to(sql, kind) for _, sql, kind in computed]
            statement = prepare(connection, request.names, request.types, items, request.predicate)
        except VALUE_ERRORS:
            broken = True
        except duckdb.ProgrammingError as problem:
            raise plan_error(problem, request.exprs, request.predicate) from problem
    return _Plan(tuple(outputs), tuple(computed), statement, broken)


def _simple(request: _Request, computed: Sequence[tuple[int, str, SqlType]]) -> _Simple | None:
    """The plan without DuckDB; None if it is not possible, or nothing is to compute."""
    conditions = [] if request.predicate is None else request.predicate.split(" AND ")
    tests = [_test(request, condition) for condition in conditions]
    columns = [_sum(request, sql, kind) for _, sql, kind in computed]
    if not tests and not columns:
        return None
    known = [step for step in (*tests, *columns) if step is not None]
    if len(known) < len(tests) + len(columns):
        return None
    return _Simple(tuple(known[: len(tests)]), tuple(known[len(tests) :]))


def _test(request: _Request, sql: str) -> _Step | None:
    if (found := _NULL_TEST.fullmatch(sql)) is not None and found[2] in request.names:
        return _Step(_FUNCTIONS[f"{found[1] or ''}NULL"], request.names.index(found[2]), None)
    found = _TEST.fullmatch(sql)
    if found is None or found[1] not in request.names:
        return None
    position = request.names.index(found[1])
    kind = request.types[position]
    if found[3] is not None:
        number = pa.scalar(int(found[3]), pa.int64())
        return _Step(_FUNCTIONS[found[2]], position, number) if kind in (SMALLINT, INTEGER, BIGINT) else None
    if kind != VARCHAR or found[2] not in ("=", "<>"):
        return None
    return _Step(_FUNCTIONS[found[2]], position, pa.scalar(found[4].replace("''", "'"), pa.string()))


def _sum(request: _Request, sql: str, kind: SqlType) -> _Step | None:
    found = _SUM.fullmatch(sql)
    if found is None or found[1] not in request.names or kind != BIGINT:
        return None
    position = request.names.index(found[1])
    if request.types[position] != BIGINT:
        return None
    return _Step(_FUNCTIONS[found[2]], position, pa.scalar(int(found[3]), pa.int64()))


def _literal(connection: duckdb.DuckDBPyConnection, expr: str, kind: SqlType) -> pa.Scalar | None:
    """The value of a literal; None if it has none of this type: then DuckDB evaluates the literal, and errors are
    counted.
    """
    try:
        table = connection.execute(f"SELECT CAST({expr} AS {kind.duckdb})").to_arrow_table()
    except VALUE_ERRORS:
        return None
    return as_type(table.column(0), kind.arrow)[0]
