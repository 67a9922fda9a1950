"""CREATE SINK.

RisingWave, "CREATE SINK", "Sink data from RisingWave to Apache Kafka".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast, get_args

from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import Token

from watersmeet.catalog import MessageFormat
from watersmeet.catalog.parts import Encoding, RowForm
from watersmeet.dialects.ddl import cut_emit
from watersmeet.dialects.options import not_supported, read_options
from watersmeet.dialects.queries import read_tree
from watersmeet.dialects.statements import CreateSink, Statement
from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import Span, did_you_mean, error

_FORMS: Final = ("plain", "upsert", "debezium")
#: What is called differently by encodings.
_ENCODINGS: Final = {"text": "string"}


def read_create(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
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
        tokens = _query(cursor)
        if not tokens:
            raise cursor.error()
        query_text = cursor.text[tokens[0].start : tokens[-1].end + 1]
        tokens, emit = cut_emit(tokens)
        query = read_tree(cursor.originals(tokens), cursor.text, dialect)
    places: dict[str, Span] = {}
    options = read_options(cursor, places) if cursor.take("WITH") else {}
    start = cursor.index
    format_ = None
    if cursor.take("FORMAT"):
        format_ = _read_format(cursor, places)
        places["format"] = span_of(cursor.tokens[start : cursor.index])
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
        places=places,
        format=format_,
    )


def _query(cursor: Cursor) -> Sequence[Token]:
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


def _read_format(cursor: Cursor, places: dict[str, Span]) -> MessageFormat:
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
    options = read_options(cursor, places) if cursor.at("(") else {}
    key = None
    if cursor.take("KEY", "ENCODE"):
        key = _read_encoding(cursor)
        options |= {f"key.{n}": v for n, v in read_options(cursor).items()} if cursor.at("(") else {}
    return MessageFormat(cast("RowForm", form.name), encoding, key, options)


def _read_encoding(cursor: Cursor) -> Encoding:
    word = cursor.word()
    found = _ENCODINGS.get(word.name, word.name)
    if found not in get_args(Encoding):
        raise error(
            "CONNECTOR_OPTION",
            f"there is no encoding {word.name.upper()}",
            sql=cursor.text,
            span=word.span,
            hint=did_you_mean(word.name, [*_ENCODINGS, *get_args(Encoding)]),
        )
    return cast("Encoding", found)
