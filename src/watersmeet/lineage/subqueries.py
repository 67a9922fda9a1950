"""Named queries, scalar subqueries and recursion as parts of a plain tree, whose rows are explained like those of a
join.

Only batch queries have these. A recursion is explained round by round. The first round is the result of the anchor;
each later round is the result of the step over the previous round. So no row is its own origin. The rows of the rounds
are lent to the connection that explains a row, under the names that this module creates.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from itertools import count
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import exp

from watersmeet.algebra.bounded import Named, PastScan, Recursion
from watersmeet.algebra.nodes import (
    Aggregate,
    AggregateCall,
    Apply,
    Column,
    Filter,
    Join,
    KeyPair,
    Node,
    Project,
    Scan,
    SortKey,
    TopN,
    Union,
    Unnest,
    Values,
    WindowCall,
)
from watersmeet.algebra.scalars import Scalar, column_ref
from watersmeet.algebra.trees import Rule, read, transform_up, walk
from watersmeet.database.reading import conformed, lent
from watersmeet.errors import error
from watersmeet.store.changes import quoted
from watersmeet.values.types import BIGINT, Field, arrow_schema

#: Fields of nodes whose texts are never column ids.
_NO_IDS: Final = frozenset({"clock", "name", "relation_id", "relation_name", "source_names"})


def inlined(tree: Node) -> Node:
    """The tree in which named queries are inlined wherever they are read, each time with new column ids."""
    copies = count(1)

    def in_place(node: Node) -> Node:
        if not isinstance(node, Named) or node.definition is None:
            return node
        copy = _with_ids(node.definition, f".{next(copies)}")
        return Project(copy, node.outputs, tuple(read(c) for c in copy.columns))

    return transform_up(tree, in_place)


def _with_ids(tree: Node, end: str) -> Node:
    """The tree with this suffix on the ids of all columns that it creates."""
    ids = {c.id: c.id + end for node in walk(tree) for c in node.columns}
    references = {old: column_ref(new) for old, new in ids.items()}

    def renamed(value: Any) -> Any:
        if isinstance(value, Scalar):
            return value.substitute(references)
        if isinstance(value, Column):
            return replace(value, id=ids.get(value.id, value.id))
        if isinstance(value, str):
            return ids.get(value, value)
        if isinstance(value, tuple):
            return tuple(map(renamed, value))
        if isinstance(value, (Node, AggregateCall, KeyPair, SortKey, WindowCall)):
            names = [f.name for f in fields(value) if f.name not in _NO_IDS]  # type: ignore[arg-type]
            return replace(value, **{name: renamed(getattr(value, name)) for name in names})  # type: ignore[type-var]
        return value

    made: Node = renamed(tree)
    return made


def has_single_values(tree: Node) -> bool:
    """Whether the query fails if one of its subqueries returns several rows, unlike a join."""
    return any(isinstance(n, Apply) and n.kind == "scalar" for n in walk(tree))


def with_joined_values(tree: Node) -> Node:
    """A tree with joins for scalar subqueries; it has the same rows if each subquery returns at most one row.

    Apply(scalar, a, b)  ->  Project(a.*, b.x, Apply(left, a, b))
    Apply(array, a, b)   ->  Project(a.*, coalesce(l, []), Apply(left, a, Aggregate([], array_agg(b.x) AS l, b)))
    """
    numbers = count(1)

    def joined(node: Node) -> Node:
        if not isinstance(node, Apply) or node.kind not in ("scalar", "array"):
            return node
        right = node.right if node.kind == "scalar" else _collected(node, f"#a{next(numbers)}")
        (column,) = right.columns
        value = read(column)
        if node.kind == "array":
            nothing = exp.cast(exp.Array(expressions=[]), column.type.duckdb, dialect="duckdb")
            value = Scalar(exp.Coalesce(this=value.expression, expressions=[nothing]), column.type, False)
        return Project(Apply(node.left, right, "left"), node.columns, (*map(read, node.left.columns), value))

    return transform_up(tree, joined)


def _collected(node: Apply, name: str) -> Node:
    """One row with the array of the values of the right side, in its order."""
    assert node.mark is not None
    right, (column,) = node.right, node.right.columns
    value, order = read(column), tuple[SortKey, ...]()
    if isinstance(right, Project) and isinstance(right.input, TopN):
        (value,), right = right.exprs, right.input
    if isinstance(right, TopN):
        order = right.order
    call = AggregateCall("array_agg", value, None, False, node.mark.type, order=order)
    return Aggregate(right, (), (call,), (Column(name, column.name, node.mark.type),))


_ROW_BY_ROW: Final = (Filter, Named, PastScan, Project, Scan, Union, Unnest, Values)


def all_name(recursion: Recursion) -> str:
    """The name of the rows of all rounds, whose last column is the number of the round."""
    return f"{recursion.name} rounds"


def round_name(recursion: Recursion, number: int) -> str:
    """The name of the rows of one round."""
    return f"{recursion.name} round {number}"


def all_rounds(recursion: Recursion) -> Node:
    """The lent rows of all rounds of a recursion."""
    return Named(all_name(recursion), None, recursion.outputs)


def numbered_rounds(recursion: Recursion, number: Column) -> Node:
    """The lent rows of all rounds, each with the number of its round."""
    return Named(all_name(recursion), None, (*recursion.outputs, number))


def of_round(recursion: Recursion, number: int) -> Node:
    """The query of one round. Rounds are counted from 1."""
    if number == 1:
        return recursion.anchor
    return _over(recursion, round_name(recursion, number - 1))


def of_all_rounds(recursion: Recursion) -> Node | None:
    """The query of all rounds except the first; None if the step can't be computed over all rows at once."""
    alone = all(
        isinstance(n, _ROW_BY_ROW) or (isinstance(n, Join) and n.kind in ("inner", "semi"))
        for n in walk(recursion.step)
    )
    return _over(recursion, all_name(recursion)) if alone else None


