"""RETURNING of rows that are matched with those of other relations (PostgreSQL 17, "UPDATE", "DELETE")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import Relation
from watersmeet.database.assignment import joined
from watersmeet.database.reading import BatchQuery, batch_query, table_tree
from watersmeet.database.sessions.context import Session
from watersmeet.dialects.tree.queries import name_of
from watersmeet.dialects.tree.statements import Delete, Insert, MergeInto, Update
from watersmeet.values.types import Field, Schema, SqlType

#: The prefix of columns with values of RETURNING that are from other relations.
_BESIDE: Final = "returning "


@dataclass(frozen=True)
class Returned:
    """RETURNING of a statement, perhaps with values of other relations.

    items: the items, in which columns stand for `values`. kinds: the types of the values, once they are known. alias:
    the other name of the table of an INSERT.
    """

    items: tuple[exp.Expression, ...]
    values: tuple[exp.Expression, ...] = ()
    kinds: tuple[SqlType, ...] = ()
    alias: str | None = None

    def bound(self, query: BatchQuery) -> Returned:
        """With the types of the values, which are the last columns of a query."""
        last = query.columns[len(query.columns) - len(self.values) :]
        return replace(self, kinds=tuple(c.type for c in last))

    @property
    def beside(self) -> Schema:
        """The columns with the values."""
        return tuple(Field(f"{_BESIDE}{i}", kind) for i, kind in enumerate(self.kinds))

    def relation(self, relation: Relation) -> Relation:
        """The relation with a column for each value."""
        return replace(relation, columns=(*relation.columns, *self.beside))

    def rows(self, rows: pa.Table, beside: pa.Table | None) -> pa.Table:
        """The changed rows with the values."""
        for i, values in enumerate(beside.columns if beside is not None else ()):
            rows = rows.append_column(f"{_BESIDE}{i}", values)
        return rows

    def query(self, session: Session, relation: Relation, statement: Insert | Update | Delete) -> BatchQuery:
        """The query for the items over the changed rows, which have the columns of `relation`."""
        alias = self.alias if isinstance(statement, Insert) else statement.alias
        tree = exp.select(*self.items).from_(table_tree(relation, alias), copy=False)
        catalog = session.catalog.with_relation(relation) if self.values else None
        query = batch_query(session, tree, statement.text, catalog)
        return replace(query, origins=tuple(None if o and o[1].startswith(_BESIDE) else o for o in query.origins))


def returned(session: Session, relation: Relation, statement: Insert | Update | Delete | MergeInto) -> Returned | None:
    """The RETURNING of a statement; None without one."""
    if statement.returning is None:
        return None
    if isinstance(statement, Insert) or not _sources(statement):
        return Returned(statement.returning)
    shown, values = statement.alias or relation.name, list[exp.Expression]()
    names, items = [c.name for c in relation.columns], list(_expanded(session, relation, statement))

    def beside(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return node
        qualifier = node.args.get("table")
        own = name_of(node.this) in names if qualifier is None else name_of(qualifier) == shown
        if own:
            return node
        values.append(node.copy())
        return exp.column(exp.to_identifier(f"{_BESIDE}{len(values) - 1}", quoted=True))

    made = []
    for item in items:
        new = item.transform(beside)
        if isinstance(item, exp.Column) and isinstance(new, exp.Column) and new.name.startswith(_BESIDE):
            new = exp.alias_(new, name_of(item.this), quoted=True)
        made.append(new)
    return Returned(tuple(made), tuple(values))


def _sources(statement: Update | Delete | MergeInto) -> tuple[exp.Expression, ...]:
    return (statement.source,) if isinstance(statement, MergeInto) else statement.sources


def _expanded(session: Session, relation: Relation, statement: Update | Delete | MergeInto) -> Iterator[exp.Expression]:
    """The items of RETURNING with the columns of `*` and of `relation.*`. Those of MERGE's source come first in `*`."""
    shown = exp.to_identifier(statement.alias or relation.name, quoted=True)
    for item in statement.returning or ():
        qualifier = item.args.get("table") if isinstance(item, exp.Column) else None
        if not item.is_star:
            yield item
            continue
        own = qualifier is not None and name_of(qualifier) == shown.name
        listed, sources = [c.name for c in relation.columns if c.name not in relation.unlisted], _sources(statement)
        columns = [exp.column(exp.to_identifier(name, quoted=True), shown.copy()) for name in listed]
        others = [qualifier] if qualifier is not None else [_alias(source) for source in _items(sources)]
        beside = []
        for name in others if not own else ():
            star = exp.Column(this=exp.Star(), table=name.copy())
            query = batch_query(session, joined(exp.select(star), sources), statement.text)
            beside += [exp.column(exp.to_identifier(c.name, quoted=True), name.copy()) for c in query.columns]
        columns = columns if own or qualifier is None else []
        yield from (*beside, *columns) if isinstance(statement, MergeInto) else (*columns, *beside)


def _items(sources: Sequence[exp.Expression]) -> Iterator[exp.Expression]:
    for source in sources:
        yield source
        yield from (join.this for join in source.args.get("joins") or ())


def _alias(item: exp.Expression) -> exp.Expression:
    alias = item.args.get("alias")
    found: exp.Expression = item.this if alias is None else alias.this
    return found
