"""SQLstream's grammar: a small difference to RisingWave's, converted to the form that the binder reads.

Names without quotes become upper case (SS-70). The tree has special nodes for `SELECT STREAM` and for items of FROM
with a window, `x OVER (RANGE INTERVAL '1' MINUTE PRECEDING)` or `x OVER [WINDOW] w` (SS-06 to SS-12). Units of
intervals may have a precision. SQLstream, "JOIN clause", "Syntax".
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.risingwave.grammar import WatersmeetRisingWave as Base
from watersmeet.dialects.sqlstream import functions
from watersmeet.dialects.sqlstream.timefunctions import PERIOD_WORDS, adapted_time, in_unit, of_periods, period_of
from watersmeet.dialects.tree.nodes import FoldedName, MarkedSelect, MarkedTable, retyped, wrap
from watersmeet.dialects.tree.queries import node_error, node_span
from watersmeet.dialects.tree.tokens import not_supported, span_of
from watersmeet.errors import Error
from watersmeet.values.spans import set_span


class StreamSelect(MarkedSelect):
    """SELECT STREAM."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Select.arg_types, "stream": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"stream"})

    @property
    def word(self) -> exp.Var:
        """STREAM."""
        found: exp.Var = self.args["stream"]
        return found


class TopItemsSelect(StreamSelect):
    """Groups by the end of a time window and by an item, with a count. Of each window only the `most` items with the
    greatest counts are output, of equal counts those with the least items.
    """

    arg_types: ClassVar[dict[str, Any]] = {**StreamSelect.arg_types, "most": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"stream", "most"})


class WindowedTable(MarkedTable):
    """`relation OVER window`."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Table.arg_types, "over": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"over"})


class WindowedSubquery(exp.Subquery):  # type: ignore[misc]
    """`(SELECT …) OVER window`."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Subquery.arg_types, "over": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"over"})


class FromLast(exp.Expression):  # type: ignore[misc]
    """`NTH_VALUE(x, n) FROM LAST`, whose rows are counted from the last one of the window."""


def window_of(node: exp.Expression) -> exp.Window | None:
    """The window of an item of FROM; None if it has no window."""
    return node.args["over"] if isinstance(node, (WindowedTable, WindowedSubquery)) else None


_UNITS: Final = ("SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR")

#: The tokens that may follow `stream` if it is a column, the first item of a select list.
_BEHIND_A_COLUMN: Final = (TokenType.FROM, TokenType.COMMA, TokenType.DOT, TokenType.ALIAS, TokenType.SENTINEL)

_ROUNDED: Final[dict[str, type[exp.Expression]]] = {"FLOOR": exp.Floor, "CEIL": exp.Ceil, "CEILING": exp.Ceil}


def _rounded(name: str, kind: type[exp.Expression], parser: Any) -> exp.Expression:
    """Reads `FLOOR(time TO unit)` and `FLOOR(number)`; the parser stands after the opening parenthesis."""
    arguments = parser._parse_csv(parser._parse_assignment)
    if len(arguments) == 1 and parser._match_text_seq("TO"):
        unit = parser._parse_var(any_token=True)
        if unit is None:
            parser.raise_error("a unit of time was expected")
        return parser.expression(kind(this=arguments[0], to=unit))
    return parser.expression(exp.Anonymous(this=name, expressions=arguments))


def _substring(parser: Any) -> exp.Expression:
    """`SUBSTRING(text SIMILAR pattern ESCAPE sign)`, else SUBSTRING of every dialect; after the parenthesis."""
    index = parser._index
    text = parser._parse_bitwise()
    if parser._curr.text.upper() != "SIMILAR":
        parser._retreat(index)
        return Base.Parser.FUNCTION_PARSERS["SUBSTRING"](parser)
    parser._advance()
    pattern = parser._parse_bitwise()
    sign = parser._parse_string() if parser._match_text_seq("ESCAPE") else None
    if sign is None:
        parser.raise_error("ESCAPE and a character were expected")
    return parser.expression(exp.Anonymous(this="$similar_part", expressions=[text, pattern, sign]))


def _position(parser: Any) -> exp.Expression:
    """`POSITION(part IN text [FROM start])`; the parser stands after the opening parenthesis."""
    found = parser._parse_position()
    if not parser._match(TokenType.FROM):
        return found
    start = parser._parse_bitwise()
    if start is None:
        parser.raise_error("a number was expected")
    return parser.expression(
        exp.Anonymous(this="$position_from", expressions=[found.args["substr"], found.this, start])
    )


