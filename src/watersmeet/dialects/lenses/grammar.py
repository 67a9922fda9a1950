"""Lenses' grammar: a small difference to sqlglot's PostgreSQL, converted to the form that the binder reads.

Names keep their case (they count as quoted) and are quoted by backticks; single and double quotes both delimit strings.
The tree has special nodes for `SELECT STREAM`, `SELECT TABLE`, the topics in their FROM, and joins with WITHIN. WITHIN
may precede or follow ON. A join without ON compares `_key`. EVENTTIME BY follows a topic or any later clause; WINDOW BY
and GRACE BY may be anywhere after FROM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres as Base
from sqlglot.parser import Parser as AnyParser
from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import (
    KEY_COLUMN,
    META_COLUMN,
    RECORD_HEADERS,
    RECORD_OFFSET,
    RECORD_PARTITION,
    RECORD_TIME,
    TOMBSTONE,
    VALUE_COLUMN,
)
from watersmeet.dialects.lenses.functions import (
    adapt_aggregate,
    adapt_call,
    adapt_duration,
    adapt_time,
    expand_metadata,
)
from watersmeet.dialects.lenses.names import joined
from watersmeet.dialects.tree.nodes import (
    SPECIAL_SYNTAX,
    ColumnPath,
    CommaJoin,
    MarkedSelect,
    MarkedTable,
    Marking,
    adapt,
    name_item,
    retyped,
    text_of,
    wrap,
)
from watersmeet.dialects.tree.queries import node_error, node_span
from watersmeet.dialects.tree.tokens import not_supported, span_of
from watersmeet.errors import Span, error
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.times import ABBREVIATED


class RecordSelect(MarkedSelect):
    """SELECT STREAM or SELECT TABLE, maybe with WINDOW BY and GRACE BY."""

    arg_types: ClassVar[dict[str, Any]] = {
        **exp.Select.arg_types,
        "nature": True,
        "window_by": False,
        "grace_by": False,
    }
    own_parts: ClassVar[frozenset[str]] = frozenset({"nature", "window_by", "grace_by"})

    @property
    def word(self) -> str:
        """STREAM or TABLE."""
        return str(self.args["nature"].name.upper())

    @property
    def window_by(self) -> WindowBy | None:
        """The description of its windows."""
        found: WindowBy | None = self.args.get("window_by")
        return found

    @property
    def grace_by(self) -> exp.Expression | None:
        """The interval of GRACE BY."""
        return self.args.get("grace_by")


class WindowBy(exp.Expression):  # type: ignore[misc]
    """`TUMBLE size`, `HOP size, advance` or `SESSION gap`: a word and intervals."""

    arg_types: ClassVar[dict[str, Any]] = {"this": True, "expressions": True}


class LateralTable(MarkedTable):
    """A topic in FROM with the elements of arrays: `t LATERAL items AS item`, repeated."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Table.arg_types, "elements": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"elements"})
    stored_parts: ClassVar[frozenset[str]] = frozenset({"elements"})

    @property
    def elements(self) -> Sequence[exp.Alias]:
        """Each array, with the name of its elements."""
        return self.args.get("elements") or ()

    @property
    def is_stored(self) -> bool:
        return True


class RecordTable(LateralTable):
    """A topic in FROM of SELECT STREAM or SELECT TABLE, maybe with EVENTTIME BY and LATERAL."""

    arg_types: ClassVar[dict[str, Any]] = {**LateralTable.arg_types, "nature": True, "event_time": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"elements", "nature", "event_time"})
    stored_parts: ClassVar[frozenset[str]] = frozenset()

    @property
    def is_stored(self) -> bool:
        return False

    @property
    def is_table(self) -> bool:
        """Whether only the last record of each key counts."""
        return bool(self.args["nature"].name == "table")

    @property
    def event_time(self) -> exp.Expression | None:
        """The field of EVENTTIME BY."""
        return self.args.get("event_time")


class PathAlias(exp.Alias):  # type: ignore[misc]
    """`AS a.b`: an item of a select list that is a field of an object. parts: the names after the first."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Alias.arg_types, "parts": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"parts"})

    @property
    def path(self) -> Sequence[str]:
        """The names after the first, which is the item's name."""
        return [part.name for part in self.args.get("parts") or ()]


