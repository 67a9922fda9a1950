"""Timeplus' grammar: a small difference to sqlglot's ClickHouse, converted to the form that the binder reads.

Names keep their case (they count as quoted). `table(s)` and `changelog(s, key)` in FROM become a special node of the
relation. `2m` becomes an interval. A join's words become `method` (ASOF, LATEST; ALL is the default), `side` and
`kind`.

Aliases are resolved as in ClickHouse: each alias of a SELECT is visible in all its clauses, and so is `WITH 5 AS five`.
An unqualified name means the alias even if a column has the same name (ClickHouse's default
`prefer_column_name_to_alias = 0`), but inside the expression of that alias it means the column. A subquery sees the
aliases of WITH, but not those of the enclosing SELECT. Each name is replaced by a copy of its expression, with the span
of the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.clickhouse import ClickHouse as Base
from sqlglot.parser import Parser as AnyParser
from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import DELTA_COLUMN, TIME_COLUMN
from watersmeet.dialects.timeplus.aggregates import AGGREGATES, PARAMETRIC, aggregate, base_name
from watersmeet.dialects.timeplus.functions import with_conditions, with_functions
from watersmeet.dialects.timeplus.nodes import EmitClause, PlainUnion, StreamSelect, StreamTable, cut_emit
from watersmeet.dialects.timeplus.streamfunctions import read_relation_function, with_ranges
from watersmeet.dialects.timeplus.tablefunctions import read_array_joins, read_table_functions, with_called_values
from watersmeet.dialects.tree.nodes import SPECIAL_SYNTAX, FirstName, ImpliedAlias, Marking, TuplePath, retyped
from watersmeet.dialects.tree.queries import depth_checked, node_error
from watersmeet.dialects.tree.tokens import not_supported, span_of
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.times import ABBREVIATED

#: The maximum number of nodes in all copies of a statement: nested aliases may double it each time.
_NODES: Final = 50_000


class _Writing:
    """Replaces names by copies. Raises FEATURE_NOT_SUPPORTED if the copies become too large."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.left = _NODES

    def put(self, column: exp.Column, value: exp.Expression) -> exp.Expression:
        """Replaces the column by a copy of the value; an item of the select list keeps its name."""
        self.left -= sum(1 for _ in value.walk())
        if self.left < 0:
            raise node_error(
                self.text,
                column,
                "FEATURE_NOT_SUPPORTED",
                "aliases that expand to such a large expression are not supported",
            )
        made = value.copy()
        if isinstance(made, (exp.Binary, exp.Not)):
            made = exp.Paren(this=made)
        if isinstance(column.parent, exp.Select) and column.arg_key == "expressions":
            made = exp.Alias(this=made, alias=column.this.copy())
        column.replace(made)
        return made


def with_aliases(tree: exp.Expression, text: str) -> exp.Expression:
    """The tree without aliases of expressions. Raises CYCLIC_ALIASES, and FEATURE_NOT_SUPPORTED if it becomes too
    large.
    """
    with depth_checked(text):
        writing = _Writing(text)
        for query in reversed(list(tree.find_all(exp.Query))):  # inner queries first: their names hide outer ones
            _replace_constants(query, writing)
        for select in reversed(list(tree.find_all(exp.Select))):  # the copies in inner queries are already finished
            _Select(select, writing).replace()
    return tree


def _replace_constants(query: exp.Expression, writing: _Writing) -> None:
    """Replaces the constants of `WITH 5 AS five, (SELECT max(i) FROM table(s)) AS most` in the whole query."""
    clause = query.args.get("with_")
    for part in [] if clause is None else list(clause.expressions):
        if not part.args.get("scalar"):
            continue
        name, value = part.alias, part.this
        part.pop()
        for column in list(query.find_all(exp.Column)):
            if _name(column) == name:
                writing.put(column, value)
    if clause is not None and not clause.expressions:
        clause.pop()


