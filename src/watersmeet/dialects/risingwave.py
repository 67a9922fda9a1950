"""RisingWave's dialect: a small difference to sqlglot's.

Functions are kept as they are written (`exp.Anonymous`), so that the binder resolves their
names in one table and an unknown one is reported where it stands.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.risingwave import RisingWave as Base
from sqlglot.errors import ParseError
from sqlglot.parser import Parser as AnyParser
from sqlglot.tokens import Token, TokenType

_SPECIAL_SYNTAX = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM")


_BARE = (exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentTime, exp.CurrentUser, exp.Localtime, exp.Localtimestamp)


def _arrow(kind: type[exp.Expression]) -> Any:
    """A parser of `a -> b` that leaves `b` as it is."""
    return lambda self, this, path: self.expression(kind(this=this, expression=path))


class WatersmeetRisingWave(Base):  # type: ignore[misc]
    """RisingWave's SQL as Watersmeet reads it."""

    class Tokenizer(Base.Tokenizer):  # type: ignore[misc]
        """RisingWave's tokens."""

        # sqlglot would swallow the rest of SHOW … as one string
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(Base.Parser):  # type: ignore[misc]
        """RisingWave's grammar; functions and the operators of jsonb are left as they are written."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: AnyParser.FUNCTION_PARSERS[name] for name in _SPECIAL_SYNTAX
        }
        # `->` in an argument is the operator of jsonb, never a lambda
        LAMBDAS: ClassVar[dict[TokenType, Any]] = {}
        JSON_OPERATORS: ClassVar[dict[TokenType, Any]] = {
            **Base.Parser.JSON_OPERATORS,
            TokenType.ARROW: _arrow(exp.JSONExtract),
            TokenType.DARROW: _arrow(exp.JSONExtractScalar),
        }

        def _parse_join(self, *args: Any, **kwargs: Any) -> exp.Join | None:
            """Marks a join with the place of its keyword, and the joins that are written as a comma."""
            token = self._curr
            join = super()._parse_join(*args, **kwargs)
            if join is not None and token is not None:
                join.meta["start"], join.meta["end"] = token.start, token.end
                join.meta["comma"] = token.token_type == TokenType.COMMA
            return join

        def _parse_function(self, *args: Any, **kwargs: Any) -> exp.Expression | None:
            """Marks what is a function without parentheses with its place: it has no part that knows one."""
            token = self._curr
            found: exp.Expression | None = super()._parse_function(*args, **kwargs)
            if isinstance(found, _BARE) and token is not None:
                found.meta["start"], found.meta["end"] = token.start, token.end
            return found

        def raise_error(self, message: str, token: Token | None = None) -> None:
            """Raises at once, with the place of the token."""
            place = token or self._curr or None
            found = ParseError(message)
            found.errors = [{"description": message, "token": place}]
            raise found