class WithinJoin(exp.Join):  # type: ignore[misc]
    """`JOIN … WITHIN 5s GRACE PERIOD 1h`, whose clauses may be repeated, and `JOIN … LATERAL items AS item`."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Join.arg_types, "within": False, "grace": False, "elements": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"within", "grace", "elements"})

    @property
    def lengths(self) -> list[exp.Expression]:
        """The intervals of WITHIN."""
        return list(self.args.get("within") or [])

    @property
    def grace_periods(self) -> list[exp.Expression]:
        """The intervals of GRACE PERIOD."""
        return list(self.args.get("grace") or [])

    @property
    def elements(self) -> Sequence[exp.Alias]:
        """Each array of LATERAL, with the name of its elements."""
        return self.args.get("elements") or ()


class WithinComma(CommaJoin, WithinJoin):
    """`, … WITHIN 5s`, which is an error in every query."""


def lengths_of(node: exp.Join) -> list[exp.Expression]:
    """The intervals of WITHIN of a join; empty without WITHIN."""
    return node.lengths if isinstance(node, WithinJoin) else []


_UNITS: Final = {short: f"{unit}s" for short, unit in ABBREVIATED.items() if short != "us"}
_RECORD_COLUMNS: Final = (KEY_COLUMN, VALUE_COLUMN, META_COLUMN)

#: The fields of `_meta` in Kafka records.
_OF_KAFKA: Final = {"offset": RECORD_OFFSET, "partition": RECORD_PARTITION, "headers": RECORD_HEADERS}

#: Fields of `_meta` in Lenses that Watersmeet lacks.
_SIZES: Final = ("__keysize", "__valsize", "__valuesize")

_NATURES: Final = ("STREAM", "TABLE")

#: Words of clauses that end with BY.
_CLAUSES: Final = ("EVENTTIME", "WINDOW", "GRACE")

#: By kind of window, the number of its durations.
_WINDOWS: Final = {"TUMBLE": 1, "HOP": 2, "SESSION": 1}


class WatersmeetLenses(Base):  # type: ignore[misc]
    """Lenses' SQL as Watersmeet reads it."""

    INDEX_OFFSET = 0  # subscripts stay as written

    class Tokenizer(Base.Tokenizer):  # type: ignore[misc]
        """PostgreSQL's tokens with other quotes; the parser distinguishes `_meta.timestamp` and `5s`."""

        COMMANDS: ClassVar[set[TokenType]] = set()
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            word: kind
            for word, kind in Base.Tokenizer.KEYWORDS.items()
            if word != "REGEXP"  # a function
        }
        QUOTES: ClassVar[list[Any]] = ["'", '"']
        IDENTIFIERS: ClassVar[list[Any]] = ["`"]
        BIT_STRINGS: ClassVar[list[Any]] = []
        HEX_STRINGS: ClassVar[list[Any]] = []
        BYTE_STRINGS: ClassVar[list[Any]] = []
        HEREDOC_STRINGS: ClassVar[list[Any]] = []

        def tokenize(self, sql: str) -> list[Token]:
            """The tokens, with one for each name of a topic that has dashes."""
            return joined(super().tokenize(sql), sql)

    class Parser(Marking, Base.Parser):  # type: ignore[misc]
        """PostgreSQL's grammar; functions stay as written."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: AnyParser.FUNCTION_PARSERS[name] for name in SPECIAL_SYNTAX if name != "SUBSTRING"
        }
        LAMBDAS: ClassVar[dict[TokenType, Any]] = {}
        OPERATION_MODIFIERS: ClassVar[set[str]] = set(_NATURES)
        QUERY_MODIFIER_PARSERS: ClassVar[dict[TokenType, Any]] = {
            **Base.Parser.QUERY_MODIFIER_PARSERS,
            TokenType.WINDOW: lambda parser: parser._window_clause(),
        }

        def parse(self, raw_tokens: list[Token], sql: str) -> list[exp.Expression | None]:
            """The trees in the form that the binder reads. Raises FEATURE_NOT_SUPPORTED for unsupported clauses."""
            _check_clauses(raw_tokens, sql)
            trees: list[exp.Expression | None] = super().parse(raw_tokens, sql)
            for tree in trees:
                if tree is not None:
                    _adapt(tree, sql)
            return [None if tree is None else _with_records(tree) for tree in trees]

        def _parse_join(self, *args: Any, **kwargs: Any) -> exp.Join | None:
            """A join with WITHIN before or after its ON, maybe followed by LATERAL."""
            join: exp.Join | None = super()._parse_join(*args, **kwargs)
            if join is None:
                return None
            within, grace = self._windows()
            if within and not join.args.get("on") and self._match(TokenType.ON):
                join.set("on", self._parse_disjunction())
            more = self._windows()
            elements = []
            while not isinstance(join, CommaJoin) and self._at_elements():
                self._match(TokenType.LATERAL)
                elements.append(self._element())
            if within or more[0] or elements:
                kind = WithinComma if isinstance(join, CommaJoin) else WithinJoin
                join = retyped(join, kind, within=within + more[0], grace=grace + more[1], elements=elements)
            return join

        def _at_elements(self) -> bool:
            """Whether LATERAL of Lenses follows, not that of standard SQL."""
            opens = self._next is not None and self._next.token_type == TokenType.L_PAREN
            return self._curr is not None and self._curr.token_type == TokenType.LATERAL and not opens

        def _parse_table(self, *args: Any, **kwargs: Any) -> exp.Expression | None:
            """An item of FROM, maybe with EVENTTIME BY and LATERAL."""
            found: exp.Expression | None = super()._parse_table(*args, **kwargs)
            while isinstance(found, exp.Table):
                if self._match_text_seq("EVENTTIME", "BY"):
                    found.set("event_time", self._event_time())
                elif self._match(TokenType.LATERAL):
                    found.append("elements", self._element())
                else:
                    break
            return found

        def _element(self) -> exp.Alias:
            """`items AS item`, after LATERAL."""
            array = self._parse_disjunction()
            self._match(TokenType.ALIAS)
            name = self._parse_id_var(any_token=False)
            if array is None or name is None:
                self.raise_error("LATERAL takes an array and a name, such as LATERAL items AS item")
            made: exp.Alias = self.expression(exp.Alias(this=array, alias=name))
            return made

        def _parse_query_modifiers(self, this: exp.Expression) -> exp.Expression:
            """Reads the clauses after FROM, with GRACE BY and EVENTTIME BY in any order."""
            found: exp.Expression = super()._parse_query_modifiers(this)
            while isinstance(found, exp.Select) and self._own_clause(found):
                found = super()._parse_query_modifiers(found)
            return found

        def _own_clause(self, select: exp.Select) -> bool:
            """Reads a clause that only Lenses has into `select`. False if no such clause follows."""
            first = self._curr
            if self._match_text_seq("GRACE", "BY"):
                part, made = "grace_by", self._duration()
            elif self._match_text_seq("EVENTTIME", "BY"):
                part, made = "event_time", self._event_time()
            else:
                return False
            clause = select.args.get("from_")
            owner = select if part != "event_time" else None if clause is None else clause.this
            if owner is None or (
                owner is not select and (not isinstance(owner, exp.Table) or select.args.get("joins"))
            ):
                self.raise_error("EVENTTIME BY must follow the topic whose records it is about", first)
            assert owner is not None
            if owner.args.get(part) is not None:
                self.raise_error("this clause was given before", first)
            owner.set(part, made)
            return True

        def _window_clause(self) -> tuple[str, Any]:
            """WINDOW BY; otherwise WINDOW of standard SQL."""
            if self._match_text_seq("WINDOW", "BY"):
                return "window_by", self._window_by()
            found: tuple[str, Any] = Base.Parser.QUERY_MODIFIER_PARSERS[TokenType.WINDOW](self)
            return found

        def _window_by(self) -> WindowBy:
            """`TUMBLE 5m`, `HOP 5m, 1m` or `SESSION 10s`."""
            word = self._curr
            count = None if word is None else _WINDOWS.get(word.text.upper())
            if count is None:
                self.raise_error("WINDOW BY takes TUMBLE size, HOP size, advance or SESSION gap")
            assert count is not None
            self._advance()
            lengths = [self._duration()]
            while self._match(TokenType.COMMA):
                lengths.append(self._duration())
            if len(lengths) != count:
                self.raise_error(f"{word.text.upper()} takes {count} duration{'s' if count > 1 else ''}", word)
            made = WindowBy(this=exp.Var(this=word.text.upper()), expressions=lengths)
            set_span(made, span_of([word, self._prev]))
            return made

        def _event_time(self) -> exp.Expression:
            """The field after EVENTTIME BY."""
            found: exp.Expression | None = self._parse_column()
            if found is None or found.find(exp.Column) is None:
                self.raise_error("EVENTTIME BY takes a field, such as EVENTTIME BY createdAt")
            return found

        def _parse_table_alias(self, *args: Any, **kwargs: Any) -> exp.Expression | None:
            """The words of Lenses' own clauses are never an alias."""
            word = "" if self._curr is None else self._curr.text.upper()
            following = "" if self._next is None else self._next.text.upper()
            if word == "WITHIN" or (word in _CLAUSES and following == "BY"):
                return None
            found: exp.Expression | None = super()._parse_table_alias(*args, **kwargs)
            return found

        def _parse_field_def(self) -> exp.Expression | None:
            """The list of fields of an INSERT may also contain a nested field, `address.city`; `_value.id` means
            `id`.
            """
            found: exp.Expression | None = super()._parse_field_def()
            while found is not None and self._match(TokenType.DOT):
                below = self._parse_field(any_token=True)
                if below is None:
                    self.raise_error("a field is missing after the dot")
                found = below if found.name == VALUE_COLUMN else exp.Dot(this=found, expression=below)
            return found

        def _parse_alias(self, this: exp.Expression | None, explicit: bool = False) -> exp.Expression | None:
            """An alias, also a field of a field (`AS address.city`, `AS _key.id`); `AS _value.id` is `AS id`."""
            found: exp.Expression | None = super()._parse_alias(this, explicit)
            if not isinstance(found, exp.Alias) or found is this or not self._match(TokenType.DOT, advance=False):
                return found
            names = [found.args["alias"]]
            while self._match(TokenType.DOT):
                part = self._parse_id_var(any_token=True)
                if part is None:
                    self.raise_error("the name of a field was expected")
                names.append(part)
            first, *rest = names[1:] if names[0].name == VALUE_COLUMN else names
            if first.name == META_COLUMN and [p.name.lower() for p in rest] == ["timestamp"]:
                first, rest = exp.to_identifier(RECORD_TIME, quoted=True), []
            elif first.name in (META_COLUMN, "_headers"):
                raise not_supported(
                    f"AS {first.name}.{rest[0].name}",
                    self.sql,
                    node_span(names[0]),
                    hint="A query sets the fields of the value, _key, and the time: AS _meta.timestamp.",
                )
            return retyped(found, PathAlias, alias=first, parts=rest)

        def _windows(self) -> tuple[list[exp.Expression], list[exp.Expression]]:
            """Reads `WITHIN 5s GRACE PERIOD 1h`, which may be repeated: the lengths and the grace periods."""
            lengths: list[exp.Expression] = []
            periods: list[exp.Expression] = []
            while self._match_text_seq("WITHIN"):
                lengths.append(self._duration())
                if self._match_text_seq("GRACE"):
                    if not self._match_text_seq("PERIOD"):
                        self.raise_error("GRACE PERIOD and a duration, such as GRACE PERIOD 1h, were expected")
                    periods.append(self._duration())
            return lengths, periods

        def _duration(self) -> exp.Expression:
            """Reads a duration such as `5s` after a word."""
            first = self._prev
            if not self._match(TokenType.NUMBER):
                self.raise_error("a duration such as 5s was expected")
            digits = self._prev
            unit = _UNITS.get(self._curr.text.lower()) if self._curr is not None else None
            if unit is None or not digits.text.isdecimal():
                self.raise_error("a duration such as 5s was expected", digits)
            self._advance()
            made = exp.cast(exp.Literal.string(f"{digits.text} {unit}"), exp.DType.INTERVAL)
            set_span(made, span_of([first, self._prev]))
            return made