class _Select:
    """The aliases of one SELECT."""

    def __init__(self, node: exp.Select, writing: _Writing) -> None:
        self.node = node
        self.writing = writing
        self.aliases: dict[str, exp.Expression] = {}
        self.twice: set[str] = set()

    def replace(self) -> None:
        """Replaces the names in all clauses."""
        named = [n for n in _own(self.node) if _is_alias(n) and not isinstance(n.parent, exp.Star)]
        for alias in named:
            if self.aliases.setdefault(alias.alias, alias.this) != alias.this:
                self.twice.add(alias.alias)
        if not self.aliases:
            return
        done: dict[str, exp.Expression] = {}
        for alias in named:
            if self.aliases[alias.alias] is alias.this:
                self._expand(alias.alias, done, ())
        left = [
            (c, n)
            for c in _own(self.node)
            if isinstance(c, exp.Column) and (n := _name(c)) in done and not self._keeps(c, done[n])
        ]
        for alias in named:
            if alias.parent is not self.node:  # an alias inside an expression: `(i + 1 AS x) * 2`
                alias.replace(alias.this.copy())
        for column, name in left:
            self._put(column, name, done[name])

    def _expand(self, name: str, done: dict[str, exp.Expression], around: tuple[str, ...]) -> exp.Expression:
        """The expression of an alias, with its own aliases replaced. around: the aliases whose expansion is in
        progress.
        """
        if name in done:
            return done[name]
        body = self.aliases[name]
        for column in [body] if isinstance(body, exp.Column) else [n for n in _own(body) if isinstance(n, exp.Column)]:
            inner = _name(column)
            if inner is None or inner == name or inner not in self.aliases:
                continue
            if inner in around:
                raise node_error(
                    self.writing.text,
                    column,
                    "CYCLIC_ALIASES",
                    f'the aliases "{inner}" and "{name}" refer to each other',
                    hint=f"A relation in front names the column: relation.{inner}.",
                )
            found = self._put(column, inner, self._expand(inner, done, (*around, name)))
            if column is body:
                body = self.aliases[name] = found
        done[name] = body.copy()
        return done[name]

    def _put(self, column: exp.Column, name: str, value: exp.Expression) -> exp.Expression:
        if name in self.twice:
            raise node_error(
                self.writing.text,
                column,
                "AMBIGUOUS_COLUMN",
                f'the alias "{name}" has two expressions',
                hint=f"If the column is meant, put its relation in front: relation.{name}.",
            )
        return self.writing.put(column, value)

    def _keeps(self, column: exp.Column, value: exp.Expression) -> bool:
        """True for a name that is not expanded: in an expression with an alias (whose copy is expanded instead), in
        SETTINGS, as an item of ORDER BY, as an argument of a function in FROM, or for a constant in GROUP BY.
        """
        above: exp.Expression | None = column.parent
        if isinstance(above, exp.Ordered) or (isinstance(above, exp.Group) and isinstance(value, exp.Literal)):
            return True
        while above is not None and above is not self.node:
            if _is_alias(above) or above.arg_key == "settings" or isinstance(above, exp.Table):
                return True
            above = above.parent
        return False


def _is_alias(node: exp.Expression) -> bool:
    return isinstance(node, exp.Alias) and not isinstance(node, ImpliedAlias)


def _own(node: exp.Expression) -> Iterator[exp.Expression]:
    """The nodes of an expression or a SELECT, except for the nodes of its subqueries."""
    for found in node.walk(prune=lambda n: n is not node and isinstance(n, exp.Query)):
        if found is not node and not isinstance(found, exp.Query):
            yield found


def _name(column: exp.Column) -> str | None:
    """The name of a column if it is unqualified."""
    return str(column.this.name) if isinstance(column.this, exp.Identifier) and not column.args.get("table") else None


_MODES: Final = {"ALL": TokenType.ALL, "DISTINCT": TokenType.DISTINCT}


