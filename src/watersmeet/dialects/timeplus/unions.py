"""UNION without ALL or DISTINCT: the setting `union_default_mode` of the query says which one is meant.

The setting has no default in Proton, as in ClickHouse ("UNION Clause"): there such a query is an error. Here that is so
for what runs, where the two differ in what they keep; a query that ends takes it as DISTINCT, as SQL does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot.tokens import Token, TokenType

_MODES: Final = {"ALL": TokenType.ALL, "DISTINCT": TokenType.DISTINCT}


def with_union_modes(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with the mode that the setting says, if there is one, behind every UNION without."""
    mode = _setting(tokens)
    if mode is None:
        return list(tokens)
    found: list[Token] = []
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        found.append(token)
        if token.token_type == TokenType.UNION and not says_mode(after):
            found.append(Token(_MODES[mode], mode, token.line, token.col, token.start, token.end, []))
    return found


def says_mode(token: Token | None) -> bool:
    """Whether a token, the one behind UNION, is ALL or DISTINCT."""
    return token is not None and token.text.upper() in _MODES


def _setting(tokens: Sequence[Token]) -> str | None:
    """What the query says of `union_default_mode`."""
    for name, sign, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if name.text.lower() == "union_default_mode" and sign.token_type == TokenType.EQ:
            return value.text.upper() if value.text.upper() in _MODES else None
    return None