#: Types of Lenses that other dialects lack.
_TYPES: Final = {exp.DType.DATETIME: exp.DType.TIMESTAMP, exp.DType.TINYINT: exp.DType.SMALLINT}

#: The windows of Lenses 2 and 3 in GROUP BY, each with its later form.
_OLD_WINDOWS: Final = {
    "TUMBLE": "WINDOW BY TUMBLE 1m",
    "HOP": "WINDOW BY HOP 5m, 1m",
    "SESSION": "WINDOW BY SESSION 5m",
    "SLIDING": "WITHIN 1m in a join",
}


def _check_clauses(tokens: list[Token], sql: str) -> None:
    """Raises FEATURE_NOT_SUPPORTED for earlier forms of clauses."""
    grouped = False
    for i, token in enumerate(tokens):
        grouped = grouped or token.token_type == TokenType.GROUP_BY
        called = [t.token_type for t in tokens[i + 1 : i + 2]] == [TokenType.L_PAREN]
        if grouped and called and token.text.upper() in _OLD_WINDOWS:
            word = token.text.upper()
            raise not_supported(f"{word}(…) in GROUP BY", sql, span_of([token]), hint=f"Write {_OLD_WINDOWS[word]}.")


def _adapt(tree: exp.Expression, sql: str) -> None:
    """Converts a tree to the form that the binder reads."""
    for node in list(tree.walk()):
        if isinstance(node, exp.Identifier):
            node.set("quoted", True)
        elif isinstance(node, exp.Anonymous):
            if not adapt_aggregate(node, sql):
                adapt_call(node, sql)
        elif isinstance(node, exp.DataType) and node.this in _TYPES:
            node.set("this", _TYPES[node.this])
        elif isinstance(node, exp.Bracket):
            _adapt_selection(node, sql)
        elif isinstance(node, (exp.Add, exp.Sub)):
            adapt_duration(node)
        elif isinstance(node, exp.Insert) and node.args.get("with_"):
            raise node_error(
                sql,
                node.this,
                "SYNTAX_ERROR",
                "INSERT can't follow WITH without a semicolon",
                hint="Write WITH name AS (…); INSERT INTO topic SELECT ….",
            )
        elif isinstance(node, exp.Select):
            _adapt_select(node, sql)
        elif isinstance(node, exp.Join) and node.kind.upper() == "OUTER" and not node.side:
            node.set("side", "FULL")
            node.set("kind", None)
    for node in list(tree.find_all(exp.Column)):
        expand_metadata(node)
    for node in list(tree.find_all(exp.Column)):
        if node.name == VALUE_COLUMN and _is_read(node):
            continue
        _read_record_column(retyped(node, ColumnPath), sql)
    for node in list(tree.walk()):
        adapt_time(node)


