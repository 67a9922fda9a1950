"""Parses queries, and the statements that contain expressions, by sqlglot's parser.

sqlglot accepts more than PostgreSQL does; `_check` rejects syntax whose meaning would silently differ.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.tree.nodes import CommaJoin, FoldedName, ImpliedAlias, MarkedSelect
from watersmeet.dialects.tree.tokens import Cursor, Parameters, Unbound, not_supported, syntax_error
from watersmeet.errors import Error, Span, error
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.types import JSON_DEPTH_RULE

_REFUSED: Final = re.compile("[\x00\ud800-\udfff]")


def refused_character(text: str) -> int | None:
    """The index of the first character that a text can't contain, or None."""
    found = _REFUSED.search(text)
    return None if found is None else found.start()


def not_in_repertoire(value: str, sql: str, span: Span | None) -> Error:
    """The error CHARACTER_NOT_IN_REPERTOIRE for `value` at `span` of the statement `sql`."""
    place = refused_character(value)
    assert place is not None
    shown = _REFUSED.sub(" ", sql)  # errors are also stored as text, so they must be valid text
    what = "a lone surrogate" if ord(value[place]) else "the null character"
    return error(
        "CHARACTER_NOT_IN_REPERTOIRE",
        f"text can't contain U+{ord(value[place]):04X}, {what}",
        sql=shown,
        span=span,
        hint="Bytes of any kind can be stored in a column of type bytea.",
    )


def check_characters(sql: str) -> None:
    """Raises CHARACTER_NOT_IN_REPERTOIRE for characters that a text can't contain."""
    place = refused_character(sql)
    if place is not None:
        raise not_in_repertoire(sql, sql, Span(place, place + 1))


#: The first tokens of queries. Not all dialects have `TABLE t`.
QUERIES: Final = ("SELECT", "WITH", "VALUES", "TABLE", "(")