def with_union_modes(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with the mode from the query's setting, if it has one, after every UNION without a mode."""
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
    """Whether the token after UNION is ALL or DISTINCT."""
    return token is not None and token.text.upper() in _MODES


def _setting(tokens: Sequence[Token]) -> str | None:
    """The query's `union_default_mode`."""
    for name, sign, value in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if name.text.lower() == "union_default_mode" and sign.token_type == TokenType.EQ:
            return value.text.upper() if value.text.upper() in _MODES else None
    return None


_SIDES: Final = ("LEFT", "RIGHT", "FULL")
_KINDS: Final = ("INNER", "OUTER", "CROSS", "SEMI", "ANTI")
_STRICT: Final = ("ALL", "ASOF", "LATEST", "ANY")

_BETWEEN_EXPRESSIONS: Final = (
    TokenType.ALIAS,
    TokenType.COMMA,
    TokenType.FROM,
    TokenType.GROUP_BY,
    TokenType.HAVING,
    TokenType.ON,
    TokenType.ORDER_BY,
    TokenType.SELECT,
    TokenType.WHERE,
)

_WORD: Final = re.compile(r"[A-Za-z_]\w*\Z")
_DIGITS: Final = re.compile(r"[0-9]+$")
#: A subscript of a JSON path.
_SUBSCRIPT: Final = re.compile(r"\[(?:\d+|\*)\]")
_INTERVAL: Final = re.compile(r"(\d+)(ns|us|ms|s|m|h|d|w|M|q|y)\Z")
_UNITS: Final = {**ABBREVIATED, "M": "month", "y": "year"}


def _joins_next(parser: Any) -> bool:
    """True if a join's words, up to JOIN, follow at the parser's position."""
    index = parser._index
    while index < len(parser._tokens) and parser._tokens[index].text.upper() in (*_SIDES, *_KINDS, *_STRICT, "ARRAY"):
        index += 1
    return bool(index < len(parser._tokens) and parser._tokens[index].token_type == TokenType.JOIN)


class WatersmeetTimeplus(Base):  # type: ignore[misc]
    """Timeplus' SQL as Watersmeet reads it."""

    INDEX_OFFSET = 0  # subscripts stay as written

    SET_OP_DISTINCT_BY_DEFAULT: ClassVar[dict[type[exp.Expression], bool | None]] = {
        **Base.SET_OP_DISTINCT_BY_DEFAULT,
        exp.Union: True,
    }

    class Tokenizer(Base.Tokenizer):  # type: ignore[misc]
        """ClickHouse's tokens."""

        COMMANDS: ClassVar[set[TokenType]] = set()
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **Base.Tokenizer.KEYWORDS,
            "FIXED_STRING": TokenType.FIXEDSTRING,
            "LOW_CARDINALITY": TokenType.LOWCARDINALITY,
            "SHUFFLE BY": TokenType.DISTRIBUTE_BY,
        }

    class Parser(Marking, Base.Parser):  # type: ignore[misc]
        """ClickHouse's grammar; functions stay as written."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {name: AnyParser.FUNCTION_PARSERS[name] for name in SPECIAL_SYNTAX}
        NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {}
        FUNC_TOKENS: ClassVar[set[TokenType]] = {
            *Base.Parser.FUNC_TOKENS,
            TokenType.DATABASE,
            TokenType.SCHEMA,
            TokenType.UNIQUE,
        }
        AGG_FUNC_MAPPING: ClassVar[dict[str, Any]] = {}
        OPTIONAL_COMMAS: ClassVar[bool] = True
        QUERY_MODIFIER_PARSERS: ClassVar[dict[TokenType, Any]] = {
            **Base.Parser.QUERY_MODIFIER_PARSERS,
            TokenType.PARTITION_BY: lambda self: ("partition_by", self._read_list()),
            TokenType.DISTRIBUTE_BY: lambda self: ("shuffle_by", self._read_list()),
            TokenType.LIMIT: lambda self: _limit(self._parse_limit()),
        }

        def parse_set_operation(self, *args: Any, **kwargs: Any) -> exp.SetOperation | None:
            """A set operation; a UNION without ALL or DISTINCT is marked."""
            union, after = self._curr, self._next
            found: exp.SetOperation | None = super().parse_set_operation(*args, **kwargs)
            if isinstance(found, exp.Union) and not says_mode(after):
                found = retyped(found, PlainUnion)
                set_span(found, span_of([union]))
            return found

        def parse(self, raw_tokens: list[Token], sql: str) -> list[exp.Expression | None]:
            """The trees in the form that the binder reads."""
            tokens = with_ranges(with_union_modes(with_called_values(raw_tokens)))
            tokens, emit, self._inner_emits = cut_emit(tokens, sql)
            trees: list[exp.Expression | None] = super().parse(tokens, sql)
            for tree in trees:
                read_array_joins(tree, sql)
                read_table_functions(tree, sql)
            for node, clause in [(trees[0], emit), *_with_emit(trees)]:
                if isinstance(node, exp.Select) and clause is not None and clause.length("last_us") is not None:
                    _read_last(node, clause)
            made = [None if tree is None else with_aliases(adapted(tree), sql) for tree in trees]
            if emit is not None and emit.mode in ("key expire", "per event") and isinstance(made[0], exp.Select):
                made[0] = retyped(made[0], StreamSelect, emit=emit)
            elif emit is not None and made[0] is not None:
                made[0].set("emit", emit)
            return made

        _inner_emits: dict[int, EmitClause] = {}  # noqa: RUF012 - sqlglot's parsers have no constructor to extend

        def _parse_query_modifiers(self, this: Any) -> Any:
            """Reads the clauses of a query; an EMIT clause that was cut out belongs to the query that ends here."""
            found = super()._parse_query_modifiers(this)
            if isinstance(found, exp.Select):
                _read_offset_by(found)
                clause = None if self._curr is None else self._inner_emits.pop(self._curr.start, None)
                if clause is not None or any(found.args.get(p) for p in ("partition_by", "shuffle_by", "limit_by")):
                    return retyped(found, StreamSelect, emit=clause)
            return found

        def _read_list(self) -> list[exp.Expression]:
            """Reads the expressions after PARTITION BY or SHUFFLE BY."""
            self._advance()
            found: list[exp.Expression] = self._parse_csv(self._parse_assignment)
            return found

        def _parse_join_parts(self) -> tuple[Token | None, Token | None, Token | None]:
            """Reads side, kind and strictness of a join in any order: LEFT ASOF JOIN, ASOF LEFT JOIN, ASOF LATEST
            JOIN.
            """
            if not _joins_next(self):
                return None, None, None
            if array := _array_join(self):
                return array
            method = side = kind = None
            while self._curr.token_type != TokenType.JOIN:
                word = self._curr.text.upper()
                if word in _SIDES and side is None:
                    side = self._curr
                elif word in _KINDS and kind is None:
                    kind = self._curr
                elif word in ("ASOF", "LATEST", "ANY") and (method is None or word == "LATEST"):
                    method = (
                        Token(TokenType.VAR, "LATEST", start=self._curr.start, end=self._curr.end)
                        if word == "ANY"
                        else self._curr
                    )
                elif word != "ALL":
                    self.raise_error(f"{word} JOIN")
                self._advance()
            if side is None and kind is not None and kind.text.upper() == "OUTER":
                side = Token(TokenType.FULL, "FULL", kind.line, kind.col, kind.start, kind.end, [])
            return method, side, kind

        def _parse_table_alias(self, *args: Any, **kwargs: Any) -> exp.Expression | None:
            """The words of a join are never an alias."""
            if self._curr is not None and self._curr.text.upper() in ("ARRAY", "LATEST") and _joins_next(self):
                return None
            found: exp.Expression | None = super()._parse_table_alias(*args, **kwargs)
            return found

        def _parse_projections(self) -> Any:
            """Reads a select list; an item without AS has its text as its name."""
            return self._parse_csv(self._parse_item), None

        def _parse_item(self) -> exp.Expression | None:
            first = self._curr
            found: exp.Expression | None = self._parse_expression()
            is_column = isinstance(found, exp.Column) and not isinstance(found.this, exp.Literal)  # `t.1` is none
            if found is None or first is None or is_column or isinstance(found, (exp.Alias, exp.Star)):
                return found
            text = " ".join(self.sql[first.start : self._prev.end + 1].split())
            return ImpliedAlias(this=found, alias=exp.to_identifier(text, quoted=True))

        def _parse_expression(self) -> exp.Expression | None:
            """Reads an expression with its modifiers: `* APPLY(max)`, `* APPLY(x -> x + 1)`."""
            found: exp.Expression | None = AnyParser._parse_expression(self)
            while self._match_pair(TokenType.APPLY, TokenType.L_PAREN):
                found = exp.Apply(this=found, expression=self._parse_lambda())
                self._match_r_paren()
            return found

        def _parse_column_ops(self, this: exp.Expression | None) -> exp.Expression | None:
            """Reads `raw:a.b`, the text at a path of a JSON document."""
            found: exp.Expression | None = super()._parse_column_ops(this)
            if not isinstance(found, (exp.Anonymous, exp.Column, exp.Paren)) or not self._at_path():
                return found
            self._advance()
            read: exp.Expression | None = super()._parse_column_ops(self._read_path(found))
            return read

        def _read_path(self, document: exp.Expression) -> exp.Expression:
            """Reads a path behind its colon: `a.b[0].c`, whose indexes count from 0; `a[*]` is an array of texts."""
            path = f'."{self._curr.text}"'
            self._advance()
            while True:
                joined = self._curr.token_type == TokenType.DOT and self._is_joined() and _WORD.match(self._next.text)
                if joined or self._at_path():  # `raw:a:b` is `raw:a.b`
                    self._advance()
                    path += f'."{self._curr.text}"'
                    self._advance()
                elif self._at_path(_DIGITS):
                    number = self._next.text
                    where = span_of([self._curr, self._next])
                    raise not_supported(f"a path with :{number}", self.sql, where, hint=f"Write the index: [{number}].")
                elif found := _SUBSCRIPT.match(self.sql, self._curr.start):
                    path += found[0]
                    self._advance(3)
                else:
                    break
            if path.endswith("[*]") and "[*]" not in path[:-3]:
                return exp.Anonymous(
                    this="$json_elements", expressions=[document, exp.Literal.string(f"${path.removesuffix('[*]')}")]
                )
            if "[*]" in path:
                whole = exp.Literal.string(f"${path}".replace('"', ""))
                return exp.Anonymous(this="$json_query", expressions=[document, whole])
            return exp.Anonymous(this="$json_text", expressions=[document, exp.Literal.string(f"${path}")])

        def _is_joined(self) -> bool:
            """Whether the current token has no space on either side."""
            before, here, after = self._prev, self._curr, self._next
            return bool(before and after and before.end + 1 == here.start and here.end + 1 == after.start)

        def _at_path(self, part: re.Pattern[str] = _WORD) -> bool:
            """Whether a colon begins a path and not the second part of `c ? a:b`. part: what follows the colon."""
            if self._curr.token_type != TokenType.COLON or not self._is_joined() or not part.match(self._next.text):
                return False
            waiting = _conditions(reversed(self._tokens[: self._index]), TokenType.R_PAREN)
            return waiting <= 0 or _conditions(self._tokens[self._index :], TokenType.L_PAREN) < -waiting

        def _parse_value(self, values: bool = True) -> exp.Expression | None:
            """Reads a row of VALUES, without ClickHouse's additional parentheses."""
            found: exp.Expression | None = AnyParser._parse_value(self, values=values)
            return found

        def _read_function(self, *args: Any, **kwargs: Any) -> exp.Expression | None:
            """Reads a function call, also `quantile(0.9)(x)`, but not ClickHouse's aggregates with combinators."""
            first = self._curr
            found: exp.Expression | None = self._read_extract() or AnyParser._parse_function(self, *args, **kwargs)
            if not isinstance(found, exp.Anonymous) or not self._match(TokenType.L_PAREN):
                return found
            name, parameters = str(found.this).lower(), found.expressions
            arguments = self._parse_csv(self._parse_assignment)
            self._match_r_paren()
            if base_name(name) in AGGREGATES and (
                base_name(name) not in PARAMETRIC or aggregate(name, arguments, parameters) is None
            ):
                shown = "level from 0 to 1" if "quantile" in name else "constant"
                self.raise_error(f"{name}({shown})(x)", first)
            found.set("expressions", arguments)
            found.set("parameters", parameters)
            return found

        def _read_extract(self) -> exp.Expression | None:
            """Reads `extract(text, pattern)`, which is not EXTRACT(part FROM time)."""
            index = self._index
            if self._curr is None or self._curr.text.lower() != "extract" or self._next.text != "(":
                return None
            self._advance(2)
            arguments = self._parse_csv(self._parse_assignment)
            if len(arguments) == 2 and self._match(TokenType.R_PAREN):
                return exp.Anonymous(this="extract", expressions=arguments)
            self._retreat(index)
            return None


