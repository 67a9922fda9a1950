"""Pushdown of batch queries: the columns, and the comparisons with constants, that a query needs of its tables.

External tables read only these; for stored tables they determine the columns of look-ups. The query itself is unchanged
and evaluates its filters again, so conditions may be omitted, and a server may return too many rows.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from watersmeet.algebra.bounded import Named
from watersmeet.algebra.nodes import Arrivals, Filter, Node, Project, Scan
from watersmeet.algebra.rewrites.pushdown import push_filters
from watersmeet.algebra.scalars import Scalar, conjuncts
from watersmeet.algebra.trees import walk, with_inputs
from watersmeet.catalog import Catalog, ExternalTable, Relation
from watersmeet.connectors.base.sources import Condition, Constant, Operator, Pushdown
from watersmeet.store.inplace import Needed
from watersmeet.unparsing.texts import quoted
from watersmeet.values.types import TIMESTAMP, VARCHAR, Field, SqlType

_OPERATORS: Final[dict[type[exp.Expression], Operator]] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_MIRRORED: Final[dict[Operator, Operator]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: The maximum number of values of IN that are sent to a server.
_MOST_VALUES: Final = 1_000
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?")
_NUMBER: Final = re.compile(r"\d{1,28}(\.\d{1,10})?")
_WITH: Final = re.compile(r"\bWITH\b")


def pushed_down(tree: Node, sql: str, catalog: Catalog) -> tuple[Pushdown, ...]:
    """The pushdown to each external table that a query reads once. A table that it reads twice is read as a whole,
    because both scans must show the same moment.

    sql: the SQL of the query.
    """
    parts = _evaluated_once(tree)
    scans = [
        n
        for part in parts
        for n in walk(part)
        if isinstance(n, Scan) and isinstance(catalog.relations[n.relation_id], ExternalTable)
    ]
    if not scans:
        return ()
    counts = Counter(s.relation_id for s in scans)
    pushed = [n for part in parts for n in walk(push_filters(part))]
    above = {n.input: n.predicate for n in pushed if isinstance(n, Filter) and isinstance(n.input, Scan)}
    return tuple(_needed(s, above.get(s), sql) for s in scans if counts[s.relation_id] == 1)


def stored_reads(tree: Node, sql: str, catalog: Catalog) -> dict[str, Needed]:
    """The columns and conditions with which a query reads each stored relation, by id. A relation that is read
    repeatedly has the columns of all reads, and no conditions.

    sql: the SQL of the query.
    """
    found: dict[str, Needed] = {}
    parts = _evaluated_once(tree)
    once = len(parts) == 1 and _WITH.search(sql) is None  # DuckDB may evaluate parts of WITH repeatedly
    for part in parts:
        above = {
            n.input: n.predicate
            for n in walk(push_filters(part))
            if isinstance(n, Filter) and isinstance(n.input, Scan)
        }
        for node in walk(part):
            scan = node.scan if isinstance(node, Arrivals) else node
            if not isinstance(scan, Scan) or not catalog.relations[scan.relation_id].is_stored:
                continue
            conditions = _conditions(scan, above.get(scan)) if node is scan else ()
            read = frozenset(c.name for c in _read(scan, sql))
            one = Needed(read, conditions, arrival=node is not scan, once=once)
            other = found.get(scan.relation_id)
            found[scan.relation_id] = one if other is None else one.joined(other)
    return found


def key_reads(relation: Relation, rows: pa.Table) -> dict[str, Needed]:
    """The reads, as in `stored_reads`, of a query for the rows of a relation with the keys of `rows`: all columns, and
    as conditions the values of each key column, or their bounds.
    """
    conditions: list[Condition] = []
    for name in relation.primary_key:
        column = relation.column(name)
        found = rows.schema.field(name).type if name in rows.schema.names else None
        if _class(column.type) is None or found != column.type.arrow or not rows.num_rows:
            continue  # DuckDB casts the keys
        stored = replace(column, name=relation.stored.get(name, name))
        values = pc.drop_null(rows.column(name))
        try:
            if len(values) <= _MOST_VALUES:
                conditions.append(Condition(stored, "IN", tuple(pc.unique(values).to_pylist())))
            else:
                low, high = pc.min_max(values).as_py().values()
                conditions += [Condition(stored, ">=", (low,)), Condition(stored, "<=", (high,))]
        except (OverflowError, ValueError):
            pass  # a time that Python does not have
    return {relation.id: Needed(conditions=tuple(conditions))}


def looked_up(tree: Node, catalog: Catalog) -> tuple[tuple[str, str], ...]:
    """Columns of stored relations that must equal constants, as (relation id, column)."""
    found: dict[tuple[str, str], None] = {}
    for part in _evaluated_once(tree):
        found |= dict.fromkeys(_looked_up(part, catalog))
    return tuple(found)


def _looked_up(tree: Node, catalog: Catalog) -> list[tuple[str, str]]:
    nodes = list(walk(tree))
    filters = [n for n in nodes if isinstance(n, Filter)]
    if not filters:
        return []
    if not all(isinstance(f.input, Scan) for f in filters):
        filters = [n for n in walk(push_filters(tree)) if isinstance(n, Filter)]
    return [
        (node.input.relation_id, condition.column.name)
        for node in filters
        if isinstance(node.input, Scan) and catalog.relations[node.input.relation_id].is_stored
        for condition in _conditions(node.input, node.predicate)
        if condition.operator in ("=", "IN")
    ]


@dataclass(frozen=True)
class ValueLookup:
    """A query for columns of the rows of one relation in which a column equals a constant.

    constant: a literal or an open parameter, possibly cast to the column's type or a similar one.
    """

    relation_id: str
    column: Field
    constant: exp.Expression
    names: tuple[str, ...]


def value_lookup(tree: Node) -> ValueLookup | None:
    """The look-up of which a query consists, if it does nothing else."""
    if not (isinstance(tree, Project) and isinstance(tree.input, Filter) and isinstance(tree.input.input, Scan)):
        return None
    scan, condition = tree.input.input, _within(tree.input.predicate.expression)
    known = {c.id: Field(n, c.type, c.nullable) for n, c in zip(scan.source_names, scan.outputs, strict=True)}
    names = [known[e.expression.name].name for e in tree.exprs if isinstance(e.expression, exp.Column)]
    if len(names) < len(tree.exprs) or not isinstance(condition, exp.EQ):
        return None
    for left, right in ((condition.left, condition.right), (condition.right, condition.left)):
        column = _column(left, known.get)
        if column is not None and _is_constant(right):
            return ValueLookup(scan.relation_id, column, right, tuple(names))
    return None


def _is_constant(node: exp.Expression) -> bool:
    return all(isinstance(n, (exp.Literal, exp.Null, exp.Neg, exp.Paren, exp.Cast, exp.DataType)) for n in node.walk())


def constant_value(node: exp.Expression) -> Constant | None:
    """The value of a literal; None if another system could interpret it differently."""
    return _constant(node)


def found_by_key(filter_: Filter) -> Scalar | None:
    """The condition, a key equal to a constant, by which a filter over a relation keeps at most one row."""
    scan = filter_.input
    if not isinstance(scan, Scan) or len(scan.key) != 1:
        return None
    known = {scan.key[0]: Field(scan.key[0], next(c.type for c in scan.outputs if c.id == scan.key[0]))}
    for part in conjuncts(filter_.predicate):
        condition = _condition(part.expression, known.get)
        if condition is not None and condition.operator == "=":
            return part
    return None


def _evaluated_once(tree: Node) -> list[Node]:
    """A query and its WITH queries, each as a separate tree in which the others are leaves.

    The whole query contains a definition once for each reader, so walking it may take exponential time.
    """
    named: dict[str, Node] = {}

    def apart(node: Node) -> Node:
        if not isinstance(node, Named):
            return with_inputs(node, [apart(i) for i in node.inputs])
        if node.definition is not None and node.name not in named:
            named[node.name] = apart(node.definition)
        return replace(node, definition=None)

    return [apart(tree), *named.values()]


def _needed(scan: Scan, predicate: Scalar | None, sql: str) -> Pushdown:
    first = Field(scan.source_names[0], scan.outputs[0].type, scan.outputs[0].nullable)
    return Pushdown(scan.relation_id, _read(scan, sql) or (first,), _conditions(scan, predicate))


def _read(scan: Scan, sql: str) -> tuple[Field, ...]:
    """The columns of a scan that the SQL of its query reads."""
    columns = zip(scan.source_names, scan.outputs, strict=True)
    return tuple(Field(n, c.type, c.nullable) for n, c in columns if sql.count(quoted(c.id)) > 1)


def _conditions(scan: Scan, predicate: Scalar | None) -> tuple[Condition, ...]:
    """The comparisons of a scan's columns with constants among the conjuncts of `predicate`."""
    known = {c.id: Field(n, c.type, c.nullable) for n, c in zip(scan.source_names, scan.outputs, strict=True)}
    found = [_condition(part.expression, known.get) for part in conjuncts(predicate)]
    return tuple(c for c in found if c is not None)


