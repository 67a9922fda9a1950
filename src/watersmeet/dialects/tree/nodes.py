"""Nodes for the syntax of dialects beyond SQL, and the parser mixin of all grammars.

The nodes are typed subclasses of sqlglot's nodes. The binder reads them like the nodes that they extend; only the rules
of their dialect read the added parts. The mixin (`Marking`) gives spans to trees and raises errors immediately.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final, TypeVar

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.tree.tokens import span_of
from watersmeet.errors import Span
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.times import unit_us

#: The name of the part that marks a NULL as the replacement of a parameter.
_INFER: Final = "infer"

Kind = TypeVar("Kind", bound=exp.Expression)


class MarkedSelect(exp.Select):  # type: ignore[misc]
    """A SELECT that is marked to run until it is stopped."""

    #: The parts that the node adds to a SELECT.
    own_parts: ClassVar[frozenset[str]] = frozenset()


class MarkedTable(exp.Table):  # type: ignore[misc]
    """A relation in FROM with additional parts of a dialect."""

    own_parts: ClassVar[frozenset[str]] = frozenset()
    #: The parts that a query that ends may contain.
    stored_parts: ClassVar[frozenset[str]] = frozenset()

    @property
    def is_stored(self) -> bool:
        """Whether only its stored rows are read, so that a query over it ends."""
        return False


class LoggedTable(exp.Table):  # type: ignore[misc]
    """The query of WITH that is the log of the changes of a relation: `WITH name AS CHANGELOG FROM relation`."""


class RelationArgument(exp.Subquery):  # type: ignore[misc]
    """A query as an argument of a function in FROM, of a dialect that allows that."""


class AnyRow(exp.Anonymous):  # type: ignore[misc]
    """A call of `first_value` whose value may be that of any row, if the rows have no order."""


class ArrayJoin(exp.Join):  # type: ignore[misc]
    """A join of each row with the elements of an array, which need not read a column."""


class CommaJoin(exp.Join):  # type: ignore[misc]
    """A join that is written as a comma."""


class FirstName(exp.Identifier):  # type: ignore[misc]
    """A column name that means the first match, instead of being ambiguous, if several relations have such a column."""


class FoldedName(exp.Identifier):  # type: ignore[misc]
    """An unquoted name that the grammar folded; comparisons ignore its case."""


class ColumnPath(exp.Column):  # type: ignore[misc]
    """`a.b.c` for nested fields: `a` is a source, or a column with fields.

    title: the name of a select item that is this column, if it differs from the column's name.
    """

    arg_types: ClassVar[dict[str, Any]] = {**exp.Column.arg_types, "title": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"title"})


class TuplePath(ColumnPath):
    """`p.a`: the column of a relation, or the element of a tuple."""


class ImpliedAlias(exp.Alias):  # type: ignore[misc]
    """An item of a select list without AS, with the name that its grammar gives it."""


class PastCommit(exp.Expression, exp.Condition):  # type: ignore[misc]
    """`COMMIT number` after FOR SYSTEM_TIME AS OF."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True}


def open_parameter(infer: Callable[..., None]) -> exp.Expression:
    """A parameter without a value in a statement that is bound already: a NULL with the type of its context.

    infer: called with this type, once for each context that determines a type.
    """
    return exp.Null(**{_INFER: infer})


def infer_open(node: Any, *found: Any) -> None:
    """Reports the inferred type to an open parameter; other nodes are unchanged."""
    if isinstance(node, exp.Null) and _INFER in node.args:
        node.args[_INFER](*found)


def is_open(node: exp.Expression) -> bool:
    """Whether the value of an expression follows from an open parameter."""
    return any(_INFER in n.args for n in node.find_all(exp.Null))


class Adapted(exp.Expression, exp.Condition):  # type: ignore[misc]
    """The expression `this`, which replaces the written expression `text` and determines the value."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True, "text": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"text"})


def adapt(node: exp.Expression, text: str) -> None:
    """Notes that a node replaces the written expression `text`."""
    made = Adapted(text=text)
    node.replace(made)
    made.set("this", node)


def name_item(node: exp.Expression, name: str) -> None:
    """Gives a node a name if it is an item of a select list."""
    if isinstance(node.parent, exp.Select) and node.arg_key == "expressions":
        made = ImpliedAlias(alias=exp.to_identifier(name, quoted=True))
        node.replace(made)
        made.set("this", node)


class LambdaCall(exp.Expression, exp.Func):  # type: ignore[misc]
    """A call of `this` whose first argument is the lambda `function`, with the other arguments `expressions`."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True, "function": True, "expressions": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"function"})