def _step(parser: Any) -> exp.Expression:
    """Reads `STEP(time BY interval)`, a FLOOR to multiples of the interval; the parser stands after the opening
    parenthesis.
    """
    time = parser._parse_assignment()
    if not parser._match_text_seq("BY"):
        parser.raise_error("BY was expected")
    interval = parser._parse_interval()
    if interval is None:
        parser.raise_error("an interval was expected")
    return parser.expression(exp.Floor(this=time, to=interval))


class WatersmeetSqlstream(Base):
    """SQLstream's SQL as Watersmeet reads it."""

    class Parser(Base.Parser):
        """RisingWave's grammar with streams and windows of joins."""

        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            **Base.Parser.FUNCTION_PARSERS,
            **{name: partial(_rounded, name, kind) for name, kind in _ROUNDED.items()},
            "STEP": _step,
            "POSITION": _position,
            "SUBSTRING": _substring,
        }

        def parse(self, raw_tokens: list[Token], sql: str) -> list[exp.Expression | None]:
            """The trees in the form that the binder reads."""
            trees: list[exp.Expression | None] = super().parse(raw_tokens, sql)
            return [None if tree is None else adapted(tree, sql) for tree in trees]

        def _parse_hint(self) -> Any:
            """Reads the word STREAM after SELECT, unless it is a column."""
            if (
                self._curr.text.upper() != "STREAM"
                or self._curr.token_type == TokenType.IDENTIFIER
                or (self._next.token_type in _BEHIND_A_COLUMN)
            ):
                return super()._parse_hint()
            mark = exp.Var(this="STREAM")
            set_span(mark, span_of([self._curr]))
            self._advance()
            return mark

        def _parse_table_parts_fast(self) -> exp.Table | None:
            """None if a window follows, so that sqlglot's slower method reads it."""
            index = self._index
            found: exp.Table | None = super()._parse_table_parts_fast()
            if found is not None and self._curr.token_type == TokenType.OVER:
                self._retreat(index)
                return None
            return found

        def _parse_table_parts(self, *args: Any, **kwargs: Any) -> Any:
            """Reads a name with its window."""
            found = super()._parse_table_parts(*args, **kwargs)
            if isinstance(found, exp.Table):
                self._parse_over(found)
            return found

        def _parse_subquery(self, this: Any, parse_alias: bool = True) -> Any:
            """Reads a query in parentheses with its window."""
            if this is None or not parse_alias or self._curr.token_type != TokenType.OVER:
                return super()._parse_subquery(this, parse_alias)
            held = exp.Subquery(this=this)
            self._parse_over(held)
            found = super()._parse_subquery(this, parse_alias)
            found.set("over", held.args["over"])
            return found

        def _parse_over(self, item: exp.Expression) -> None:
            """`OVER (window)`, `OVER name`, `OVER WINDOW name`."""
            token = self._curr
            if token.token_type != TokenType.OVER:
                return
            if self._next.token_type == TokenType.WINDOW:
                self._advance()
                self._advance()
                window = exp.Window(this=exp.Var(this="window"), alias=self._parse_id_var(any_token=False), over="OVER")
            else:
                window = self._parse_window(exp.Var(this="window"))
            if (
                window.args.get("alias") is None
                and window.args.get("spec") is None
                and window.args.get("order") is None
            ):
                self.raise_error("a window was expected", token)
            set_span(window, span_of([token, self._prev]))
            item.set("over", window)

        def _parse_interval(self, require_interval: bool = True, parse_function_unit: bool = True) -> Any:
            """Reads `INTERVAL '0:01' HOUR TO MINUTE(2)`; the precision of a unit only limits the digits of the text."""
            signed = self._next.token_type in (TokenType.DASH, TokenType.PLUS)
            after = self._tokens[self._index + 2 : self._index + 3] if signed else [self._next]
            if self._curr.token_type != TokenType.INTERVAL or [t.token_type for t in after] != [TokenType.STRING]:
                return super()._parse_interval(require_interval, parse_function_unit)
            start = self._curr
            self._advance()
            negative = self._match(TokenType.DASH) or (self._match(TokenType.PLUS) and False)
            text = self._parse_primary()
            if negative:
                text = exp.Literal.string(text.name[1:] if text.name.startswith("-") else f"-{text.name}")
            unit = self._parse_unit()
            until = self._next.text.upper() if self._next else ""
            larger = (
                unit is not None and until in _UNITS and _UNITS.index(until) >= _UNITS.index(unit.name)
            )  # TO belongs to FLOOR(… TO unit)
            if unit is not None and not larger and self._match_text_seq("TO"):
                last = self._parse_unit()
                if last is None:
                    self.raise_error("a unit of time was expected")
                unit = exp.IntervalSpan(this=unit, expression=last)
            found = self.expression(exp.Interval(this=text, unit=unit))
            set_span(found, span_of([start, self._prev]))
            return found

        def _parse_value(self, *args: Any, **kwargs: Any) -> Any:
            """A row of VALUES, also `ROW (a, b)`."""
            if self._curr.text.upper() == "ROW" and self._next.token_type == TokenType.L_PAREN:
                self._advance()
            return super()._parse_value(*args, **kwargs)

        def _parse_range(self, *args: Any, **kwargs: Any) -> Any:
            """Reads a predicate, also those of periods: `(a, b) PRECEDES (c, d)`."""
            start = self._curr
            found = super()._parse_range(*args, **kwargs)
            if isinstance(found, exp.Overlaps):
                return of_periods("OVERLAPS", found.this, found.expression) or found
            while period_of(found) is not None:
                words = next((w for w in PERIOD_WORDS if self._match_text_seq(*w.split())), None)
                if words is None:
                    break
                made = of_periods(words, found, self._parse_bitwise())
                if made is None:
                    hint = "Compare the bounds of the periods: WHERE a.start < b.start AND a.finish < b.finish."
                    raise not_supported(f"the predicate {words}", self.sql, span_of([start, self._prev]), hint=hint)
                found = made
            return found

        def _parse_types(self, *args: Any, **kwargs: Any) -> Any:
            """Reads a type, also `INTERVAL SECOND(2, 3)` and `INTERVAL DAY(2) TO SECOND`."""
            if self._curr.token_type != TokenType.INTERVAL or self._next.text.upper() not in _UNITS:
                return super()._parse_types(*args, **kwargs)
            self._advance()
            unit = self._parse_unit()
            if self._match_text_seq("TO"):
                unit = exp.IntervalSpan(this=unit, expression=self._parse_unit())
            return exp.DataType(this=exp.Interval(unit=unit))

        def _parse_ordered(self, *args: Any, **kwargs: Any) -> Any:
            """Reads an item of ORDER BY, for a t-sort with `WITHIN INTERVAL …`."""
            found = super()._parse_ordered(*args, **kwargs)
            if self._curr.text.upper() == "WITHIN" and isinstance(found, exp.Ordered):
                self._advance()
                interval = self._parse_interval()
                if interval is None:
                    self.raise_error("an interval was expected")
                found.set("within", interval)
            return found

        def _parse_partition_by(self) -> Any:
            """Reads PARTITION BY. Raises FEATURE_NOT_SUPPORTED for windows of sessions."""
            after = [t.text.upper() for t in self._tokens[self._index + 1 : self._index + 3]]
            if self._curr.token_type == TokenType.PARTITION_BY and after == ["SESSION", "ON"]:
                hint = "Write a window by time: PARTITION BY column RANGE INTERVAL '1' HOUR PRECEDING."
                raise not_supported("PARTITION BY SESSION ON", self.sql, span_of([self._curr, self._next]), hint=hint)
            return super()._parse_partition_by()

        def _parse_window_spec(self) -> Any:
            """Reads a bound of a frame, and after it `ALLOW PARTIAL`, which is the default.

            Raises FEATURE_NOT_SUPPORTED for THIS ROW and DISALLOW PARTIAL.
            """
            if self._curr.text.upper() == "THIS" and self._next.text.upper() == "ROW":
                hint = "Write CURRENT ROW: a window ends with its row."
                raise not_supported("THIS ROW in a window", self.sql, span_of([self._curr, self._next]), hint=hint)
            found = super()._parse_window_spec()
            if self._curr.text.upper() == "DISALLOW" and self._next.text.upper() == "PARTIAL":
                hint = "Compare the ROWTIME of the first row: FIRST_VALUE(s.ROWTIME) OVER w."
                raise not_supported("DISALLOW PARTIAL", self.sql, span_of([self._curr, self._next]), hint=hint)
            self._match_text_seq("ALLOW", "PARTIAL")
            return found

        def _parse_window(self, this: Any, alias: bool = False) -> Any:
            """Reads the OVER of a call, for NTH_VALUE after FROM FIRST or FROM LAST."""
            if isinstance(this, exp.Anonymous) and str(this.this).upper() == "NTH_VALUE":
                if self._match_text_seq("FROM", "LAST"):
                    this = self.expression(FromLast(this=this))
                else:
                    self._match_text_seq("FROM", "FIRST")
            return super()._parse_window(this, alias)

        def _parse_paren(self) -> Any:
            """Parentheses, with the unit of a difference of times: `(a - b) SECOND`, `(a - b) DAY TO SECOND(3)`."""
            found = super()._parse_paren()
            if not isinstance(found, exp.Paren) or not isinstance(found.this, exp.Sub):
                return found
            unit = None if self._curr.token_type == TokenType.IDENTIFIER else self._parse_unit()
            if unit is None:
                return found
            until = self._next.text.upper() if self._next else ""
            compound = until in _UNITS and _UNITS.index(until) < _UNITS.index(unit.name) and self._match_text_seq("TO")
            if compound:
                unit = self._parse_unit() or unit
            return in_unit(found, unit.name, single=not compound)

        def _parse_unit(self) -> exp.Var | None:
            """Reads `MINUTE`, `MINUTE(2)`, `SECOND(2, 3)`."""
            word = self._curr.text.upper()
            if word not in _UNITS:
                return None
            self._advance()
            if self._match(TokenType.L_PAREN):
                digits = self._parse_csv(self._parse_number)
                if not digits or len(digits) > 1 + (word == "SECOND"):
                    self.raise_error("the precision of a unit was expected")
                self._match_r_paren()
            return exp.Var(this=word)


