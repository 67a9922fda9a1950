"""Checks the keys and foreign keys of tables (PostgreSQL, "Constraints").

A change is checked on the content that it leaves, after the statement or, for deferred constraints, at COMMIT. COMMIT
checks again what other transactions may have changed since. CHECK and NOT NULL need only the written rows; `writing`
checks them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Catalog, ForeignKey, Relation, Table, Unique
from watersmeet.database.keyhashes import MOST_KEYS, KeyHashes
from watersmeet.database.reading import (
    BatchQuery,
    computed,
    conformed,
    lending,
    omitted,
    reading,
    rows_read,
    rows_with_keys,
    rows_without,
)
from watersmeet.database.rowchecks import check_rows
from watersmeet.database.sessions.context import Session
from watersmeet.database.transaction import Change, Row, Transaction, concurrent, merged
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.store.changes import quoted
from watersmeet.store.inplace import Needed
from watersmeet.values import ReferenceAction
from watersmeet.values.types import arrow_schema

#: Tables of DuckDB with rows, and with old and new keys.
_ROWS, _KEYS = "_wm_rows", "_wm_keys"


@dataclass(frozen=True)
class Cascade:
    """Rows that change because they reference changed rows. new: None if they are deleted."""

    relation: Relation
    old: pa.Table
    new: pa.Table | None = None


def keys_of(relation: Relation) -> tuple[Unique, ...]:
    """The keys of which a table rejects a second row."""
    primary = Unique(relation.key_name, relation.primary_key)
    return (primary, *relation.uniques) if relation.rejects_duplicates else relation.uniques


def references_to(catalog: Catalog, relation_id: str) -> list[tuple[Relation, ForeignKey]]:
    """The foreign keys that reference a table, with their tables."""
    tables = [r for r in catalog.relations.values() if isinstance(r, Table) and r.foreign_keys]
    return [(r, key) for r in tables for key in r.foreign_keys if key.table == relation_id]


def referenced_columns(relation: Relation, key: ForeignKey) -> tuple[str, ...]:
    """The present names of the columns of a table that a foreign key references."""
    names = {stored: name for name, stored in relation.stored.items()}
    return tuple(names.get(c, c) for c in key.referenced)


def is_constrained(catalog: Catalog, relation: Relation) -> bool:
    """Whether changes of a table are checked by this module."""
    if not isinstance(relation, Table):
        return False
    return bool(relation.foreign_keys or keys_of(relation) or references_to(catalog, relation.id))


def known_keys(session: Session, relation: Relation) -> KeyHashes | None:
    """The hashes of the keys of a table as of the newest commit. None for a large table, and for one whose stored
    names differ. The caller holds the guard.
    """
    database = session.database
    if relation.stored or type(relation) is not Table or relation.connector:
        return None
    known, head = database.key_hashes.get((relation.id, relation.primary_key)), database.log.head()
    if known is None or not (known.fits(relation) and known.catch_up(database.log, database.segments)):
        names = ", ".join(map(quoted, relation.primary_key))
        sql = f"SELECT {names} FROM {quoted(relation.shown)} LIMIT {MOST_KEYS + 1}"
        needed = {relation.id: Needed(frozenset(relation.primary_key))}
        query = BatchQuery(sql, (), session.catalog, depends_on=(relation.id,), reads=lambda: needed)
        rows = rows_read(session, lambda: reading(session, query, newest=True), sql, "")
        schema = arrow_schema(tuple(map(relation.column, relation.primary_key)), positional=False)
        known = KeyHashes(relation, conformed(rows, schema), head)
        database.key_hashes[relation.id, relation.primary_key] = known
    return None if known.is_too_large else known


def keyed(relation: Relation, columns: Sequence[str]) -> Relation:
    """The table as if these columns were its primary key, for functions that look keys up."""
    return replace(relation, primary_key=tuple(columns))


def with_values(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The columns of the rows that have no NULL in them."""
    found = rows.select(list(columns))
    return found.drop_null() if any(c.null_count for c in found.columns) else found


