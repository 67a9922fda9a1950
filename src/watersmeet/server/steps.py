"""From the text of a client to steps: statements of the session, of the protocol, and queries of the catalog."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import Catalog
from watersmeet.database.sessions.result import Result, Running
from watersmeet.dialects.parsing import Part, parts
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import cut, read_script, tokenize
from watersmeet.dialects.tree import statements as st
from watersmeet.dialects.tree.queries import check_characters, depth_checked
from watersmeet.dialects.tree.tokens import Cursor
from watersmeet.errors import Span, error
from watersmeet.server.catalog import queries
from watersmeet.server.catalog.tables import relation_oid
from watersmeet.server.messages import Column
from watersmeet.server.oids import UUID, UUIDS, result_column
from watersmeet.values.types import Schema

#: First words of statements that are queries, which the catalog may have to answer.
_QUERIES: Final = ("SELECT", "WITH", "VALUES", "TABLE", "(")


#: What may stand in front of the first word. It is passed without ever going back: it would take too long.
_FRONT: Final = r"(?>[\s(]|--[^\n]*\n|/\*(?>[^*]|\*(?!/))*\*/)*+"
#: The beginning of a text that is a query, and of one that prepares a statement.
_QUERY: Final = re.compile(_FRONT + r"(?:SELECT|TABLE|VALUES|WITH)\b", re.IGNORECASE)
_PREPARES: Final = re.compile(_FRONT + r"PREPARE\b", re.IGNORECASE)

#: A parameter, or a quote or comment, which holds none. No quote is read twice: a text of megabytes takes no memory.
_PARAMETER: Final = re.compile(
    r"""\b[eE]'(?:[^'\\]++|\\.|'')*+' | '(?:[^']++|'')*+' | "(?:[^"]++|"")*+" | --[^\n]*+ | /\*.*?(?:\*/|\Z)
      | \$(?P<tag>[A-Za-z_]\w*+|)\$.*?(?:\$(?P=tag)\$|\Z)
      | (?<!\w)\$(?P<number>\d{1,6})\b(?P<uuid>\s*::\s*UUID\b(?P<many>\s*\[\s*\])?)?
      | \bCAST\s*\(\s*\$(?P<cast>\d{1,6})\s+AS\s+UUID(?P<several>\s*\[\s*\])?\s*\)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


class CopyForm(Protocol):
    """How rows of COPY are written. code: 0 for text, 1 for binary."""

    @property
    def code(self) -> int: ...

    def messages(self, outcome: Outcome) -> Iterator[memoryview]:
        """The CopyData messages of all rows of an outcome, batch by batch."""
        ...

    def head(self, schema: Schema) -> memoryview:
        """The messages before the rows of a query that runs."""
        ...

    def rows(self, table: pa.Table, schema: Schema) -> bytes:
        """The messages of rows."""
        ...

    def first(self, messages: bytes) -> bytes:
        """The first messages of a query that runs, from what `rows` or `tail` gave."""
        ...

    def tail(self) -> bytes:
        """The message behind the rows."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What a step gave.

    tag: of CommandComplete, without a number. rows: how many it returned or changed, None for a tag without a number.
    columns: as RowDescription has them, None for a step without rows. schema, table: the rows. running: a query that
    runs until it is stopped. copied: how rows of COPY are written; the client sends them if `receives` takes them.
    """

    tag: str
    rows: int | None = None
    columns: tuple[Column, ...] | None = None
    schema: Schema = ()
    table: pa.Table | None = None
    notices: tuple[str, ...] = ()
    running: Running | None = None
    copied: CopyForm | None = None
    receives: Callable[[BinaryIO], Outcome] | None = None

    @property
    def complete(self) -> str:
        """The tag of CommandComplete for all rows."""
        return self.tag_of(self.rows)

    def tag_of(self, rows: int | None) -> str:
        """The tag of CommandComplete for so many rows."""
        if rows is None:
            return self.tag
        return f"INSERT 0 {rows}" if self.tag == "INSERT" else f"{self.tag} {rows}"


