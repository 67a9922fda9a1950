"""Binds the location of a record in its topic, for queries that end: `_meta.partition`, `_meta.offset`,
`LAST_OFFSET()`.

A topic in the database has one partition, 0. The offset of a record is the number of earlier records, and the records
have no headers. Brokers assign the offsets of Kafka topics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.arrivals import Window, WindowCall, WindowFrame
from watersmeet.algebra.nodes import Node, Project
from watersmeet.algebra.scalars import Scalar, SortKey
from watersmeet.algebra.trees import read
from watersmeet.binder.clauses.timewindows import arrivals
from watersmeet.binder.context.binding import Environment
from watersmeet.binder.context.rules import Binding, NamedItem, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn
from watersmeet.catalog import LAST_OFFSET, RECORD_HEADERS, RECORD_OFFSET, RECORD_PARTITION, Relation
from watersmeet.expressions.context import duckdb_cast, fill, of_scalar
from watersmeet.values.types import BIGINT, INTEGER, JSONB

_NAMES: Final = frozenset({RECORD_PARTITION, RECORD_OFFSET, RECORD_HEADERS, LAST_OFFSET})
_FROM_START: Final = WindowFrame("rows", None, 0)
_ALL: Final = WindowFrame("rows", None, None)


def browsed(relation: Relation, item: NamedItem, sourced: Sourced, env: Environment, binding: Binding) -> Sourced:
    """The rows of a topic with the columns of this module that its query names; other relations are unchanged.

    Raises FEATURE_NOT_SUPPORTED for the offsets of a topic whose records have no order.
    """
    named = _NAMES & {c.name for c in item.node.root().find_all(exp.Column)}
    own = {c.name for c in relation.columns}
    if relation.topic is None or not named - own:
        return sourced
    tree, scope = sourced
    if RECORD_OFFSET in own:
        by_name = {c.name: c.value.finish() for c in scope.tables[0].columns}
        rows, last = _greatest(tree, by_name[RECORD_OFFSET], (by_name[RECORD_PARTITION],), binding)
        return rows, _with_columns(scope, [last])
    if not named & {RECORD_OFFSET, LAST_OFFSET}:
        return _with_constants(tree, scope, binding)
    found = arrivals(tree, binding)
    if found is None:
        raise env.not_supported(
            f'the offset of a record of topic "{relation.name}", which a processor writes in the database,',
            item.node,
            hint="Order its records by _meta.timestamp.",
        )
    rows, age = found
    order = tuple(SortKey(read(c), descending=True) for c in age)
    place = binding.new_column("place", BIGINT, nullable=False)
    rows = Window(rows, (), (WindowCall("row_number", (), 0, None, order, _FROM_START, BIGINT),), (place,))
    offset = binding.new_column(RECORD_OFFSET, BIGINT, nullable=False)
    value = Scalar(fill("a0 - 1", read(place).expression), BIGINT, nullable=False)
    rows = Project(rows, (*tree.columns, offset), (*map(read, tree.columns), value))
    rows, last = _greatest(rows, read(offset), (), binding)
    return _with_constants(
        rows, _with_columns(scope, [ScopeColumn(RECORD_OFFSET, of_scalar(read(offset))), last]), binding
    )


def check_running(relation: Relation, item: NamedItem, env: Environment) -> None:
    """Raises FEATURE_NOT_SUPPORTED if a running query names a column that its topic only has in queries that end."""
    select = item.node.find_ancestor(exp.Select)
    if select is None or select.args.get("joins") or relation.topic is None:
        return
    own = {c.name for c in relation.columns}
    lost = next((c for c in select.find_all(exp.Column) if c.name in _NAMES - own), None)
    if lost is not None:
        what = "LAST_OFFSET()" if lost.name == LAST_OFFSET else lost.name
        raise env.not_supported(
            f"{what} in SELECT STREAM and SELECT TABLE of a topic in the database"
            if RECORD_OFFSET not in own
            else f"{what} in SELECT STREAM and SELECT TABLE",
            lost,
            hint="Read the topic by a SELECT without these words"
            + ("." if RECORD_OFFSET in own else ", or create it in Kafka (SET kafka.bootstrap.servers)."),
        )


def _greatest(rows: Node, offset: Scalar, partition: tuple[Scalar, ...], binding: Binding) -> tuple[Node, ScopeColumn]:
    """The rows with the last offset of the partition of each record."""
    last = binding.new_column(LAST_OFFSET, BIGINT, nullable=True)
    rows = Window(rows, partition, (WindowCall("max", (offset,), 0, None, (), _ALL, BIGINT),), (last,))
    return rows, ScopeColumn(LAST_OFFSET, of_scalar(read(last)))


def _with_constants(rows: Node, scope: Scope, binding: Binding) -> Sourced:
    """The rows with partition 0 and without headers."""
    partition = binding.new_column(RECORD_PARTITION, INTEGER, nullable=False)
    headers = binding.new_column(RECORD_HEADERS, JSONB, nullable=True)
    values = (
        Scalar(exp.Literal.number(0), INTEGER, nullable=False),
        Scalar(duckdb_cast(exp.null(), JSONB), JSONB),
    )
    made = Project(rows, (*rows.columns, partition, headers), (*map(read, rows.columns), *values))
    return made, _with_columns(scope, [ScopeColumn(c.name, of_scalar(read(c))) for c in (partition, headers)])


def _with_columns(scope: Scope, columns: list[ScopeColumn]) -> Scope:
    """The scope of a relation with additional columns, which `*` omits."""
    added = tuple(replace(c, unlisted=True) for c in columns)
    table = replace(scope.tables[0], columns=(*scope.tables[0].columns, *added))
    return replace(scope, tables=(table,), visible=(*scope.visible, *added))
