"""RisingWave's dialect: a small difference to sqlglot's.

Functions are kept as they are written (`exp.Anonymous`), so that the binder resolves their names in one table and an
unknown one is reported where it stands.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.risingwave import RisingWave as Base
from sqlglot.parser import Parser as AnyParser
from sqlglot.tokens import TokenType

from watersmeet.dialects.tree.marking import SPECIAL_SYNTAX, Marking


def _arrow(kind: type[exp.Expression]) -> Any:
    """A parser of `a -> b` that leaves `b` as it is."""
    return lambda self, this, path: self.expression(kind(this=this, expression=path))


class WatersmeetRisingWave(Base):  # type: ignore[misc]
    """RisingWave's SQL as Watersmeet reads it."""

    INDEX_OFFSET = 0  # subscripts stay as they are written

    class Tokenizer(Base.Tokenizer):  # type: ignore[misc]
        """RisingWave's tokens."""

        # sqlglot would swallow the rest of SHOW … as one string
        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(Marking, Base.Parser):  # type: ignore[misc]
        """RisingWave's grammar; functions and the operators of jsonb are left as they are written."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {name: AnyParser.FUNCTION_PARSERS[name] for name in SPECIAL_SYNTAX}
        # `->` in an argument is the operator of jsonb, never a lambda
        LAMBDAS: ClassVar[dict[TokenType, Any]] = {}
        JSON_OPERATORS: ClassVar[dict[TokenType, Any]] = {
            **Base.Parser.JSON_OPERATORS,
            TokenType.ARROW: _arrow(exp.JSONExtract),
            TokenType.DARROW: _arrow(exp.JSONExtractScalar),
        }
        # PostgreSQL 17, 4.1.6: these bind less than arithmetic does, `~1 + 2` is `~(1 + 2)`
        UNARY_PARSERS: ClassVar[dict[TokenType, Any]] = {
            **Base.Parser.UNARY_PARSERS,
            TokenType.RLIKE: lambda self: self.expression(exp.BitwiseNot(this=self._parse_term())),
            TokenType.PIPE_SLASH: lambda self: self.expression(exp.Sqrt(this=self._parse_term())),
            TokenType.DPIPE_SLASH: lambda self: self.expression(exp.Cbrt(this=self._parse_term())),
        }