def _limit(limit: exp.Limit) -> tuple[str, exp.Limit]:
    """The part of a query that a LIMIT clause is: `limit`, or `limit_by` with expressions after BY."""
    return ("limit_by" if limit.expressions else "limit"), limit


def _read_offset_by(node: exp.Select) -> None:
    """Reads LIMIT n OFFSET m BY key, whose key is read as a part of OFFSET, like LIMIT m, n BY key."""
    offset, limit = node.args.get("offset"), node.args.get("limit")
    if offset is None or not offset.expressions or not isinstance(limit, exp.Limit):
        return
    limit.set("offset", offset.expression)
    limit.set("expressions", offset.expressions)
    node.set("limit_by", limit)
    for part in ("limit", "offset"):
        node.set(part, None)


def _with_emit(trees: Iterable[exp.Expression | None]) -> Iterator[tuple[exp.Select, EmitClause | None]]:
    """The queries in parentheses that have an EMIT clause."""
    for tree in trees:
        for node in [] if tree is None else tree.find_all(StreamSelect):
            yield node, node.args.get("emit")


def _read_last(node: exp.Select, clause: EmitClause) -> None:
    """Reads EMIT LAST: a bound of `_tp_time` that moves with the clock."""
    length = exp.cast(exp.Literal.string(f"{clause.length('last_us')} microseconds"), exp.DType.INTERVAL)
    begin = exp.Sub(this=exp.Anonymous(this="now64"), expression=length)
    node.where(exp.GT(this=exp.column(TIME_COLUMN), expression=begin), copy=False)


