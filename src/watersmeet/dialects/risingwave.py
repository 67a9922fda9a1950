"""RisingWave: its grammar of queries; CREATE and DROP of functions and sinks.

RisingWave, "CREATE FUNCTION", "SQL UDFs", "CREATE SINK", "Sink data from RisingWave to Apache Kafka".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, cast, get_args

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.risingwave import RisingWave as Base
from sqlglot.parser import Parser as AnyParser
from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import MessageFormat
from watersmeet.catalog.parts import Encoding, RowForm
from watersmeet.dialects.statements import ddl
from watersmeet.dialects.statements.ddl import cut_emit
from watersmeet.dialects.tree.definitions import CreateFunction, CreateSink, DropFunction
from watersmeet.dialects.tree.nodes import SPECIAL_SYNTAX, Marking
from watersmeet.dialects.tree.queries import read_tree
from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.statements import Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_options, span_of
from watersmeet.errors import Error, Span, did_you_mean, error
from watersmeet.values.types import Field, SqlType

_FORMS: Final = ("plain", "upsert", "debezium")

#: What is called differently by encodings.
_RENAMED_ENCODINGS: Final = {"text": "string"}


def read_sink(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    """CREATE SINK …: the cursor stands behind SINK."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
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
        query = read_tree(cursor.originals(tokens), cursor.text, dialect)
    spans: dict[str, Span] = {}
    options = read_options(cursor, spans) if cursor.take("WITH") else {}
    start = cursor.index
    format_ = None
    if cursor.take("FORMAT"):
        format_ = _read_format(cursor, spans)
        spans["format"] = span_of(cursor.tokens[start : cursor.index])
    cursor.end()
    return CreateSink(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
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
    """The tokens up to the last WITH of the statement that has options, or the end; moves to it."""
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
    """`PLAIN|UPSERT|DEBEZIUM ENCODE encoding [(…)] [KEY ENCODE encoding [(…)]]`: the cursor stands behind FORMAT."""
    form = cursor.word()
    if form.name not in _FORMS:
        raise error(
            "CONNECTOR_OPTION",
            f"a sink can't have FORMAT {form.name.upper()}",
            sql=cursor.text,
            span=form.span,
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
        raise error(
            "CONNECTOR_OPTION",
            f"there is no encoding {word.name.upper()}",
            sql=cursor.text,
            span=word.span,
            hint=did_you_mean(word.name, [*_RENAMED_ENCODINGS, *get_args(Encoding)]),
        )
    return cast("Encoding", found)


#: What may stand in a definition and changes nothing: the body follows from its arguments wherever it is inlined.
_KINDS: Final = ("IMMUTABLE", "STABLE", "VOLATILE")


def read_create(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    """CREATE …, with functions, sinks and secrets: the cursor stands behind CREATE."""
    if cursor.take("SINK"):
        return read_sink(cursor, dialect, base)
    return _read_create(cursor, base) if cursor.take("FUNCTION") else ddl.read_create(cursor, dialect, base)


def read_drop(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DROP …, with functions and secrets: the cursor stands behind DROP."""
    return _read_drop(cursor, base) if cursor.take("FUNCTION") else ddl.read_drop(cursor, base)


def _read_create(cursor: Cursor, base: dict[str, Any]) -> Statement:
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.relation_name()
    parameters = _parameters(cursor)
    returns: SqlType | None = None
    body: str | None = None
    language: str | None = None
    while not cursor.done:
        start = cursor.index
        if cursor.take("RETURNS"):
            if cursor.at("TABLE") or cursor.at("SETOF"):
                return _refused(cursor, base, f"a function that returns {cursor.rest[0].text.upper()}")
            returns = read_type(cursor)
        elif cursor.take("LANGUAGE"):
            language = _language(cursor)
            if language != "sql":
                return _refused(cursor, base, f"a function in {language.upper()}", start)
        elif cursor.take("AS"):
            body = _text(cursor)
        elif cursor.take("RETURN"):
            rest = cursor.rest
            if not rest:
                raise cursor.error()
            body = f"SELECT {cursor.text[rest[0].start : rest[-1].end + 1]}"
            cursor.index = len(cursor.tokens)
        elif cursor.at("WITH") or cursor.at("USING") or cursor.at("STRICT"):
            return _refused(cursor, base, f"{cursor.rest[0].text.upper()} of a function")
        elif not any(cursor.take(word) for word in _KINDS):
            raise cursor.error()
    if language is None:
        raise cursor.error(detail="LANGUAGE SQL is missing.")
    if body is None or returns is None:
        raise cursor.error(detail=f"{'RETURNS and a type are' if returns is None else 'AS and the body are'} missing.")
    return CreateFunction(
        **base,
        name=name.name,
        name_span=name.span,
        schema=name.schema,
        if_not_exists=if_not_exists,
        parameters=parameters,
        returns=returns,
        body=body,
    )


def _read_drop(cursor: Cursor, base: dict[str, Any]) -> Statement:
    if_exists = cursor.take("IF", "EXISTS")
    names = [cursor.relation_name()]
    signatures = [_signature(cursor)]
    while cursor.take(","):
        names.append(cursor.relation_name())
        signatures.append(_signature(cursor))
    cascade = cursor.take("CASCADE")
    if not cascade:
        cursor.take("RESTRICT")
    cursor.end()
    return DropFunction(**base, names=tuple(names), signatures=tuple(signatures), if_exists=if_exists, cascade=cascade)


def _signature(cursor: Cursor) -> tuple[SqlType, ...] | None:
    return tuple(p.type for p in _parameters(cursor)) if cursor.at("(") else None


def _parameters(cursor: Cursor) -> tuple[Field, ...]:
    """`([name] type, …)`; the name of one without is empty."""
    cursor.expect("(")
    found: list[Field] = []
    while not cursor.at(")"):
        for word in ("OUT", "INOUT", "VARIADIC"):
            if cursor.at(word):
                raise not_supported(f"{word} of a function", cursor.text, span_of(cursor.rest[:1]))
        cursor.take("IN")
        place = cursor.rest[:1]
        found.append(_parameter(cursor))
        if found[-1].name and found[-1].name in [p.name for p in found[:-1]]:
            raise error(
                "DUPLICATE_COLUMN",
                f'parameter name "{found[-1].name}" used more than once',
                sql=cursor.text,
                span=span_of(place),
            )
        if cursor.at("DEFAULT") or cursor.at("="):
            raise not_supported("DEFAULT of a parameter", cursor.text, span_of(cursor.rest[:1]))
        if not cursor.take(","):
            break
    cursor.expect(")")
    return tuple(found)


def _parameter(cursor: Cursor) -> Field:
    start, refused = cursor.index, None
    try:
        kind = read_type(cursor)
    except Error as err:
        refused = err
    else:
        if cursor.at(",") or cursor.at(")"):
            return Field("", kind)
    cursor.index = start
    name = cursor.name()
    if refused is not None and (cursor.at(",") or cursor.at(")")):
        raise refused  # the only word is a type that does not exist
    return Field(name.name, read_type(cursor))


def _language(cursor: Cursor) -> str:
    token = cursor.current
    if token is not None and token.token_type == TokenType.STRING:
        return cursor.string().lower()
    return cursor.word().name


def _text(cursor: Cursor) -> str:
    token = cursor.current
    if token is not None and token.token_type == TokenType.HEREDOC_STRING:
        cursor.index += 1
        return str(token.text)
    return cursor.string()


def _refused(cursor: Cursor, base: dict[str, Any], feature: str, start: int | None = None) -> Statement:
    place = cursor.tokens[cursor.index if start is None else start :]
    return Refused(
        **base,
        error=not_supported(
            feature, cursor.text, span_of(place[:2]), hint="Functions are SQL: LANGUAGE SQL AS $$ … $$."
        ),
    )


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
