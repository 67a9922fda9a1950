"""SET and SHOW of session variables."""

from __future__ import annotations

from typing import Final

from watersmeet.dialects.statements import SetVariable, ShowVariable
from watersmeet.errors import Error, did_you_mean
from watersmeet.session.context import Session
from watersmeet.session.result import Result, text_result
from watersmeet.session.variables import VARIABLES

#: What SHOW shows beside variables, for hints.
SHOWN: Final = ("dead letters", "errors", "indexes", "jobs", "materialized views", "parameters", "relations", "sources",
                "tables", "views")


def set_variable(session: Session, statement: SetVariable) -> Result:
    """SET name = value, RESET name."""
    try:
        variable = session.variables.set(statement.name, statement.value)
    except Error as err:
        err.sql, err.span = statement.text, statement.span
        raise
    if not variable.effect:
        session.notice(f"{variable.name} has no effect: Watersmeet chooses by itself what it controls in RisingWave")
    return Result("SET")


def show_variable(session: Session, statement: ShowVariable) -> Result:
    """SHOW name."""
    try:
        value = session.variables.get(statement.name)
    except Error as err:
        err.sql, err.span = statement.text, statement.name_span
        err.hint = did_you_mean(statement.name, (*VARIABLES, *SHOWN)) or err.hint
        raise
    return text_result("SHOW", (statement.name,), [(value,)])
