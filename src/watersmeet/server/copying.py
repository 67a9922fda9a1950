"""COPY … TO STDOUT and COPY … FROM STDIN: rows as text, CSV or binary within the protocol.

PostgreSQL, "COPY", "File Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import IO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from watersmeet.database.sessions.context import Nested, Session
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.statements.dml import STREAM_FORMATS, CopyIn, CopyOut
from watersmeet.dialects.tree.statements import Insert, Statement
from watersmeet.errors import error
from watersmeet.server.copyrows import ESCAPES, read_binary, read_csv, read_text
from watersmeet.server.results import BATCH_ROWS, binary_copy_rows, copy_end, copy_header, text_columns
from watersmeet.server.valuebytes import BINARY, NOTHING, contents, fixed
from watersmeet.session.statements.copying import copied_columns, copied_rows, insert_copied
from watersmeet.session.statements.preparing import described_result
from watersmeet.values.types import Schema

_STRING: Final = pa.large_string()
_OPTIONS: Final = ("format", "delimiter", "null", "header", "quote", "escape", "encoding", "freeze")
#: Invalid delimiters of the text format: the backslash, and characters with a meaning after it.
_NO_DELIMITERS: Final = "\\.abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class CopyForm:
    """The format of rows. null: the text of NULL. header: whether the first line has the columns' names. matches:
    whether these names must be the expected ones.
    """

    kind: str = "text"
    delimiter: str = "\t"
    null: str = "\\N"
    header: bool = False
    quote: str = '"'
    matches: bool = False

    @property
    def code(self) -> int:
        """0 for text, 1 for binary."""
        return int(self.kind == "binary")

    def messages(self, table: pa.Table, columns: Schema) -> Iterator[memoryview]:
        """The CopyData messages of all rows, one for each, batch by batch."""
        if self.kind == "binary":
            yield from self._binary(table, columns)
            return
        yield self.head(columns)
        for start in range(0, table.num_rows, BATCH_ROWS):
            yield self._text_rows(table.slice(start, BATCH_ROWS), columns)

    def head(self, schema: Schema) -> memoryview:
        """The message with the line of names. In binary format, the first row contains the header."""
        if self.kind == "binary" or not self.header:
            return memoryview(b"")
        names = pa.table({f"c{i}": [f.name] for i, f in enumerate(schema)})
        return _as_messages(self._lines([c.cast(_STRING).combine_chunks() for c in names.columns], names.num_rows))

    def rows(self, table: pa.Table, schema: Schema) -> bytes:
        """The CopyData messages of rows, one for each."""
        if self.kind == "binary":
            return b"".join(map(_as_messages, binary_copy_rows(table, schema)))
        return self._text_rows(table, schema).tobytes()

    def first(self, messages: bytes) -> bytes:
        """The first messages of a running query, from those of `rows` or `tail`."""
        if self.kind != "binary":
            return messages
        head = copy_header()
        (length,) = struct.unpack(">i", messages[1:5])
        return b"d" + struct.pack(">i", length + len(head)) + head + messages[5:]

    def tail(self) -> bytes:
        """The message after the rows."""
        return _as_messages(pa.array([copy_end()], BINARY)).tobytes() if self.kind == "binary" else b""

    def _text_rows(self, table: pa.Table, schema: Schema) -> memoryview:
        return _as_messages(self._lines(text_columns(table, schema), table.num_rows))

    def _binary(self, table: pa.Table, schema: Schema) -> Iterator[memoryview]:
        """The first message contains the header, as in PostgreSQL."""
        head = copy_header()
        for rows in binary_copy_rows(table, schema):
            if head:
                rows = pc.binary_join_element_wise(_first(len(rows), head), rows, NOTHING)  # noqa: PLW2901
                head = b""
            yield _as_messages(rows)
        yield _as_messages(pa.array([head + copy_end()], BINARY))

    def _lines(self, columns: list[pa.Array], rows: int) -> pa.Array:
        """The lines of rows. columns: the texts of their values."""
        written = [pc.fill_null(self._escaped(c), self.null).cast(_STRING) for c in columns]
        ends = pa.scalar("\n", _STRING)
        if not written:
            return pa.array(["\n"] * rows, BINARY)
        line = pc.binary_join_element_wise(*written, pa.scalar(self.delimiter, _STRING))
        return pc.binary_join_element_wise(line, ends, pa.scalar("", _STRING)).cast(BINARY)

    def _escaped(self, values: pa.Array) -> pa.Array:
        if self.kind == "text":
            for character, shown in (*ESCAPES, (self.delimiter, f"\\{self.delimiter}")):
                if pc.any(pc.match_substring(values, character)).as_py():  # a tab is escaped before the delimiter
                    values = pc.replace_substring(values, character, shown)
            return values
        needed = pc.equal(values, self.null)
        for character in (self.delimiter, self.quote, "\n", "\r"):
            needed = pc.or_(needed, pc.match_substring(values, character))
        if not pc.any(needed).as_py():
            return values
        mark = pa.scalar(self.quote, _STRING)
        doubled = pc.replace_substring(values, self.quote, self.quote * 2)
        return pc.if_else(needed, pc.binary_join_element_wise(mark, doubled, mark, pa.scalar("", _STRING)), values)

    def read(self, file: IO[bytes], columns: Schema) -> pa.Table:
        """The values by names of columns: texts, or the results of `read_binary`. Raises BAD_COPY_FORMAT and other
        errors of these functions.
        """
        if self.kind == "binary":
            return read_binary(file.read(), columns)
        names = [c.name for c in columns]
        if self.kind == "csv":
            return read_csv(
                file, names, self.delimiter, self.null, self.quote, header=self.header, matches=self.matches
            )
        return read_text(file, names, self.delimiter, self.null, header=self.header, matches=self.matches)


def _first(rows: int, head: bytes) -> pa.Array:
    """`head` for the first row, nothing for the others."""
    return pc.if_else(pa.array(np.arange(rows) == 0), pa.scalar(head, BINARY), NOTHING)


def _as_messages(rows: pa.Array) -> memoryview:
    """A CopyData message for each row."""
    head = np.empty(len(rows), np.dtype([("kind", "S1"), ("length", ">i4")]))
    head["kind"], head["length"] = b"d", pc.binary_length(rows).to_numpy(zero_copy_only=False) + 4
    return contents(pc.binary_join_element_wise(fixed(head), rows, NOTHING))


@dataclass(frozen=True)
class CopyResult(Result):
    """A transfer of rows. receives: accepts the rows that the client sends; None if the server sends rows."""

    form: CopyForm = field(default_factory=CopyForm)
    receives: Callable[[IO[bytes]], Result] | None = None


class CopyStreams:
    """COPY … TO STDOUT and COPY … FROM STDIN of one client."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, statement: Statement, nested: Nested) -> Result:
        """The rows to send, or a function that accepts the rows of the client."""
        if isinstance(statement, CopyIn):
            return self._receive(statement, nested)
        assert isinstance(statement, CopyOut)
        form = _form(statement.options)
        if statement.query is None:
            with nested.lock, self._session.numbered():
                result = copied_rows(self._session, statement)
        else:
            _check_query(statement.query)
            result = nested.run(statement.query)
        if result.table is None and result.running is None:
            raise error("FEATURE_NOT_SUPPORTED", "COPY of this statement is not supported", hint="Write a SELECT.")
        return CopyResult("COPY", result.columns, result.table, result.rowcount, running=result.running, form=form)

    def _receive(self, statement: CopyIn, nested: Nested) -> Result:
        form = _form(statement.options)
        insert = Insert(
            text=statement.text,
            sql=statement.sql,
            span=statement.span,
            table=statement.table,
            columns=statement.columns,
            query=exp.Values(),
        )

        def receive(file: IO[bytes]) -> Result:
            session = self._session
            with nested.lock, session.numbered():
                session.notices.clear()
                result = insert_copied(session, insert, lambda columns: form.read(file, columns))
                return replace(result, notices=tuple(session.notices))

        with nested.lock, self._session.numbered():
            columns = copied_columns(self._session, insert)
        return CopyResult("COPY", columns, form=form, receives=receive)

    def describe(self, statement: Statement) -> None:
        """Returns None, because COPY has no result columns. Raises the errors of its query."""
        assert isinstance(statement, (CopyIn, CopyOut))
        _form(statement.options)
        if isinstance(statement, CopyOut) and statement.query is not None:
            _check_query(statement.query)
            described_result(self._session, statement.query)