def read_keys(session: Session, relation: Relation) -> None:
    """Reads the keys of a table of which it rejects a second row, so that they are known."""
    for key in keys_of(relation):
        known_keys(session, keyed(relation, key.columns))


def note_new_keys(session: Session, transaction: Transaction, relation: Relation, rows: Sequence[Row]) -> bool:
    """Notes the keys of rows. False if the known hashes don't prove that no other row has one of them.

    It neither reads rows nor needs the guard: rows that others commit at the same time are found when these are
    written.
    """
    database, head = session.database, session.database.log.head()
    if relation.id in transaction.unknown_keys:
        return False
    found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for key in keys_of(relation):
        place, known = (relation.id, key.columns), database.key_hashes.get((relation.id, key.columns))
        if key.deferrable or known is None or known.upto != head or not known.fits(keyed(relation, key.columns)):
            return False
        numbers = {c.name: n for n, c in enumerate(relation.columns) if c.name in key.columns}
        values = {c: pa.array([r[n] for r in rows], relation.columns[n].type.arrow) for c, n in numbers.items()}
        hashes = known.hashes(with_values(pa.table(values), key.columns))
        found[place] = listed = hashes.tolist()
        noted = [keys.get(place, set()) for keys in (transaction.key_hashes, transaction.pending_keys)]
        if known.is_too_large or not known.are_new(hashes) or not all(keys.isdisjoint(listed) for keys in noted):
            return False
    for place, listed in found.items():
        transaction.pending_keys.setdefault(place, set()).update(listed)
    return True


def new_keys(session: Session, relation: Relation, rows: pa.Table) -> dict[tuple[str, ...], Hashes] | None:
    """The hashes of the keys of inserted rows, by the columns of each key, if the known hashes prove that no row of the
    newest commit has one of these keys; else None.
    """
    found: dict[tuple[str, ...], Hashes] = {}
    for key in keys_of(relation):
        known = known_keys(session, keyed(relation, key.columns))
        if known is None:
            return None
        found[key.columns] = known.hashes(with_values(rows, key.columns))
        if not known.are_new(found[key.columns]):
            return None
    return found


def check_constraints(
    session: Session,
    relation: Relation,
    change: Change,
    updated: tuple[pa.Table, pa.Table] | None = None,
    *,
    final: bool = False,
) -> Iterator[Cascade]:
    """Checks a change, which the open transaction already shows, and yields the changes that follow from it. The caller
    holds the guard.

    updated: the old and the new rows of an UPDATE. final: whether deferred constraints are checked now. Raises
    UNIQUE_VIOLATION, FOREIGN_KEY_VIOLATION.
    """
    transaction = session.transaction
    assert transaction is not None
    inserted = change.table if change.diff is None else change.table.filter(pa.array(change.diff > 0))
    removed = change.table.slice(0, 0) if change.diff is None else change.table.filter(pa.array(change.diff < 0))
    keys = [k for k in keys_of(relation) if _differ(updated, k.columns)]
    if inserted.num_rows and keys and not _are_new(session, relation, inserted, final=final):
        for key in keys:
            if final or not transaction.defers(relation.id, key):
                _check_key(session, relation, key, inserted)
    for reference in relation.foreign_keys if inserted.num_rows else ():
        if _differ(updated, reference.columns) and (final or not transaction.defers(relation.id, reference)):
            _check_reference(session, relation, reference, inserted)
    references = references_to(session.catalog, relation.id) if removed.num_rows else []
    # NO ACTION comes last: a row that another foreign key deletes does not count.
    for child, reference in sorted(references, key=lambda found: _action(found[1], updated) == "no action"):
        if _differ(updated, referenced_columns(relation, reference)):
            yield from _referencing(session, relation, child, reference, removed, updated, final=final)


