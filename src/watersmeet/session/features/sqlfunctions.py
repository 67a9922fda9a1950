"""CREATE FUNCTION, DROP FUNCTION, SHOW FUNCTIONS; LIKE of all SHOW statements.

A function has one definition in a schema. Views keep the definition with which they were created: a replaced one stays
in the catalog for them, but statements can no longer call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from sqlglot.tokens import TokenType

from watersmeet.binder.sqlfunctions import can_be_called, checked_body
from watersmeet.catalog import (
    Relation,
    SqlFunction,
)
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import remove, schema_for, undefined_schema, with_dependents
from watersmeet.database.sessions.context import Session, error_at, sentence
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.schemas import find_function, schema_meant
from watersmeet.dialects.tree.definitions import Create
from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.statements import Name, Refused, Show, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, span_of, take_cascade
from watersmeet.errors import Error, did_you_mean
from watersmeet.session.handlers import handles
from watersmeet.values.types import VARCHAR, Field, Schema, SqlType

#: Words of a definition that have no effect, because functions are inlined: the body alone decides.
_KINDS: Final = (
    ("IMMUTABLE",),
    ("STABLE",),
    ("VOLATILE",),
    ("CONTAINS", "SQL"),
    ("NO", "SQL"),
    ("READS", "SQL", "DATA"),
    ("DETERMINISTIC",),
    ("NOT", "DETERMINISTIC"),
    ("CALLED", "ON", "NULL", "INPUT"),
)


@reads("CREATE FUNCTION", own="function")
def read_create_function(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`CREATE FUNCTION name ([name] type, …) RETURNS type {LANGUAGE SQL AS '…' | RETURN expression}`."""
    made = read_new_name(cursor, base)
    external = next((i for i in range(len(cursor.tokens)) if _is_external(cursor, i)), None)
    if external is not None:
        word = cursor.tokens[external + 1].text.upper()
        return _refused(cursor, base, f"a function in {word}", external, IN_SQL_OR_PYTHON)
    parameters = _parameters(cursor)
    returns: SqlType | None = None
    body: str | None = None
    language: str | None = None
    is_expression = False
    while not cursor.done:
        start = cursor.index
        if cursor.take("RETURNS"):
            if cursor.at("TABLE") or cursor.at("SETOF"):
                return _refused(cursor, base, f"a function that returns {cursor.rest[0].text.upper()}")
            returns = _type(cursor)
        elif cursor.take("LANGUAGE"):
            language = _language(cursor)
            if language != "sql":
                return _refused(cursor, base, f"a function in {language.upper()}", start)
        elif cursor.take("AS"):
            body = _text(cursor)
        elif cursor.take("RETURN"):
            rest = cursor.rest
            if not rest:
                raise cursor.error()
            body = f"SELECT {cursor.text[rest[0].start : rest[-1].end + 1]}"
            is_expression = True
            cursor.index = len(cursor.tokens)
        elif cursor.at("WITH") or cursor.at("USING") or cursor.at("STRICT"):
            return _refused(cursor, base, f"{cursor.rest[0].text.upper()} of a function")
        elif cursor.take("SPECIFIC"):
            cursor.relation_name()
        elif cursor.at("PARAMETER", "STYLE") or cursor.at("EXTERNAL", "NAME"):
            return _refused(cursor, base, "a function in another language")
        elif not any(cursor.take(*words) for words in _KINDS):
            raise cursor.error()
    if language is None and not is_expression:
        raise cursor.error(detail="LANGUAGE SQL is missing.")
    if body is None or returns is None:
        raise cursor.error(detail=f"{'RETURNS and a type are' if returns is None else 'AS and the body are'} missing.")
    return CreateFunction(
        **made,
        parameters=parameters,
        returns=returns,
        body=body,
    )


