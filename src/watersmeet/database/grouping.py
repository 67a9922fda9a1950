"""Group commit: the rows of INSERTs, and the UPDATEs and DELETEs by key, of several sessions in one commit.

An INSERT outside of a transaction is a separate transaction. The group commits all of them in one step, in the order of
their arrival, and each is acknowledged once the commit exists. If the group fails, each transaction is committed
separately, so that only those with wrong rows fail.

UPDATEs and DELETEs of the row with a key are applied in the order of their arrival to the newest rows of their keys,
which one query looks up; the commit has the difference. If the group fails, each statement runs the usual way.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from watersmeet.catalog import Catalog, Relation, Table
from watersmeet.database.constraints import keyed, keys_of, known_keys, with_values
from watersmeet.database.keyhashes import KeyRows
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.reading import conformed
from watersmeet.database.rowchecks import check_rows
from watersmeet.database.sessions.context import Session
from watersmeet.database.transaction import Change, Row
from watersmeet.database.writing import apply, in_stored_form, replacement, table_of, upserted
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.evaluation.duck import rows_of
from watersmeet.store.changes import quoted
from watersmeet.store.commits import Commit
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.types import DEFAULT_PRECISION, SqlType, arrow_schema

#: Properties that don't change how rows are written.
_HARMLESS: Final = frozenset(
    {"id", "name", "columns", "primary_key", "append_only", "sql", "depends_on", "dialect", "schema", "path", "ready"}
    | {"known", "functions", "since", "fills", "dropped", "defaults", "declared", "comment", "comments", "key"}
    | {"uniques", "rejects_duplicates", "serials"}
)


def takes_rows(relation: Relation) -> bool:
    """Whether rows of a table are stored as they are given: no expression, rule or limit applies to them, besides the
    lengths of varchar and the digits of numeric.
    """
    return (
        type(relation) is Table
        and all(f.name in _HARMLESS or getattr(relation, f.name) == _default(f) for f in fields(relation))
        and all(d.is_name or d.name == "varchar" or _has_all_digits(d) for d in relation.declared.values())
    )


def _has_all_digits(declared: Declared) -> bool:
    """Whether it is `timestamp(6)` or `timestamptz(6)`, of which no value is rounded."""
    return declared.name in ("timestamp", "timestamptz") and declared.digits is None


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


class NotSmall(Exception):  # noqa: N818 - no error
    """A value needs the conversions or the errors of SQL, so the statement runs the usual way."""


_WHOLE: Final = re.compile(r"-?\d{1,18}", re.ASCII)
NUMBER: Final = re.compile(r"-?\d{1,15}(\.\d{1,15})?", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OFFSET: Final = r"([+-]\d\d(:?\d\d)?)"
_DATE: Final = re.compile(rf"\d{{4}}-\d\d-\d\d( {_OFFSET})?", re.ASCII)
_TIMESTAMP: Final = re.compile(rf"\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{{1,6}})?(?P<zone>{_OFFSET})?", re.ASCII)

#: The number of digits up to which every reader of a decimal number finds the same double precision number.
_EXACT_DIGITS: Final = 15
_EXACT_WHOLE: Final = 1 << 53
#: The number of digits of a numeric number, on both sides of the point.
_MOST_DIGITS: Final = 38


def _whole(least: int, greatest: int) -> Callable[[object], object]:
    def assign(value: object) -> object:
        if type(value) is str and _WHOLE.fullmatch(value):
            value = int(value)
        if type(value) is int and least <= value <= greatest:
            return value
        raise NotSmall

    return assign


def _double(value: object) -> object:
    if type(value) is str and NUMBER.fullmatch(value):
        value = Decimal(value)
    if type(value) is float and value - value == 0:
        return value
    if type(value) is int and -_EXACT_WHOLE <= value <= _EXACT_WHOLE:
        return float(value)
    if type(value) is Decimal and len(value.as_tuple().digits) <= _EXACT_DIGITS:
        return float(value)
    raise NotSmall


def _numeric(kind: SqlType) -> Callable[[object], object]:
    """For numeric(p, s), numbers without digits that would be rounded."""
    scale, whole = kind.decimals, (kind.precision or DEFAULT_PRECISION) - kind.decimals

    def assign(value: object) -> object:
        if type(value) is int:
            value = Decimal(value)
        if type(value) is Decimal:
            sign, digits, exponent = value.as_tuple()
            if isinstance(exponent, int) and -_MOST_DIGITS <= exponent <= _MOST_DIGITS:
                if exponent > 0:
                    digits, exponent = digits + (0,) * exponent, 0
                rounded = -scale - exponent
                if rounded > 0 and not any(digits[-rounded:]):
                    digits, exponent = digits[:-rounded] or (0,), -scale
                if exponent >= -scale and len(digits) + exponent <= whole:
                    return Decimal((sign, digits, exponent))
        raise NotSmall

    return assign


def as_text(value: object) -> object:
    """A value of a varchar column."""
    if type(value) is str and "\0" not in value:
        return value
    raise NotSmall


def _short_text(length: int) -> Callable[[object], object]:
    def assign(value: object) -> object:
        if type(value) is str and len(value) <= length:
            return as_text(value)
        raise NotSmall

    return assign


def _of_type(*kinds: type) -> Callable[[object], object]:
    def assign(value: object) -> object:
        if type(value) in kinds:
            return value
        raise NotSmall

    return assign


def _uuid(value: object) -> object:
    if type(value) is str and _UUID.fullmatch(value):
        return value
    raise NotSmall


def _date(value: object) -> object:
    if type(value) is dt.date:
        return value
    if type(value) is str and _DATE.fullmatch(value):
        try:
            return dt.date.fromisoformat(value[:10])
        except ValueError:
            pass
    raise NotSmall


def _timestamp(*, zoned: bool) -> Callable[[object], object]:
    def assign(value: object) -> object:
        if type(value) is dt.datetime and (value.tzinfo is not None) == zoned:
            return value
        found = _TIMESTAMP.fullmatch(value) if type(value) is str else None
        if found is not None and (found["zone"] or not zoned):
            try:
                read = dt.datetime.fromisoformat(found[0])
                return read.astimezone(dt.UTC) if zoned else read.replace(tzinfo=None)
            except (ValueError, OverflowError):
                pass
        raise NotSmall

    return assign


#: Functions that turn a Python value into that of a column, by the column's type.
_ASSIGNS: Final[dict[str, Callable[[object], object]]] = {
    "smallint": _whole(-(1 << 15), (1 << 15) - 1),
    "integer": _whole(-(1 << 31), (1 << 31) - 1),
    "bigint": _whole(-(1 << 63), (1 << 63) - 1),
    "double precision": _double,
    "varchar": as_text,
    "boolean": _of_type(bool),
    "bytea": _of_type(bytes),
    "uuid": _uuid,
    "date": _date,
    "timestamp": _timestamp(zoned=False),
    "timestamptz": _timestamp(zoned=True),
}


def assign_to(kind: SqlType, declared: Declared | None = None) -> Callable[[object], object] | None:
    """The function that turns a Python value into that of a type, or raises NotSmall; None for other types."""
    if kind.labels:
        return None
    if declared is not None and declared.length is not None:
        return _short_text(declared.length)
    return _numeric(kind) if kind.name == "numeric" else _ASSIGNS.get(kind.name)


@dataclass(frozen=True, slots=True)
class Assigned:
    """The new value of a column: `value`, or the column's value plus `sign` times `value` if `sign` is not 0.

    assign: checks that it is a value of the column's type. Raises NotSmall.
    """

    column: str
    value: Any
    sign: int
    assign: Callable[[object], object]

    def of(self, old: pa.Table) -> object:
        """The value for a row. Raises NotSmall."""
        if not self.sign:
            return self.value
        before = old.column(self.column)[0].as_py()
        if before is None or self.value is None:
            return None
        return self.assign(before + self.sign * self.value)


@dataclass(eq=False)
class KeyChange:
    """An UPDATE or DELETE (`assigned` None) of the row with a key, as a transaction.

    catalog: the catalog from which it was planned. outdated: whether it must run the usual way. rows: the number of
    changed rows.
    """

    session: Session
    catalog: Catalog
    relation: Relation
    key: object
    assigned: Sequence[Assigned] | None
    rows: int = 0
    outdated: bool = False
    failure: Exception | None = None


def commit_changes(database: OpenDatabase, changes: Sequence[KeyChange]) -> None:
    """Commits all UPDATEs and DELETEs in one step."""
    if any(known.is_too_large for known in list(database.key_rows.values())):
        database.flush()  # tables are then read as of a later moment
    with database.guard:
        for one in changes:
            one.outdated = one.catalog is not database.catalog
        current = [one for one in changes if not one.outdated]
        head = database.log.head()
        try:
            _commit_changes(database, current)
        except Exception as cause:
            for one in current:
                one.outdated = database.log.head() == head
                one.failure = None if one.outdated else cause


def _commit_changes(database: OpenDatabase, changes: Sequence[KeyChange]) -> None:
    by_relation: dict[str, list[KeyChange]] = {}
    for one in changes:
        by_relation.setdefault(one.relation.id, []).append(one)
    written: dict[str, Change] = {}
    for relation_id, group in by_relation.items():
        known = _newest_rows(database, group)
        if known is None:
            for one in group:
                one.outdated = True
            continue
        change = _changed(group, known)
        if change.table.num_rows:
            written[relation_id] = in_stored_form(group[0].relation, change)
    if written:
        commit = database.commit(written)
        for relation_id, change in written.items():
            known = database.key_rows[relation_id]
            known.note(change.table, change.diffs)
            known.upto = commit.number
    for one in changes:
        one.session.writes.pending = one.session.writes.pending or bool(one.rows)


def _newest_rows(database: OpenDatabase, group: Sequence[KeyChange]) -> KeyRows | None:
    """The newest rows of a table, with those of all keys of a group; None if the statements must run the usual way."""
    relation, catalog = group[0].relation, database.catalog
    known = database.key_rows.get(relation.id)
    if known is not None and (known.is_too_large or known.relation is not relation):
        known = None
    if known is not None and not known.catch_up(database.log, database.segments):
        known = None
    lacking = dict.fromkeys(one.key for one in group if known is None or one.key not in known.rows)
    if not lacking:
        return known
    key = relation.primary_key[0]
    texts = (str(k) if isinstance(k, int) else "'" + str(k).replace("'", "''") + "'" for k in lacking)
    columns = ", ".join(quoted(c.name) for c in relation.columns)
    sql = f"SELECT {columns} FROM {quoted(relation.shown)} WHERE {quoted(key)} IN ({', '.join(texts)})"
    with database.content.reader(catalog, [relation.id], lookups=[(relation.id, key)]) as (connection, moment):
        rows = conformed(rows_of(connection, sql), arrow_schema(relation.columns, positional=False))
    if known is None:
        known = database.key_rows[relation.id] = KeyRows(relation, moment.upto(relation))
        if not known.catch_up(database.log, database.segments):
            del database.key_rows[relation.id]
            return None
    found = {k: rows.slice(i, 1) for i, k in enumerate(rows.column(key).to_pylist())}
    for value in lacking:
        known.rows.setdefault(value, found.get(value))
    return known


def _changed(group: Sequence[KeyChange], known: KeyRows) -> Change:
    """The change by statements in order."""
    relation = group[0].relation
    now: dict[object, pa.Table | None] = {}
    for one in group:
        old = now.get(one.key, known.rows[one.key])
        if old is None:
            continue
        new: pa.Table | None = None
        try:
            for assigned in one.assigned or ():
                value = assigned.of(old)
                new = old if new is None else new
                place = old.column_names.index(assigned.column)
                new = new.set_column(place, old.schema.field(place), pa.array([value], old.schema.types[place]))
            if new is not None:
                check_rows(relation, new, None)
        except (NotSmall, Error):
            one.outdated = True
            continue
        now[one.key], one.rows = new, 1
    none = arrow_schema(relation.columns, positional=False).empty_table()
    old_rows = [row for key in now if (row := known.rows[key]) is not None]
    new_rows = [row for row in now.values() if row is not None]
    return replacement(pa.concat_tables([none, *old_rows]), pa.concat_tables([none, *new_rows]))
