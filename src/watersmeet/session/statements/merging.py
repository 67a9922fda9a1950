"""Statements with several changes that read the same moment: MERGE of tables of the database, and changes in WITH
(PostgreSQL 17, "MERGE", 7.8.4 "Data-Modifying Statements in WITH").

All rows are found in the content as of the beginning of the statement, and written in one commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import Relation, Table
from watersmeet.database.assignment import joined
from watersmeet.database.committing import own_transaction
from watersmeet.database.reading import (
    BatchQuery,
    batch_query,
    described,
    reading,
    rows_beside,
    rows_read,
    runs_on,
    table_tree,
)
from watersmeet.database.returning import Returned, returned
from watersmeet.database.rowchecks import padded
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.result import Result, rows_result
from watersmeet.database.transaction import Change
from watersmeet.database.writing import apply
from watersmeet.dialects.tree.queries import is_default
from watersmeet.dialects.tree.statements import (
    Delete,
    Insert,
    MergeAction,
    MergeInto,
    NamedChange,
    Select,
    Statement,
    Update,
    WithChanges,
)
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.maintenance.refreshing import needed_rows, refresh_read
from watersmeet.session.statements.dml import (
    BoundInsert,
    StagedChange,
    bound_insert,
    deleted_rows,
    described_change,
    incoming_rows,
    planned_change,
    result_of,
    staged_delete,
    staged_insert,
    staged_rows,
    staged_update,
    update_images,
    writable,
)
from watersmeet.session.statements.elsewhere import changed_elsewhere
from watersmeet.store.changes import quoted
from watersmeet.values.types import Schema, arrow_schema


def merge_into(session: Session, statement: MergeInto) -> Result:
    """MERGE. Raises CARDINALITY_VIOLATION if several rows of the source change the same row."""
    with session.database.guard:
        staged = _staged_merge(session, statement)
        with own_transaction(session):
            return staged.written()


def _staged_merge(session: Session, statement: MergeInto) -> StagedChange:
    """The change of a MERGE. The caller holds the guard."""
    relation, asked = _checked(session, statement)
    places = range(len(statement.actions))
    found = [made for place in places if (made := _found(session, relation, statement, place, asked)) is not None]
    old = [rows.old for rows in found if rows.old is not None]
    if _repeats(session, relation, old):
        raise error_at(
            statement,
            statement.span,
            "CARDINALITY_VIOLATION",
            "MERGE command cannot affect row a second time",
            hint="Ensure that not more than one source row matches any one target row.",
        )
    result = Result("MERGE", rowcount=sum(rows.result.rowcount for rows in found))
    if asked is not None:
        results = [rows.result for rows in found] or [_nothing(session, relation, statement, asked)]
        tables = [r.table for r in results if r.table is not None]
        result = rows_result("MERGE", results[0].columns, pa.concat_tables(tables), results[0].origins)

    def write() -> None:
        for rows in sorted(found, key=lambda rows: _ORDER.index(rows.result.command)):
            rows.write()

    return StagedChange(relation, result, write, pa.concat_tables(old) if old else None)


#: The order in which the actions of a MERGE are written: a deleted row leaves its key to an updated or inserted one.
_ORDER: Final = ("DELETE", "UPDATE", "INSERT")


def _checked(session: Session, statement: MergeInto) -> tuple[Relation, Returned | None]:
    """The table of a MERGE, and its RETURNING. Raises PERMISSION_DENIED, READ_ONLY_RELATION."""
    relation = session.relation(statement.table, statement)
    for action in statement.actions:
        if action.kind != "nothing":
            made = _statement(statement, action)
            writable(session, statement.table, made, "merge into", changing=not isinstance(made, Insert))
    asked = returned(session, relation, statement)
    if asked is None:
        return relation, None
    values = [value.copy() for value in asked.values]
    kinds: Schema = ()
    if values:
        kinds = batch_query(session, joined(exp.select(*values), [statement.source]), statement.text).columns
    return relation, replace(asked, kinds=tuple(c.type for c in kinds), alias=statement.alias)


def described_merge_rows(session: Session, statement: MergeInto) -> Result | None:
    """A result with the columns of RETURNING, without changing anything; None without RETURNING."""
    with session.database.guard:
        relation, asked = _checked(session, statement)
        for place, action in enumerate(statement.actions):
            made, where = _statement(statement, action), _condition(statement, relation, place)
            if isinstance(made, Insert):
                _bound_insert(session, relation, statement, action, made, where)
            elif action.kind != "nothing":
                planned_change(session, replace(made, where=where))
        return None if asked is None else replace(_nothing(session, relation, statement, asked), table=None)


def _nothing(session: Session, relation: Relation, statement: MergeInto, asked: Returned) -> Result:
    """The result of a MERGE that changes no row."""
    rows = arrow_schema((*relation.columns, *asked.beside), positional=False).empty_table()
    made = _statement(statement, MergeAction(matched=True, kind="delete"))
    return result_of("MERGE", session, relation, made, _of_action(asked, "DELETE"), rows)


def _of_action(asked: Returned, command: str) -> Returned:
    """RETURNING with the name of the action instead of `merge_action()`."""

    def named(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Anonymous) or node.name.lower() != "merge_action" or node.expressions:
            return node
        return exp.Cast(this=exp.Literal.string(command), to=exp.DataType(this=exp.DataType.Type.TEXT))

    items = []
    for item in asked.items:
        new = item.transform(named)
        is_call = isinstance(item, exp.Anonymous) and new is not item and isinstance(new, exp.Cast)
        items.append(exp.alias_(new, "merge_action") if is_call else new)
    return replace(asked, items=tuple(items))


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


def _found(
    session: Session, relation: Relation, statement: MergeInto, place: int, asked: Returned | None
) -> StagedChange | None:
    """The rows of an action. The caller holds the guard."""
    action = statement.actions[place]
    if action.kind == "nothing":
        return None
    made, where = _statement(statement, action), _condition(statement, relation, place)
    asked = None if asked is None else _of_action(asked, action.kind.upper())
    if isinstance(made, Insert):
        bound, made = _bound_insert(session, relation, statement, action, made, where, asked)
        given = bound.given if any(not is_default(v) for v in action.values) else ()
        rows = incoming_rows(session, bound, () if asked is None else asked.beside)
        return staged_rows(session, relation, rows, made, given, asked)
    made = replace(made, where=where)
    reads = asked if action.matched else None
    if isinstance(made, Update):
        images = update_images(session, relation, made, reads, repeated=True)
        beside = images.beside if reads is not None else _missing(asked, images.old.num_rows)
        result = result_of("UPDATE", session, relation, made, asked, images.new, beside)
        changed = made
        return StagedChange(relation, result, lambda: images.write(session, relation, changed), images.old)
    old, values, _ = deleted_rows(session, relation, made, reads, repeated=True)
    beside = values if reads is not None else _missing(asked, old.num_rows)
    result = result_of("DELETE", session, relation, made, asked, old, beside)
    change = Change(old, np.full(old.num_rows, -1, np.int64))
    return StagedChange(relation, result, lambda: apply(session, relation, change), old)


def _missing(asked: Returned | None, rows: int) -> pa.Table | None:
    """NULLs for the values of the source in rows that it doesn't have."""
    if asked is None:
        return None
    schema = arrow_schema(asked.beside, positional=False)
    return pa.Table.from_arrays([pa.nulls(rows, f.type) for f in schema], schema=schema)