@reads("DROP FUNCTION", own="function")
def read_drop_function(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """`DROP FUNCTION [IF EXISTS] name [(types)], … [CASCADE]`."""
    if_exists = cursor.take("IF", "EXISTS")
    names = [cursor.relation_name()]
    signatures = [_signature(cursor)]
    while cursor.take(","):
        names.append(cursor.relation_name())
        signatures.append(_signature(cursor))
    return DropFunction(
        **base,
        names=tuple(names),
        signatures=tuple(signatures),
        if_exists=if_exists,
        cascade=take_cascade(cursor),
    )


def _type(cursor: Cursor) -> SqlType:
    """A type; the length of a text has no effect on values."""
    if cursor.at("VARCHAR", "(") or cursor.at("CHAR", "("):
        cursor.index += 2
        cursor.integer()
        cursor.expect(")")
        return VARCHAR
    return read_type(cursor)


def _signature(cursor: Cursor) -> tuple[SqlType, ...] | None:
    return tuple(p.type for p in _parameters(cursor)) if cursor.at("(") else None


def _parameters(cursor: Cursor) -> tuple[Field, ...]:
    """`([name] type, …)`; the name of an unnamed parameter is empty."""
    cursor.expect("(")
    found: list[Field] = []
    while not cursor.at(")"):
        for word in ("OUT", "INOUT", "VARIADIC"):
            if cursor.at(word):
                raise not_supported(f"{word} of a function", cursor.text, span_of(cursor.rest[:1]))
        cursor.take("IN")
        place = cursor.rest[:1]
        found.append(_parameter(cursor))
        if found[-1].name and found[-1].name in [p.name for p in found[:-1]]:
            raise cursor.error_at(
                span_of(place), "DUPLICATE_COLUMN", f'parameter name "{found[-1].name}" used more than once'
            )
        if cursor.at("DEFAULT") or cursor.at("="):
            raise not_supported("DEFAULT of a parameter", cursor.text, span_of(cursor.rest[:1]))
        if not cursor.take(","):
            break
    cursor.expect(")")
    return tuple(found)


def _parameter(cursor: Cursor) -> Field:
    start, refused = cursor.index, None
    try:
        kind = _type(cursor)
    except Error as err:
        refused = err
    else:
        if cursor.at(",") or cursor.at(")"):
            return Field("", kind)
    cursor.index = start
    name = cursor.name()
    if refused is not None and (cursor.at(",") or cursor.at(")")):
        raise refused  # the only word is a type that does not exist
    return Field(name.name, _type(cursor))


def _language(cursor: Cursor) -> str:
    token = cursor.current
    if token is not None and token.token_type == TokenType.STRING:
        return cursor.string().lower()
    return cursor.word().name


def _text(cursor: Cursor) -> str:
    token = cursor.current
    if token is not None and token.token_type == TokenType.HEREDOC_STRING:
        cursor.index += 1
        return str(token.text)
    return cursor.string()


def _is_external(cursor: Cursor, index: int) -> bool:
    """Whether the tokens from `index` on name a language that is compiled."""
    words = [t.text.upper() for t in cursor.tokens[index : index + 2]]
    return words in (["LANGUAGE", "JAVA"], ["LANGUAGE", "C"])


#: The way round functions of Java and C.
IN_SQL_OR_PYTHON: Final = "Write the function in SQL (RETURN expression) or in Python (LANGUAGE PYTHON)."


def _refused(
    cursor: Cursor,
    base: dict[str, Any],
    feature: str,
    start: int | None = None,
    hint: str = "Functions are SQL: LANGUAGE SQL AS $$ … $$.",
) -> Statement:
    place = cursor.tokens[cursor.index if start is None else start :]
    return Refused(
        **base,
        error=not_supported(feature, cursor.text, span_of(place[:2]), hint=hint),
    )


@dataclass(frozen=True, kw_only=True)
class CreateFunction(Create):
    """`CREATE FUNCTION name ([name] type, …) RETURNS type LANGUAGE SQL AS 'SELECT expression'`, or RETURN expression.

    The fields are as in the catalog.
    """

    parameters: Schema
    returns: SqlType
    body: str


@dataclass(frozen=True, kw_only=True)
class DropFunction(Statement):
    """`DROP FUNCTION [IF EXISTS] name [(types)], … [CASCADE]`. signatures: the types after each name, None without."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    names: tuple[Name, ...]
    signatures: tuple[tuple[SqlType, ...] | None, ...]
    if_exists: bool = False
    cascade: bool = False


def like(text: str, pattern: str) -> bool:
    r"""Whether `text` matches: `%` is any text, `_` any character, `\` makes the next one plain."""
    pieces = []
    plain = False
    for character in pattern:
        if plain:
            pieces.append(re.escape(character))
            plain = False
        elif character == "\\":
            plain = True
        else:
            pieces.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return re.fullmatch("".join(pieces), text, re.DOTALL) is not None


@handles(CreateFunction)
def create_function(session: Session, statement: CreateFunction) -> Result:
    """CREATE FUNCTION. Raises DUPLICATE_OBJECT, INVALID_NAME, errors in the body with their spans."""
    session.require_definer("CREATE")
    command = "CREATE FUNCTION"
    schema = schema_for(session, statement)
    existing = session.catalog.function(statement.name, schema)
    if existing is not None and statement.if_not_exists:
        session.notice(f"function {existing.signature} already exists, skipping")
        return Result(command)
    if existing is not None and not statement.replaces:
        raise error_at(
            statement,
            statement.name_span,
            "DUPLICATE_OBJECT",
            f"function {existing.signature} already exists",
            detail="A function has one definition: others of its name, with other parameters, are not supported."
            if [p.type for p in existing.parameters] != [p.type for p in statement.parameters]
            else None,
            hint="CREATE OR REPLACE FUNCTION replaces it.",
        )
    if not can_be_called(statement.name, session.dialect):
        raise error_at(statement, statement.name_span, "INVALID_NAME", f'a function can\'t be named "{statement.name}"')
    made = checked_body(
        SqlFunction(
            statement.name,
            schema,
            session.catalog.path,
            statement.parameters,
            statement.returns,
            statement.body,
            statement.sql,
            session.dialect,
        ),
        session.catalog,
    )
    dropped = [] if existing is None else [replace(existing, dropped=True)]
    session.put_functions([*dropped, made])
    return Result(command)


@handles(DropFunction)
def drop_function(session: Session, statement: DropFunction) -> Result:
    """DROP FUNCTION: drops all or none. Raises UNDEFINED_FUNCTION, or DEPENDENT_OBJECTS if one has callers and there is
    no CASCADE.
    """
    command = "DROP FUNCTION"
    session.require_definer(command)
    found = [
        f
        for name, types in zip(statement.names, statement.signatures, strict=True)
        if (f := _named(session, name, types, statement)) is not None
    ]
    with own_transaction(session):
        drop_functions(session, found, statement, cascade=statement.cascade)
    return Result(command)


def drop_functions(session: Session, found: Sequence[SqlFunction], statement: Statement, *, cascade: bool) -> None:
    """Drops functions; with CASCADE also everything that calls them."""
    if not found:
        return
    functions, relations = _callers(session, found)
    callers = [f"function {f.shown}" for f in functions] + [r.reader for r in relations]
    if callers and not cascade:
        raise error_at(
            statement,
            statement.span,
            "DEPENDENT_OBJECTS",
            f"cannot drop function {found[0].shown} because other objects depend on it",
            detail=sentence(f"{c} calls it" for c in callers),
            hint="Use DROP … CASCADE to drop the dependent objects too.",
        )
    for caller in callers:
        session.notice(f"drop cascades to {caller}")
    if relations:
        remove(session, with_dependents(session, relations, statement, cascade=True))
    session.put_functions([replace(f, dropped=True) for f in (*found, *functions)])


def _callers(session: Session, found: Iterable[SqlFunction]) -> tuple[list[SqlFunction], list[Relation]]:
    """The functions and relations that call one of these, directly or indirectly."""
    catalog = session.catalog
    ids = {f.id for f in found}
    functions: list[SqlFunction] = []
    while more := [
        f for f in catalog.functions.values() if not f.dropped and f.id not in ids and ids & set(f.functions)
    ]:
        functions += more
        ids |= {f.id for f in more}
    return functions, [r for r in catalog.relations.values() if ids & set(r.functions) and not r.hidden]


def show_functions(session: Session, statement: Show) -> Result:
    """SHOW FUNCTIONS: the functions of the schema in FROM; without FROM, those that can be called without a schema."""
    catalog = session.catalog
    known = [f for f in catalog.functions.values() if not f.dropped]
    if statement.name is None:
        shown = [f for f in known if catalog.function(f.name) is f]
    else:
        schema = schema_meant(statement.name.name, catalog)
        if schema is None:
            raise undefined_schema(session, statement.name, statement)
        shown = [f for f in known if f.schema == schema]
    rows = [
        (f.name, ", ".join(f"{p.name} {p.type.sql}".strip() for p in f.parameters), f.returns.sql, "sql", None)
        for f in sorted(shown, key=lambda f: f.name)
        if statement.like is None or like(f.name, statement.like)
    ]
    return text_result("SHOW", ("Name", "Arguments", "Return Type", "Language", "Link"), rows)


def show_create_function(session: Session, statement: Show) -> Result:
    """SHOW CREATE FUNCTION: the statement that created it. Raises UNDEFINED_FUNCTION."""
    name = statement.name
    assert name is not None
    found = find_function(session.catalog, name.name, name.schema)
    if found is None:
        raise _undefined(session, name, statement)
    return text_result("SHOW", ("Name", "Create Sql"), [(found.shown, found.sql)])


def _named(session: Session, name: Name, types: Sequence[object] | None, statement: DropFunction) -> SqlFunction | None:
    found = find_function(session.catalog, name.name, name.schema)
    if found is not None and (types is None or list(types) == [p.type for p in found.parameters]):
        return found
    if not statement.if_exists:
        raise _undefined(session, name, statement, found)
    session.notice(f"function {name.shown} does not exist, skipping")
    return None


def _undefined(session: Session, name: Name, statement: Statement, other: SqlFunction | None = None) -> Exception:
    """The error UNDEFINED_FUNCTION with similar names. other: the function with that name and other parameters."""
    known = [f.shown for f in session.catalog.functions.values() if not f.dropped]
    return error_at(
        statement,
        name.span,
        "UNDEFINED_FUNCTION",
        f"function {name.shown}{'' if other is None else ' with these parameters'} does not exist",
        detail=None if other is None else f"There is {other.signature}.",
        hint=did_you_mean(name.shown, known) if other is None else None,
    )
