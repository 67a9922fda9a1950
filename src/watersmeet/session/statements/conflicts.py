"""INSERT … ON CONFLICT: which rows are inserted, and which update existing ones (PostgreSQL, "INSERT")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import Relation, Table, Unique
from watersmeet.database.assignment import Target, both_images, check_given, check_types, named_targets
from watersmeet.database.constraints import duplicate, keyed
from watersmeet.database.reading import (
    BatchQuery,
    lending,
    readable,
    reading,
    rows_read,
    rows_with_keys,
    table_tree,
)
from watersmeet.database.rowchecks import check_rows
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.writing import as_kept, with_generated
from watersmeet.dialects.tree.queries import is_default, node_span
from watersmeet.dialects.tree.statements import Insert, OnConflict
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import error
from watersmeet.store.changes import quoted
from watersmeet.unparsing import to_duckdb
from watersmeet.values.types import arrow_schema

#: The name of the rows of the INSERT in expressions, and their hidden relation, which users can't name.
_EXCLUDED: Final = "excluded"
_EXCLUDED_ID: Final = "?excluded"

_ROWS, _STORED = "_wm_rows", "_wm_stored"


@dataclass(frozen=True)
class Resolved:
    """The effect of an INSERT with ON CONFLICT: the inserted rows, and the old and new forms of the updated rows.

    shown: the inserted and the new rows, in the order of the statement's rows.
    """

    inserted: pa.Table
    old: pa.Table
    new: pa.Table
    shown: pa.Table


def resolved(session: Session, relation: Relation, rows: pa.Table, statement: Insert) -> Resolved:
    """Divides the rows of an INSERT by its clause ON CONFLICT. The caller holds the guard.

    Raises INVALID_COLUMN_REFERENCE without a key over the clause's columns, UNDEFINED_OBJECT for a constraint,
    CARDINALITY_VIOLATION if two rows would update the same row, and errors of the expressions.
    """
    rule = statement.conflict
    assert rule is not None
    if not isinstance(relation, Table) or relation.connector:
        raise not_supported(f"ON CONFLICT of an INSERT into {relation.title}", statement.text, statement.table.span)
    keys = _arbiters(relation, rule, statement)
    none = rows.slice(0, 0)
    if rule.assignments is None:
        inserted = _without_conflicts(session, relation, keys, rows)
        return Resolved(inserted, none, none, inserted)
    session.require("UPDATE", relation, statement.text)
    (key,) = keys
    stored = rows_with_keys(session, keyed(relation, key.columns), rows.select(list(key.columns)))
    if _repeats(session, key, rows):
        raise error_at(
            statement,
            rule.span,
            "CARDINALITY_VIOLATION",
            "ON CONFLICT DO UPDATE command cannot affect row a second time",
            hint="Ensure that no rows proposed for insertion within the same command have duplicate constrained "
            "values.",
        )
    taken = _taken(session, key, rows, stored)
    old, new = _updated(session, relation, key, stored, rows.filter(pa.array(taken)), rule, statement)
    inserted = rows.filter(pa.array(~taken))
    places = np.concatenate([np.flatnonzero(~taken), _places(session, key, rows, old)])
    shown = pa.concat_tables([inserted, new]).take(pa.array(np.argsort(places, kind="stable")))
    return Resolved(inserted, old, new, shown)


def _places(session: Session, key: Unique, rows: pa.Table, old: pa.Table) -> npt.NDArray[np.int64]:
    """The place among the rows of the INSERT of each row that it updates."""
    if rows.num_rows == 1 or not old.num_rows:
        return np.zeros(old.num_rows, np.int64)
    names = list(key.columns)
    tables = {
        _ROWS: rows.select(names).append_column("_n", pa.array(np.arange(rows.num_rows))),
        _STORED: old.select(names).append_column("_m", pa.array(np.arange(old.num_rows))),
    }
    same = " AND ".join(f"r.{quoted(c)} = s.{quoted(c)}" for c in names)
    sql = f'SELECT r."_n" FROM {_ROWS} r JOIN {_STORED} s ON {same} ORDER BY s."_m"'
    found: npt.NDArray[np.int64] = rows_read(session, lambda: lending(session, tables), sql, "").column(0).to_numpy()
    return found


def check_rule(session: Session, relation: Relation, statement: Insert) -> None:
    """Binds the clause ON CONFLICT of an INSERT that does not run, which finds the types of its parameters."""
    rule = statement.conflict
    if rule is None or rule.assignments is None or not isinstance(relation, Table):
        return
    (key,) = _arbiters(relation, rule, statement)
    targets = named_targets(relation, tuple(n for n, _ in rule.assignments), statement)
    _bound(session, relation, key, targets, rule, statement)


def _arbiters(relation: Relation, rule: OnConflict, statement: Insert) -> list[Unique]:
    """The keys whose violation the clause handles: all without a target."""
    primary = [Unique(relation.key_name, relation.primary_key)] if relation.primary_key else []
    keys = [*primary, *relation.uniques]
    if rule.constraint is not None:
        found = [k for k in keys if k.name == rule.constraint.name]
        if not found:
            raise error_at(
                statement,
                rule.constraint.span,
                "UNDEFINED_OBJECT",
                f'constraint "{rule.constraint.name}" for table "{relation.name}" does not exist',
            )
    elif rule.columns:
        columns = {t.column.name for t in named_targets(relation, rule.columns, statement)}
        found = [k for k in keys if {*k.columns} == columns][:1]
        if not found:
            raise error_at(
                statement,
                rule.span,
                "INVALID_COLUMN_REFERENCE",
                "there is no unique or exclusion constraint matching the ON CONFLICT specification",
            )
    else:
        found = keys
    if any(k.deferrable for k in found):
        raise error_at(
            statement,
            rule.span,
            "STATE_MISMATCH",
            "ON CONFLICT does not support deferrable unique constraints/exclusion constraints as arbiters",
        )
    return found


def _taken(session: Session, key: Unique, rows: pa.Table, stored: pa.Table) -> npt.NDArray[np.bool_]:
    """The mask of rows whose key a stored row has."""
    names = list(key.columns)
    numbered = rows.select(names).append_column("_n", pa.array(np.arange(rows.num_rows)))
    same = " AND ".join(f"r.{quoted(c)} = s.{quoted(c)}" for c in names)
    sql = f'SELECT r."_n" FROM {_ROWS} r SEMI JOIN {_STORED} s ON {same}'
    tables = {_ROWS: numbered, _STORED: stored.select(names)}
    found = np.zeros(rows.num_rows, bool)
    found[rows_read(session, lambda: lending(session, tables), sql, "").column(0).to_numpy()] = True
    return found


def _repeats(session: Session, key: Unique, rows: pa.Table) -> bool:
    """Whether two rows have the same key."""
    return rows.num_rows > 1 and bool((_group_sizes(session, key, rows) > 1).any())


def _group_sizes(session: Session, key: Unique, rows: pa.Table) -> npt.NDArray[np.int64]:
    """The number of rows with the key of each row; 1 for a key with NULL."""
    names = ", ".join(map(quoted, key.columns))
    null = " OR ".join(f"{quoted(c)} IS NULL" for c in key.columns)
    numbered = rows.select(list(key.columns)).append_column("_n", pa.array(np.arange(rows.num_rows)))
    sql = f'SELECT CASE WHEN {null} THEN 1 ELSE count(*) OVER (PARTITION BY {names}) END FROM {_ROWS} ORDER BY "_n"'
    found: npt.NDArray[np.int64] = (
        rows_read(session, lambda: lending(session, {_ROWS: numbered}), sql, "").column(0).to_numpy()
    )
    return found


def _without_conflicts(session: Session, relation: Relation, keys: Sequence[Unique], rows: pa.Table) -> pa.Table:
    """The rows that conflict with no stored row and with no earlier one of them."""
    for key in keys:
        if rows.num_rows:
            stored = rows_with_keys(session, keyed(relation, key.columns), rows.select(list(key.columns)))
            rows = rows.filter(pa.array(~_taken(session, key, rows, stored)))
    if rows.num_rows < 2 or not keys:
        return rows
    repeated = np.zeros(rows.num_rows, bool)
    for key in keys:
        repeated |= _group_sizes(session, key, rows) > 1
    kept, seen = ~repeated, [set[tuple[object, ...]]() for _ in keys]
    places = np.flatnonzero(repeated)
    few = rows.take(pa.array(places))
    values = [list(zip(*(few.column(c).to_pylist() for c in key.columns), strict=True)) for key in keys]
    for number, place in enumerate(places):  # only rows whose keys occur twice
        own = [listed[number] for listed in values]
        is_new = not any(v in known for v, known in zip(own, seen, strict=True))
        kept[place] = is_new
        for value, known in zip(own, seen, strict=True):
            if is_new and None not in value:
                known.add(value)
    return rows.filter(pa.array(kept))


def _updated(
    session: Session,
    relation: Table,
    key: Unique,
    stored: pa.Table,
    rows: pa.Table,
    rule: OnConflict,
    statement: Insert,
) -> tuple[pa.Table, pa.Table]:
    """The old and the new rows that DO UPDATE changes. rows: those of the INSERT with the keys of the stored rows."""
    assert rule.assignments is not None
    for tree in (*(e for _, e in rule.assignments), *filter(None, [rule.where])):
        query = next(tree.find_all(exp.Query), None)
        if query is not None:
            raise not_supported("a subquery in ON CONFLICT DO UPDATE", statement.text, node_span(query))
    for name, value in rule.assignments:
        if is_default(value):
            raise not_supported("DEFAULT in ON CONFLICT DO UPDATE", statement.text, name.span)
    targets = named_targets(relation, tuple(n for n, _ in rule.assignments), statement)
    check_given(relation, targets, statement)
    query, excluded = _bound(session, relation, key, targets, rule, statement)
    width = len(relation.columns)
    check_types(query.columns[width:], targets, statement)
    images = both_images(query, relation, targets)
    external = {relation.id: stored, excluded.id: rows}
    found = rows_read(
        session, lambda: reading(session, images, newest=True, external=external), images.sql, statement.text
    )
    schema = arrow_schema(relation.columns, positional=False)
    old, new = (
        pa.Table.from_arrays([c.cast(f.type) for c, f in zip(part, schema, strict=True)], schema=schema)
        for part in (found.columns[:width], found.columns[width:])
    )
    new = as_kept(relation, with_generated(relation, new, statement))
    check_rows(relation, new, statement)
    if new.num_rows > 1 and _repeats(session, key, new):
        raise duplicate(relation, key, new)
    return old, new


def _bound(
    session: Session,
    relation: Table,
    key: Unique,
    targets: Sequence[Target],
    rule: OnConflict,
    statement: Insert,
) -> tuple[BatchQuery, Relation]:
    """The query for the existing rows, then the assigned values; and the relation with the rows of the INSERT."""
    assert rule.assignments is not None
    excluded = Table(_EXCLUDED_ID, _EXCLUDED_ID, relation.columns, schema=relation.schema)
    shown = rule.alias or relation.name

    def column(name: str, table: str) -> exp.Column:
        return exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(table, quoted=True))

    same = exp.and_(*(column(c, shown).eq(column(c, _EXCLUDED)) for c in key.columns))
    values = (t.typed(e) for t, (_, e) in zip(targets, rule.assignments, strict=True))
    tree = (
        exp.select(*(column(c.name, shown) for c in relation.columns), *values, copy=False)
        .from_(table_tree(relation, rule.alias), copy=False)
        .join(table_tree(excluded, _EXCLUDED), on=same, copy=False)
    )
    if rule.where is not None:
        tree = tree.where(rule.where, copy=False)
    known = readable(session.catalog)
    catalog = replace(known, relations={**known.relations, excluded.id: excluded})
    query = session.cancellation.computing(lambda: to_duckdb(tree, catalog, statement.text, session.dialect))
    if set(query.depends_on) != {relation.id, excluded.id}:
        raise error("INTERNAL_ERROR", f"ON CONFLICT reads {query.depends_on}")
    return BatchQuery(catalog=catalog, text=statement.text, **vars(query)), excluded
