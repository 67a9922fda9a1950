"""Evaluates DuckDB SQL expressions over Arrow tables, with little overhead for few rows.

An expression never fails a step: where its innermost part raises an error, that part is NULL and the error is counted
(`recovery`). Statements are prepared once per (input types, expressions); columns that only pass through never enter
DuckDB. Comparisons and sums of columns with constants, comparisons of columns, limits of the time between two columns,
and starts of time windows need no statement.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.kernel.arrays.columns import fixed, flat, no_rows, validity, words
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
from watersmeet.values.types import (
    BIGINT,
    INTEGER,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    Schema,
    SqlType,
    arrow_schema,
)

_VALUE: Final = r"(?:NULL|TRUE|FALSE|-?\d+(?:\.\d+)?|'(?:[^']|'')*')"
_LITERAL: Final = re.compile(rf"{_VALUE}|CAST\({_VALUE} AS [A-Z][A-Z0-9_ (),]*\)", re.IGNORECASE)

#: The maximum number of prepared statements, and of plans without one.
_PLANS: Final = 512
_SIMPLE_PLANS: Final = 1 << 14

#: Conditions and sums that Arrow computes as DuckDB does, with errors for the same rows, in less time than DuckDB
#: takes to begin.
_INTEGER: Final = r"-?\d{1,18}"
_CLOCK: Final = r"\d\d:\d\d:\d\d(?:\.\d{1,6})?"
#: An interval in seconds or as a clock time.
_LENGTH: Final = rf"CAST\('(\d{{1,6}} SECONDS?|{_CLOCK})' AS INTERVAL\)"
_TEST: Final = re.compile(rf"(\w+) (=|<>|<|<=|>|>=) (?:({_INTEGER})|'((?:[^']|'')*)')")
_SPAN_TEST: Final = re.compile(rf"(abs\()?epoch_us\((\w+)\) - epoch_us\((\w+)\)(?(1)\)) (<|<=|>|>=) ({_INTEGER})")
_PAIR_TEST: Final = re.compile(r"(\w+) (=|<>|<|<=|>|>=) (\w+)")
_LATER_TEST: Final = re.compile(rf"(\w+) (<|<=|>|>=) \((\w+) ([-+]) {_LENGTH}\)")
_BUCKET: Final = re.compile(
    rf"TIME_BUCKET\({_LENGTH}, (\w+), CAST\('1970-01-01 ({_CLOCK})(\+00)?' AS (TIMESTAMP|TIMESTAMPTZ)\)\)"
)
_NULL_TEST: Final = re.compile(r"(NOT )?(\w+) IS NULL")
_SUM: Final = re.compile(rf"(\w+) ([-+]) ({_INTEGER})")
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
    "+": pc.add_checked, "-": pc.subtract_checked, "NULL": pc.is_null, "NOT NULL": pc.is_valid,
}  # fmt: skip

#: The same over arrays of numbers, for many constants at once.
_ARRAY_FUNCTIONS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    pc.equal: np.equal, pc.not_equal: np.not_equal, pc.less: np.less, pc.less_equal: np.less_equal,
    pc.greater: np.greater, pc.greater_equal: np.greater_equal,
    pc.add_checked: np.add, pc.subtract_checked: np.subtract,
}  # fmt: skip

#: The maximum number of sets of maps whose groups are kept.
_SETS_OF_MAPS: Final = 256

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
    """A function of a column, and of a constant unless that is None. since: the function is of the microseconds since
    the times of this column. absolute: without their sign. other: instead of the constant, another column.
    """

    function: Callable[..., Any]
    position: int
    constant: pa.Scalar | None
    since: int | None = None
    absolute: bool = False
    other: int | None = None

    @property
    def is_of_one_column(self) -> bool:
        """Whether it only reads the column at `position`."""
        return self.since is None and self.other is None

    def of(self, table: pa.Table) -> Any:
        """The value for each row."""
        column = table.column(self.position)
        if self.since is not None:
            column = pc.subtract(_usual_us(column), _usual_us(table.column(self.since)))
            column = pc.abs(column) if self.absolute else column
        if self.other is not None:
            return self.function(column, table.column(self.other))
        return self.function(column) if self.constant is None else self.function(column, self.constant)


def _usual_us(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """The times in microseconds. Raises pa.ArrowInvalid if one is far in the past or the future, or infinite: DuckDB's
    functions treat infinite times as NULL, and raise errors where others would exceed the limits.
    """
    us = times.cast(pa.int64())
    ends = pc.min_max(us)
    if ends["max"].is_valid and (ends["max"].as_py() > _USUAL_US or ends["min"].as_py() < -_USUAL_US):
        raise pa.ArrowInvalid("an unusual time")
    return us


#: The last usual time: differences of usual times fit into 64 bits. Intervals of `_LENGTH` are far shorter.
_USUAL_US: Final = 1 << 61


def _floored(times: pa.ChunkedArray, size_us: int, origin_us: int) -> pa.ChunkedArray:
    """The times, rounded down to a multiple of `size_us` after `origin_us`. Raises pa.ArrowInvalid as `_usual_us`."""
    made = np.empty(len(times), np.int64)
    begin = 0
    for chunk in _usual_us(times).chunks:
        valid = validity(chunk)
        values = words(chunk) if valid is None else np.where(valid, words(chunk), 0)
        for start in range(0, len(values), _PIECE_ROWS):
            some = values[start : start + _PIECE_ROWS]
            piece = made[begin + start : begin + start + len(some)]
            np.subtract(some, origin_us, out=piece)
            piece //= size_us
            piece *= size_us
            piece += origin_us
        begin += len(values)
    found = fixed(made, times.type)
    return pa.chunked_array([pc.if_else(times.is_valid().combine_chunks(), found, None) if times.null_count else found])


#: The number of times rounded at a time, so that they stay in a core's own cache.
_PIECE_ROWS: Final = 1 << 14


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

    @property
    def steps(self) -> tuple[_Step, ...]:
        """All steps."""
        return self.tests + self.columns


class MapOf(NamedTuple):
    """A projection for `Evaluator.project_alike`: its name, and arguments of `Evaluator.project`."""

    name: str
    exprs: tuple[str, ...]
    output: Schema
    predicate: str | None
    required: tuple[int, ...]


@dataclass(frozen=True)
class _Alike:
    """Projections of one input that only differ in their constants. plan: that of the first. constants: for each step
    of the plan, the constant of each projection, None without constants.
    """

    names: tuple[str, ...]
    plan: _Plan
    constants: tuple[pa.Array | None, ...]

    def run(self, table: pa.Table) -> Iterator[tuple[str, tuple[pa.Table, Rows | None] | None]]:
        """For each projection, the result of `Evaluator.project`, None without rows. Projections with a sum out of
        range are omitted.
        """
        simple = self.plan.simple
        assert simple is not None
        kept = np.ones((len(self.names), table.num_rows), np.bool_)
        for test, constants in zip(simple.tests, self.constants, strict=False):
            kept &= _compared(test, table, constants)
        which, rows = np.nonzero(kept)
        counts = np.bincount(which, minlength=len(self.names))
        left_out: set[int] = set()
        computed = []
        for step, constants in zip(simple.columns, self.constants[len(simple.tests) :], strict=True):
            values, out_of_range = _sums(step, table, constants, which, rows)
            computed.append(values)
            left_out.update(which[out_of_range].tolist())
        whole = bool(((counts == 0) | (counts == table.num_rows)).all())
        taken = None if whole else pa.array(rows)
        sources = [
            computed[place]
            if way == "computed"
            else table.column(place)
            if taken is None
            else table.column(place).take(taken)
            for way, place, _ in self.plan.outputs
        ]
        labels = [f"c{i}" for i in range(len(sources))]
        begin = 0
        for i, (name, count) in enumerate(zip(self.names, counts.tolist(), strict=True)):
            first, begin = begin, begin + count
            if i in left_out:
                continue
            if not count:
                yield name, None
                continue
            arrays = [
                source if taken is None and way == "input" else source.slice(first, count)
                for source, (way, _, _) in zip(sources, self.plan.outputs, strict=True)
            ]
            chosen = None if count == table.num_rows else rows[first:begin]
            yield name, (pa.Table.from_arrays(arrays, labels), chosen)


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
        self._alike: dict[tuple[str, ...], tuple[_Alike, ...]] = {}

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

    def project_alike(
        self, table: pa.Table, schema: Schema, names: Iterable[str], projection: Callable[[str], MapOf]
    ) -> dict[str, tuple[pa.Table, Rows | None] | None]:
        """The results of `project` for several projections of a table, by name; None for those without rows.

        Projections are omitted that are not alike: others are computed in one step, however many they are. names: each
        always means the same projection of the same columns, which `projection` returns.
        """
        key = tuple(names)
        with self._lock:
            groups = self._alike.get(key)
            if groups is None:
                if len(self._alike) >= _SETS_OF_MAPS:
                    self._alike.clear()
                groups = self._alike[key] = self._grouped(table, schema, map(projection, key))
        return {name: result for group in groups for name, result in group.run(table)}

    def _grouped(self, table: pa.Table, schema: Schema, projections: Iterable[MapOf]) -> tuple[_Alike, ...]:
        names, types = tuple(table.column_names), tuple(f.type for f in schema)
        shapes: dict[Any, list[tuple[str, _Plan]]] = {}
        for p in projections:
            results = tuple(f.type for f in p.output)
            plan = _plan_without_duckdb(_Request(names, types, p.exprs, results, p.predicate, p.required))
            if plan is None or plan.simple is None or p.required:
                continue
            if all(s.is_of_one_column for s in plan.simple.steps):
                steps = [(s.function, s.position, s.constant is None) for s in plan.simple.steps]
                shape = (tuple(steps), len(plan.simple.tests), plan.outputs, results)
                shapes.setdefault(shape, []).append((p.name, plan))
        return tuple(_alike(found) for found in shapes.values() if len(found) > 1)

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
        return pa.concat_tables(pieces) if pieces else no_rows(arrow_schema(output, positional=True))

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
    return no_rows(pa.schema([pa.field(f"c{i}", kind.arrow) for i, kind in enumerate(kinds)]))


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
    outputs, computed = _ways(request, partial(_literal, connection))
    simple = _simple(request, computed)
    if simple is not None:
        return _Plan(outputs, computed, None, broken=False, simple=simple)
    return _prepared(connection, request, outputs, computed)


def _plan_without_duckdb(request: _Request) -> _Plan | None:
    """The plan if it needs DuckDB neither for its computed columns and its predicate, nor for literals."""
    outputs, computed = _ways(request, lambda _, __: None)
    simple = _simple(request, computed)
    return None if simple is None else _Plan(outputs, computed, None, broken=False, simple=simple)


def _ways(
    request: _Request, literal: Callable[[str, SqlType], pa.Scalar | None]
) -> tuple[tuple[tuple[Way, int, pa.Scalar | None], ...], tuple[tuple[int, str, SqlType], ...]]:
    """`outputs` and `computed` of a plan. literal: the value of a literal of a type, None if it must be computed."""
    outputs: list[tuple[Way, int, pa.Scalar | None]] = []
    computed: list[tuple[int, str, SqlType]] = []
    for i, (expr, kind) in enumerate(zip(request.exprs, request.results, strict=True)):
        position = request.names.index(expr) if expr in request.names else -1
        if position >= 0 and request.types[position].arrow == kind.arrow:
            outputs.append(("input", position, None))
        elif _LITERAL.fullmatch(expr) and (value := literal(expr, kind)) is not None:
            outputs.append(("literal", 0, value))
        else:
            outputs.append(("computed", len(computed), None))
            computed.append((i, expr, kind))
    return tuple(outputs), tuple(computed)


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
    """The computation without DuckDB; None if it is not possible, or nothing is to compute."""
    conditions = [] if request.predicate is None else request.predicate.split(" AND ")
    tests = [_test(request, condition) for condition in conditions]
    columns = [_sum(request, sql, kind) or _bucket(request, sql, kind) for _, sql, kind in computed]
    if not tests and not columns:
        return None
    known = [step for step in (*tests, *columns) if step is not None]
    if len(known) < len(tests) + len(columns):
        return None
    return _Simple(tuple(known[: len(tests)]), tuple(known[len(tests) :]))


def _test(request: _Request, sql: str) -> _Step | None:
    """The step of a condition; None if it needs DuckDB."""
    return _column_test(request, sql) or _span_test(request, sql) or _pair_test(request, sql)


def _span_test(request: _Request, sql: str) -> _Step | None:
    """A limit of the time between two columns."""
    if (found := _SPAN_TEST.fullmatch(sql)) is not None:
        absolute, one, other, comparison, limit_us = found[1] is not None, found[2], found[3], found[4], int(found[5])
    elif (found := _LATER_TEST.fullmatch(sql)) is not None:
        absolute, one, other, comparison = False, found[1], found[3], found[2]
        limit_us = _length_us(found[5]) * (-1 if found[4] == "-" else 1)
    else:
        return None
    if not {one, other} <= {*request.names}:
        return None
    position, since = request.names.index(one), request.names.index(other)
    if any(request.types[i] not in (TIMESTAMP, TIMESTAMPTZ) for i in (position, since)):
        return None
    return _Step(_FUNCTIONS[comparison], position, pa.scalar(limit_us, pa.int64()), since, absolute=absolute)


def _pair_test(request: _Request, sql: str) -> _Step | None:
    """A comparison of two columns of one type."""
    found = _PAIR_TEST.fullmatch(sql)
    if found is None or not {found[1], found[3]} <= {*request.names}:
        return None
    one, other = request.names.index(found[1]), request.names.index(found[3])
    kind = request.types[one]
    if kind != request.types[other] or kind not in (SMALLINT, INTEGER, BIGINT, TIMESTAMP, TIMESTAMPTZ):
        return None
    return _Step(_FUNCTIONS[found[2]], one, None, other=other)


def _bucket(request: _Request, sql: str, kind: SqlType) -> _Step | None:
    """The start of the time window of a column."""
    found = _BUCKET.fullmatch(sql)
    if found is None or found[2] not in request.names or not _length_us(found[1]):
        return None
    position = request.names.index(found[2])
    origin_type = TIMESTAMPTZ if found[4] else TIMESTAMP
    if found[5] != ("TIMESTAMPTZ" if found[4] else "TIMESTAMP") or {kind, request.types[position]} != {origin_type}:
        return None
    return _Step(partial(_floored, size_us=_length_us(found[1]), origin_us=_length_us(found[3])), position, None)


def _length_us(text: str) -> int:
    """The microseconds of an interval of `_LENGTH`."""
    *before, seconds = text.partition(" ")[0].split(":")
    whole, _, fraction = seconds.partition(".")
    minutes = 60 * int(before[0]) + int(before[1]) if before else 0
    return (60 * minutes + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0"))


def _column_test(request: _Request, sql: str) -> _Step | None:
    """A condition on one column."""
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


def _alike(found: Sequence[tuple[str, _Plan]]) -> _Alike:
    first = found[0][1]
    steps = zip(*[plan.simple.steps for _, plan in found if plan.simple is not None], strict=True)
    constants = [None if s[0].constant is None else pa.array([x.constant.as_py() for x in s]) for s in steps]
    return _Alike(tuple(name for name, _ in found), first, tuple(constants))


def _compared(test: _Step, table: pa.Table, constants: pa.Array | None) -> Mask:
    """For each constant and row, whether the test is true. Without constants there is one row of results."""
    hit: Mask
    column = flat(table.column(test.position))
    if constants is None:
        hit = test.function(column).to_numpy(zero_copy_only=False)[None]
        return hit
    valid = validity(column)
    if not pa.types.is_integer(column.type):
        # equal texts have equal positions among the distinct constants
        distinct = constants.unique()
        column, constants = (pc.index_in(a, distinct).fill_null(-1) for a in (column, constants))
    hit = _ARRAY_FUNCTIONS[test.function](words(column)[None], words(constants)[:, None])
    return hit if valid is None else hit & valid


def _sums(step: _Step, table: pa.Table, constants: pa.Array | None, which: Rows, rows: Rows) -> tuple[pa.Array, Mask]:
    """The values of a computed column for pairs of projections and rows, and a mask of those out of range."""
    column = flat(table.column(step.position))
    one, other = words(column)[rows], words(constants)[which]
    made = _ARRAY_FUNCTIONS[step.function](one, other)
    signs = one ^ made
    wrong = (signs & (other ^ made if step.function is pc.add_checked else one ^ other)) < 0
    valid = validity(column)
    if valid is None:
        return pa.array(made), wrong
    valid = valid[rows]
    return pa.array(made, mask=~valid), wrong & valid


def _literal(connection: duckdb.DuckDBPyConnection, expr: str, kind: SqlType) -> pa.Scalar | None:
    """The value of a literal; None if it has none of this type: then DuckDB evaluates the literal, and errors are
    counted.
    """
    try:
        table = connection.execute(f"SELECT CAST({expr} AS {kind.duckdb})").to_arrow_table()
    except VALUE_ERRORS:
        return None
    return as_type(table.column(0), kind.arrow)[0]