def _condition(node: exp.Expression, known: Callable[[str], Field | None]) -> Condition | None:
    """A comparison of a column with constants; None for any other condition."""
    node, negated = _within(node), False
    if isinstance(node, exp.Not):
        node, negated = _within(node.this), True
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        column = _column(node.this, known)
        return None if column is None else Condition(column, "IS NOT NULL" if negated else "IS NULL")
    if negated:
        return None
    if isinstance(node, exp.In) and not (node.args.get("query") or node.args.get("unnest")):
        return _compared(node.this, "IN", node.expressions, known)
    operator = _OPERATORS.get(type(node))
    if operator is None:
        return None
    return _compared(node.left, operator, [node.right], known) or _compared(
        node.right, _MIRRORED.get(operator, operator), [node.left], known
    )


def _compared(
    left: exp.Expression, operator: Operator, right: Sequence[exp.Expression], known: Callable[[str], Field | None]
) -> Condition | None:
    column = _column(left, known)
    if column is None or not 0 < len(right) <= _MOST_VALUES:
        return None
    values = [_constant(node) for node in right]
    wanted = _class(column.type)
    found = tuple(v for v in values if wanted is not None and v is not None and type(v) in wanted)
    return Condition(column, operator, found) if len(found) == len(values) else None


def _column(node: exp.Expression, known: Callable[[str], Field | None]) -> Field | None:
    """The column of an expression, possibly within lossless casts of numbers."""
    node, casts = _within(node), list[exp.DataType]()
    while isinstance(node, exp.Cast):
        casts.append(node.to)
        node = _within(node.this)
    column = known(node.name) if isinstance(node, exp.Column) else None
    return column if column is not None and all(_keeps(column.type, c) for c in casts) else None