def _check_ending(node: exp.Select, items: Sequence[exp.Expression], sql: str) -> None:
    """FEATURE_NOT_SUPPORTED for clauses about records in a SELECT without STREAM and TABLE."""
    found = [(node, "window_by"), (node, "grace_by"), *((i, "event_time") for i in items)]
    for owner, part in found:
        if owner.args.get(part) is not None:
            shown = {"window_by": "WINDOW BY", "grace_by": "GRACE BY", "event_time": "EVENTTIME BY"}[part]
            raise not_supported(
                f"{shown} in a query without STREAM and TABLE",
                sql,
                node_span(owner.args[part]),
                hint="Write SELECT STREAM, or group by a time that is cut: date_trunc('minute', _meta.timestamp).",
            )


def _check_words(join: exp.Join, sql: str) -> None:
    """SYNTAX_ERROR for a join that Lenses' document does not define (LS-02)."""
    words = "," if isinstance(join, CommaJoin) else " ".join(filter(None, (join.method, join.side, join.kind))).upper()
    using = join.args.get("using")
    if words not in ("", "LEFT", "RIGHT", "INNER", "OUTER") or using:
        span = own_span(join)
        assert span is not None
        shown = "USING" if using else sql[span.start : span.end]
        raise error(
            "SYNTAX_ERROR",
            f'syntax error at or near "{shown}"',
            sql=sql,
            span=span,
            detail="Sources are joined by JOIN, INNER JOIN, LEFT JOIN, RIGHT JOIN or OUTER JOIN, with ON or without.",
        )