#: Nodes that functions of this dialect may be.
_REPLACED: Final = (
    exp.Anonymous, exp.Any, exp.Column, exp.CurrentTime, exp.Dot, exp.HexString, exp.Localtime, exp.UnicodeString,
)  # fmt: skip

_VARYING: Final = (exp.DType.VARCHAR, exp.DType.NVARCHAR)
_FIXED: Final = (exp.DType.CHAR, exp.DType.NCHAR, exp.DType.BPCHAR)


def _cast(node: exp.Cast, sql: str) -> None:
    """Types that other dialects do not have; texts are cut to their length, and padded for CHAR."""
    kind = node.to.this
    if kind in (*_VARYING, *_FIXED):
        given = node.to.expressions[0].name if node.to.expressions else "1" if kind in _FIXED else None
        if given is not None and not given.isdecimal():
            raise not_supported(f"length {given} of a type", sql, node_span(node), hint="Write a number of characters.")
        length = None if given is None else int(given)
        node.set("to", exp.DataType(this=exp.DType.VARCHAR))
        if length is not None:
            wrap(node, lambda text: functions.cast_of_text(text, length, padded=kind in _FIXED))
    elif kind in (exp.DType.BINARY, exp.DType.VARBINARY):
        node.set("to", exp.DataType(this=exp.DType.VARBINARY))
    elif kind == exp.DType.TINYINT:
        node.set("to", exp.DataType(this=exp.DType.SMALLINT))


