"""CREATE SEQUENCE, ALTER SEQUENCE, and the sequences of a new table.

PostgreSQL 17, "CREATE SEQUENCE", "ALTER SEQUENCE". `database.sessions.sequences` hands out the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from watersmeet.catalog import Input, Numbering, NumberSequence, Relation
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, may_create, named, new_relation
from watersmeet.database.sessions.context import Session, error_at, undefined_column
from watersmeet.database.sessions.result import Result
from watersmeet.database.sessions.sequences import count_of, restart
from watersmeet.dialects.readers import reads
from watersmeet.dialects.statements.tables import check_numbering, read_numbering, signed_integer
from watersmeet.dialects.tree.definitions import Alter, Create
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, read_new_name, span_of
from watersmeet.session.clauses import sequence_text
from watersmeet.session.handlers import handles
from watersmeet.store.sequences import Count


@dataclass(frozen=True, kw_only=True)
class CreateSequence(Create):
    """`CREATE SEQUENCE [IF NOT EXISTS] name [options]`. owned: the table and the column of OWNED BY."""

    makes: ClassVar[type[Relation]] = NumberSequence

    numbers: Numbering
    owned: tuple[Name, Name] | None = None


@dataclass(frozen=True, kw_only=True)
class AlterSequence(Alter):
    """`ALTER SEQUENCE [IF EXISTS] name options`.

    changes: fields of `Numbering`. restart: RESTART, with its number if one is given. owned: the table and the column
    of OWNED BY, or `none`.
    """

    changes: Mapping[str, Any]
    restart: tuple[int | None] | None = None
    owned: tuple[Name, Name] | Literal["none"] | None = None


@reads("CREATE SEQUENCE", own="sequence")
def read_create_sequence(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after SEQUENCE."""
    made = read_new_name(cursor, base)
    numbers, owned = Numbering(), None
    while not cursor.done:
        if cursor.take("OWNED", "BY"):
            found = _read_owner(cursor)
            owned = None if found == "none" else found
            continue
        option = read_numbering(cursor)
        if option is None:
            raise cursor.error()
        numbers = replace(numbers, **option)
    check_numbering(numbers, cursor.text, span_of(cursor.tokens))
    return CreateSequence(**made, numbers=numbers, owned=owned)


def _read_owner(cursor: Cursor) -> tuple[Name, Name] | Literal["none"]:
    """Reads `[schema.]table.column` or NONE."""
    if cursor.take("NONE"):
        return "none"
    parts = [cursor.name(reserved=True)]
    while cursor.take("."):
        parts.append(cursor.name(reserved=True))
    if len(parts) not in (2, 3):
        message = "invalid OWNED BY option"
        raise cursor.error_at(parts[0].span, "SYNTAX_ERROR", message, hint="Specify OWNED BY table.column or NONE.")
    *schema, table, column = parts
    return replace(table, schema=schema[0].name if schema else None), column


@reads("ALTER SEQUENCE", own="sequence")
def read_alter_sequence(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """The cursor stands after SEQUENCE. None for RENAME TO, SET SCHEMA and OWNER TO, which all relations have."""
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.relation_name()
    if cursor.at("RENAME") or cursor.at("SET", "SCHEMA") or cursor.at("OWNER", "TO"):
        return None
    restarts: tuple[int | None] | None = None
    owned: tuple[Name, Name] | Literal["none"] | None = None
    changes: dict[str, Any] = {}
    if not cursor.rest:
        raise cursor.error()
    while not cursor.done:
        if cursor.take("RESTART"):
            given = cursor.take("WITH") or cursor.at("-") or any(t.text.isdecimal() for t in cursor.rest[:1])
            restarts = (signed_integer(cursor) if given else None,)
        elif cursor.take("OWNED", "BY"):
            owned = _read_owner(cursor)
        else:
            option = read_numbering(cursor)
            if option is None:
                raise cursor.error()
            changes |= option
    base = {**base, "name": name, "kind": "sequence", "if_exists": if_exists}
    return AlterSequence(**base, changes=changes, restart=restarts, owned=owned)


@handles(CreateSequence)
def create_sequence(session: Session, statement: CreateSequence) -> Result:
    """CREATE SEQUENCE."""
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE SEQUENCE")
    owned = () if statement.owned is None else _owner(session, *statement.owned, statement)
    made = new_relation(session, statement, NumberSequence, (), numbers=statement.numbers, owned=owned)
    session.database.sequences.begin(made)
    add(session, made)
    return Result("CREATE SEQUENCE")


def _owner(session: Session, table: Name, column: Name, statement: Statement) -> tuple[str, str]:
    """The id of a table, and the name of a column in its stored data. Raises UNDEFINED_RELATION, UNDEFINED_COLUMN."""
    relation = session.relation(table, statement)
    if not isinstance(relation, Input):
        message = f'sequence cannot be owned by relation "{relation.shown}"'
        raise error_at(statement, table.span, "CATALOG_TYPE_MISMATCH", message)
    if column.name not in [c.name for c in relation.columns]:
        raise undefined_column(relation, column.name, column.span, statement)
    return relation.id, relation.stored.get(column.name, column.name)


@handles(AlterSequence)
def alter_sequence(session: Session, statement: AlterSequence) -> Result:
    """ALTER SEQUENCE. In a transaction, others see it after COMMIT."""
    session.require_definer("ALTER SEQUENCE")
    relation = named(session, statement.name, statement)
    if relation is None:
        return Result("ALTER SEQUENCE")
    if not isinstance(relation, NumberSequence):
        message = f'"{statement.name.shown}" is not a sequence'
        raise error_at(statement, statement.name.span, "CATALOG_TYPE_MISMATCH", message)
    count = count_of(session, relation)
    numbers = replace(relation.numbers, **statement.changes)
    if statement.changes.get("type", relation.numbers.type) != relation.numbers.type:
        old = replace(relation.numbers, least=None, greatest=None).bounds
        numbers = replace(numbers, least=None) if numbers.least == old[0] else numbers
        numbers = replace(numbers, greatest=None) if numbers.greatest == old[1] else numbers
    if numbers.start is None:
        numbers = replace(numbers, start=relation.numbers.first)
    check_numbering(numbers, statement.text, statement.span)
    if statement.restart is not None:
        count = Count(numbers.first if statement.restart[0] is None else statement.restart[0])
    least, greatest = numbers.bounds
    if not least <= count.last <= greatest:
        what, bound = ("less than MINVALUE", least) if count.last < least else ("greater than MAXVALUE", greatest)
        message = f"RESTART value ({count.last}) cannot be {what} ({bound})"
        raise error_at(statement, statement.span, "INVALID_PARAMETER", message)
    owned = relation.owned
    if statement.owned is not None:
        owned = () if statement.owned == "none" else _owner(session, *statement.owned, statement)
    made = replace(relation, numbers=numbers, owned=owned)
    with own_transaction(session):
        if made != relation:
            session.put(replace(made, sql=sequence_text(made)))
        if statement.restart is not None or statement.changes:
            restart(session, made, count)
    return Result("ALTER SEQUENCE")