def _conditions(tokens: Iterable[Token], opening: TokenType) -> int:
    """The number of `?` minus the number of `:` up to the end of the expression. opening: the tokens that open a
    bracket.
    """
    closing = TokenType.L_PAREN if opening == TokenType.R_PAREN else TokenType.R_PAREN
    depth = found = 0
    for token in tokens:
        depth += (token.token_type == opening) - (token.token_type == closing)
        if depth < 0 or (depth == 0 and token.token_type in _BETWEEN_EXPRESSIONS):
            break
        if depth == 0:
            found += (token.token_type == TokenType.PLACEHOLDER) - (token.token_type == TokenType.COLON)
    return found


def adapted(tree: exp.Expression) -> exp.Expression:
    """The tree in the form that the binder reads."""
    for node in list(tree.find_all(exp.Column)):
        interval = _interval(node)
        if interval is not None:
            if node is tree:
                return interval
            node.replace(interval)
        elif not node.args.get("table") and isinstance(node.this, exp.Identifier):
            retyped(node.this, FirstName)  # an ambiguous name means the first relation that has it, as in ClickHouse
        elif type(node) is exp.Column and isinstance(node.this, exp.Identifier):
            retyped(node, TuplePath)
    for join in tree.find_all(exp.Join):
        for name in list(join.args.get("using") or []):
            retyped(name, FirstName)
    for node in tree.walk():
        if isinstance(node, exp.Identifier):
            node.set("quoted", True)
        elif isinstance(node, exp.Div):  # dividing integers gives a fraction
            node.set("this", exp.Cast(this=node.this, to=exp.DataType(this=exp.DType.DOUBLE)))
    tables = [retyped(node, StreamTable) for node in list(tree.find_all(exp.Table))]
    for select in tree.find_all(exp.Select):
        _rewind(select)
    for node in tables:
        if isinstance(node.this, exp.Anonymous):
            read_relation_function(node)
    if any(_is_of_tables(setting) for setting in tree.args.get("settings") or []):
        for node in tables:
            node.set("static", True)
    _leave_out_inner_signs(tree)
    return with_conditions(with_functions(tree))


