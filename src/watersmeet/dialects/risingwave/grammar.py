"""RisingWave's grammar of queries, and its CREATE and DROP of functions and sinks.

RisingWave, "CREATE FUNCTION", "SQL UDFs", "CREATE SINK", "Sink data from RisingWave to Apache Kafka".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, cast, get_args

from sqlglot import exp
from sqlglot.dialects.risingwave import RisingWave as Base
from sqlglot.parser import Parser as AnyParser
from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import DropWord, MessageFormat
from watersmeet.catalog.parts import Encoding, RowForm
from watersmeet.dialects.risingwave.accepted import read_create_database, read_drop_database
from watersmeet.dialects.statements import ddl
from watersmeet.dialects.statements.ddl import cut_emit
from watersmeet.dialects.statements.functions import function_readers
from watersmeet.dialects.tree.definitions import CreateSink
from watersmeet.dialects.tree.nodes import SPECIAL_SYNTAX, LambdaCall, LoggedTable, Marking, SessionOrder, retyped
from watersmeet.dialects.tree.queries import query_of
from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, read_options, span_of
from watersmeet.errors import Span, did_you_mean

#: Tokens that may follow a column, but not the word INTERVAL of an interval.
_AFTER_A_COLUMN: Final = frozenset({
    TokenType.ASC, TokenType.DASH, TokenType.DESC, TokenType.MOD, TokenType.PLUS, TokenType.SLASH, TokenType.STAR,
})  # fmt: skip

_FORMS: Final = ("plain", "upsert", "debezium")

#: A letter, and an interval of one whole number and a unit.
_LETTER: Final = re.compile(r"[A-Za-z]")
_LENGTH: Final = re.compile(r"-?[0-9]+\s*[A-Za-z]+")

#: The encodings that have another name in the catalog.
_RENAMED_ENCODINGS: Final = {"text": "string"}


def read_sink(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads CREATE SINK; the cursor stands after SINK."""
    made = read_new_name(cursor, base)
    into = cursor.relation_name() if cursor.take("INTO") else None
    targets = cursor.names() if into is not None and cursor.at("(") else ()
    source, query, emit, query_text = None, None, None, ""
    if cursor.at("("):
        raise not_supported("a sink with a list of columns", cursor.text, span_of(cursor.rest[:1]))
    if cursor.take("FROM"):
        source = cursor.relation_name()
    else:
        cursor.expect("AS")
        tokens = _query_of_sink(cursor)
        if not tokens:
            raise cursor.error()
        query_text = cursor.text[tokens[0].start : tokens[-1].end + 1]
        tokens, emit = cut_emit(tokens)
        query = query_of(cursor, tokens)
    spans: dict[str, Span] = {}
    options = read_options(cursor, spans) if cursor.take("WITH") else {}
    start = cursor.index
    format_ = None
    if cursor.take("FORMAT"):
        format_ = _read_format(cursor, spans)
        spans["format"] = span_of(cursor.tokens[start : cursor.index])
    cursor.end()
    return CreateSink(
        **made,
        source=source,
        query=query,
        emit=emit,
        query_text=query_text,
        into=into,
        targets=targets,
        options=options,
        spans=spans,
        format=format_,
    )


def _query_of_sink(cursor: Cursor) -> Sequence[Token]:
    """The tokens up to the last WITH with options, or the end; moves the cursor there."""
    start = cursor.index
    ends = [len(cursor.tokens)]
    while not cursor.done:
        cursor.until("WITH")
        if cursor.at("WITH", "("):
            ends.append(cursor.index)
        cursor.index += 1
    cursor.index = ends[-1]
    return cursor.tokens[start : cursor.index]


def _read_format(cursor: Cursor, spans: dict[str, Span]) -> MessageFormat:
    """Reads `PLAIN|UPSERT|DEBEZIUM ENCODE encoding [(…)] [KEY ENCODE encoding [(…)]]`; the cursor stands after
    FORMAT.
    """
    form = cursor.word()
    if form.name not in _FORMS:
        raise cursor.error_at(
            form.span,
            "CONNECTOR_OPTION",
            f"a sink can't have FORMAT {form.name.upper()}",
            hint=did_you_mean(form.name, _FORMS) or "FORMAT PLAIN, UPSERT and DEBEZIUM exist.",
        )
    cursor.expect("ENCODE")
    encoding = _read_encoding(cursor)
    options = read_options(cursor, spans) if cursor.at("(") else {}
    key = None
    if cursor.take("KEY", "ENCODE"):
        key = _read_encoding(cursor)
        options |= {f"key.{n}": v for n, v in read_options(cursor).items()} if cursor.at("(") else {}
    return MessageFormat(cast("RowForm", form.name), encoding, key, options)