#: Commands whose tags have a number.
_COUNTED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "FETCH", "MOVE")


def columns_of(result: Result, catalog: Catalog | None) -> tuple[Column, ...]:
    """The columns of a result, with the tables that they are of."""
    columns = tuple(map(result_column, result.columns))
    if catalog is None or not any(result.origins):
        return columns
    found = []
    for column, origin in zip(columns, result.origins, strict=True):
        relation = None if origin is None else catalog.relations.get(origin[0])
        names = [] if relation is None else [c.name for c in relation.columns if c.name not in relation.unlisted]
        if origin is not None and relation is not None and origin[1] in names:
            found.append(replace(column, table=relation_oid(relation), number=names.index(origin[1]) + 1))
        else:
            found.append(column)
    return tuple(found)


def outcome_of(result: Result, catalog: Catalog | None = None) -> Outcome:
    """The outcome of a statement of the session. catalog: with the tables whose columns its columns may be."""
    described = result.table is not None or result.running is not None
    rows = max(result.rowcount, 0) if result.command in _COUNTED else None
    columns = columns_of(result, catalog) if described else None
    return Outcome(result.command, rows, columns, result.columns, result.table, result.notices, result.running)


class Step(Protocol):
    """One statement of a client."""

    def run(self, client: Any) -> Outcome:
        """Runs it for the client (`backend.Backend`). Blocks."""
        ...

    def describe(self, client: Any) -> tuple[Column, ...] | None:
        """The columns of its rows, without running it; None without rows."""
        ...


@dataclass(frozen=True)
class EngineStep:
    """A statement of the session."""

    statement: st.Statement

    def run(self, client: Any) -> Outcome:
        return outcome_of(client.execute(self.statement), client.session.catalog)

    def describe(self, client: Any) -> tuple[Column, ...] | None:
        result = client.described(self.statement)
        return None if result is None else columns_of(result, client.session.catalog)


@dataclass(frozen=True)
class CatalogStep:
    """A query that the catalog answers."""

    tree: exp.Query
    text: str

    def run(self, client: Any) -> Outcome:
        columns, schema, table = client.catalog.run(self.tree, self.text)
        return Outcome("SELECT", table.num_rows, columns, schema, table)

    def describe(self, client: Any) -> tuple[Column, ...] | None:
        columns: tuple[Column, ...] = client.catalog.run(self.tree, self.text, describes=True)[0]
        return columns


#: Reads a statement of the protocol from its tokens; None if it is none of these.
Reader = Callable[["Source", Cursor], Step | None]


@dataclass(frozen=True)
class Source:
    """Where a statement stands. readers: by first word, statements of the protocol. is_relation: whether the session
    knows a relation of that name.
    """

    text: str
    dialect: str
    readers: dict[str, Reader]
    is_relation: Callable[[str], bool]
    parameters: Sequence[exp.Expression] = ()

    @cached_property
    def given(self) -> tuple[str, list[exp.Expression]]:
        """The text with question marks, and what stands for each of them. INVALID_PARAMETER for one without a value."""
        if not self.parameters:
            return marked(self.text)[0] if _PREPARES.match(self.text) else self.text, []
        text, numbers = marked(self.text)
        if lacking := set(range(1, len(self.parameters) + 1)).difference(numbers):
            raise error("INVALID_PARAMETER", f"parameter ${min(lacking)} is not in the statement", sql=self.text)
        return text, [self.parameters[n - 1] for n in numbers]

    def within(self, start: int, end: int) -> Step:
        """The one statement that stands in a part of the text. SYNTAX_ERROR if there are none, or several."""
        found = _read(self, Part(start, end, language_named(self.dialect)))
        if len(found) != 1:
            raise error("SYNTAX_ERROR", "one query is expected here", sql=self.text)
        return found[0]

    def around(self, words: str, place: Span) -> Step:
        """The statement that begins with some words and goes on with what stands at a place."""
        text = words + self.text[place.start : place.end]
        return Source(text, self.dialect, self.readers, self.is_relation).within(0, len(text))