def _leave_out_inner_signs(tree: exp.Expression) -> None:
    """Removes `_tp_delta` from the select lists of queries in FROM and WITH: rows keep their signs without it."""
    for inner in tree.find_all(exp.Subquery, exp.CTE):
        query = inner.this
        if not isinstance(query, exp.Select) or not isinstance(inner.parent, (exp.From, exp.Join, exp.With)):
            continue
        kept = [item for item in query.expressions if not _is_sign(item)]
        if kept and len(kept) < len(query.expressions):
            query.set("expressions", kept)


def _is_sign(item: exp.Expression) -> bool:
    """Whether an item of a select list is the column `_tp_delta` under its own name."""
    return isinstance(item, exp.Column) and item.name == DELTA_COLUMN and not item.args.get("table")


def _array_join(parser: Any) -> tuple[None, Token | None, Token] | None:
    """The words of ARRAY JOIN and LEFT ARRAY JOIN."""
    first, second = parser._curr, parser._next
    if first.text.upper() == "ARRAY":
        parser._advance()
        return None, None, Token(TokenType.ARRAY, "ARRAY", first.line, first.col, first.start, first.end, [])
    if first.text.upper() in ("LEFT", "INNER") and second is not None and second.text.upper() == "ARRAY":
        parser._advance(2)
        return None, first, Token(TokenType.ARRAY, "ARRAY", second.line, second.col, second.start, second.end, [])
    return None