def _bound_insert(
    session: Session,
    relation: Relation,
    statement: MergeInto,
    action: MergeAction,
    made: Insert,
    where: exp.Expression,
    asked: Returned | None = None,
) -> tuple[BoundInsert, Insert]:
    """The INSERT of an action with its query."""
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
    beside = () if asked is None else tuple(value.copy() for value in asked.values)
    query = exp.select(*values, *beside).from_(statement.source.copy(), copy=False).where(where, copy=False)
    made = replace(made, columns=named, query=query)
    return bound_insert(session, made, len(beside)), made


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


def _repeats(session: Session, relation: Relation, changed: Sequence[pa.Table]) -> bool:
    """Whether a row occurs more often among the changed rows than in the table."""
    changed = [rows for rows in changed if rows.num_rows]
    if not changed:
        return False
    rows = pa.concat_tables(changed)
    columns = ", ".join(quoted(c.name) for c in relation.columns)
    same = " AND ".join(f"a.{quoted(c.name)} IS NOT DISTINCT FROM b.{quoted(c.name)}" for c in relation.columns)
    query = BatchQuery(
        f"SELECT 1 FROM (SELECT {columns}, count(*) AS {_COUNT} FROM {_CHANGED} GROUP BY ALL) a JOIN "
        f"(SELECT {columns}, count(*) AS {_COUNT} FROM {quoted(relation.shown)} GROUP BY ALL) b ON {same} "
        f"WHERE a.{_COUNT} > b.{_COUNT} LIMIT 1",
        (),
        session.catalog,
        depends_on=(relation.id,),
    )
    return bool(rows_beside(session, query, rows, relation, _CHANGED).num_rows)


_CHANGED: Final = "_watersmeet_changed"
#: The number of equal rows; no column has this name.
_COUNT: Final = '"?rows"'


