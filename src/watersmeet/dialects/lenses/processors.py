"""INSERT INTO … SELECT STREAM and SELECT TABLE: a processor; `WITH name AS (…);` in front of it.

Lenses, "Joins", all listings (LS-04, LS-05, LS-32).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.lenses.ddl import read_format
from watersmeet.dialects.lenses.nodes import RecordSelect
from watersmeet.dialects.options import not_supported
from watersmeet.dialects.queries import Parameters, read_tree
from watersmeet.dialects.statements import CreateProcessor, Statement
from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import error


def goes_on(tokens: Sequence[Token]) -> bool:
    """True for `WITH a AS (…)` without a query behind it."""
    if not tokens or tokens[0].token_type != TokenType.WITH:
        return False
    depth = 0
    for token in tokens[1:]:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth == 0 and token.token_type in (TokenType.SELECT, TokenType.INSERT):
            return False
    return True


def read_insert(cursor: Cursor, dialect: Dialect, base: dict[str, Any], parameters: Parameters) -> Statement | None:
    """INSERT of a query with a nature; None for one of rows. The cursor stands at INSERT and stays there for None.

    INVALID_PARAMETER for parameters of the first: a processor runs by its text. FEATURE_NOT_SUPPORTED for one with a
    list of fields.
    """
    start = cursor.index
    cursor.expect("INSERT", "INTO")
    target = cursor.relation_name()
    if cursor.at("("):
        _check_listed(cursor)
        cursor.index = start
        return None
    stored = cursor.take("STORE")
    key = read_format(cursor, of_key=True) if stored and cursor.take("KEY", "AS") else None
    value = read_format(cursor) if stored and cursor.take("VALUE", "AS") else None
    if stored and key is None and value is None:
        raise cursor.error(detail="KEY AS or VALUE AS was expected here.")
    if cursor.at("WITH") or cursor.at("SELECT"):
        tree = read_tree(cursor.originals(cursor.rest), cursor.text, dialect, parameters)
        query = tree.find(exp.Select) if not isinstance(tree, exp.Select) else tree
        if isinstance(query, RecordSelect):
            if parameters:
                raise error(
                    "INVALID_PARAMETER",
                    "a processor takes no parameters",
                    sql=cursor.text,
                    span=target.span,
                    hint="Write the values out.",
                )
            return CreateProcessor(
                **base,
                name=target.name,
                name_span=target.span,
                schema=target.schema,
                query=tree,
                key_format=key,
                value_format=value,
            )
    if stored:
        raise cursor.error(detail="SELECT STREAM or SELECT TABLE was expected here.")
    cursor.index = start
    return None


def _check_listed(cursor: Cursor) -> None:
    """FEATURE_NOT_SUPPORTED for SELECT STREAM or TABLE behind the list of fields at which the cursor stands."""
    first = cursor.index
    while not cursor.done and not cursor.take(")"):
        cursor.index += 1
    if cursor.at("SELECT", "STREAM") or cursor.at("SELECT", "TABLE"):
        raise not_supported(
            "a list of fields before SELECT STREAM or TABLE",
            cursor.text,
            span_of(cursor.tokens[first : cursor.index]),
            hint="Name the fields with AS; they are matched by name.",
        )
