"""Timeplus' functions over streams: those in FROM (`tumble`, `session`, `dedup`, …), and those that read the rows of a
stream in order of arrival (`lag`, `lags`, `neighbor`).

Timeplus, "Streaming processing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import TIME_COLUMN
from watersmeet.dialects.timeplus.nodes import Divided, StreamQuery, StreamTable
from watersmeet.dialects.tree.nodes import RelationArgument
from watersmeet.values.spans import own_span, set_span


def read_relation_function(node: exp.Table) -> None:
    """Turns `table(s)` and `changelog(s, key, …)` into the marked relation itself, and reads `tumble` and `hop`."""
    call = node.this
    name = str(call.this).lower()
    arguments = call.expressions
    if name in ("tumble", "hop"):
        _read_window_function(node, call)
    elif name in ("session", "dedup") and arguments:
        _read_divided(node, name, arguments)
    elif name == "table" and len(arguments) == 1 and _calls(arguments[0]) == "changelog":
        node.set("this", arguments[0])
        read_relation_function(node)
        node.set("static", True)
    elif name == "table" and len(arguments) == 1 and isinstance(arguments[0], exp.Column):
        node.set("static", True)
        _read_name(node, arguments[0])
    elif name == "changelog" and arguments and isinstance(arguments[0], exp.Column):
        _read_changelog(node, arguments)
    elif name == "changelog" and arguments and isinstance(arguments[0].unnest(), exp.Query):
        _read_divided(node, name, arguments)


def _read_divided(node: exp.Table, name: str, arguments: list[exp.Expression]) -> None:
    """Reads `session(stream, …)` and `dedup(stream, …)`; the stream may be a query or another function."""
    first, *rest = arguments
    divided = Divided(this=exp.var(name), expressions=rest)
    set_span(divided, own_span(node.this))
    if isinstance(first, exp.Column):
        node.set("divides", divided)
        _read_name(node, first)
        return
    if _calls(first) == "table" and [type(a) for a in first.expressions] == [exp.Column]:
        node.set("divides", divided)
        node.set("static", True)
        _read_name(node, first.expressions[0])
        return
    query = _as_query(first)
    node.replace(
        StreamQuery(this=query.this, alias=node.args.get("alias"), joins=node.args.get("joins"), divides=divided)
    )


def _calls(node: exp.Expression) -> str:
    return str(node.this).lower() if isinstance(node, exp.Anonymous) else ""


def _read_name(node: exp.Table, name: exp.Column) -> None:
    node.set("this", name.this)
    node.set("db", name.args.get("table"))


def _read_changelog(node: exp.Table, arguments: list[exp.Expression]) -> None:
    """Reads `changelog(stream, key, …)`, and `changelog(stream, key, …[, version], true)`, which drops late rows."""
    names = arguments[1:]
    drops = bool(names.pop().this) if names and isinstance(names[-1], exp.Boolean) else None
    if all(isinstance(n, exp.Column) for n in names):
        node.set("changelog", [n.this for n in names])
        node.set("drops_late", drops)
        _read_name(node, arguments[0])


def _read_window_function(node: exp.Table, call: exp.Expression) -> None:
    """Reads `tumble(s, 5s)`, which uses the column `_tp_time`; `tumble(table(s), 5s)` is marked like `table(s)`. A
    time zone at the end has no effect: windows are counted in UTC.
    """
    arguments = list(call.expressions)
    last = arguments[-1] if arguments else None
    if isinstance(last, exp.Literal) and last.is_string and last.name.upper() == "UTC":
        arguments.pop()
    if len(arguments) > 1 and (isinstance(arguments[1], exp.Interval) or _is_interval(arguments[1])):
        arguments.insert(1, exp.Column(this=exp.to_identifier(TIME_COLUMN, quoted=True)))
    first = arguments[0] if arguments else None
    if (
        isinstance(first, exp.Anonymous)
        and _calls(first) == "table"
        and [type(a) for a in first.expressions] == [exp.Column]
    ):
        arguments[0] = first.expressions[0]
        node.set("static", True)
    elif isinstance(first, (exp.Query, exp.Anonymous)):
        arguments[0] = _as_query(first)
    call.set("expressions", arguments)


def _as_query(node: exp.Expression) -> RelationArgument:
    """The query that a relation in an argument means: a query, or a function in FROM."""
    inner = node.unnest()
    if not isinstance(inner, exp.Query):
        table = StreamTable(this=inner)
        inner = exp.Select(expressions=[exp.Star()]).from_(table, copy=False)
        read_relation_function(table)
    return RelationArgument(this=inner)


def _is_interval(node: exp.Expression) -> bool:
    return isinstance(node, exp.Cast) and node.to.this == exp.DType.INTERVAL


def with_ranges(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with the conditions of `session(stream, 5s, [a, b))` as its last arguments: `a, b, 1, 0`, where the
    numbers are 1 for an included end of the range.
    """
    found = list(tokens)
    at = 0
    while at + 1 < len(found):
        if found[at].text.lower() == "session" and found[at + 1].token_type == TokenType.L_PAREN:
            found[at] = _token(TokenType.VAR, found[at].text, found[at])  # a word of its own in ClickHouse's grammar
            found = _with_range(found, at + 1)
        at += 1
    return found


