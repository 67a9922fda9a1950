"""Functions in Python and JavaScript: the right to create them, and the check of their bodies.

A body can do everything that the process of the engine can do. So only the owner of the database, members of the role
`admin`, and roles with `GRANT USAGE ON LANGUAGE python` may create such functions. Every role may call these functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from watersmeet.catalog.roles import ADMIN, USAGE, ChangeGrants, of_language
from watersmeet.database.sessions.context import Session, denied, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.statements.functions import LANGUAGES, CreateFunction
from watersmeet.dialects.tree.statements import Name, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_list
from watersmeet.kernel.evaluation.functioncalls import check_body
from watersmeet.session.features.roles import grantee, read_roles
from watersmeet.session.handlers import handles
from watersmeet.system.process import library
from watersmeet.values.calledfunctions import CalledFunction
from watersmeet.values.types import SqlType

#: Types that have no form in JSON, in which JavaScript receives values.
_NOT_IN_JAVASCRIPT: Final = ("bytea", "interval")
_ENVIRONMENT: Final = "Install it for the interpreter of Python that runs the engine, and on Spark's workers."


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
