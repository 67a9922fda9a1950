"""MERGE of tables of the database (PostgreSQL 17, "MERGE").

All rows are found in the content as of the beginning of the statement, and written in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import Relation
from watersmeet.database.committing import own_transaction
from watersmeet.database.reading import BatchQuery, rows_beside, table_tree
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.result import Result
from watersmeet.database.transaction import Change
from watersmeet.database.writing import apply, replacement
from watersmeet.dialects.tree.queries import is_default
from watersmeet.dialects.tree.statements import Delete, Insert, MergeAction, MergeInto, Update
from watersmeet.session.statements.dml import (
    bound_insert,
    deleted_rows,
    incoming_rows,
    insert_rows,
    update_images,
    writable,
)
from watersmeet.store.changes import quoted


@dataclass(frozen=True)
class _Found:
    """The rows of an action. old: those that it changes or deletes. new: those that it writes."""

    old: pa.Table | None = None
    new: pa.Table | None = None
    insert: Insert | None = None
    given: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many rows it affects."""
        rows = self.new if self.old is None else self.old
        return 0 if rows is None else rows.num_rows


def merge_into(session: Session, statement: MergeInto) -> Result:
    """MERGE. Raises CARDINALITY_VIOLATION if several rows of the source change the same row."""
    with session.database.guard:
        relation = session.relation(statement.table, statement)
        for action in statement.actions:
            if action.kind != "nothing":
                made = _statement(statement, action)
                relation = writable(session, statement.table, made, "merge into", changing=not isinstance(made, Insert))
        found = [_found(session, relation, statement, place) for place in range(len(statement.actions))]
        _check_once(session, relation, statement, found)
        with own_transaction(session):
            for rows in found:
                if rows.insert is not None and rows.new is not None:
                    insert_rows(session, relation, rows.new, rows.insert, rows.given)
                elif rows.old is not None and rows.new is not None:
                    apply(session, relation, replacement(rows.old, rows.new), updated=(rows.old, rows.new))
                elif rows.old is not None:
                    apply(session, relation, Change(rows.old, np.full(rows.old.num_rows, -1, np.int64)))
    return Result("MERGE", rowcount=sum(rows.count for rows in found))


def check_merge(session: Session, statement: MergeInto) -> None:
    """Raises the errors of a MERGE without running it."""
    relation = session.relation(statement.table, statement)
    with session.database.guard:
        for place, action in enumerate(statement.actions):
            if action.kind != "nothing":
                made = _statement(statement, action)
                writable(session, statement.table, made, "merge into", changing=not isinstance(made, Insert))
                _found(session, relation, statement, place)


def _statement(statement: MergeInto, action: MergeAction) -> Insert | Update | Delete:
    """The statement of an action, without its condition."""
    text, sql, span, table = statement.text, statement.sql, statement.span, statement.table
    if action.kind == "insert":
        return Insert(text=text, sql=sql, span=span, table=table, columns=action.columns, query=exp.Values())
    sources = (statement.source,) if action.matched else ()
    if action.kind == "delete":
        return Delete(text=text, sql=sql, span=span, table=table, alias=statement.alias, sources=sources)
    return Update(
        text=text,
        sql=sql,
        span=span,
        table=table,
        alias=statement.alias,
        assignments=action.assignments,
        sources=sources,
    )


def _found(session: Session, relation: Relation, statement: MergeInto, place: int) -> _Found:
    """The rows of an action. The caller holds the guard."""
    action = statement.actions[place]
    if action.kind == "nothing":
        return _Found()
    made, where = _statement(statement, action), _condition(statement, relation, place)
    if isinstance(made, Insert):
        pairs = [(n, v) for n, v in enumerate(action.values) if not is_default(v)]
        columns = action.columns
        if not columns:
            columns = tuple(
                replace(statement.table, name=c.name, folded=False, schema=None)
                for c in relation.written[: len(action.values)]
            )
        if len(columns) != len(action.values) and action.values and not all(map(is_default, action.values)):
            message = "INSERT has more expressions than target columns"
            raise error_at(statement, statement.span, "SYNTAX_ERROR", message)
        values = [v.copy() for _, v in pairs] or [exp.null()]
        named = tuple(columns[n] for n, _ in pairs) or (columns[0],)
        query = exp.select(*values).from_(statement.source.copy(), copy=False).where(where, copy=False)
        made = replace(made, columns=named, query=query)
        bound = bound_insert(session, made)
        given = tuple(t.place[0] for t in bound.targets) if pairs else ()
        return _Found(None, incoming_rows(session, bound), made, given)
    made = replace(made, where=where)
    if isinstance(made, Update):
        images = update_images(session, relation, made, repeated=True)
        return _Found(images.old, images.new)
    return _Found(deleted_rows(session, relation, made, repeated=True)[0])


def _condition(statement: MergeInto, relation: Relation, place: int) -> exp.Expression:
    """The condition of an action: ON, none of the earlier actions of its kind, and its own."""
    action = statement.actions[place]
    on = exp.Paren(this=statement.on.copy())
    if action.matched is None:
        inner = exp.select("1").from_(table_tree(relation, statement.alias)).where(on, copy=False)
        on = exp.Not(this=exp.Exists(this=inner))
    elif not action.matched:
        inner = exp.select("1").from_(statement.source.copy()).where(on, copy=False)
        on = exp.Not(this=exp.Exists(this=inner))
    parts: list[exp.Expression] = [on]
    for earlier in statement.actions[:place]:
        if earlier.matched == action.matched:
            condition = exp.true() if earlier.condition is None else earlier.condition.copy()
            parts.append(exp.Not(this=exp.Anonymous(this="coalesce", expressions=[condition, exp.false()])))
    if action.condition is not None:
        parts.append(exp.Paren(this=action.condition.copy()))
    return reduce(lambda left, right: exp.And(this=left, expression=right), parts)


def _check_once(session: Session, relation: Relation, statement: MergeInto, found: Sequence[_Found]) -> None:
    """Raises CARDINALITY_VIOLATION if a row occurs more often among the changed rows than in the table."""
    changed = [rows.old for rows in found if rows.old is not None and rows.old.num_rows]
    if not changed:
        return
    rows = pa.concat_tables(changed)
    columns = ", ".join(quoted(c.name) for c in relation.columns)
    same = " AND ".join(f"a.{quoted(c.name)} IS NOT DISTINCT FROM b.{quoted(c.name)}" for c in relation.columns)
    query = BatchQuery(
        f"SELECT 1 FROM (SELECT {columns}, count(*) AS n FROM {_CHANGED} GROUP BY ALL) a JOIN "
        f"(SELECT {columns}, count(*) AS n FROM {quoted(relation.shown)} GROUP BY ALL) b ON {same} "
        "WHERE a.n > b.n LIMIT 1",
        (),
        session.catalog,
        depends_on=(relation.id,),
    )
    if rows_beside(session, query, rows, relation, _CHANGED).num_rows:
        raise error_at(
            statement,
            statement.span,
            "CARDINALITY_VIOLATION",
            "MERGE command cannot affect row a second time",
            hint="Ensure that not more than one source row matches any one target row.",
        )


_CHANGED = "_watersmeet_changed"