def _action(reference: ForeignKey, updated: tuple[pa.Table, pa.Table] | None) -> ReferenceAction:
    return reference.on_delete if updated is None else reference.on_update


def _differ(updated: tuple[pa.Table, pa.Table] | None, columns: Sequence[str]) -> bool:
    """Whether a change may have changed columns; False for an UPDATE of others."""
    if updated is None:
        return True
    old, new = (t.select(list(columns)) for t in updated)
    return not old.equals(new)


def _are_new(session: Session, relation: Relation, inserted: pa.Table, *, final: bool) -> bool:
    """Whether the known hashes prove that no row has a key of the inserted rows."""
    transaction = session.transaction
    assert transaction is not None
    if final or not keys_of(relation):
        return False
    found = new_keys(session, relation, inserted)
    is_new = found is not None
    for key in keys_of(relation):
        own = transaction.key_hashes.setdefault((relation.id, key.columns), set())
        hashes = None if found is None else found.get(key.columns)
        if hashes is None:
            transaction.unknown_keys.add(relation.id)
            continue
        listed = hashes.tolist()
        is_new = is_new and own.isdisjoint(listed)
        own.update(listed)
    return is_new and relation.id not in transaction.unknown_keys


def _check_key(session: Session, relation: Relation, key: Unique, inserted: pa.Table) -> None:
    """Raises UNIQUE_VIOLATION if two rows of the content have the same key as an inserted row."""
    wanted = with_values(inserted, key.columns)
    if not wanted.num_rows:
        return
    found = rows_with_keys(session, keyed(relation, key.columns), wanted)
    if found.num_rows > 1:
        _refuse_duplicates(session, relation, key, {_ROWS: found})


def _refuse_duplicates(session: Session, relation: Relation, key: Unique, tables: dict[str, pa.Table]) -> None:
    names = ", ".join(map(quoted, key.columns))
    sql = f"SELECT {names} FROM {_ROWS} GROUP BY ALL HAVING count(*) > 1 LIMIT 1"
    twice = rows_read(session, lambda: lending(session, tables), sql, "")
    if twice.num_rows:
        raise duplicate(relation, key, twice)


def duplicate(relation: Relation, key: Unique, rows: pa.Table, *, stored: bool = False) -> Error:
    """The error UNIQUE_VIOLATION for the first of `rows`. stored: whether stored rows violate a new constraint."""
    if stored:
        message, verb = f'could not create unique index "{key.name}"', "is duplicated"
    else:
        message, verb = f'duplicate key value violates unique constraint "{key.name}"', "already exists"
    return _violation("UNIQUE_VIOLATION", message, f"{_shown(key.columns, rows)} {verb}.", relation, key.name)


def _violation(condition: str, message: str, detail: str, relation: Relation, constraint: str) -> Error:
    found = error(condition, message, detail=detail)
    found.place, found.constraint = (relation.schema, relation.name, None), constraint
    return found


def _shown(columns: Sequence[str], rows: pa.Table) -> str:
    """The key of the first row, as PostgreSQL shows it."""
    values = [_text(column[0].as_py()) for column in rows.select(range(len(columns))).columns]
    return f"Key ({', '.join(columns)})=({', '.join(values)})"


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return {True: "t", False: "f"}[value] if isinstance(value, bool) else str(value)


def _check_reference(session: Session, relation: Relation, reference: ForeignKey, inserted: pa.Table) -> None:
    """Raises FOREIGN_KEY_VIOLATION if no row of the referenced table has the key of an inserted row."""
    wanted = with_values(inserted, reference.columns)
    if not wanted.num_rows:
        return
    parent = session.catalog.relations[reference.table]
    columns = referenced_columns(parent, reference)
    wanted = wanted.rename_columns(list(columns))
    target = keyed(parent, columns)
    lacking = _lacking(session, target, wanted)
    if lacking.num_rows:
        raise missing(relation, parent, reference, lacking)