_AFTER_A_LIST: Final = frozenset({"FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "UNION", "ON", ")", ","})
_BEFORE_A_LIST: Final = frozenset({"SELECT", "DISTINCT", "FROM", "GROUP BY", "ORDER BY", "VALUES", "("})

#: Tokens after which any word is a name.
_NAMING: Final = (TokenType.ALIAS, TokenType.DOT)

#: A prefix of internal names: users can't write a name that starts with it.
_HOLDER: Final = "?"

#: The words that sqlglot reads as functions if a set operation in parentheses follows.
_OVER_QUERIES: Final[dict[str, type[exp.Expression]]] = {
    "EXISTS": exp.Exists,
    "ANY": exp.Any,
    "SOME": exp.Any,
    "ALL": exp.All,
}

#: The tokens that end an operand, and those that begin a text. Between two of them `?` is the operator of jsonb.
_OPERAND_ENDS: Final = (
    TokenType.IDENTIFIER, TokenType.VAR, TokenType.STRING, TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.JSONB,
)  # fmt: skip


_TEXT_BEGINS: Final = (TokenType.STRING, TokenType.PLACEHOLDER, TokenType.QDCOLON)


def node_span(node: exp.Expression) -> Span | None:
    """The span of a tree from its first to its last node with a span; if none has a span, the span of an enclosing
    node.
    """
    around: exp.Expression | None = node
    while around is not None:
        places = [span for n in around.walk() if (span := own_span(n)) is not None]
        if places:
            return Span(min(p.start for p in places), max(p.end for p in places))
        around = around.parent
    return None


def node_error(
    text: str,
    node: exp.Expression,
    condition: str,
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
) -> Error:
    """An error at the span of `node`, a tree of `text`."""
    return error(condition, message, detail=detail, hint=hint, sql=text, span=node_span(node))


#: Words of other statements: in a query they are names.
_VERBS: Final = frozenset({TokenType.ALTER, TokenType.DROP, TokenType.REVOKE, TokenType.ROLLBACK})
#: Words of queries that may also be names, as PostgreSQL does not reserve them there.
_MAYBE_NAMES: Final = frozenset({
    TokenType.BETWEEN, TokenType.CUBE, TokenType.DISTINCT, TokenType.FUNCTION, TokenType.INSERT, TokenType.LOCK,
    TokenType.NOT, TokenType.RECURSIVE, TokenType.ROLLUP, TokenType.SELECT, TokenType.VALUES,
})  # fmt: skip
#: The tokens after THEN INSERT of MERGE.
_MERGED: Final = (TokenType.DEFAULT, TokenType.L_PAREN, TokenType.VALUES)
#: Tokens after which an operand or a name begins.
_BEGINNINGS: Final = frozenset({
    TokenType.ALIAS, TokenType.AND, TokenType.CASE, TokenType.COMMA, TokenType.DOT, TokenType.ELSE, TokenType.EQ,
    TokenType.FROM, TokenType.GROUP_BY, TokenType.INTO, TokenType.JOIN, TokenType.L_PAREN, TokenType.ON, TokenType.OR,
    TokenType.ORDER_BY, TokenType.PLUS, TokenType.SELECT, TokenType.SET, TokenType.THEN, TokenType.UPDATE,
    TokenType.WHEN, TokenType.WHERE, TokenType.WITH,
})  # fmt: skip


def named(tokens: Sequence[Token]) -> list[Token]:
    """The tokens of a query, where keywords that are names in their places are names.

    PostgreSQL 18, "SQL Key Words".
    """
    if not any(t.token_type in _VERBS or t.token_type in _MAYBE_NAMES for t in tokens[1:]):
        return list(tokens)
    found = list(tokens)
    for i, t in enumerate(tokens):
        after = tokens[i + 1] if i + 1 < len(tokens) else None
        if i and (t.token_type in _VERBS or (t.token_type in _MAYBE_NAMES and _is_name(tokens, i, after))):
            found[i] = Token(TokenType.VAR, t.text, t.line, t.col, t.start, t.end, t.comments)
    return found


def _is_name(tokens: Sequence[Token], place: int, after: Token | None) -> bool:
    """Whether a keyword of `_MAYBE_NAMES` is a name."""
    kind = tokens[place].token_type
    before = tokens[place - 1].token_type
    following = TokenType.END if after is None else after.token_type
    match kind:
        case TokenType.BETWEEN:
            return before in _BEGINNINGS
        case TokenType.FUNCTION:  # Timeplus has INSERT INTO FUNCTION f(…)
            return before == TokenType.INTO and following in (TokenType.L_PAREN, TokenType.SELECT, TokenType.VALUES)
        case TokenType.INSERT:
            merges = before == TokenType.THEN and following in _MERGED
            return bool(following != TokenType.INTO and not merges)
        case TokenType.LOCK:
            return bool(following != TokenType.IN)
        case TokenType.RECURSIVE:
            return bool(before == TokenType.WITH and following == TokenType.ALIAS)
        case TokenType.DISTINCT | TokenType.NOT | TokenType.SELECT:  # AS NOT MATERIALIZED is a clause of WITH
            is_clause = after is not None and after.text.upper() == "MATERIALIZED"
            return before in (TokenType.ALIAS, TokenType.DOT) and not is_clause
        case TokenType.VALUES:
            unfinished = after is None and tokens[0].token_type == TokenType.INSERT
            return bool(following != TokenType.L_PAREN and before != TokenType.DEFAULT and not unfinished)
        case _:
            return bool(following != TokenType.L_PAREN and before != TokenType.WITH)


def read_tree(tokens: Sequence[Token], text: str, dialect: Dialect, parameters: Parameters = ()) -> exp.Expression:
    """The tree of a query, INSERT, UPDATE or DELETE. The spans of its nodes are in `text`."""
    tokens = named(tokens)
    _check_tokens(tokens, text)
    parser = dialect.parser()
    try:
        trees = parser.parse(numbered(tokens) if parameters else tokens, text)
    except ParseError as found:
        token = found.errors[0].get("token") if found.errors else None
        end = tokens[-1].end + 1
        if token is not None and token.start >= end:
            token = None
        raise syntax_error(text, token, end=end) from None
    except ValueError:  # sqlglot fails to build a node from parts that it accepted, such as `t $1 AT x`
        raise syntax_error(text, parser._curr or tokens[-1]) from None
    if len(trees) != 1 or trees[0] is None:
        raise syntax_error(text, tokens[0])
    tree: exp.Expression = trees[0]
    for node in list(tree.find_all(exp.Table)):
        if isinstance(node.this, exp.Values):  # `((VALUES …) AS a JOIN …)`
            node.replace(exp.Subquery(**node.args))
    for call in list(tree.find_all(exp.Anonymous)):  # `EXISTS ((SELECT …) UNION (SELECT …))`
        made = _OVER_QUERIES.get(str(call.this).upper())
        if made is not None and len(call.expressions) == 1 and isinstance(call.expressions[0], exp.SetOperation):
            read = made(this=call.expressions[0])
            set_span(read, own_span(call))
            call.replace(read)
    whole = Span(tokens[0].start, tokens[-1].end + 1)
    if node_span(tree) is None:
        set_span(tree, whole)
    _check(tree, text, whole)
    return tree if isinstance(parameters, Unbound) else bind_parameters(tree, parameters, text)


def query_of(cursor: Cursor, tokens: Sequence[Token] | None = None) -> exp.Expression:
    """The tree of a query, INSERT, UPDATE or DELETE. tokens: by default all from the cursor on."""
    assert cursor.grammar is not None
    found = cursor.originals(cursor.rest if tokens is None else tokens)
    return read_tree(found, cursor.text, cursor.grammar, cursor.parameters)


def expression_of(cursor: Cursor, tokens: Sequence[Token]) -> exp.Expression:
    """The tree of one scalar expression."""
    assert cursor.grammar is not None
    return read_expression(cursor.originals(tokens), cursor.text, cursor.grammar)


def is_default(node: exp.Expression) -> bool:
    """Whether a value of VALUES is the word DEFAULT."""
    if isinstance(node, exp.Column):
        return not node.table and not node.this.args.get("quoted") and str(node.name).upper() == "DEFAULT"
    return isinstance(node, exp.Var) and str(node.name).upper() == "DEFAULT"


def is_marked(query: exp.Expression) -> bool:
    """True if any SELECT in the query is marked to run until it is stopped."""
    return query.find(MarkedSelect) is not None


def read_expression(tokens: Sequence[Token], text: str, dialect: Dialect) -> exp.Expression:
    """The tree of one scalar expression."""
    if not tokens:
        raise syntax_error(text, None)
    select = Token(TokenType.SELECT, "SELECT", 1, 1, tokens[0].start, tokens[0].start, [])
    tree = read_tree([select, *tokens], text, dialect)
    if len(tree.expressions) != 1 or tree.args.get("from_"):
        raise syntax_error(text, tokens[-1])
    found: exp.Expression = tree.expressions[0]
    found = found.this if isinstance(found, ImpliedAlias) else found
    if node_span(found) is None:
        set_span(found, Span(tokens[0].start, tokens[-1].end + 1))
    return found


def _check_tokens(tokens: Sequence[Token], text: str) -> None:
    following: list[Token | None] = [*tokens[1:], None]
    before = None
    for token, after in zip(tokens, following, strict=True):
        named_by, before = before, token.token_type
        kind = token.token_type
        if kind == TokenType.COMMA and (after is None or _is_word(after, _AFTER_A_LIST)):
            raise syntax_error(text, after, end=tokens[-1].end + 1)
        ends = after is not None and after.token_type == TokenType.COMMA and named_by not in _NAMING
        if ends and _is_word(token, _BEFORE_A_LIST):
            raise syntax_error(text, after)
        if kind in (TokenType.SEMI, TokenType.ANTI) and after is not None and after.token_type == TokenType.JOIN:
            raise syntax_error(
                text,
                token,
                hint="Write a semi join as EXISTS or IN (SELECT …), an anti join as NOT EXISTS or NOT IN (SELECT …).",
            )


def _is_word(token: Token, words: frozenset[str]) -> bool:
    names = (TokenType.STRING, TokenType.IDENTIFIER, TokenType.VAR)
    return token.token_type not in names and token.text.upper() in words


def _check(tree: exp.Expression, text: str, whole: Span) -> None:
    """Rejects syntax that would silently differ. whole: the span of the tree, for nodes without a span."""
    for node in tree.walk():
        if isinstance(node, exp.Join):
            _check_join(node, text)
        elif isinstance(node, exp.Table) and node.args.get("db") == "":
            raise error("SYNTAX_ERROR", "a name is missing between two dots", sql=text, span=node_span(node) or whole)
        elif isinstance(node, exp.Limit) and node.expressions and node.arg_key == "limit":
            raise not_supported(
                "LIMIT … BY",
                text,
                node_span(node),
                hint="Number the rows of each key by row_number() OVER (PARTITION BY … ORDER BY …).",
            )
        elif isinstance(node, exp.Select) and not node.expressions:
            raise error("SYNTAX_ERROR", "a select list is missing", sql=text, span=node_span(node) or whole)
        elif isinstance(node, exp.Select) and node.args.get("joins") and not node.args.get("from_"):
            raise _join_without_from(node.args["joins"][0], text)
        elif isinstance(node, exp.In) and not _has_alternatives(node):
            raise error("SYNTAX_ERROR", "IN without a list", sql=text, span=node_span(node) or whole)
        elif isinstance(node, exp.Values) and not all(_has_content(row) for row in node.expressions):
            raise error("SYNTAX_ERROR", "a row of VALUES without values", sql=text, span=node_span(node) or whole)
        elif isinstance(node, exp.Group) and not _has_content(node):
            raise node_error(text, tree, "SYNTAX_ERROR", "GROUP BY without a list")
        elif isinstance(node, exp.Ordered) and node.args.get("with_fill"):
            raise not_supported("WITH FILL in ORDER BY", text, node_span(node))
        elif isinstance(node, exp.Order) and not node.expressions:
            raise node_error(text, tree, "SYNTAX_ERROR", "ORDER BY without a list")


def _has_content(node: exp.Expression) -> bool:
    return any(value for value in node.args.values())


def _has_alternatives(node: exp.In) -> bool:
    """Whether IN has a list of values or a query."""
    return any(node.args.get(name) for name in ("expressions", "query", "unnest", "field"))


def _join_without_from(join: exp.Join, text: str) -> Exception:
    """Finds `SELECT a JOIN b`, which the parser reads as a query without FROM, ignoring its joins."""
    return error(
        "SYNTAX_ERROR", "JOIN without FROM", sql=text, span=own_span(join) or node_span(join), hint="Write FROM."
    )


def _check_join(join: exp.Join, text: str) -> None:
    span = own_span(join) or node_span(join)
    matches = bool(join.args.get("match_condition"))
    has_condition = bool(join.args.get("on") or join.args.get("using")) or matches
    method, kind = join.method.upper(), join.kind.upper()
    if matches and method != "ASOF":
        raise error("SYNTAX_ERROR", "only ASOF JOIN has MATCH_CONDITION", sql=text, span=span)
    free = isinstance(join, CommaJoin) or kind == "CROSS" or method == "NATURAL" or _is_lateral(join)
    if free and has_condition:
        word = "NATURAL" if method == "NATURAL" else "CROSS"
        raise error("JOIN_WITH_CONDITION", f"{word} JOIN takes neither ON nor USING", sql=text, span=span)
    if not free and not has_condition:
        raise error("JOIN_WITHOUT_CONDITION", "JOIN without ON or USING", sql=text, span=span)
    if (
        kind not in ("", "INNER", "OUTER", "CROSS")
        or method not in ("", "NATURAL", "ASOF", "LATEST")
        or (kind == "CROSS" and method)
    ):
        raise error("SYNTAX_ERROR", f"{(method + ' ' + kind).strip()} JOIN does not exist", sql=text, span=span)


def _is_lateral(join: exp.Join) -> bool:
    return isinstance(join.this, exp.Lateral) and join.kind.upper() == "CROSS"


def numbered(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with a numbered name instead of each `?`, because a tree does not keep the order of the text.

    A `?` between an operand and a text or parameter is the operator of jsonb and stays.
    """
    found: list[Token] = []
    used = 0
    for t, after in zip(tokens, [*tokens[1:], None], strict=True):
        if t.token_type not in (TokenType.PLACEHOLDER, TokenType.QDCOLON) or (
            found and found[-1].token_type in _OPERAND_ENDS and after is not None and after.token_type in _TEXT_BEGINS
        ):
            found.append(t)
            continue
        found.append(Token(TokenType.VAR, f"{_HOLDER}{used}", t.line, t.col, t.start, t.start, []))
        used += 1
        if t.token_type == TokenType.QDCOLON:  # the tokenizer reads `?::int` as one sign and the type
            found.append(Token(TokenType.DCOLON, "::", t.line, t.col, t.start + 1, t.end, []))
    return found


def is_holder(node: exp.Expression) -> bool:
    """Whether a node stands for a parameter."""
    if isinstance(node, (exp.Placeholder, exp.Parameter)):
        return True
    named = isinstance(node, (exp.Column, exp.Var)) or isinstance(node.parent, exp.Fetch)
    return named and node.name.startswith(_HOLDER)


def bind_parameters(
    tree: exp.Expression, parameters: Sequence[Any] | Mapping[str, Any], text: str, *, every: bool = True
) -> exp.Expression:
    """The tree with literals instead of its parameters. Raises INVALID_PARAMETER unless each parameter has one value.

    every: whether every value must be used.
    """
    holders = [n for n in tree.walk() if is_holder(n)]
    used: set[int | str] = set()
    for holder in holders:
        key = parameter_key(holder)
        if isinstance(parameters, Mapping):
            known = key in parameters
        else:
            known = isinstance(key, int) and 0 <= key < len(parameters)
        if not known:
            shown = key + 1 if isinstance(key, int) else f'"{key}"'
            raise node_error(
                text,
                holder,
                "INVALID_PARAMETER",
                f"no value for parameter {shown}",
                detail=f"{len(parameters)} values were given.",
            )
        used.add(key)
        span = node_span(holder)
        literal = literal_of(parameters[key], text, span)  # type: ignore[index]
        set_span(literal, span)  # without a span, each search for its position would visit all enclosing nodes
        if holder is tree:
            return literal
        _put(literal, holder)
    if every and len(used) < len(parameters):
        raise error(
            "INVALID_PARAMETER",
            f"the statement has {len(used)} parameters, but {len(parameters)} values were given",
            sql=text,
        )
    return tree


def _put(literal: exp.Expression, holder: exp.Expression) -> None:
    """Replaces a parameter by a literal. `replace` would scan the whole list that contains it."""
    parent, key, index = holder.parent, holder.arg_key, holder.index
    if parent is None or key is None or index is None:
        holder.replace(literal)
        return
    parent.args[key][index] = literal
    literal.parent, literal.arg_key, literal.index = parent, key, index


def parameter_key(holder: exp.Expression) -> int | str:
    """The number (from 0) or the name of the parameter of `holder`."""
    name = str(holder.this.name if isinstance(holder, exp.Parameter) else holder.name)
    if isinstance(holder, exp.Parameter) and name.isdecimal():
        return int(name) - 1
    if name.startswith(_HOLDER):
        return int(name.removeprefix(_HOLDER) or 0)
    return name


def literal_of(value: Any, text: str, span: Span | None = None) -> exp.Expression:
    """The literal of a Python value at `span` of `text`; a tree is returned unchanged.

    Raises INVALID_PARAMETER for an unsupported type, CHARACTER_NOT_IN_REPERTOIRE, JSON_TOO_DEEP.
    """
    if isinstance(value, exp.Expression):
        tree: exp.Expression = value.copy()
        return tree
    if value is None:
        return exp.null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, (int, float, Decimal)):
        return _number(value)
    if isinstance(value, str):
        if refused_character(value) is not None:
            raise not_in_repertoire(value, text, span)
        return exp.Literal.string(value)
    if isinstance(value, (bytes, bytearray)):
        return exp.cast(exp.Literal.string("\\x" + bytes(value).hex()), exp.DataType.Type.VARBINARY)
    if isinstance(value, dt.datetime):
        kind = exp.DataType.Type.TIMESTAMP if value.tzinfo is None else exp.DataType.Type.TIMESTAMPTZ
        return exp.cast(exp.Literal.string(value.isoformat(sep=" ")), kind)
    if isinstance(value, dt.date):
        return exp.cast(exp.Literal.string(value.isoformat()), exp.DataType.Type.DATE)
    if isinstance(value, dt.time):
        return exp.cast(exp.Literal.string(value.isoformat()), exp.DataType.Type.TIME)
    if isinstance(value, dt.timedelta):
        return exp.cast(exp.Literal.string(_interval_text(value)), exp.DataType.Type.INTERVAL)
    if isinstance(value, dict):
        try:
            written = json.dumps(value, default=str)
        except RecursionError:
            raise error("JSON_TOO_DEEP", JSON_DEPTH_RULE, sql=text, span=span) from None
        return exp.cast(exp.Literal.string(written), exp.DataType.Type.JSONB)
    if isinstance(value, uuid.UUID):
        return exp.Literal.string(str(value))
    if isinstance(value, (list, tuple)):
        return exp.Array(expressions=[literal_of(v, text, span) for v in value])
    raise error("INVALID_PARAMETER", f"a parameter can't be a value of Python's type {type(value).__name__}", sql=text)


def _interval_text(value: dt.timedelta) -> str:
    """The text of an interval. A `database.sessions.result.Interval` also contains months."""
    months = getattr(value, "months", None)
    if months is not None:
        days, microseconds = getattr(value, "month_days", 0), getattr(value, "microseconds_of_day", 0)
        return f"{months} months {days} days {microseconds} microseconds"
    return f"{value.days} days {value.seconds * 1_000_000 + value.microseconds} microseconds"


def _number(value: float | Decimal) -> exp.Expression:
    if isinstance(value, float):
        return exp.cast(exp.Literal.string(repr(value)), exp.DataType.Type.DOUBLE)
    if isinstance(value, Decimal) and not value.is_finite():
        return exp.cast(exp.Literal.string(str(value)), exp.DataType.Type.DOUBLE)
    digits = format(value.copy_abs(), "f") if isinstance(value, Decimal) else str(abs(value))  # abs() rounds decimals
    literal = exp.Literal.number(digits)
    return exp.Neg(this=literal) if value < 0 else literal


def is_folded(identifier: exp.Expression) -> bool:
    """True for an unquoted name in a dialect that folds names; comparisons ignore its case."""
    return not identifier.args.get("quoted") or isinstance(identifier, FoldedName)


def name_of(identifier: exp.Expression) -> str:
    """The folded name of an identifier: as the dialect's grammar folded it, else in lower case unless quoted."""
    return str(identifier.name) if identifier.args.get("quoted") else identifier.name.lower()


@contextmanager
def depth_checked(text: str) -> Iterator[None]:
    """Raises FEATURE_NOT_SUPPORTED for a statement that is nested too deeply."""
    try:
        yield
    except RecursionError:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "the statement is nested too deeply",
            sql=text,
            hint="Split long chains of operators or parentheses into several views or columns.",
        ) from None