def _keeps(kind: SqlType, to: exp.DataType) -> bool:
    """Whether a cast to a type either keeps a number or fails."""
    if to.is_type(exp.DataType.Type.DECIMAL):
        digits = [int(d.name) for d in to.expressions]
        return len(digits) == 2 and (kind.is_integer or kind.name == "numeric") and _scale(kind) <= digits[1]
    return kind.is_integer and to.is_type(*exp.DataType.SIGNED_INTEGER_TYPES)


def _scale(kind: SqlType) -> int:
    return kind.decimals if kind.name == "numeric" else 0


def _class(kind: SqlType) -> tuple[type, ...] | None:
    """The Python classes of constants whose comparison with a column of a type is the same in all systems."""
    if kind.is_integer or kind.name == "numeric":
        return (int, Decimal)
    if kind == VARCHAR:
        return (str,)
    if kind == TIMESTAMP:
        return (dt.datetime,)
    return (dt.date,) if kind.name == "date" else None


def _constant(node: exp.Expression) -> Constant | None:
    """The value of a literal, which may be cast; None if another system could interpret it differently."""
    node = _within(node)
    if isinstance(node, exp.Neg):
        value = _constant(node.this)
        return negated(value) if isinstance(value, (int, Decimal)) else None
    if isinstance(node, exp.Literal):
        return str(node.name) if node.is_string else _number(node.name)
    return _cast(_constant(node.this), node.to) if isinstance(node, exp.Cast) else None


def negated(value: int | Decimal) -> int | Decimal:
    """The negative number with all digits, which a minus would round."""
    return value.copy_negate() if isinstance(value, Decimal) and value else -value


def _cast(value: Constant | None, to: exp.DataType) -> Constant | None:
    try:
        if isinstance(value, str):
            if to.is_type(exp.DataType.Type.DATE) and _DATE.fullmatch(value):
                return dt.date.fromisoformat(value)
            if to.is_type(exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPNTZ) and _TIMESTAMP.fullmatch(value):
                return dt.datetime.fromisoformat(value)
            return value if to.is_type(*exp.DataType.TEXT_TYPES) and not to.expressions else None
    except ValueError:  # a day that does not exist
        return None
    if isinstance(value, int) and to.is_type(*exp.DataType.SIGNED_INTEGER_TYPES):
        return value
    if isinstance(value, (int, Decimal)) and to.is_type(exp.DataType.Type.DECIMAL) and len(to.expressions) == 2:
        return value if -int(Decimal(value).as_tuple().exponent) <= int(to.expressions[1].name) else None
    return None


def _number(text: str) -> int | Decimal | None:
    if not _NUMBER.fullmatch(text):
        return None
    value = Decimal(text)
    return int(value) if value == int(value) else value


def _within(node: exp.Expression) -> exp.Expression:
    return node.unnest()