_OPENING: Final = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING: Final = (TokenType.R_PAREN, TokenType.R_BRACKET)


def _with_range(tokens: list[Token], call: int) -> list[Token]:
    """The tokens with the range of one call of `session`, whose parenthesis is at `call`."""
    depth, opened = 0, None
    for i in range(call, len(tokens)):
        if tokens[i].token_type in _OPENING:
            depth += 1
            if depth == 2 and tokens[i - 1].token_type == TokenType.COMMA:
                opened = i
        elif tokens[i].token_type in _CLOSING:
            depth -= 1
            if depth == 1 and opened is not None and i + 1 < len(tokens) and tokens[i + 1].token_type in _CLOSING:
                if not _is_pair(tokens[opened + 1 : i]):
                    return tokens
                flags = []
                for end in (tokens[opened], tokens[i]):
                    is_in = end.token_type in (TokenType.L_BRACKET, TokenType.R_BRACKET)
                    flags += [_token(TokenType.COMMA, ",", end), _token(TokenType.NUMBER, str(int(is_in)), end)]
                return [*tokens[:opened], *tokens[opened + 1 : i], *flags, *tokens[i + 1 :]]
            if depth == 0:
                break
    return tokens


def _is_pair(tokens: Sequence[Token]) -> bool:
    """Whether tokens are two expressions with a comma between them."""
    depth = commas = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        commas += depth == 0 and token.token_type == TokenType.COMMA
    return commas == 1


def _token(kind: TokenType, text: str, at: Token) -> Token:
    return Token(kind, text, at.line, at.col, at.start, at.end, [])


def _over(node: exp.Anonymous, call: exp.Expression) -> exp.Expression:
    """The call over the rows of its substream in order of arrival."""
    select = node.find_ancestor(exp.Select)
    partition = [] if select is None else select.args.get("partition_by") or []
    return exp.Window(this=call, partition_by=[p.copy() for p in partition])


def _lag(node: exp.Anonymous) -> list[exp.Expression]:
    return [node.copy()]


def _neighbor(node: exp.Anonymous) -> list[exp.Expression]:
    """`neighbor(x, -1)` is the value of the row before, and `neighbor(x, 1)` that of the row after."""
    if len(node.expressions) not in (2, 3):
        return []
    value, offset, *rest = (e.copy() for e in node.expressions)
    back = isinstance(offset, exp.Neg)
    number = offset.this if isinstance(offset, exp.Neg) else offset
    return [exp.Anonymous(this="lag" if back else "lead", expressions=[value, number, *rest])]


def _lags(node: exp.Anonymous) -> list[exp.Expression]:
    """`lags(x, 1, 3)` has the values of the last, the second last and the third last row."""
    if len(node.expressions) not in (3, 4):
        return []
    value, first, last, *rest = node.expressions
    if not all(isinstance(n, exp.Literal) and n.name.isdecimal() for n in (first, last)):
        return []
    numbers = range(int(first.name), int(last.name) + 1)
    return [
        exp.Anonymous(this="lag", expressions=[value.copy(), exp.Literal.number(n), *(r.copy() for r in rest)])
        for n in (numbers if len(numbers) <= _MOST_LAGS else [])
    ]


#: The greatest number of values of `lags`.
_MOST_LAGS: Final = 1000

#: The window functions that a call means.
_CALLS: Final[dict[str, Callable[[exp.Anonymous], list[exp.Expression]]]] = {
    "lag": _lag, "neighbor": _neighbor, "lags": _lags,
}  # fmt: skip


def _made(node: exp.Anonymous, over: Callable[[exp.Expression], exp.Expression]) -> exp.Expression | None:
    name = _calls(node)
    calls = [over(c) for c in _CALLS[name](node)]
    if not calls:
        return None
    return exp.Array(expressions=calls) if name == "lags" else calls[0]


def _alone(node: exp.Anonymous) -> exp.Expression | None:
    """A call without OVER; None for one inside of OVER."""
    return None if isinstance(node.parent, exp.Window) else _made(node, lambda call: _over(node, call))


#: The functions that read other rows of a substream, for calls without OVER. None: the call stays as it is.
NEIGHBORS: Final[dict[str, Callable[[exp.Anonymous], exp.Expression | None]]] = dict.fromkeys(_CALLS, _alone)


def over_window(node: exp.Window) -> exp.Expression | None:
    """`lags(…) OVER (…)` and `neighbor(…) OVER (…)` as calls of window functions; None for others."""

    def over(call: exp.Expression) -> exp.Expression:
        made: exp.Expression = node.copy()
        made.set("this", call)
        return made

    return _made(node.this, over) if _calls(node.this) in ("lags", "neighbor") else None