class SessionOrder(exp.Order):  # type: ignore[misc]
    """ORDER BY of a window with a frame `SESSION WITH GAP gap [EXCLUDE exclude]`."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Order.arg_types, "gap": True, "exclude": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"gap", "exclude"})


class KnownTable(exp.Table):  # type: ignore[misc]
    """A relation in FROM by its id, for hidden relations, which have no name."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Table.arg_types, "relation_id": True}
    own_parts: ClassVar[frozenset[str]] = frozenset({"relation_id"})


def own_parts(node: exp.Expression) -> frozenset[str]:
    """The names of the parts of a node that the rules of its dialect read."""
    found: frozenset[str] = getattr(node, "own_parts", frozenset())
    return found


def retyped(node: exp.Expression, kind: type[Kind], **parts: Any) -> Kind:
    """Replaces `node` by a node of class `kind` with additional parts."""
    made: Kind = kind(**{**node.args, **parts})
    set_span(made, own_span(node))
    node.replace(made)
    return made


def wrap(node: exp.Expression, make: Callable[[exp.Expression], exp.Expression]) -> None:
    """Replaces the node by the result of `make`, which must contain the node itself.

    A copy is not enough, because a walk over the tree that is in progress must still reach the parts of the node.
    """
    place = exp.Placeholder()
    node.replace(place)
    place.replace(make(node))


def plain(node: exp.Expression) -> exp.Expression:
    """The node as sqlglot's own class, without the parts of a dialect."""
    kind = kind_of(node)
    if kind is type(node):
        return node
    added = own_parts(node)
    made: exp.Expression = kind(**{n: part for n, part in node.args.items() if n not in added})
    set_span(made, own_span(node))
    return made


@cache
def _known(own: Any) -> type[exp.Expression]:
    found: type[exp.Expression] = next(k for k in own.__mro__ if k.__module__.startswith("sqlglot."))
    return found


def kind_of(node: exp.Expression) -> type[exp.Expression]:
    """The sqlglot class of the node, or the one that its class extends."""
    own: Any = type(node)
    return _known(own)


def _plain_tree(node: exp.Expression) -> exp.Expression:
    tree: exp.Expression = node.copy()
    for part in reversed(list(tree.walk())):  # inner parts come first
        if isinstance(part, Adapted):
            made: exp.Expression = exp.Var(this=part.args["text"])
        elif isinstance(part, ImpliedAlias):
            made = part.this
        else:
            made = plain(part)
        if part is tree:
            tree = made
        elif made is not part:
            part.replace(made)
    return tree


def sql_of(node: exp.Expression, dialect: str | None = None) -> str:
    """The node as SQL for messages, without the parts that only its grammar has."""
    tree = _plain_tree(node)
    if dialect is not None:
        for bracket in tree.find_all(exp.Bracket):
            bracket.set("offset", 1)  # subscripts stay as written
    return str(tree.sql(dialect=dialect))


def text_of(node: exp.Expression) -> str:
    """An expression as text, with unquoted names."""
    tree = _plain_tree(node)
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("quoted", False)
    return str(tree.sql(normalize_functions=False))


