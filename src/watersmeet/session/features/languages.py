"""Functions in Python and JavaScript: the right to create them, and the check of their bodies.

A body can do everything that the process of the engine can do. So only the owner of the database, members of the role
`admin`, and roles with `GRANT USAGE ON LANGUAGE python` create such functions. Everybody may call them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from watersmeet.catalog.roles import ADMIN, of_language
from watersmeet.database.sessions.context import Session, denied, error_at, located
from watersmeet.dialects.statements.functions import CreateFunction
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.kernel.evaluation.functioncalls import check_body
from watersmeet.system.process import library
from watersmeet.values.calledfunctions import CalledFunction
from watersmeet.values.types import SqlType

#: Types without a form in JSON, in which JavaScript receives values.
_NOT_IN_JAVASCRIPT: Final = ("bytea", "interval")
_ENVIRONMENT: Final = "Install it for the interpreter of Python that runs the engine, and on Spark's workers."


def require_language(session: Session, language: str, text: str | None) -> None:
    """Raises PERMISSION_DENIED if the session may not create functions in a language."""
    rights = session.rights
    if not rights.has(ADMIN) and "USAGE" not in rights.grants.get(of_language(language), ()):
        raise denied(
            f"language {language}",
            text,
            detail=f"A member of {ADMIN} may GRANT USAGE ON LANGUAGE {language} TO a role.",
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