def read_steps(source: Source) -> list[Step]:
    """The steps of a text. SYNTAX_ERROR, CHARACTER_NOT_IN_REPERTOIRE, INVALID_PARAMETER."""
    text, _ = source.given
    check_characters(text)
    with depth_checked(text):
        tree = _only_catalog(source)
        if tree is not None:
            return [CatalogStep(tree, source.text)]
        language = language_named(source.dialect)
        found: list[Step] = []
        for part in parts(text, language):
            if part.line is not None:
                sql = text[part.line.start : part.line.end]
                name = part.language.name
                found.append(EngineStep(st.SetVariable(text=text, sql=sql, span=part.line, name="dialect", value=name)))
            found += _read(source, part)
        return found


def _only_catalog(source: Source) -> exp.Query | None:
    """The tree of a text that is one query of the catalog, whatever dialect the connection speaks."""
    text = source.text.strip().rstrip(";")
    if ";" in text or not _QUERY.match(text):
        return None
    return queries.catalog_query(_apart(text), source.is_relation, source.parameters)


def _apart(text: str) -> str:
    """The text with a space behind each parameter: `$1,$` may be taken for the beginning of a quote."""
    return _PARAMETER.sub(lambda m: m[0] if m["number"] is None else f"{m[0]} ", text) if "$" in text else text


def _read(source: Source, part: Part) -> list[Step]:
    """The steps of a part. Statements of the session that stand together are read together: one may need another."""
    text, _ = source.given
    pieces = [p for p in cut(tokenize(text, part.language, part.start, part.end)) if p]
    if any(part.language.goes_on(p) for p in pieces):
        return _engine(source, part, part.start, part.end)
    found: list[Step] = []
    begin: int | None = None
    for piece in pieces:
        own = _own_step(source, piece, part)
        if own is None:
            begin = piece[0].start if begin is None else begin
            continue
        if begin is not None:
            found += _engine(source, part, begin, piece[0].start)
            begin = None
        found.append(own)
    if begin is not None:
        found += _engine(source, part, begin, part.end)
    return found


def _engine(source: Source, part: Part, start: int, end: int) -> list[Step]:
    text, parameters = source.given
    return [EngineStep(s) for s in read_script(text, part.language, parameters, start, end)]


def _own_step(source: Source, piece: Sequence[Token], part: Part) -> Step | None:
    """The step of a statement that is not the session's."""
    word = piece[0].text.upper()
    if word in _QUERIES:
        sql = source.text[piece[0].start : piece[-1].end + 1]
        tree = queries.catalog_query(_apart(sql), source.is_relation, source.parameters)
        return None if tree is None else CatalogStep(tree, sql)
    cursor = Cursor(piece, source.text, folding=part.language.semantics.folding)
    word = cursor.tokens[0].text.upper()
    reader = source.readers.get(word)
    if reader is None or piece[0].token_type in (TokenType.STRING, TokenType.IDENTIFIER):
        return None
    cursor.index += 1
    return reader(source, cursor)


def marked(text: str) -> tuple[str, tuple[int, ...]]:
    """The text with a question mark in the place of each parameter `$n`, and their numbers in order.

    Places stay. Every dialect reads question marks; `$` means something else in most. A cast of a parameter to uuid is
    part of it: see `uuid_casts`.
    """
    found: list[int] = []

    def mark(match: re.Match[str]) -> str:
        number = match["number"] or match["cast"]
        if number is None:
            return match[0]
        found.append(int(number))
        return "?".rjust(len(match[0]))

    return _PARAMETER.sub(mark, text) if "$" in text else text, tuple(found)


def uuid_casts(text: str) -> dict[int, int]:
    """The parameters that a text casts to uuid, or to an array of these, and the number of that type.

    There is no such type: values are texts. What is cast is known to be one, in any form.
    """
    found: dict[int, int] = {}
    for match in _PARAMETER.finditer(text) if "$" in text else ():
        if match["cast"] is not None:
            found[int(match["cast"])] = UUIDS if match["several"] else UUID
        elif match["uuid"] is not None:
            found[int(match["number"])] = UUIDS if match["many"] else UUID
    return found