def _own(node: exp.Expression, sql: str) -> exp.Expression:
    """The node, or the one that takes the place of a function of this dialect. Errors get its span."""
    try:
        made = functions.adapted_function(node)
    except Error as err:
        err.sql, err.span = err.sql or sql, err.span or node_span(node)
        raise
    if made is not node and made.parent is None:
        set_span(made, node_span(node))
        node.replace(made)
    return made


def _check_sorting(item: exp.Ordered, sql: str) -> None:
    """Raises FEATURE_NOT_SUPPORTED for WITHIN unless the item is the first one in the order of a SELECT STREAM."""
    order = item.parent
    select = None if order is None else order.parent
    if not isinstance(select, exp.Select) or order.expressions[0] is not item:
        hint = "Write SELECT STREAM … FROM (…) AS s ORDER BY s.ROWTIME WITHIN INTERVAL …."
        raise not_supported("WITHIN other than of the first item of a SELECT", sql, node_span(item), hint=hint)
    if not (isinstance(select, StreamSelect) or isinstance(select.args.get("hint"), exp.Var)):
        hint = "Write SELECT STREAM, or leave WITHIN out."
        raise not_supported("WITHIN in a query without STREAM", sql, node_span(item), hint=hint)


_TOP_ITEMS: Final = "TOP_K_ITEMS_TUMBLING"
_MOST_ITEMS: Final = 100_000
_LONGEST_S: Final = 3600


