"""Binds EVENTTIME BY, and groups of records by time: WINDOW BY with GRACE BY.

Lenses SQL, "Time and windows", "Aggregations"; Kafka Streams, "Windowing".

**Windows** (LS-49 to LS-52). A TUMBLE or HOP window is [start, start + size); starts are the multiples of the advance
since 1970. Records of one group that follow each other within the gap form a SESSION. A record without a time is in no
window. The key of a windowed group is an object with the key of the group and the window's start, for a session also
its end, the time of its last record, as Kafka Streams writes it.

**Late records** (LS-53). The clock of a stream is the greatest time of its records in earlier epochs. A record is late
for a window that ended more than the grace period before the clock, and for a session if its own time plus the gap is
that old. A late record has no effect. Kafka Streams would accept it for a session that is still open.

**NULL keys** (LS-54). A record whose grouping value is NULL is in no group, as in Kafka Streams. With several grouping
values the key is an object, which is never NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.arrivals import Window, WindowCall, WindowFrame
from watersmeet.algebra.nodes import Column, Filter, LateRowFilter, Node, Project, Scan, SortKey, Unnest
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import TIME_TYPES, TimeWindow, duration_us, interval_of
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import clocks
from watersmeet.algebra.watermarks import of_scalar as mark_of
from watersmeet.binder.clauses.aggregates import bare, spelled_out
from watersmeet.binder.context.binding import Environment, value_of
from watersmeet.binder.context.rules import Binding, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext
from watersmeet.binder.dialects.lenses.record_joins import GRACE_US
from watersmeet.binder.dialects.lenses.records import metadata_in
from watersmeet.catalog import RECORD_TIME
from watersmeet.dialects.lenses.grammar import RecordSelect
from watersmeet.expressions.context import Value, duckdb_cast, fill
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import BIGINT, BOOLEAN, TIMESTAMP, SqlType
from watersmeet.values.watermarks import Term, Watermark, shifted

#: The maximum number of windows of a record.
_MOST: Final = 1_000_000


def with_event_time(sourced: Sourced, field: exp.Expression, env: Environment, binding: Binding) -> Sourced:
    """Records with the time of EVENTTIME BY. Raises DATATYPE_MISMATCH for a field that is not a time."""
    tree, scope = sourced
    metadata = metadata_in(scope)
    assert metadata is not None, "a topic has records"
    time = _time(bind_value(field, ScopeContext(env.text, scope, "EVENTTIME BY")), field, env)
    made = binding.new_column(RECORD_TIME, TIMESTAMP, time.nullable)
    old = metadata.time.finish().column
    kept = [c for c in tree.columns if c.id != old]
    rows = Project(tree, (*kept, made), (*map(read, kept), time))
    columns = tuple(ScopeColumn(c.name, value_of(made)) if c.name == RECORD_TIME else c for c in scope.visible)
    tables = tuple(
        replace(t, columns=tuple(replace(c, value=value_of(made)) if c.name == RECORD_TIME else c for c in t.columns))
        for t in scope.tables
    )
    return rows, replace(scope, tables=tables, visible=columns, extension=replace(metadata, time=value_of(made)))


def _time(value: Value, field: exp.Expression, env: Environment) -> Scalar:
    """The field as a timestamp, also if it is a date or milliseconds since 1970."""
    if value.type == TIMESTAMP:
        return value.finish()
    if value.type.name in ("date", "timestamptz"):
        return Scalar(duckdb_cast(value.finish().expression, TIMESTAMP), TIMESTAMP, value.nullable)
    if value.type == BIGINT:
        return Scalar(fill("epoch_ms(a0)", value.finish().expression), TIMESTAMP, value.nullable)
    raise env.error(
        "DATATYPE_MISMATCH",
        f"EVENTTIME BY takes a time, not {value.type.sql}",
        field,
        hint="A time is a timestamp, a datetime, a date, or a long with milliseconds since 1970. "
        "Others can be converted in a query of WITH: SELECT STREAM *, CAST(field AS timestamp) AS `@time`.",
    )


def grouped(
    node: exp.Select, group: exp.Group, relation: Node, scope: Scope, env: Environment, binding: Binding
) -> tuple[exp.Select, Node, Scope]:
    """A SELECT with groups, the records in its groups, and their columns, with windows and without NULL keys."""
    nodes = [n for e in spelled_out(group, node.expressions, scope).expressions for n in _listed(e)]
    plain = not any(isinstance(n, (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Literal)) for n in nodes)
    ctx = ScopeContext(env.text, scope, "GROUP BY")
    keys = [bind_value(n, ctx).finish() for n in nodes] if plain else []
    if len(keys) == 1 and keys[0].nullable:
        relation = Filter(relation, _present(keys[0]))
    made: exp.Select = node.copy()
    made.set("group", group.copy())
    if not isinstance(node, RecordSelect) or node.window_by is None:
        check_window(node, env, "WINDOW BY")
        return made, relation, scope
    if not plain:
        raise env.not_supported("WINDOW BY with grouping sets or numbers", group, hint="Group by fields.")
    relation, scope = windowed(node, relation, scope, keys, env, binding)
    start = exp.column(exp.to_identifier(scope.visible[-1].name, quoted=True))
    made.set("group", exp.Group(expressions=[*nodes, start]))
    return made, relation, scope


def _listed(node: exp.Expression) -> list[exp.Expression]:
    """The expressions of an item of GROUP BY, which may be a list in parentheses."""
    node = node.unnest()
    return [n for e in node.expressions for n in _listed(e)] if isinstance(node, exp.Tuple) else [node]


def check_window(node: exp.Select, env: Environment, lacking: str = "an aggregate") -> None:
    """Raises SYNTAX_ERROR for WINDOW BY and GRACE BY in a SELECT without `lacking`."""
    if not isinstance(node, RecordSelect):
        return
    for clause, shown in ((node.window_by, "WINDOW BY"), (node.grace_by, "GRACE BY")):
        if clause is not None:
            raise env.error(
                "SYNTAX_ERROR",
                f"{shown} without {lacking}",
                clause,
                hint="Write SELECT STREAM COUNT(*) … WINDOW BY TUMBLE 5m GRACE BY 1m GROUP BY field.",
            )


def windowed(
    node: RecordSelect, relation: Node, scope: Scope, keys: Sequence[Scalar], env: Environment, binding: Binding
) -> Sourced:
    """The records in their windows, without late records. keys: the grouping values. Raises FEATURE_NOT_SUPPORTED for
    tables.
    """
    metadata, described = metadata_in(scope), node.window_by
    assert metadata is not None
    assert described is not None
    if metadata.nature == "table":
        raise env.not_supported(
            "WINDOW BY over a table",
            described,
            detail="A table has one record of each key, whatever its time.",
            hint="Read the records by SELECT STREAM.",
        )
    lengths = [_length(e, env) for e in described.expressions]
    grace_us = GRACE_US if node.grace_by is None else _length(node.grace_by, env, least=0)
    time = metadata.time.finish()
    rows: Node = Filter(relation, _present(time)) if time.nullable else relation
    time = replace(time, nullable=False)
    windows = _Windows(rows, time, relation, binding, grace_us)
    kind = described.this.name
    if kind == "SESSION":
        rows, start = windows.sessions(lengths[0], keys)
    else:
        size, advance = lengths[0], lengths[-1]
        if not 0 < advance <= size or size // advance >= _MOST:
            raise env.error(
                "INVALID_PARAMETER",
                "the advance of HOP can't exceed its size" if advance > size else "the advance of HOP is too short",
                described,
                hint="Write HOP size, advance: HOP 5m, 1m.",
            )
        rows, start = windows.fixed(size, advance)
    return rows, replace(scope, visible=(*scope.visible, ScopeColumn(start.name, value_of(start))))


class _Windows:
    """The records of `rows` with the start of their windows. time: the time of a record. stream: the records before
    WHERE.
    """

    def __init__(self, rows: Node, time: Scalar, stream: Node, binding: Binding, grace_us: int) -> None:
        self._rows, self._time, self._stream = rows, time, stream
        self._binding, self._grace_us = binding, grace_us
        self._clock, self._mark = _clock(stream, time, binding)

    def fixed(self, size_us: int, advance_us: int) -> tuple[Node, Column]:
        """Windows of a fixed size; a record is in several windows if they overlap."""
        start = self._binding.new_column("@window", TIMESTAMP, nullable=False)
        count = -(-size_us // advance_us)
        window = TimeWindow("hop" if count > 1 else "tumble", advance_us, count * advance_us)
        time = self._time.expression
        if count == 1:
            exprs = (*map(read, self._rows.columns), Scalar(window.last_start(time, TIMESTAMP), TIMESTAMP, False))
            rows: Node = Project(self._rows, (*self._rows.columns, start), exprs)
        else:
            starts = Scalar(window.starts(time, TIMESTAMP), SqlType("array", element=TIMESTAMP))
            rows = Unnest(self._rows, (starts,), (start,))
        if size_us != window.size_us:  # the oldest start may belong to a window that ended before the record
            end = exp.Add(this=read(start).expression, expression=interval_of(size_us))
            rows = Filter(rows, Scalar(exp.GT(this=end, expression=time.copy()), BOOLEAN, nullable=False))
        return self._timely(rows, start.id, size_us - 1), start

    def sessions(self, gap_us: int, keys: Sequence[Scalar]) -> tuple[Node, Column]:
        """The sessions of each group. A session starts at a record that no other record precedes within the gap."""
        new, time = self._binding.new_column, self._time
        given = new("time", TIMESTAMP, nullable=False)
        before, first, start = (new(n, TIMESTAMP, nullable=True) for n in ("before", "first", "@session"))
        own = self._rows.columns
        rows: Node = Project(self._rows, (*own, given), (*map(read, own), time))
        rows = self._timely(rows, given.id, gap_us)
        order, all_before = (SortKey(read(given)),), WindowFrame("rows", None, 0)
        lag = WindowCall("lag", (read(given),), 1, None, order, all_before, TIMESTAMP)
        rows = Window(rows, tuple(keys), (lag,), (before,))
        begins = fill(
            "CASE WHEN a0 IS NULL OR a1 - a0 > a2 THEN a1 END",
            read(before).expression,
            read(given).expression,
            interval_of(gap_us),
        )
        rows = Project(rows, (*own, given, first), (*map(read, (*own, given)), Scalar(begins, TIMESTAMP)))
        last = WindowCall("max", (read(first),), 0, None, order, all_before, TIMESTAMP)
        rows = Window(rows, tuple(keys), (last,), (start,))
        return rows, start

    def _timely(self, rows: Node, column: str, length_us: int) -> Node:
        """The rows for which `column` plus `length_us` and the grace period is not before the clock."""
        late = shifted(self._mark, -length_us - self._grace_us)
        relation_id, name, clock = self._clock
        return LateRowFilter(rows, column, late, relation_id, name, clock) if late else rows


#: The parts of a `LateRowFilter` that describe a separate clock: relation, field, number.
_NewClock = tuple[str, str, str]
_NO_CLOCK: Final = ("", "", "")


def _clock(stream: Node, time: Scalar, binding: Binding) -> tuple[_NewClock, Watermark]:
    """The clock of a stream's times if a new clock is needed, and its watermark.

    The watermark is empty if the times have no clock; then no record is late.
    """
    known = mark_of(time, clocks(stream))
    if known:
        return _NO_CLOCK, known
    node, expression = stream, time.expression
    while isinstance(node, (Filter, Project, Unnest)):
        if isinstance(node, Project):
            values = {c.id: e.expression for c, e in zip(node.outputs, node.exprs, strict=True)}
            expression = Scalar(expression, time.type).substitute(values).expression
        node = node.input
    found = _field(expression, node) if isinstance(node, Scan) else None
    if found is None or not isinstance(node, Scan):
        return _NO_CLOCK, ()
    relation = binding.catalog.relations[node.relation_id]
    if not relation.append_only or relation.is_fed_by_circuit:
        return _NO_CLOCK, ()
    new = (relation.id, found, f"{relation.id}.{found}@{binding.moment}")
    return new, (Term(new[2]),)


def _field(expression: exp.Expression, scan: Scan) -> str | None:
    """The dotted path of the field of a relation that an expression reads as its time; None for other expressions."""
    node, fields = bare(expression), list[str]()
    if isinstance(node, exp.Cast):
        node = bare(node.this)
    elif isinstance(node, exp.Anonymous) and node.name == "epoch_ms":
        node = bare(node.expressions[0])
    while isinstance(node, exp.Anonymous) and node.name == "struct_extract":
        fields.insert(0, node.expressions[1].name)
        node = bare(node.expressions[0])
    columns = zip(scan.outputs, scan.source_names, strict=True)
    column, name = next(((c, n) for c, n in columns if isinstance(node, exp.Column) and c.id == node.name), (None, ""))
    kind = None if column is None else column.type
    for field in fields:
        kind = None if kind is None else dict(kind.fields).get(field)
    return ".".join((name, *fields)) if (kind is not None and kind.name in TIME_TYPES) or kind == BIGINT else None


def _length(node: exp.Expression, env: Environment, least: int = 1) -> int:
    found = duration_us(node)
    if found is None or found < least:
        raise env.error("INVALID_PARAMETER", "a duration above 0 was expected, such as 5m", node)
    return found


def _present(scalar: Scalar) -> Scalar:
    return Scalar(exp.Not(this=exp.Is(this=scalar.expression.copy(), expression=exp.null())), BOOLEAN, nullable=False)