def _is_of_tables(setting: exp.Expression) -> bool:
    """True for `query_mode = 'table'`, by which the query reads all streams as `table(stream)`."""
    return isinstance(setting, exp.EQ) and setting.this.name == "query_mode" and setting.expression.name == "table"


def _rewind(select: exp.Select) -> None:
    """Marks the items of FROM for which WHERE sets a lower bound of `_tp_time`. Such a stream is read from that time on
    instead of from the start of the query (Timeplus' documentation, "Query settings", on seek_to).
    """
    where, clause = select.args.get("where"), select.args.get("from_")
    if where is None or clause is None:
        return
    items = [clause.this, *(join.this for join in select.args.get("joins") or [])]
    for part in where.this.flatten() if isinstance(where.this, exp.And) else [where.this]:
        column = _from_time(part.unnest())
        if column is None:
            continue
        item = next((i for i in items if not column.table or column.table == _called(i)), None)
        if isinstance(item, StreamTable):
            item.set("rewound", True)


def _from_time(condition: exp.Expression) -> exp.Column | None:
    """The column `_tp_time` for which a condition sets a lower bound."""
    if isinstance(condition, (exp.LT, exp.LTE)):
        bounded = condition.expression
    elif isinstance(condition, (exp.GT, exp.GTE, exp.EQ, exp.Between)):
        bounded = condition.this
    else:
        return None
    return bounded if isinstance(bounded, exp.Column) and bounded.name == TIME_COLUMN else None


def _called(item: exp.Expression) -> str:
    """The name of an item of FROM."""
    named = item.this.expressions[0] if isinstance(item.this, exp.Anonymous) and item.this.expressions else item
    return str(item.alias or named.name)


def _interval(node: exp.Column) -> exp.Expression | None:
    """The interval that a literal such as `2m` means."""
    bare = isinstance(node.this, exp.Identifier) and not node.this.args.get("quoted")
    found = _INTERVAL.match(node.name) if bare and not node.args.get("table") else None
    if found is None or found[2] not in _UNITS:
        return None
    made = exp.cast(exp.Literal.string(f"{found[1]} {_UNITS[found[2]]}s"), exp.DType.INTERVAL)
    set_span(made, own_span(node.this))
    return made