def _check_query(query: Statement) -> None:
    if isinstance(query, Insert):
        raise error("FEATURE_NOT_SUPPORTED", "COPY of an INSERT is not supported", sql=query.text)


def _form(options: Mapping[str, str]) -> CopyForm:
    """The format of a COPY statement. Raises INVALID_PARAMETER, FEATURE_NOT_SUPPORTED."""
    for name in options:
        if name not in _OPTIONS:
            raise error("FEATURE_NOT_SUPPORTED", f"option {name.upper()} of COPY is not supported")
    kind = options.get("format", "text").lower()
    if kind not in STREAM_FORMATS:
        raise error("INVALID_PARAMETER", f'COPY format "{kind}" not recognized', hint="It is text, csv or binary.")
    header = options.get("header", "false").lower()
    if header not in ("true", "false", "on", "off", "1", "0", "match"):
        raise error("INVALID_PARAMETER", "header requires a Boolean value")
    default = CopyForm(kind) if kind != "csv" else CopyForm(kind, ",", "")
    form = replace(
        default,
        delimiter=options.get("delimiter", default.delimiter),
        null=options.get("null", default.null),
        header=header in ("true", "on", "1", "match"),
        matches=header == "match",
        quote=options.get("quote", default.quote),
    )
    if options.get("escape", form.quote) != form.quote:
        raise error("FEATURE_NOT_SUPPORTED", "ESCAPE of COPY other than QUOTE is not supported")
    if options.get("encoding", "utf8").lower() not in ("utf8", "utf-8"):
        raise error("FEATURE_NOT_SUPPORTED", "ENCODING of COPY other than UTF8 is not supported")
    if any(len(c.encode()) != 1 for c in (form.delimiter, form.quote)):
        raise error("INVALID_PARAMETER", "COPY delimiter and quote must be a single one-byte character")
    refused = "\r\n" + (form.quote if kind == "csv" else _NO_DELIMITERS)
    if form.delimiter in refused or (kind == "csv" and form.quote in "\r\n"):
        raise error("INVALID_PARAMETER", f'COPY delimiter cannot be "{form.delimiter}"')
    if kind != "binary" and (form.delimiter in form.null or any(c in form.null for c in "\r\n")):
        raise error("INVALID_PARAMETER", "COPY null representation can't have the delimiter or the end of a line")
    return form