def _read_encoding(cursor: Cursor) -> Encoding:
    word = cursor.word()
    found = _RENAMED_ENCODINGS.get(word.name, word.name)
    if found not in get_args(Encoding):
        raise cursor.error_at(
            word.span,
            "CONNECTOR_OPTION",
            f"there is no encoding {word.name.upper()}",
            hint=did_you_mean(word.name, [*_RENAMED_ENCODINGS, *get_args(Encoding)]),
        )
    return cast("Encoding", found)


def _read_trim(self: Any) -> exp.Trim:
    """Reads the arguments of TRIM, also `BOTH FROM text, characters`."""
    index = self._index
    position = self._prev.text.upper() if self._match_texts(self.TRIM_TYPES) else None
    if position is None or not self._match(TokenType.FROM):
        self._retreat(index)
        found: exp.Trim = self._parse_trim()
        return found
    text = self._parse_bitwise()
    characters = self._parse_bitwise() if self._match(TokenType.COMMA) else None
    made: exp.Trim = self.expression(exp.Trim(this=text, position=position, expression=characters))
    return made


def _read_transform(self: Any) -> exp.Expression:
    """Reads the arguments of `array_transform(array, |x| expression)`."""
    array = self._parse_disjunction()
    if array is None or not self._match(TokenType.COMMA) or not self._match(TokenType.PIPE):
        self.raise_error("array_transform(array, |x| expression) was expected")
    names = self._parse_csv(self._parse_id_var)
    if not names or not self._match(TokenType.PIPE):
        self.raise_error("| was expected")
    body = exp.Paren(this=self._parse_disjunction())
    for column in list(body.find_all(exp.Column)):
        if not column.table and column.name in {n.name for n in names}:
            column.replace(exp.to_identifier(column.name, quoted=True))
    made: exp.Expression = self.expression(
        LambdaCall(this="array_map", function=exp.Lambda(this=body.this, expressions=names), expressions=[array])
    )
    return made


def _read_magnitude(self: Any) -> exp.Expression | None:
    """Reads `@ number`, its magnitude. The sign of a parameter, as in `$1`, is a token of the same type."""
    if self._prev.text != "@":
        self._retreat(self._index - 1)
        found: exp.Expression | None = self._parse_type()
        return found
    made: exp.Expression = self.expression(exp.Anonymous(this="abs", expressions=[self._parse_term()]))
    return made


def _arrow(kind: type[exp.Expression]) -> Any:
    """The parser of `a -> b`, which keeps `b` unchanged."""
    return lambda self, this, path: self.expression(kind(this=this, expression=path))