def _lacking(session: Session, target: Relation, keys: pa.Table) -> pa.Table:
    """The keys that no row of the newest content has."""
    return rows_without(session, target, keys, rows_with_keys(session, target, keys))


def missing(relation: Relation, parent: Relation, reference: ForeignKey, rows: pa.Table) -> Error:
    """The error FOREIGN_KEY_VIOLATION for the first of `rows`, which lack a row of the referenced table."""
    return _violation(
        "FOREIGN_KEY_VIOLATION",
        f'insert or update on table "{relation.name}" violates foreign key constraint "{reference.name}"',
        f'{_shown(reference.columns, rows)} is not present in table "{parent.name}".',
        relation,
        reference.name,
    )


def _referencing(
    session: Session,
    parent: Relation,
    child: Relation,
    reference: ForeignKey,
    removed: pa.Table,
    updated: tuple[pa.Table, pa.Table] | None,
    *,
    final: bool,
) -> Iterator[Cascade]:
    """What follows for the rows that reference removed rows of a table."""
    transaction = session.transaction
    assert transaction is not None
    action = _action(reference, updated)
    if action == "no action" and not final and transaction.defers(parent.id, reference):
        return
    columns = referenced_columns(parent, reference)
    gone = _lacking(session, keyed(parent, columns), with_values(removed, columns))
    if not gone.num_rows:
        return
    wanted = gone.rename_columns(list(reference.columns))
    rows = rows_with_keys(session, keyed(child, reference.columns), wanted)
    if not rows.num_rows:
        return
    if final and action not in ("no action", "restrict"):
        raise concurrent(f"Rows of {child.title} that reference changed rows of {parent.title} were written since.")
    if action in ("no action", "restrict"):
        shown = rows.select(list(reference.columns))
        raise _violation(
            "FOREIGN_KEY_VIOLATION",
            f'update or delete on table "{parent.name}" violates foreign key constraint "{reference.name}" '
            f'on table "{child.name}"',
            f'{_shown(columns, shown)} is still referenced from table "{child.name}".',
            child,
            reference.name,
        )
    if action == "cascade" and updated is None:
        yield Cascade(child, rows)
    else:
        yield Cascade(child, rows, _with_references(session, child, reference, rows, columns, updated, action))


def _with_references(
    session: Session,
    child: Relation,
    reference: ForeignKey,
    rows: pa.Table,
    columns: Sequence[str],
    updated: tuple[pa.Table, pa.Table] | None,
    action: str,
) -> pa.Table:
    """The rows with other values of a foreign key."""
    texts = {c.name: quoted(c.name) for c in child.columns}
    if action != "cascade":
        now_us = session.database.clock.now_us()
        for name in reference.columns:
            texts[name] = omitted(child, child.column(name), now_us) if action == "set default" else "NULL"
        return computed(session, rows, list(texts.values()), child.columns)
    assert updated is not None
    old, new = (t.select(list(columns)) for t in updated)
    names = [f"o{i}" for i in range(len(columns))], [f"n{i}" for i in range(len(columns))]
    keys = pa.table([*old.columns, *new.columns], names=[*names[0], *names[1]])
    same = " AND ".join(f"r.{quoted(c)} = k.{o}" for c, o in zip(reference.columns, names[0], strict=True))
    texts = {n: f"r.{t}" for n, t in texts.items()} | {
        c: f"k.{n}" for c, n in zip(reference.columns, names[1], strict=True)
    }
    # The order of the rows is that of `rows`, which are replaced one by one.
    numbered = rows.append_column("_n", pa.array(np.arange(rows.num_rows)))
    sql = (
        f"SELECT {', '.join(f'{t} AS c{i}' for i, t in enumerate(texts.values()))} "
        f'FROM {_ROWS} r JOIN (SELECT DISTINCT * FROM {_KEYS}) k ON {same} ORDER BY r."_n"'
    )
    found = rows_read(session, lambda: lending(session, {_ROWS: numbered, _KEYS: keys}), sql, "")
    return conformed(found, arrow_schema(child.columns, positional=False))


