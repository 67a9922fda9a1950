"""ALTER TABLE … ALTER COLUMN: its type, its DEFAULT and NOT NULL.

PostgreSQL 17, "ALTER TABLE". Stored rows are not rewritten: a reader casts older values to the new type. So the new
type must have all values of the old one, and no other object may read the column: its plan has the old type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from watersmeet.binder.sqlfunctions import with_enums
from watersmeet.catalog import ARRIVAL, Index, Relation, Serial, Table
from watersmeet.database.assignment import default_value
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import alter_indexes, note_names, with_column_altered
from watersmeet.database.sessions.context import Session, depended_on, error_at, located, undefined_column
from watersmeet.database.sessions.result import Result
from watersmeet.database.sessions.sequences import default_sequence, with_sequences
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.statements.tables import check_numbering
from watersmeet.dialects.tree.definitions import AlterColumn
from watersmeet.dialects.tree.statements import Select
from watersmeet.dialects.tree.tokens import not_supported, quoted
from watersmeet.errors import Error
from watersmeet.session.clauses import add_sequence, remove_sequences
from watersmeet.session.statements.altering import altered, check_columns_change, readers_of
from watersmeet.session.statements.select import select
from watersmeet.values.types import Field, SqlType

#: The types to which a type can be changed, because they have all its values.
_WIDER: Final = {
    "smallint": ("integer", "bigint", "numeric", "double precision"),
    "integer": ("bigint", "numeric", "double precision"),
    "bigint": ("numeric",),
    "real": ("double precision",),
}


def alter_column(session: Session, statement: AlterColumn) -> Result:
    """ALTER TABLE … ALTER COLUMN. In a transaction, others see it after COMMIT.

    Raises UNDEFINED_COLUMN; DEPENDENT_OBJECTS if another object reads the column and would have to be planned again;
    FEATURE_NOT_SUPPORTED for a type that doesn't have all values of the old one; NOT_NULL_VIOLATION.
    """
    session.require_definer("ALTER TABLE")
    relation = altered(session, statement)
    if relation is None:
        return Result("ALTER TABLE")
    clause = f"ALTER COLUMN … {statement.clause}"
    check_columns_change(session, statement, relation, clause, sources=True)
    assert isinstance(relation, Table)
    name = statement.column.name
    if name not in [c.name for c in relation.columns]:
        raise undefined_column(relation, name, statement.column.span, statement)
    column = relation.column(name)
    if name in relation.generated or relation.defaults.get(name) == ARRIVAL:
        raise not_supported(f'{clause} of the generated column "{name}"', statement.text, statement.column.span)
    if statement.serial is not None or statement.clause == "DROP IDENTITY":
        _set_identity(session, statement, relation, column)
        return Result("ALTER TABLE")
    if statement.type is not None:
        made, sql = _with_type(session, statement, relation, column, statement.type)
    elif statement.nullable is not None:
        made, sql = _with_nulls(session, statement, relation, column, nullable=statement.nullable)
    else:
        made, sql = _with_default(session, statement, relation, column)
    with own_transaction(session):
        note_names(session, relation)
        session.put(replace(made, sql=sql))
        alter_indexes(session, relation, lambda index: replace(index, columns=made.columns))
    return Result("ALTER TABLE")


def _set_identity(session: Session, statement: AlterColumn, relation: Table, column: Field) -> None:
    """ADD GENERATED … AS IDENTITY and DROP IDENTITY, with the sequence of the column."""
    name, serial = column.name, relation.serials.get(column.name)
    shown = f'column "{name}" of relation "{relation.name}"'
    wrong = ""
    if statement.serial is None and (serial is None or not serial.identity):
        if statement.if_identity:
            session.notice(f"{shown} is not an identity column, skipping")
            return
        wrong = f"{shown} is not an identity column"
    elif statement.serial is not None and serial is not None:
        wrong = f"{shown} is already an identity column" if serial.identity else f"{shown} already has a default value"
    elif statement.serial is not None and name in relation.defaults:
        wrong = f"{shown} already has a default value"
    elif statement.serial is not None and column.nullable:
        wrong = f"{shown} must be declared NOT NULL before identity can be added"
    elif statement.serial is not None and not column.type.is_integer:
        wrong = "identity column type must be smallint, integer, or bigint"
    if wrong:
        raise error_at(statement, statement.column.span, "INVALID_PARAMETER", wrong)
    serials = {n: s for n, s in relation.serials.items() if n != name}
    with own_transaction(session):
        note_names(session, relation)
        if statement.serial is None:
            sql = with_column_altered(relation, name, "", ("GENERATED",), "")
            session.put(replace(relation, serials=serials, sql=sql))
            remove_sequences(session, relation, relation.stored.get(name, name))
            return
        clause = statement.serial
        clause = replace(clause, numbers=replace(clause.numbers, type=column.type.name))
        check_numbering(clause.numbers, statement.text, statement.span)
        with located(statement, statement.column.span):
            serials[name] = add_sequence(session, relation, name, clause)
        sql = with_column_altered(relation, name, "", ("GENERATED",), statement.serial_text)
        session.put(replace(relation, serials=serials, sql=sql))


def _with_column(relation: Table, column: Field) -> Table:
    return replace(relation, columns=tuple(column if c.name == column.name else c for c in relation.columns))


def _with_type(
    session: Session, statement: AlterColumn, relation: Table, column: Field, kind: SqlType
) -> tuple[Table, str]:
    sql = with_column_altered(relation, column.name, statement.type_text, (), "")
    if kind == column.type:
        return _with_declared(statement, relation, column), sql
    if statement.declared_type is not None or column.name in relation.declared:
        raise _not_wider(statement)
    if kind.sql.partition("(")[0] not in _WIDER.get(column.type.name, ()):
        raise not_supported(
            f"ALTER COLUMN … TYPE {kind.sql} of a column of type {column.type.sql}",
            statement.text,
            statement.column.span,
            detail="The new type must have all values of the old one: smallint, integer, bigint and numeric in this "
            "order; smallint, integer and real to double precision.",
            hint="ADD COLUMN with the new type, UPDATE, DROP COLUMN and RENAME COLUMN replace a column.",
        )
    if column.name in relation.primary_key:
        raise not_supported("ALTER COLUMN … TYPE of a key column", statement.text, statement.column.span)
    _check_unread(session, statement, relation)
    default = relation.defaults.get(column.name)
    defaults = {} if default is None else {column.name: f"CAST({default} AS {kind.duckdb})"}
    made = _with_column(relation, replace(column, type=kind))
    return replace(made, defaults={**relation.defaults, **defaults}), sql


def _not_wider(statement: AlterColumn) -> Error:
    return not_supported(
        f"ALTER COLUMN … TYPE {statement.type_text}, which may not have all values of the column,",
        statement.text,
        statement.column.span,
        hint="ADD COLUMN with the new type, UPDATE, DROP COLUMN and RENAME COLUMN replace a column.",
    )


def _with_declared(statement: AlterColumn, relation: Table, column: Field) -> Table:
    """The table with another declared type of a column, which takes the same values and perhaps more."""
    old, new = relation.declared.get(column.name), statement.declared_type
    wide = new is None or new.name == "text" or (old is not None and old.name == new.name and new.modifier < 0)
    if new != old and not wide:
        assert new is not None
        length = -1 if old is None or old.length is None or old.name != "varchar" else old.length
        if new.name != "varchar" or new.length is None or not 0 <= length <= new.length:
            raise _not_wider(statement)
    others = {n: d for n, d in relation.declared.items() if n != column.name}
    return replace(relation, declared=others if new is None else {**others, column.name: new})


def _with_nulls(
    session: Session, statement: AlterColumn, relation: Table, column: Field, *, nullable: bool
) -> tuple[Table, str]:
    if nullable and column.name in relation.primary_key:
        raise error_at(
            statement,
            statement.column.span,
            "INVALID_PARAMETER",
            f'column "{column.name}" is in the primary key of {relation.title}',
        )
    if nullable and not column.nullable:
        _check_unread(session, statement, relation)
    if not nullable and column.nullable:
        _check_no_nulls(session, statement, relation)
    sql = with_column_altered(relation, column.name, "", ("NOT", "NULL"), "" if nullable else "NOT NULL")
    return _with_column(relation, replace(column, nullable=nullable)), sql


def _with_default(session: Session, statement: AlterColumn, relation: Table, column: Field) -> tuple[Table, str]:
    added, defaults = "", {n: d for n, d in relation.defaults.items() if n != column.name}
    serials = {n: s for n, s in relation.serials.items() if n != column.name}
    before = relation.serials.get(column.name)
    if before is not None and before.identity:
        message = f'column "{column.name}" of relation "{relation.name}" is an identity column'
        raise error_at(statement, statement.column.span, "SYNTAX_ERROR", message)
    if statement.declared is not None:
        given = with_enums(statement.declared, session.catalog)
        sequence = default_sequence(session, given, statement.text) if column.type.is_integer else None
        if sequence is not None:
            serials[column.name] = Serial(sequence.id)
        else:
            declared = with_sequences(session, given, statement.text)
            defaults[column.name] = default_value(statement, declared, column.type)
        added = f"DEFAULT {statement.default_text}"
    sql = with_column_altered(relation, column.name, "", ("DEFAULT",), added)
    return replace(relation, defaults=defaults, serials=serials), sql


def _check_unread(session: Session, statement: AlterColumn, relation: Relation) -> None:
    """Raises DEPENDENT_OBJECTS if another object reads the column. Indexes don't count: they have no plan."""
    readers = [r for r in readers_of(session, relation, statement.column.name) if not isinstance(r, Index)]
    if readers:
        raise depended_on(
            statement,
            statement.column.span,
            f'alter column "{statement.column.name}" of {relation.title}',
            (f"{r.reader} reads it" for r in readers),
            hint="Drop these first, and create them again.",
        )


def _check_no_nulls(session: Session, statement: AlterColumn, relation: Relation) -> None:
    """Raises NOT_NULL_VIOLATION if a row has NULL in the column."""
    column = quoted(statement.column.name)
    text = f"SELECT 1 FROM {quoted(relation.schema)}.{quoted(relation.name)} WHERE {column} IS NULL LIMIT 1"
    (query,) = parse(text, session.dialect)
    assert isinstance(query, Select)
    if select(session, query).rowcount:
        raise error_at(
            statement,
            statement.column.span,
            "NOT_NULL_VIOLATION",
            f'column "{statement.column.name}" of {relation.title} contains NULL',
            hint="UPDATE its rows first.",
        )
