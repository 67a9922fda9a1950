"""SET and SHOW of session variables."""

from __future__ import annotations

from typing import Final

from watersmeet.dialects.schemas import listed, schema_meant
from watersmeet.dialects.statements import SetVariable, ShowVariable
from watersmeet.errors import Error, did_you_mean
from watersmeet.session.context import Session
from watersmeet.session.result import Result, text_result
from watersmeet.session.schemas import USER_SCHEMA, set_schema
from watersmeet.session.variables import VARIABLES

#: What SHOW shows beside variables, for hints.
SHOWN: Final = ("dead letters", "errors", "indexes", "jobs", "materialized views", "parameters", "relations", "sources",
                "processors", "tables", "topics", "views")


def set_variable(session: Session, statement: SetVariable) -> Result:
    """SET name = value, RESET name."""
    if statement.schema is not None:
        return set_schema(session, statement, statement.schema)
    try:
        variable = session.variables.set(statement.name, statement.value)
    except Error as err:
        err.sql, err.span = statement.text, statement.span
        raise
    if not variable.effect:
        session.notice(f"{variable.name} has no effect: Watersmeet chooses by itself what it controls in {variable.system}")
    if variable.name == "search_path" and statement.value is not None:
        _tell_missing(session)
    return Result("SET")


def _tell_missing(session: Session) -> None:
    """Names the schemas of the path that do not exist: they are looked into once they do."""
    for name in listed(session.variables.get("search_path")):
        if name != USER_SCHEMA and schema_meant(name, session.catalog) is None:
            session.notice(f'schema "{name}" does not exist')


def show_variable(session: Session, statement: ShowVariable) -> Result:
    """SHOW name."""
    try:
        value = session.variables.get(statement.name)
    except Error as err:
        err.sql, err.span = statement.text, statement.name_span
        err.hint = did_you_mean(statement.name, (*VARIABLES, *SHOWN)) or err.hint
        raise
    return text_result("SHOW", (statement.name,), [(value,)])