def _adapt_top_items(item: exp.Table, sql: str) -> None:
    """Replaces `TABLE(TOP_K_ITEMS_TUMBLING(CURSOR(SELECT STREAM …), 'column', k, seconds))` by a subquery.

    Kinesis Data Analytics, "TOP_K_ITEMS_TUMBLING"; there the result is approximate. Values are texts; NULL is none.
    """
    around = item.this
    call = around.expressions[0] if isinstance(around, exp.Anonymous) and len(around.expressions) == 1 else None
    if not isinstance(call, exp.Anonymous) or str(call.this).upper() != _TOP_ITEMS:
        return
    select = item.find_ancestor(exp.Select)
    if select is None or not isinstance(select.args.get("hint"), exp.Var):
        raise not_supported(f"{_TOP_ITEMS} without STREAM", sql, node_span(item), hint="Write SELECT STREAM.")
    parts = call.expressions
    query = parts[0].expressions[0] if parts and isinstance(parts[0], exp.Anonymous) and parts[0].expressions else None
    numbers = [int(p.name) if isinstance(p, exp.Literal) and p.is_int else 0 for p in parts[2:]]
    if (
        not isinstance(query, exp.Select)
        or len(numbers) != 2
        or not (isinstance(parts[1], exp.Literal) and parts[1].is_string)
        or not (1 <= numbers[0] <= _MOST_ITEMS and 1 <= numbers[1] <= _LONGEST_S)
    ):
        raise node_error(
            sql,
            call,
            "DATATYPE_MISMATCH",
            f"{_TOP_ITEMS} takes a cursor, the name of a column, a number of items, and seconds",
            detail=f"At most {_MOST_ITEMS:,} items, and {_LONGEST_S} seconds.",
            hint=f"{_TOP_ITEMS}(CURSOR(SELECT STREAM * FROM s), 'column', 10, 60).",
        )
    rows = exp.TableAlias(this=exp.to_identifier("rows", quoted=True))
    value = exp.column(exp.to_identifier(parts[1].name), table=rows.this.copy())
    end = exp.Floor(
        this=exp.column(exp.to_identifier("ROWTIME", quoted=True), table=rows.this.copy()),
        to=exp.Interval(this=exp.Literal.string(str(numbers[1])), unit=exp.Var(this="SECOND")),
    )
    made = TopItemsSelect(
        stream=exp.Var(this="STREAM"),
        most=exp.Literal.number(numbers[0]),
        expressions=[
            exp.column(exp.to_identifier("ROWTIME", quoted=True)),
            exp.alias_(exp.cast(value.copy(), exp.DType.VARCHAR), "ITEM", quoted=True),
            exp.alias_(exp.Anonymous(this="COUNT", expressions=[exp.Star()]), "ITEM_COUNT", quoted=True),
        ],
        from_=exp.From(this=exp.Subquery(this=query.pop(), alias=rows)),
        where=exp.Where(this=exp.Not(this=exp.Is(this=value.copy(), expression=exp.Null()))),
        group=exp.Group(expressions=[end, value]),
    )
    alias = item.args.get("alias") or exp.TableAlias(this=exp.to_identifier(_TOP_ITEMS, quoted=True))
    found = exp.Subquery(this=made, alias=alias)
    for node in found.walk():
        if node_span(node) is None:
            set_span(node, node_span(call))
    item.replace(found)


def adapted(tree: exp.Expression, sql: str = "") -> exp.Expression:
    """The tree in the form that the binder reads. sql: its text, for errors."""
    for node in list(tree.walk()):
        if isinstance(node, exp.WithinGroup) and (listed := functions.ordered_list(node)) is not None:
            node.replace(listed)
        elif isinstance(node, _REPLACED):
            _own(node, sql)
        elif isinstance(node, exp.Table):
            functions.adapted_table(node)
            _adapt_top_items(node, sql)
    for node in tree.find_all(exp.Select):
        functions.with_parsed_rows(node)
    for node in list(tree.walk()):
        time = adapted_time(node)
        if time is not None:
            set_span(time, node_span(node))
            tree = time if node is tree else tree
            node.replace(time)
    for node in list(tree.walk()):
        if isinstance(node, exp.Identifier) and not node.args.get("quoted"):
            retyped(node, FoldedName, this=node.name.upper(), quoted=True)
        elif isinstance(node, exp.Cast):
            _cast(node, sql)
        elif isinstance(node, exp.Ordered) and node.args.get("within") is not None:
            _check_sorting(node, sql)
        elif isinstance(node, exp.Select) and isinstance(node.args.get("hint"), exp.Var):
            made = retyped(node, StreamSelect, stream=node.args["hint"], hint=None)
            tree = made if node is tree else tree
        elif node.args.get("over") is not None and isinstance(node, (exp.Table, exp.Subquery)):
            item = retyped(node, WindowedTable if isinstance(node, exp.Table) else WindowedSubquery)
            tree = item if node is tree else tree
    return tree