def _read_record_column(node: exp.Column, sql: str) -> None:
    """`_meta.timestamp`, `_value.field`, `_key.field`, optionally qualified by a source (LS-46)."""
    for value, before in (("catalog", None), ("db", "catalog")):  # _value.field.field
        if node.text(value) == VALUE_COLUMN:
            node.set(value, None if before is None else node.args.get(before))
            if before is not None:
                node.set(before, None)
            return
    column = node.args.get("table")
    if column is None or column.name not in _RECORD_COLUMNS:
        return
    source = node.args.get("db")
    if column.name == VALUE_COLUMN and source is None and isinstance(node.this, exp.Star):
        node.replace(node.this)
    elif column.name == VALUE_COLUMN:
        node.set("table", source)
    elif column.name == KEY_COLUMN:
        key = exp.Column(this=column.copy(), table=source)
        made = exp.Dot(this=key, expression=node.this.copy())
        node.replace(made)
        name_item(made, node.name)
    elif node.name.lower() == "timestamp":
        node.set("this", exp.to_identifier(RECORD_TIME, quoted=True))
        set_span(node.this, own_span(column))
        node.set("table", source)
        node.set("title", "timestamp")
    else:
        first, last = own_span(column), own_span(node.this)
        span = None if first is None else Span(first.start, (last or first).end)
        if node.name.lower() in _SIZES:
            hint = "The bytes of a record are not kept. LEN(MKSTRING(field)) is the length of the JSON of a field."
            raise not_supported(f"_meta.{node.name}", sql, span, hint=hint)
        if node.name.lower() not in _OF_KAFKA:
            raise error(
                "UNDEFINED_COLUMN",
                f"_meta has no field {node.name}",
                sql=sql,
                span=span,
                hint="It has timestamp, partition, offset and headers.",
            )
        node.set("title", node.name.lower())
        node.set("this", exp.to_identifier(_OF_KAFKA[node.name.lower()], quoted=True))
        set_span(node.this, own_span(column))
        node.set("table", source)
    node.set("db", None)