def with_changes(session: Session, statement: WithChanges) -> Result:
    """WITH … AS (INSERT | UPDATE | DELETE | MERGE …) ….

    Raises CARDINALITY_VIOLATION if two parts change the same row; PostgreSQL then runs one of them.
    """
    with _described(session, statement) as (_, ids):
        parts = [c.statement for c in statement.changes]
        external = {id(part): _external(session, part) for part in (*parts, statement.main)}
    refresh_read(session, ids)  # not under the guard, as for INSERT
    with session.database.guard:
        staged = []
        with _names(session):
            for change in statement.changes:
                if isinstance(change.statement, Select):
                    query, rows = _selected(session, change.statement, external[id(change.statement)])
                    _name(session, change, *described(rows, query.columns))
                    continue
                made = _staged(session, change.statement)
                staged.append(made)
                if change.statement.returning is not None:
                    assert made.result.table is not None
                    _name(session, change, made.result.columns, made.result.table)
            if isinstance(statement.main, Select):
                query, rows = _selected(session, statement.main, external[id(statement.main)])
                result = rows_result("SELECT", *described(padded(rows, query.columns), query.columns), query.origins)
            else:
                staged.append(_staged(session, statement.main))
                result = staged[-1].result
        for relation in {made.relation.id: made.relation for made in staged}.values():
            changed = [made.old for made in staged if made.relation.id == relation.id and made.old is not None]
            if len(changed) > 1 and _repeats(session, relation, changed):
                message = f"two parts of the statement change the same row of {relation.title}"
                hint = "Change the row in one of them."
                raise error_at(statement, statement.span, "CARDINALITY_VIOLATION", message, hint=hint)
        with own_transaction(session):
            for made in staged:
                made.write()
    return result


def described_changes(session: Session, statement: WithChanges) -> Result | None:
    """A result with the columns of a statement with changes in WITH, without changing anything; None if it returns no
    rows.
    """
    with _described(session, statement) as (result, _):
        return result


def _staged(session: Session, statement: Insert | Update | Delete | MergeInto) -> StagedChange:
    if isinstance(statement, Insert):
        return staged_insert(session, statement)
    if (there := changed_elsewhere(session, statement.table)) is not None:
        what = "DELETE" if isinstance(statement, Delete) else "UPDATE" if isinstance(statement, Update) else "MERGE"
        raise not_supported(f"{what} of {there.title} in WITH", statement.text, statement.table.span)
    if isinstance(statement, Update):
        return staged_update(session, statement)
    return staged_delete(session, statement) if isinstance(statement, Delete) else _staged_merge(session, statement)


@contextmanager
def _names(session: Session) -> Iterator[None]:
    """While it is open, the names of changes in WITH are relations."""
    try:
        yield
    finally:
        session.beside.clear()


def _name(session: Session, change: NamedChange, columns: Schema, rows: pa.Table | None) -> None:
    """Adds the rows that a change returns. Raises INVALID_COLUMN_REFERENCE if it has more names than columns, and
    FEATURE_NOT_SUPPORTED for two columns of one name.
    """
    if len(change.columns) > len(columns):
        has = f'WITH query "{change.name.name}" has {len(columns)} columns available'
        message = f"{has} but {len(change.columns)} columns specified"
        raise error_at(change.statement, change.name.span, "INVALID_COLUMN_REFERENCE", message)
    names = (*change.columns, *(c.name for c in columns[len(change.columns) :]))
    if (twice := next((n for n in names if names.count(n) > 1), None)) is not None:
        what, hint = f'two columns "{twice}" of "{change.name.name}" in WITH', "Give them different names."
        raise not_supported(what, change.statement.text, change.name.span, hint=hint)
    made = tuple(replace(c, name=n) for c, n in zip(columns, names, strict=True))
    relation = Table(change.id, change.id, made)
    schema = arrow_schema(made, positional=False)
    given = schema.empty_table() if rows is None else rows.rename_columns(list(names))
    session.beside[relation.id] = (relation, given)


@contextmanager
def _described(session: Session, statement: WithChanges) -> Iterator[tuple[Result | None, list[str]]]:
    """The columns of the statement's rows, and the ids of the relations that its parts read. While it is open, the
    names of changes are relations without rows.
    """
    ids: list[str] = []
    with _names(session):
        for change in statement.changes:
            result = _described_one(session, change.statement, ids)
            if result is not None:
                _name(session, change, result.columns, None)
        yield _described_one(session, statement.main, ids), [i for i in ids if i not in session.beside]


def _described_one(
    session: Session, statement: Insert | Update | Delete | MergeInto | Select, ids: list[str]
) -> Result | None:
    if isinstance(statement, MergeInto):
        return described_merge_rows(session, statement)
    if isinstance(statement, Select):
        if runs_on(session, statement.query):
            raise not_supported("a change in WITH of a query that runs until it is stopped", statement.text, None)
        query = batch_query(session, statement.query, statement.text)
        ids += query.depends_on
        return Result("SELECT", query.columns, origins=query.origins)
    ids += planned_change(session, statement)[1].depends_on
    return described_change(session, statement)


def _external(session: Session, statement: Statement) -> dict[str, pa.Table]:
    """The rows of external tables that a query reads."""
    if not isinstance(statement, Select):
        return {}
    return dict(needed_rows(session, batch_query(session, statement.query, statement.text).pushdowns))


def _selected(session: Session, statement: Select, external: dict[str, pa.Table]) -> tuple[BatchQuery, pa.Table]:
    """A query after changes in WITH or among them, which reads the moment before them, with its rows."""
    query = batch_query(session, statement.query, statement.text)
    rows = rows_read(
        session,
        lambda: reading(session, query, newest=True, external=external),
        query.sql,
        statement.text,
        session.result_bytes,
    )
    return query, rows
