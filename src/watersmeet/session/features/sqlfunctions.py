"""CREATE FUNCTION, DROP FUNCTION, SHOW FUNCTIONS; DO; LIKE of all SHOW statements.

A function has one definition in a schema. Views, and functions that call a replaced one, follow it (`statements/
redefining`). Computed columns of tables and sources keep the definition with which they were created: it stays in the
catalog for them, but statements can no longer call it.

The body of a function in Python or JavaScript can do everything that the process of the engine can do. So only the
owner of the database, members of the role `admin`, and roles with `GRANT USAGE ON LANGUAGE python` may create such
functions. Every role may call these functions.
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
from watersmeet.catalog.roles import ADMIN, USAGE, ChangeGrants, of_language
from watersmeet.database.committing import own_transaction, release_savepoint, rollback, rollback_to, savepoint
from watersmeet.database.definitions import remove, schema_for, undefined_schema, with_dependents
from watersmeet.database.sessions.context import Nested, Session, denied, depended_on, error_at, located
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import find_function, schema_meant
from watersmeet.dialects.statements.functions import LANGUAGES, CreateFunction, lengthless, read_parameters
from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.statements import Begin, Commit, Name, Refused, Rollback, Show, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_list, span_of, take_cascade
from watersmeet.errors import Error, did_you_mean
from watersmeet.kernel.evaluation.functioncalls import check_body
from watersmeet.session.features.roles import grantee, read_roles
from watersmeet.session.handlers import function_named, handles, handles_nested
from watersmeet.system.process import library
from watersmeet.values.calledfunctions import CalledFunction
from watersmeet.values.types import SqlType

#: Types that have no form in JSON, in which JavaScript receives values.
_NOT_IN_JAVASCRIPT: Final = ("bytea", "interval")
_ENVIRONMENT: Final = "Install it for the interpreter of Python that runs the engine, and on Spark's workers."


@reads("DROP FUNCTION", own="function")
@reads("DROP AGGREGATE", own="function")
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


def _signature(cursor: Cursor) -> tuple[SqlType, ...] | None:
    return tuple(p.type for p in read_parameters(cursor, lengthless(read_type))) if cursor.at("(") else None


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
    for option in statement.ignored:
        session.notice(f"option {option} of a function has no effect: its body runs in the engine's own processes")
    if not can_be_called(statement.name, session.dialect):
        raise error_at(statement, statement.name_span, "INVALID_NAME", f'a function can\'t be named "{statement.name}"')
    made = SqlFunction(
        statement.name,
        schema,
        session.catalog.path,
        statement.parameters,
        statement.returns,
        statement.body,
        statement.sql,
        session.dialect,
    )
    if statement.language == "sql":
        made = checked_body(made, session.catalog)
    else:
        made = replace(made, called=checked_function(session, statement))
    if existing is not None and existing.id != made.id:
        function_named("redefining.replace_function")(session, statement, existing, made)
    else:
        session.put_functions([made])
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
        raise depended_on(
            statement,
            statement.span,
            f"drop function {found[0].shown}",
            (f"{c} calls it" for c in callers),
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
    """SHOW FUNCTIONS: the functions of the schema in FROM; without FROM, those that can be called without a schema, and
    those of the dialect's reference.
    """
    catalog = session.catalog
    known = [f for f in catalog.functions.values() if not f.dropped]
    if statement.name is None:
        shown = [f for f in known if catalog.function(f.name) is f]
    else:
        schema = schema_meant(statement.name.name, catalog)
        if schema is None:
            raise undefined_schema(session, statement.name, statement)
        shown = [f for f in known if f.schema == schema]
    families = language_named(session.dialect).functions if statement.name is None else {}
    listed = [(name, family) for family, names in families.items() for name in names.split()]
    built_in = [
        (name, None, None, f"built-in, {family}", None)
        for name, family in sorted(listed)
        if statement.like is None or like(name, statement.like)
    ]
    rows = [
        (f.name, ", ".join(f"{p.name} {p.type.sql}".strip() for p in f.parameters), _returns(f), f.language, None)
        for f in sorted(shown, key=lambda f: f.name)
        if statement.like is None or like(f.name, statement.like)
    ]
    return text_result("SHOW", ("Name", "Arguments", "Return Type", "Language", "Link"), [*rows, *built_in])


def _returns(function: SqlFunction) -> str:
    if function.called is None or function.called.shape != "table":
        return function.returns.sql
    return f"TABLE ({', '.join(f'{name} {kind.sql}' for name, kind in function.returns.fields)})"


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


@dataclass(frozen=True, kw_only=True)
class GrantLanguage(Statement):
    """`GRANT USAGE ON LANGUAGE languages TO roles`, `REVOKE … FROM …`."""

    takes: ClassVar[str | None] = ADMIN
    once: ClassVar[bool] = True

    gives: bool
    languages: tuple[str, ...]
    roles: tuple[Name, ...]


@reads("GRANT USAGE ON LANGUAGE")
def read_grant_language(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """GRANT USAGE ON LANGUAGE."""
    return _read_grant(cursor, base, gives=True)


@reads("REVOKE USAGE ON LANGUAGE")
def read_revoke_language(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """REVOKE USAGE ON LANGUAGE."""
    return _read_grant(cursor, base, gives=False)


def _read_grant(cursor: Cursor, base: dict[str, Any], *, gives: bool) -> Statement:
    languages = read_list(cursor, cursor.word)
    for language in languages:
        if language.name not in LANGUAGES:
            hint = f"There are {' and '.join(LANGUAGES)}; everybody may create functions in SQL."
            feature = f"USAGE ON LANGUAGE {language.name}"
            return Refused(**base, error=not_supported(feature, cursor.text, language.span, hint=hint))
    cursor.expect("TO" if gives else "FROM")
    roles = read_roles(cursor)
    cursor.end()
    return GrantLanguage(**base, gives=gives, languages=tuple(name.name for name in languages), roles=roles)


@handles(GrantLanguage)
def grant_language(session: Session, statement: GrantLanguage) -> Result:
    """GRANT and REVOKE of the right to create functions in languages."""
    command = "GRANT" if statement.gives else "REVOKE"
    session.require_definer(command)
    with session.database.guard:
        roles = [grantee(session, statement, name, everybody=True) for name in statement.roles]
        keys = tuple(map(of_language, statement.languages))
        session.put_roles([ChangeGrants(role, keys, (USAGE,), statement.gives) for role in roles])
    return Result(command)


def require_language(session: Session, language: str, text: str | None) -> None:
    """Raises PERMISSION_DENIED if the session may not create functions in a language."""
    rights = session.rights
    if USAGE in rights.grants.get(of_language(language), ()):
        return
    # A client without a login is anybody on this machine, so it needs what reading files needs.
    if not rights.has(ADMIN) or (session.user is None and not session.reads_files):
        raise denied(
            f"language {language}",
            text,
            detail=f"A member of {ADMIN} may GRANT USAGE ON LANGUAGE {language} TO a role. "
            "Connections without a login need the right to read files (--allow-files).",
        )


def checked_function(session: Session, statement: CreateFunction) -> CalledFunction:
    """The function of a statement, after its body was loaded. Raises PERMISSION_DENIED, INVALID_FUNCTION,
    FUNCTION_STOPPED, LIBRARY_MISSING, FEATURE_NOT_SUPPORTED.
    """
    require_language(session, statement.language, statement.text)
    function = CalledFunction(
        statement.name,
        statement.language,
        statement.name,
        statement.body,
        tuple(p.type for p in statement.parameters),
        statement.returns,
        statement.form,
        statement.shape,
        statement.strict,
        statement.volatile,
        pickled=statement.is_pickled,
        names=tuple(p.name for p in statement.parameters),
    )
    if statement.language == "javascript":
        _check_types(statement, [*function.parameters, function.returns])
        with located(statement, statement.name_span):
            library("py_mini_racer", "functions in JavaScript")
    if session.connectors == "used":
        with located(statement, statement.name_span):
            reason = check_body(function)
        if reason is not None:
            raise error_at(
                statement,
                statement.name_span,
                "INVALID_FUNCTION",
                f"function {statement.name}: {reason}",
                hint=_ENVIRONMENT if "no module" in reason else None,
            )
    return function


def _check_types(statement: CreateFunction, kinds: Iterable[SqlType]) -> None:
    for kind in kinds:
        if kind.name in _NOT_IN_JAVASCRIPT:
            raise not_supported(
                f"{kind.sql} in a function in JavaScript",
                statement.text or "",
                statement.name_span,
                hint="Write the function in Python, or pass a text.",
            )
        inner = [kind.element] if kind.element is not None else [inner for _, inner in kind.fields]
        _check_types(statement, inner)


#: The names of errors in EXCEPTION of DO, with their SQLSTATE (PostgreSQL 17, "PostgreSQL Error Codes").
_ERRORS: Final = {
    "duplicate_object": ("42710", "42P07"),
    "duplicate_table": ("42P07",),
    "duplicate_column": ("42701",),
    "duplicate_schema": ("42P06", "42P07"),
    "duplicate_function": ("42723", "42P07"),
    "undefined_object": ("42704",),
    "undefined_table": ("42P01",),
    "undefined_column": ("42703",),
    "unique_violation": ("23505",),
    "others": ("",),
}
_BLOCK: Final = re.compile(
    r"\s*BEGIN\s(?P<body>.*?)"
    r"(?:\bEXCEPTION\s+WHEN\s+(?P<errors>\w+(?:\s+OR\s+\w+)*)\s+THEN\s+(?:NULL\s*;\s*)?)?\bEND\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_OF_PLPGSQL: Final = re.compile(
    r"(?:IF|LOOP|WHILE|FOR|RAISE|RETURN|PERFORM|EXECUTE|CASE|DECLARE)\b|\w+\s*:=", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class Do(Statement):
    """`DO 'BEGIN statement; … [EXCEPTION WHEN error [OR …] THEN [NULL;]] END'`. errors: the SQLSTATEs of the errors of
    EXCEPTION, "" for all.
    """

    body: str
    errors: tuple[str, ...]


@reads("DO", own="type")
def read_do(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after DO. Only blocks of SQL statements are supported."""
    cursor.take("LANGUAGE", "PLPGSQL")
    token = cursor.current
    begin = cursor.rest[:1]
    if token is not None and token.token_type == TokenType.HEREDOC_STRING:
        cursor.index += 1
        text = str(token.text)
    else:
        text = cursor.string()
    cursor.take("LANGUAGE", "PLPGSQL")
    cursor.end()
    found = _BLOCK.fullmatch(text)
    names = re.split(r"\s+OR\s+", found["errors"] or "", flags=re.IGNORECASE) if found is not None else []
    unknown = [n for n in names if n and n.lower() not in _ERRORS]
    if found is None or unknown or any(_OF_PLPGSQL.match(p.strip()) for p in found["body"].split(";")):
        what = f"EXCEPTION WHEN {unknown[0]} in DO" if unknown else "DO of a program in PL/pgSQL"
        hint = "A block may have SQL statements, and EXCEPTION WHEN duplicate_object THEN NULL after them."
        raise not_supported(what, cursor.text, span_of(begin) if token is not None else None, hint=hint)
    return Do(**base, body=found["body"], errors=tuple(e for n in names if n for e in _ERRORS[n.lower()]))


@handles_nested(Do)
def run_do(session: Session, statement: Do, nested: Nested) -> Result:
    """DO. An error of EXCEPTION undoes the block.

    Raises FEATURE_NOT_SUPPORTED if that error follows a statement of the block that created, altered or dropped
    something.
    """
    own = session.transaction is None
    if own:
        nested.run(Begin(text=statement.text, sql=statement.sql, span=statement.span))
    if statement.errors:
        savepoint(session, _BEFORE_BLOCK)
    try:
        for inner in session.parse(statement.body):
            if isinstance(inner, (Begin, Commit, Rollback)):
                raise error_at(statement, statement.span, "TRANSACTION_STATE", "invalid transaction termination")
            nested.run(inner)
    except Error as failure:
        if not any(code in ("", failure.sqlstate) for code in statement.errors):
            if own and session.transaction is not None:
                rollback(session)
            raise
        rollback_to(session, _BEFORE_BLOCK)
    if statement.errors:
        release_savepoint(session, _BEFORE_BLOCK)
    if own:
        nested.run(Commit(text=statement.text, sql=statement.sql, span=statement.span))
    return Result("DO")


#: A name that no statement can write.
_BEFORE_BLOCK: Final = "before the statements of DO"