#: The prefix of functions of records in trees: a grammar substitutes them for the functions of its dialect.
RECORD_FUNCTION: Final = "$record."

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
    """A mixin for sqlglot parsers, which must precede them in the list of base classes."""

    #: Whether rows of VALUES may follow each other without a comma.
    OPTIONAL_COMMAS: ClassVar[bool] = False

    def _warn_unsupported(self) -> None:
        """Raises an error for an unknown statement, which sqlglot would log and accept as a text."""
        parser: Any = self
        parser.raise_error("unknown statement", parser._prev)

    def _parse_derived_table_values(self, allow_value_synonym: bool = False) -> exp.Values | None:
        """Reads VALUES with its rows. An alias is only accepted after parentheses, so that no row is mistaken for the
        columns of an alias.
        """
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
        """Reads a subscript. It rejects ARRAY (query), which sqlglot would read as a list of elements without the
        query.
        """
        called = isinstance(this, exp.Anonymous) and bool(this.expressions)
        before = exp.Paren(this=this) if called else this
        found: exp.Expression | None = super()._parse_bracket(before)  # type: ignore[misc]
        return this if found is before else found

    def _parse_type(self, parse_interval: bool = True, fallback_to_identifier: bool = False) -> Any:
        """Reads `type 'text'`, also with a cast, as in `date '2024-01-01'::timestamp`, which sqlglot would apply to the
        text.
        """
        parser: Any = self
        index, first = parser._index, parser._curr
        if first is not None and first.token_type in parser.TYPE_TOKENS and first.token_type != TokenType.INTERVAL:
            kind = parser._parse_types(check_func=True, allow_identifiers=False)
            at_text = parser._curr is not None and parser._curr.token_type == TokenType.STRING
            if isinstance(kind, exp.DataType) and at_text and kind.this not in parser.TYPE_LITERAL_PARSERS:
                made = parser.expression(exp.Cast(this=parser._parse_primary(), to=kind))
                return parser._parse_column_ops(made)
            parser._retreat(index)
        return super()._parse_type(parse_interval, fallback_to_identifier)  # type: ignore[misc]

    def _parse_in(self, this: exp.Expression | None, *arguments: Any, **more: Any) -> exp.In:
        """Reads IN, also with the rows of VALUES."""
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
        """Reads FOR SYSTEM_TIME AS OF, also with `COMMIT number` and with relative times such as `NOW() - '10'
        SECOND`.
        """
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
        """Marks a join with the span of its keyword; a join that is written as a comma has a special node."""
        token: Token | None = self._curr  # type: ignore[attr-defined]
        join: exp.Join | None = super()._parse_join(*args, **kwargs)  # type: ignore[misc]
        if join is not None and token is not None:
            if token.token_type == TokenType.COMMA:
                join = retyped(join, CommaJoin)
            set_span(join, span_of([token]))
        return join

    def _parse_function(self, *args: Any, **kwargs: Any) -> exp.Expression | None:
        """Marks a call with the span from its name to its last parenthesis, and functions without parentheses with that
        of the name.
        """
        token: Token | None = self._curr  # type: ignore[attr-defined]
        found = self._read_function(*args, **kwargs)
        if found is not None and token is not None:
            last: Token = self._prev  # type: ignore[attr-defined]
            if last.token_type == TokenType.R_PAREN:
                set_span(found, span_of([token, last]))
            elif isinstance(found, _BARE):
                set_span(found, span_of([token]))
        return found

    def _read_function(self, *args: Any, **kwargs: Any) -> exp.Expression | None:
        """Reads a call with its FILTER and OVER."""
        found: exp.Expression | None = super()._parse_function(*args, **kwargs)  # type: ignore[misc]
        return found

    def _parse_window(self, this: exp.Expression | None, *args: Any, **kwargs: Any) -> exp.Expression | None:
        """Marks the call that precedes FILTER and OVER with the span up to its last parenthesis."""
        last: Token = self._prev  # type: ignore[attr-defined]
        span = own_span(this) if isinstance(this, exp.Func) else None
        if span is not None and last.token_type == TokenType.R_PAREN:
            set_span(this, Span(span.start, last.end + 1))
        found: exp.Expression | None = super()._parse_window(this, *args, **kwargs)  # type: ignore[misc]
        return found

    def _parse_paren(self) -> exp.Expression | None:
        """Marks an expression in parentheses with a span that includes the parentheses."""
        first: Token | None = self._curr  # type: ignore[attr-defined]
        found: exp.Expression | None = super()._parse_paren()  # type: ignore[misc]
        if isinstance(found, exp.Paren) and first is not None:
            set_span(found, span_of([first, self._prev]))  # type: ignore[attr-defined]
        return found

    def raise_error(self, message: str, token: Token | None = None) -> None:
        """Raises the error immediately, with the span of the token."""
        place = token or self._curr or None  # type: ignore[attr-defined]
        found = ParseError(message)
        found.errors = [{"description": message, "token": place}]
        raise found
