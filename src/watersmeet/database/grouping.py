"""Group commit: the rows of INSERTs of several sessions, which need no query, in one commit.

An INSERT outside of a transaction is a separate transaction. The group commits all of them in one step, in the order of
their arrival, and each is acknowledged once the commit exists. If the group fails, each transaction is committed
separately, so that only those with wrong rows fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Final

import pyarrow as pa

from watersmeet.catalog import Catalog, Relation, Table
from watersmeet.database.constraints import keyed, keys_of, known_keys, with_values
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.rowchecks import check_rows
from watersmeet.database.sessions.context import Session
from watersmeet.database.transaction import Change, Row
from watersmeet.database.writing import apply, in_stored_form, table_of, upserted
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.store.commits import Commit

#: Properties that don't change how rows are written.
_HARMLESS: Final = frozenset(
    {"id", "name", "columns", "primary_key", "append_only", "sql", "depends_on", "dialect", "schema", "path", "ready"}
    | {"known", "functions", "since", "fills", "dropped", "defaults", "declared", "comment", "comments", "key"}
    | {"uniques", "rejects_duplicates"}
)


def takes_rows(relation: Relation) -> bool:
    """Whether rows of a table are stored as they are given: no expression, rule or limit applies to them, besides the
    lengths of varchar.
    """
    return (
        type(relation) is Table
        and all(f.name in _HARMLESS or getattr(relation, f.name) == _default(f) for f in fields(relation))
        and all(d.is_name or d.name == "varchar" for d in relation.declared.values())
    )


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


@dataclass(eq=False)
class RowInsert:
    """The rows of one transaction for one table, with the values of its columns in order.

    catalog: the catalog from which the INSERT was planned. outdated: whether a newer one exists, so that nothing was
    written. failure: the error, after which nothing was written.
    """

    session: Session
    catalog: Catalog
    relation: Relation
    rows: Sequence[Row]
    outdated: bool = False
    failure: Exception | None = None


def commit_rows(database: OpenDatabase, inserts: Sequence[RowInsert]) -> None:
    """Commits all transactions in one step. Each then reports whether it failed."""
    with database.guard:
        for one in inserts:
            one.outdated = one.catalog is not database.catalog
        current = [one for one in inserts if not one.outdated]
        head = database.log.head()
        try:
            _commit(database, current)
        except Exception as cause:
            # After a disk error the commit may still exist.
            if len(current) == 1 or not isinstance(cause, Error) or database.log.head() != head:
                _fail(current, cause)
                return
            for one in current:
                _commit_one(database, one)


def _commit_one(database: OpenDatabase, insert: RowInsert) -> None:
    try:
        _commit(database, [insert])
    except Exception as cause:
        _fail([insert], cause)


def _fail(inserts: Sequence[RowInsert], cause: Exception) -> None:
    for one in inserts:
        one.failure = cause


def _commit(database: OpenDatabase, inserts: Sequence[RowInsert]) -> None:
    by_relation: dict[str, list[RowInsert]] = {}
    for one in inserts:
        by_relation.setdefault(one.relation.id, []).append(one)
    changes: dict[str, Change] = {}
    written: dict[tuple[str, tuple[str, ...]], Hashes] = {}
    for relation_id, group in by_relation.items():
        session, relation = group[0].session, group[0].relation
        rows = table_of(relation, [row for one in group for row in one.rows])
        check_rows(relation, rows, None)
        is_new = bool(relation.primary_key)
        for columns in dict.fromkeys(filter(None, (relation.primary_key, *(k.columns for k in keys_of(relation))))):
            known = known_keys(session, keyed(relation, columns))
            if known is not None:
                written[relation_id, columns] = known.hashes(with_values(rows, columns))
            is_new = is_new and known is not None and known.are_new(written[relation_id, columns])
            if keys_of(relation) and (known is None or not known.are_new(written[relation_id, columns])):
                return _commit_checked(inserts, rows)
        change = Change(rows) if is_new else upserted(session, relation, rows)
        changes[relation_id] = in_stored_form(relation, change)
    changes = {i: c for i, c in changes.items() if c.table.num_rows}
    if changes:
        _note(database, database.commit(changes), written)
    for one in inserts:
        one.session.writes.pending = True
    return None


def _commit_checked(inserts: Sequence[RowInsert], rows: pa.Table) -> None:
    """Commits the rows of one transaction whose keys may exist. Raises UNIQUE_VIOLATION, also for several
    transactions, of which each must then be committed separately.
    """
    if len(inserts) > 1:
        raise error("UNIQUE_VIOLATION", "a key may exist")
    session, relation = inserts[0].session, inserts[0].relation
    apply(session, relation, upserted(session, relation, rows))


def _note(database: OpenDatabase, commit: Commit, written: Mapping[tuple[str, tuple[str, ...]], Hashes]) -> None:
    """Adds the keys of a commit to the known ones, which are then not read again."""
    for key, hashes in written.items():
        known = database.key_hashes[key]
        known.add(hashes)
        known.upto = commit.number
