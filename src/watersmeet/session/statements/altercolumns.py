"""ALTER TABLE … ALTER COLUMN: its type, its DEFAULT and NOT NULL.

PostgreSQL 17, "ALTER TABLE". Stored rows are not rewritten if the new type has all values of the old one: a reader
casts older values. Otherwise the values are computed, and stored as those of another column, which takes the place and
the name. No other object may read the column: its plan has the old type.
"""

from __future__ import annotations

from dataclasses import replace

from watersmeet.binder.sqlfunctions import with_created_types
from watersmeet.catalog import ARRIVAL, Index, Relation, Serial, Table
from watersmeet.database.assignment import default_value
from watersmeet.database.committing import own_transaction, put_altered
from watersmeet.database.definitions import alter_indexes, note_names, reference_to_column, with_column_altered
from watersmeet.database.sessions.context import Session, depended_on, error_at, located, undefined_column
from watersmeet.database.sessions.result import Result
from watersmeet.database.sessions.sequences import default_sequence, with_sequences
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.statements.tables import check_numbering
from watersmeet.dialects.tree.definitions import AlterColumn
from watersmeet.dialects.tree.statements import Select, Update
from watersmeet.dialects.tree.tokens import not_supported, quoted
from watersmeet.session.clauses import add_sequence, remove_sequences
from watersmeet.session.statements.altering import altered, check_columns_change, free_name, readers_of
from watersmeet.session.statements.constraints import add_checked, with_checks_bound
from watersmeet.session.statements.dml import update
from watersmeet.session.statements.select import select
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.types import Field, SqlType, is_wider


def alter_column(session: Session, statement: AlterColumn) -> Result:
    """ALTER TABLE … ALTER COLUMN. In a transaction, others see it after COMMIT.

    Raises UNDEFINED_COLUMN; DEPENDENT_OBJECTS if another object reads the column and would have to be planned again;
    FEATURE_NOT_SUPPORTED for another type of a key; NOT_NULL_VIOLATION; and the errors of casts to a new type.
    """
    session.require_definer("ALTER TABLE")
    relation = altered(session, statement)
    if relation is None:
        return Result("ALTER TABLE")
    clause = f"ALTER COLUMN … {statement.clause}"
    check_columns_change(statement, relation, clause, sources=True)
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
        _set_type(session, statement, relation, column, statement.type)
        return Result("ALTER TABLE")
    if statement.nullable is not None:
        made, sql = _with_nulls(session, statement, relation, column, nullable=statement.nullable)
    else:
        made, sql = _with_default(session, statement, relation, column)
    _put(session, relation, replace(made, sql=sql))
    return Result("ALTER TABLE")


def _put(session: Session, relation: Table, made: Table) -> None:
    with own_transaction(session):
        note_names(session, relation)
        put_altered(session, relation, made)
        alter_indexes(session, relation, lambda index: replace(index, columns=made.columns, stored=made.stored))


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


def _set_type(session: Session, statement: AlterColumn, relation: Table, column: Field, kind: SqlType) -> None:
    """SET DATA TYPE. It computes the values again if the old ones may not be of the new type."""
    sql = with_column_altered(relation, column.name, statement.type_text, (), "")
    declared = {n: d for n, d in relation.declared.items() if n != column.name}
    if statement.declared_type is not None:
        declared[column.name] = statement.declared_type
    if kind == column.type:
        made = replace(relation, declared=declared, sql=sql)
        has_all = _takes_all(relation.declared.get(column.name), statement.declared_type)
        with own_transaction(session):
            _put(session, relation, made)
            if not (has_all and statement.is_cast):
                _compute(session, statement, made, column.name)
        return
    is_key = column.name in relation.primary_key or reference_to_column(session, relation, column.name)
    if is_key or column.name in relation.serials or relation.event_time is not None:
        raise not_supported(
            f"ALTER COLUMN … TYPE {statement.type_text} of a column of type {column.type.sql} that "
            + ("is in a key" if is_key else "has a sequence" if column.name in relation.serials else "has a watermark"),
            statement.text,
            statement.column.span,
        )
    _check_unread(session, statement, relation)
    default = relation.defaults.get(column.name)
    defaults = {} if default is None else {column.name: f"CAST({default} AS {kind.duckdb})"}
    made = _with_column(relation, replace(column, type=kind))
    made = replace(made, defaults={**relation.defaults, **defaults}, declared=declared, sql=sql)
    plain = statement.declared_type is None and column.name not in relation.declared
    if plain and statement.is_cast and is_wider(kind, column.type):
        _put(session, relation, made)
        return
    _replace_column(session, statement, relation, made, column)


def _replace_column(session: Session, statement: AlterColumn, relation: Table, made: Table, column: Field) -> None:
    """Computes values of the new type in a column of its own, which then takes the place of the old one."""
    name, kind = column.name, made.column(column.name).type
    stored = [*(c.name for c in relation.columns), *(c.name for c in relation.as_stored.columns), *relation.dropped]
    other = free_name(name, stored)
    both = replace(relation, columns=(*relation.columns, Field(other, kind, nullable=True)))
    if name in made.declared:
        both = replace(both, declared={**both.declared, other: made.declared[name]})
    read = [g for g, value in relation.generated.items() if name in [r.name for r in value.reads]]
    if read:
        raise not_supported(
            f'ALTER COLUMN … TYPE {statement.type_text} of a column that "{read[0]}" reads',
            statement.text,
            statement.column.span,
            hint="Drop it first, and add it again.",
        )
    with own_transaction(session):
        note_names(session, relation)
        put_altered(session, relation, both)
        _compute(session, statement, both, other)
        made = replace(
            made,
            stored={**relation.stored, name: other},
            dropped=(*relation.dropped, relation.stored.get(name, name)),
            fills={n: f for n, f in relation.fills.items() if n != name},
        )
        add_checked(session, both, with_checks_bound(session, made, name, statement))


def _compute(session: Session, statement: AlterColumn, relation: Table, name: str) -> None:
    """Assigns the values of USING to a column."""
    table = ".".join(quoted(n) for n in (relation.schema, relation.name))
    value = statement.using or quoted(statement.column.name)
    (changes,) = parse(f"UPDATE {table} SET {quoted(name)} = {value}", session.dialect)
    assert isinstance(changes, Update)
    with located(statement, statement.column.span):
        update(session, changes)


def _takes_all(old: Declared | None, new: Declared | None) -> bool:
    """Whether a declared type takes the values of another one as they are."""
    if new in (None, old) or new.name == "text":
        return True
    if old is not None and old.name == new.name and new.modifier < 0:
        return True
    length = -1 if old is None or old.length is None or old.name != "varchar" else old.length
    return new.name == "varchar" and new.length is not None and 0 <= length <= new.length


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
        given = with_created_types(statement.declared, session.catalog)
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
