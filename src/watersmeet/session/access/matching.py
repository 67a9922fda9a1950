"""The rows that UPDATE and DELETE change, as they were and as they are to be."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from watersmeet.catalog import Relation
from watersmeet.dialects.tree.statements import Statement, Update
from watersmeet.session.access.assignment import Target, named_targets
from watersmeet.session.access.columnvalues import check_given
from watersmeet.session.access.context import Session
from watersmeet.session.access.reading import Bounded, bounded, table_tree
from watersmeet.session.access.rows import converted


def assigned(relation: Relation, statement: Update) -> tuple[Target, ...]:
    """The columns that an UPDATE sets. UNDEFINED_COLUMN, DUPLICATE_COLUMN; errors of columns that can't be given."""
    found = named_targets(relation, tuple(n for n, _ in statement.assignments), statement)
    check_given(relation, found, statement)
    return found


def matching(
    session: Session,
    relation: Relation,
    alias: str | None,
    where: exp.Expression | None,
    values: tuple[exp.Expression, ...],
    statement: Statement,
) -> Bounded:
    """The query for the rows that `where` selects: all columns, then `values`."""
    shown = alias or relation.name
    columns = [
        exp.column(exp.to_identifier(c.name, quoted=True), exp.to_identifier(shown, quoted=True))
        for c in relation.columns
    ]
    tree = exp.select(*columns, *values, copy=False).from_(table_tree(relation, alias), copy=False)
    if where is not None:
        tree = tree.where(where, copy=False)
    return bounded(session, tree, statement.text)


def both_images(query: Bounded, relation: Relation, targets: tuple[Target, ...]) -> Bounded:
    """The query for old and new row side by side, made from one for the old row and the new values."""
    width = len(relation.columns)
    names = [f"x{i}" for i in range(len(query.columns))]
    old = [f"{names[i]} AS o{i}" for i in range(width)]
    values = {
        t.column.name: converted(names[width + i], query.columns[width + i].type, t.column.type)
        for i, t in enumerate(targets)
    }
    new = [f"{values.get(c.name, names[i])} AS n{i}" for i, c in enumerate(relation.columns)]
    sql = f"SELECT {', '.join(old + new)} FROM ({query.sql}) AS q({', '.join(names)})"
    return replace(query, sql=sql, exact=(*relation.columns, *relation.columns))