def _is_read(node: exp.Column) -> bool:
    """Reads `_value IS NULL`, optionally qualified by a source. It is true for a record without a value and for the
    NULLs of an outer join. False for other uses of the whole value.

    SELECT STREAM and SELECT TABLE only read records with a value, so only a join can lack it.
    """
    asked = node.parent
    if not isinstance(asked, exp.Is) or not isinstance(asked.expression, exp.Null):
        return False
    select = node.find_ancestor(exp.Select)
    adapt(asked, text_of(asked))
    followed = select is not None and select.args.get("nature") is not None
    node.set("this", exp.to_identifier(RECORD_TIME if followed else TOMBSTONE, quoted=True))
    if not followed:
        asked.set("expression", exp.false())
        asked.set("negate", not asked.args.get("negate"))
    return True


def _adapt_selection(node: exp.Bracket, sql: str) -> None:
    """Converts `items[0]`, the first element (Lenses SQL, "Expressions", "Array selections"), to the binder's index 1.

    FEATURE_NOT_SUPPORTED for a slice.
    """
    place = node.expressions[0]
    if isinstance(place, exp.Slice):
        raise not_supported("a slice of an array", sql, node_span(node), hint="Select elements one by one: items[0].")
    if place.is_int and isinstance(place, exp.Literal):
        place.replace(exp.Literal.number(int(place.this) + 1))
    else:
        wrap(place, lambda i: exp.Add(this=exp.paren(i, copy=False), expression=exp.Literal.number(1)))


def _with_records(tree: exp.Expression) -> exp.Expression:
    """The tree with special nodes for SELECT STREAM, SELECT TABLE and the topics that they read."""
    for node in list(tree.find_all(exp.Select, exp.Table)):
        if node.args.get("nature") is not None:
            made = retyped(node, RecordSelect if isinstance(node, exp.Select) else RecordTable)
            tree = made if node is tree else tree
        elif node.args.get("elements"):
            retyped(node, LateralTable)
    return tree


def marked(query: exp.Expression, is_table: bool) -> exp.Expression:
    """The query with TABLE or STREAM in each SELECT that has neither."""
    query = query.copy()
    for select in list(query.find_all(exp.Select)):
        if select.args.get("nature") is None:
            _mark(select, exp.Var(this="table" if is_table else "stream"))
    return _with_records(query)


def _mark(node: exp.Select, nature: exp.Var) -> None:
    """Marks a SELECT and the topics in its FROM."""
    clause = node.args.get("from_")
    items = [] if clause is None else [clause.this, *[j.this for j in node.args.get("joins") or []]]
    node.set("nature", nature)
    for item in items:
        if isinstance(item, exp.Table):
            item.set("nature", nature.copy())


def _adapt_select(node: exp.Select, sql: str) -> None:
    """Marks the topics in FROM of SELECT STREAM or SELECT TABLE; joins without ON compare `_key` (LS-11)."""
    clause = node.args.get("from_")
    items = [] if clause is None else [clause.this, *[j.this for j in node.args.get("joins") or []]]
    words = node.args.get("operation_modifiers")
    if not words:
        _check_ending(node, items, sql)
    else:
        node.set("operation_modifiers", None)
        _mark(node, exp.Var(this=words[0].name.lower()))
        for join in node.args.get("joins") or []:
            _check_words(join, sql)
    for join in (node.args.get("joins") or []) if items else []:
        if not join.args.get("on") and not join.args.get("using") and not isinstance(join, CommaJoin):
            left, right = (
                exp.column(exp.to_identifier("_key", quoted=True), exp.to_identifier(i.alias_or_name, quoted=True))
                for i in (items[0], join.this)
            )
            join.set("on", exp.EQ(this=left, expression=right))