def reads_rounds_within(recursion: Recursion) -> bool:
    """Whether a recursion within its step reads its rounds."""
    within = [n for n in walk(recursion.step) if isinstance(n, Recursion)]
    return any(_is_round(n, recursion) for inner in within for n in walk(inner))


def _is_round(node: Node, recursion: Recursion) -> bool:
    return isinstance(node, Named) and node.definition is None and node.name == recursion.name


def _over(recursion: Recursion, name: str) -> Node:
    def read(node: Node) -> Node:
        return Named(name, None, node.columns) if _is_round(node, recursion) else node

    rule: Rule = read
    return transform_up(recursion.step, rule)


#: The maximum number of rounds of one recursion.
MOST_ROUNDS: Final = 1000

_NUMBER: Final = Field("round", BIGINT, nullable=False)


def lend_rounds(
    tree: Node,
    name: str,
    text: Callable[[Node], str],
    connection: duckdb.DuckDBPyConnection,
    entered: ExitStack,
) -> None:
    """Lends the rows of each round of all recursions of the query of a view `name` until `entered` ends.

    text: returns the SQL of a part of the query. Raises FEATURE_NOT_SUPPORTED for more than `MOST_ROUNDS` rounds.
    """
    done = set()
    for node in reversed(list(walk(tree))):
        if isinstance(node, Recursion) and node.name not in done:
            done.add(node.name)
            _lend(node, name, text, connection, entered)


def _lend(
    recursion: Recursion,
    name: str,
    text: Callable[[Node], str],
    connection: duckdb.DuckDBPyConnection,
    entered: ExitStack,
) -> None:
    fields = tuple(Field(f"c{i}", c.type) for i, c in enumerate(recursion.outputs))
    schema = arrow_schema((*fields, _NUMBER), positional=False)
    rounds, every = [schema.empty_table()], all_name(recursion)
    for number in range(1, MOST_ROUNDS + 2):
        tree = of_round(recursion, number)
        names = ", ".join(quoted(c.id) for c in tree.columns)
        made = f"SELECT {names} FROM ({text(tree)})"
        if recursion.distinct:
            with lent(connection, pa.concat_tables(rounds).drop_columns([_NUMBER.name]), fields, every):
                found = connection.execute(f"SELECT DISTINCT * FROM ({made}) EXCEPT SELECT * FROM {quoted(every)}")
                rows = found.to_arrow_table()
        else:
            rows = connection.execute(made).to_arrow_table()
        if not rows.num_rows:
            break
        rows = conformed(rows, arrow_schema(fields, positional=False))
        entered.enter_context(lent(connection, rows, fields, round_name(recursion, number)))
        rounds.append(rows.append_column(schema.field(_NUMBER.name), pa.array(np.full(rows.num_rows, number))))
    else:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"a row of {name} can't be explained",
            detail=f"It has a recursion of more than {MOST_ROUNDS} rounds.",
        )
    entered.enter_context(lent(connection, pa.concat_tables(rounds), (*fields, _NUMBER), every))
