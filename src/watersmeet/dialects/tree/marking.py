"""What the grammars of all dialects share: trees that know their place, errors at once, rows of VALUES."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.tree.nodes import CommaJoin, PastCommit, retyped
from watersmeet.dialects.tree.tokens import span_of
from watersmeet.errors import Span
from watersmeet.values.places import own_place, set_place
from watersmeet.values.times import unit_us

#: Functions whose arguments are not a list.
SPECIAL_SYNTAX: Final = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM")

_BARE: Final = (
    exp.CurrentDate,
    exp.CurrentTimestamp,
    exp.CurrentTime,
    exp.CurrentUser,
    exp.Localtime,
    exp.Localtimestamp,
)


class Marking:
    """A part of a sqlglot parser, to be put before it."""

    #: Whether rows of VALUES may follow each other without a comma.
    OPTIONAL_COMMAS: ClassVar[bool] = False

    def _parse_derived_table_values(self, allow_value_synonym: bool = False) -> exp.Values | None:
        """VALUES with its rows. An alias stands only behind parentheses, so that no row is taken for its columns."""
        parser: Any = self
        in_parentheses = parser._match_pair(TokenType.L_PAREN, TokenType.VALUES)
        if not in_parentheses and not (
            parser._match_text_seq("VALUES")
            or parser._match_text_seq("FORMAT", "VALUES")
            or (allow_value_synonym and parser._match_text_seq("VALUE"))
        ):
            return None
        rows = [self._row_of_values()]
        while parser._match(TokenType.COMMA) or (
            self.OPTIONAL_COMMAS and parser._match(TokenType.L_PAREN, advance=False)
        ):
            rows.append(self._row_of_values())
        found = exp.Values(expressions=rows)
        if in_parentheses:
            parser._match_r_paren()
            found.set("alias", parser._parse_table_alias())
        made: exp.Values = parser.expression(found)
        return made

    def _parse_bracket(self, this: exp.Expression | None = None) -> exp.Expression | None:
        """A subscript. One of ARRAY (query) is no list of elements, for which sqlglot drops the query."""
        called = isinstance(this, exp.Anonymous) and bool(this.expressions)
        before = exp.Paren(this=this) if called else this
        found: exp.Expression | None = super()._parse_bracket(before)  # type: ignore[misc]
        return this if found is before else found

    def _parse_in(self, this: exp.Expression | None, *arguments: Any, **more: Any) -> exp.In:
        """IN, also of the rows of VALUES."""
        found: exp.In = super()._parse_in(this, *arguments, **more)  # type: ignore[misc]
        if len(found.expressions) == 1 and isinstance(found.expressions[0], exp.Values):
            found.set("query", exp.Subquery(this=found.expressions[0]))
            found.set("expressions", None)
        return found

    def _row_of_values(self) -> exp.Expression:
        row: exp.Expression | None = self._parse_value()  # type: ignore[attr-defined]
        if row is None:
            self.raise_error("a row of VALUES was expected")
        assert row is not None
        return row

    def _parse_version(self) -> exp.Version | None:
        """FOR SYSTEM_TIME AS OF; also `COMMIT number`, and times before now as `NOW() - '10' SECOND`."""
        parser: Any = self
        index = parser._index
        for words in (("FOR", "SYSTEM_TIME"), ("FOR", "SYSTEM", "TIME")):
            if parser._match_text_seq(*words, "AS", "OF", "COMMIT"):
                number = parser._parse_unary()
                if number is None:
                    self.raise_error("the number of a commit was expected")
                made = PastCommit(this=number)
                found: exp.Version | None = parser.expression(
                    exp.Version(this="TIMESTAMP", expression=made, kind="AS OF")
                )
                return found
        parser._retreat(index)
        found = super()._parse_version()  # type: ignore[misc]
        length = None if found is None else found.args.get("expression")
        if isinstance(length, exp.Sub) and isinstance(length.expression, exp.Literal) and length.expression.is_string:
            unit = parser._curr.text if parser._curr else ""
            if unit_us(unit) is not None:
                parser._advance()
                length.set("expression", exp.Interval(this=length.expression, unit=exp.Var(this=unit.upper())))
        return found

    def _parse_join(self, *args: Any, **kwargs: Any) -> exp.Join | None:
        """Marks a join with the place of its keyword; one that is written as a comma is a node of its own."""
        token: Token | None = self._curr  # type: ignore[attr-defined]
        join: exp.Join | None = super()._parse_join(*args, **kwargs)  # type: ignore[misc]
        if join is not None and token is not None:
            if token.token_type == TokenType.COMMA:
                join = retyped(join, CommaJoin)
            set_place(join, span_of([token]))
        return join

    def _parse_function(self, *args: Any, **kwargs: Any) -> exp.Expression | None:
        """Marks calls from their name to their last parenthesis, and what is a function without parentheses."""
        token: Token | None = self._curr  # type: ignore[attr-defined]
        found = self._read_function(*args, **kwargs)
        if found is not None and token is not None:
            last: Token = self._prev  # type: ignore[attr-defined]
            if last.token_type == TokenType.R_PAREN:
                set_place(found, span_of([token, last]))
            elif isinstance(found, _BARE):
                set_place(found, span_of([token]))
        return found

    def _read_function(self, *args: Any, **kwargs: Any) -> exp.Expression | None:
        """What the dialect reads as a function: a call with its FILTER and OVER."""
        found: exp.Expression | None = super()._parse_function(*args, **kwargs)  # type: ignore[misc]
        return found

    def _parse_window(self, this: exp.Expression | None, *args: Any, **kwargs: Any) -> exp.Expression | None:
        """Marks the call in front of FILTER and OVER up to its parenthesis."""
        last: Token = self._prev  # type: ignore[attr-defined]
        place = own_place(this) if isinstance(this, exp.Func) else None
        if place is not None and last.token_type == TokenType.R_PAREN:
            set_place(this, Span(place.start, last.end + 1))
        found: exp.Expression | None = super()._parse_window(this, *args, **kwargs)  # type: ignore[misc]
        return found

    def _parse_paren(self) -> exp.Expression | None:
        """Marks what stands in parentheses with them."""
        first: Token | None = self._curr  # type: ignore[attr-defined]
        found: exp.Expression | None = super()._parse_paren()  # type: ignore[misc]
        if isinstance(found, exp.Paren) and first is not None:
            set_place(found, span_of([first, self._prev]))  # type: ignore[attr-defined]
        return found

    def raise_error(self, message: str, token: Token | None = None) -> None:
        """Raises at once, with the place of the token."""
        place = token or self._curr or None  # type: ignore[attr-defined]
        found = ParseError(message)
        found.errors = [{"description": message, "token": place}]
        raise found