class WatersmeetRisingWave(Base):  # type: ignore[misc]
    """RisingWave's SQL as Watersmeet reads it."""

    INDEX_OFFSET = 0  # subscripts stay as written
    NUMBERS_CAN_BE_UNDERSCORE_SEPARATED = True

    class Tokenizer(Base.Tokenizer):  # type: ignore[misc]
        """RisingWave's tokens."""

        # # otherwise sqlglot reads the rest of SHOW … as one string
        COMMANDS: ClassVar[set[TokenType]] = set()
        # operators of vectors, all of which are refused
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **{word: kind for word, kind in Base.Tokenizer.KEYWORDS.items() if word != "SESSION"},
            "<#>": TokenType.LR_ARROW,
            "<+>": TokenType.LR_ARROW,
            "MATCH_CONDITION": TokenType.MATCH_CONDITION,
        }

    class Parser(Marking, Base.Parser):  # type: ignore[misc]
        """RisingWave's grammar; functions and the operators of jsonb stay as written."""

        MAP_KEYS_ARE_ARBITRARY_EXPRESSIONS = True
        # a column may have the name, an alias of a table without AS may not
        ID_VAR_TOKENS: ClassVar[set[TokenType]] = {*Base.Parser.ID_VAR_TOKENS, TokenType.MATCH_CONDITION}
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            **{name: AnyParser.FUNCTION_PARSERS[name] for name in SPECIAL_SYNTAX},
            "TRIM": _read_trim,
            "ARRAY_TRANSFORM": _read_transform,
        }
        # `if` is a name, as in PostgreSQL
        NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: reader for name, reader in Base.Parser.NO_PAREN_FUNCTION_PARSERS.items() if name != "IF"
        }
        # `->` in an argument is the operator of jsonb, never a lambda
        LAMBDAS: ClassVar[dict[TokenType, Any]] = {}
        JSON_OPERATORS: ClassVar[dict[TokenType, Any]] = {
            **Base.Parser.JSON_OPERATORS,
            TokenType.ARROW: _arrow(exp.JSONExtract),
            TokenType.DARROW: _arrow(exp.JSONExtractScalar),
        }

        def _parse_constraint(self) -> None:
            """Reads nothing: lists of columns in INSERT have no constraints, and `exclude` is a name there."""

        def _parse_join_parts(self) -> tuple[Token | None, Token | None, Token | None]:
            """Reads method, side and kind of a join, also the method last, as in Spark 4.3: LEFT ASOF JOIN."""
            method, side, kind = super()._parse_join_parts()
            if method is None and (side or kind) and self._match(TokenType.ASOF):
                method = self._prev
            return method, side, kind

        def _parse_insert_table(self) -> exp.Expression | None:
            """Reads the table of an INSERT, its columns, and OVERRIDING {SYSTEM | USER} VALUE, which the node keeps."""
            found: exp.Expression | None = super()._parse_insert_table()
            for word in ("system", "user"):
                if found is not None and self._match_text_seq("OVERRIDING", word.upper(), "VALUE"):
                    found.set("overriding", word)
            return found

        def _parse_cte(self) -> exp.CTE | None:
            """Reads a query of WITH, also `name AS CHANGELOG FROM relation`."""
            begin = self._index
            alias = self._parse_table_alias(self.ID_VAR_TOKENS)
            if alias is None or not self._match_text_seq("AS", "CHANGELOG", "FROM"):
                self._retreat(begin)
                found: exp.CTE | None = super()._parse_cte()
                return found
            made: exp.CTE = self.expression(exp.CTE(this=retyped(self._parse_table_parts(), LoggedTable), alias=alias))
            return made

        def _parse_partition_and_order(self) -> tuple[list[exp.Expression], exp.Expression | None]:
            """Reads PARTITION BY and ORDER BY of a window, and then a frame SESSION WITH GAP."""
            partition, order = super()._parse_partition_and_order()
            if not self._match_text_seq("SESSION", "WITH", "GAP"):
                return partition, order
            if order is None:
                self.raise_error("a frame SESSION WITH GAP requires ORDER BY")
            made = retyped(order, SessionOrder, gap=self._parse_bitwise())
            if self._match_text_seq("EXCLUDE"):
                made.set("exclude", self._parse_var_from_options(self.WINDOW_EXCLUDE_OPTIONS))
            return partition, made

        def _parse_interval(self, require_interval: bool = True, parse_function_unit: bool = True) -> Any:
            """Reads an interval; of a text with more than a number and a unit, sqlglot would drop the rest, and it
            would read the column in `interval + x` and `ORDER BY interval DESC` as an interval.
            """
            text = self._next
            if text is not None and text.token_type in _AFTER_A_COLUMN:
                return None
            found = super()._parse_interval(require_interval, parse_function_unit)
            written = text.text.strip() if text is not None and text.token_type == TokenType.STRING else ""
            if isinstance(found, exp.Interval) and _LETTER.search(written) and not _LENGTH.fullmatch(written):
                found.set("this", exp.Literal.string(written))
                found.set("unit", None)
            return found

        # PostgreSQL 17, 4.1.6: these bind less tightly than arithmetic: `~1 + 2` is `~(1 + 2)`.
        UNARY_PARSERS: ClassVar[dict[TokenType, Any]] = {
            **Base.Parser.UNARY_PARSERS,
            TokenType.RLIKE: lambda self: self.expression(exp.BitwiseNot(this=self._parse_term())),
            TokenType.PIPE_SLASH: lambda self: self.expression(exp.Sqrt(this=self._parse_term())),
            TokenType.DPIPE_SLASH: lambda self: self.expression(exp.Cbrt(this=self._parse_term())),
            TokenType.PARAMETER: _read_magnitude,
        }


CREATES: Final[Mapping[str, ddl.Reader]] = {
    **ddl.CREATES,
    **function_readers(read_type, "AGGREGATE"),
    "SINK": read_sink,
    "UNIQUE INDEX": ddl.read_unique_index,
    "DATABASE": read_create_database,
    **dict.fromkeys(("TEMP", "TEMPORARY", "LOCAL TEMP", "LOCAL TEMPORARY"), ddl.read_temporary),
}
DROPS: Final[Mapping[str, DropWord | ddl.Reader]] = {
    **ddl.DROPS,
    "DATABASE": read_drop_database,
}
LACKING: Final[ddl.Lacking] = {
    **ddl.LACKING,
    "DROP OWNED": "Objects have no owners: DROP names them, and REVOKE takes privileges back.",
}