def check_at_commit(session: Session) -> None:
    """Checks the constraints of all changes of the open transaction that others may have violated since, and deferred
    ones. The caller holds the guard. Raises UNIQUE_VIOLATION, FOREIGN_KEY_VIOLATION, SERIALIZATION_FAILURE.
    """
    transaction, database = session.transaction, session.database
    assert transaction is not None
    for relation_id, changes in transaction.changes.items():
        relation = session.catalog.relations.get(relation_id)
        if relation is None or not changes or not is_constrained(session.catalog, relation):
            continue
        if relation_id in transaction.unchecked or database.log.head() > transaction.begun[relation_id]:
            for _ in check_constraints(session, relation, merged(changes), final=True):
                raise AssertionError(relation.title)
    tables = transaction.unchecked_tables | (transaction.unchecked & transaction.definitions.made)
    for relation_id in tables & session.catalog.relations.keys():
        check_stored(session, session.catalog.relations[relation_id])
    transaction.unchecked.clear()


def check_stored(session: Session, relation: Relation) -> None:
    """Checks all rows of a table. The caller holds the guard. Raises UNIQUE_VIOLATION, NOT_NULL_VIOLATION,
    CHECK_VIOLATION, FOREIGN_KEY_VIOLATION.
    """
    primary = (Unique(relation.key_name, relation.primary_key),) if relation.primary_key else ()
    for key in (*primary, *relation.uniques):
        _check_stored_key(session, relation, key)
    for reference in relation.foreign_keys:
        _check_stored_references(session, relation, reference)
    if relation.checks or relation.primary_key:
        names = ", ".join(quoted(c.name) for c in relation.columns)
        rows = _stored(session, f"SELECT {names} FROM {quoted(relation.shown)}", relation)
        check_rows(relation, conformed(rows, arrow_schema(relation.columns, positional=False)), None)


def _check_stored_key(session: Session, relation: Relation, key: Unique) -> None:
    """Raises UNIQUE_VIOLATION if two rows of a table have the same key."""
    names = ", ".join(map(quoted, key.columns))
    valid = " AND ".join(f"{quoted(c)} IS NOT NULL" for c in key.columns)
    sql = f"SELECT {names} FROM {quoted(relation.shown)} WHERE {valid} GROUP BY ALL HAVING count(*) > 1 LIMIT 1"
    found = _stored(session, sql, relation)
    if found.num_rows:
        raise duplicate(relation, key, found, stored=True)


def _check_stored_references(session: Session, relation: Relation, reference: ForeignKey) -> None:
    """Raises FOREIGN_KEY_VIOLATION if a row of a table references none."""
    parent = session.catalog.relations[reference.table]
    columns = referenced_columns(parent, reference)
    names = ", ".join(f"c.{quoted(c)}" for c in reference.columns)
    same = " AND ".join(f"c.{quoted(a)} = p.{quoted(b)}" for a, b in zip(reference.columns, columns, strict=True))
    valid = " AND ".join(f"c.{quoted(c)} IS NOT NULL" for c in reference.columns)
    sql = (
        f"SELECT {names} FROM {quoted(relation.shown)} c ANTI JOIN {quoted(parent.shown)} p ON {same} "
        f"WHERE {valid} LIMIT 1"
    )
    found = _stored(session, sql, relation, parent)
    if found.num_rows:
        raise missing(relation, parent, reference, found)


def _stored(session: Session, sql: str, *relations: Relation) -> pa.Table:
    query = BatchQuery(sql, (), session.catalog, depends_on=tuple({r.id for r in relations}))
    return rows_read(session, lambda: reading(session, query, newest=True), sql, "")
