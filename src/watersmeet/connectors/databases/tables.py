"""Readers of whole tables of databases, the parts that all systems share: the address, and texts as columns.

Timeplus, "External Table", "Dictionary"; ClickHouse, "PostgreSQL" and "MySQL" among the sources of dictionaries.
"""

from __future__ import annotations

import abc
import io
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from watersmeet.catalog import External
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import Condition, Reader
from watersmeet.connectors.databases.servers import Server, ssl_mode
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.convert import convert
from watersmeet.formats.valuetexts import Mask
from watersmeet.values.types import Field, Schema, SqlType, arrow_schema


class System(NamedTuple):
    """A database system. kind: the name of its external tables and dictionaries, and of the sink connector that writes
    them. title: the name for messages. schema: the default schema of tables; None: the database is the schema.
    on_conflict: the name of the option for inserted rows with an existing key; empty: no such option. user, database:
    the defaults; empty: the options must set them.
    """

    kind: str
    title: str
    port: int
    schema: str | None
    on_conflict: str
    user: str = ""
    database: str = ""

    @property
    def options(self) -> OptionSet:
        """The options of a table, or of the source of a dictionary."""
        idle = "Accepted without effect: connections are pooled in another way."
        return OptionSet(
            self.kind,
            (
                OptionSpec("address", f"The server, as `host` or `host:{self.port}`."),
                OptionSpec("host", "The host of the server, instead of address."),
                OptionSpec("port", "The port of the server, with host."),
                OptionSpec("user", "The user.", default=self.user, is_needed=not self.user),
                OptionSpec("password", "The password of the user.", secret=True),
                OptionSpec(
                    "database", "The database.", aliases=("db",), default=self.database, is_needed=not self.database
                ),
                *((OptionSpec("schema", "The schema of the table.", default=self.schema),) if self.schema else ()),
                OptionSpec("table", "The table; that of the same name if missing."),
                OptionSpec("query", "A query whose rows are read instead of a table."),
                OptionSpec("where", "A condition in the SQL of the server."),
                OptionSpec("invalidate_query", "A query whose result differs when the rows may have changed."),
                OptionSpec("ssl_mode", "How much of TLS is required."),
                OptionSpec("secure", "Whether TLS with a verified certificate is required.", "flag"),
                *(
                    (OptionSpec(self.on_conflict, "The effect of an inserted row whose key exists."),)
                    if self.on_conflict
                    else ()
                ),
                *(
                    OptionSpec(name, idle, is_idle=True)
                    for name in ("pooled_connections", "background_reconnect", "bg_reconnect", "priority", "name")
                ),
            ),
        )


class TableOptions(NamedTuple):
    """The location of the rows. query: replaces a table. where: a condition in the server's SQL. invalidate_query: a
    query whose result changes when the rows may have changed. on_conflict: the clause of INSERT for rows with an
    existing key.
    """

    server: Server
    schema: str
    table: str
    query: str
    where: str
    invalidate_query: str
    on_conflict: str

    @property
    def name(self) -> str:
        """The name of the table."""
        return f"{self.schema}.{self.table}"

    @property
    def what(self) -> str:
        """The description of the table or query for messages."""
        return "the query" if self.query else f'table "{self.name}"'


class TableColumn(Protocol):
    """A column on a server. theirs: its type on the server. type: the SQL type, or None."""

    @property
    def name(self) -> str: ...
    @property
    def theirs(self) -> str: ...
    @property
    def type(self) -> SqlType | None: ...
    @property
    def nullable(self) -> bool: ...


Column = TypeVar("Column", bound=TableColumn)


class TableReader(Reader, Generic[Column]):
    """The reader of a table, view or query, whose rows are all of one moment."""

    takes_pushdown = True

    def __init__(self, external: External, system: System) -> None:
        self.options = table_options(external, system)
        self._system = system

    def written(self) -> dict[str, str]:
        options, server = self.options, self.options.server
        if options.query or options.where:
            return {}
        return {
            "connector": self._system.kind,
            "host": server.host,
            "port": str(server.port),
            "user": server.user,
            "password": server.password,
            "database": server.database,
            "schema": options.schema,
            "table": options.table,
            "ssl_mode": server.ssl_mode,
            **({"on_conflict": options.on_conflict} if options.on_conflict else {}),
        }

    def names(self) -> list[str]:
        """The names of the columns."""
        return [c.name for c in self._described()]

    def columns(self) -> Schema | None:
        found = self._described()
        for column in found:
            if column.type is None:
                refuse(
                    f'column "{column.name}" of {self.options.what} has type {column.theirs}, which has no equivalent',
                    hint="Declare the columns, that one as string.",
                )
        return tuple(Field(c.name, c.type, c.nullable) for c in found if c.type is not None)

    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:
        received = io.BytesIO()
        self._receive(*self._meant(columns, conditions), received)
        try:
            texts = texts_of(received.getbuffer(), len(columns))
        except pa.ArrowInvalid as cause:
            raise error("INVALID_VALUE", f"a text of {self.options.what} is not UTF-8") from cause
        return typed(texts, columns, self.options.what)

    def statement(self, columns: Schema, conditions: Sequence[Condition]) -> str:
        """A query in the server's SQL that reads the columns and tests the conditions that the server can test."""
        found, tested = self._meant(columns, conditions)
        return self._shown(found, tested)

    def _meant(
        self, columns: Schema, conditions: Sequence[Condition]
    ) -> tuple[list[tuple[Column, SqlType]], list[tuple[Column, Condition]]]:
        known = {c.name: c for c in self._described()}
        if missing := [c.name for c in columns if c.name not in known]:
            refuse(f'{self.options.what} has no column "{missing[0]}"', hint=did_you_mean(missing[0], known))
        tested = [(known[c.column.name], c) for c in conditions if c.column.name in known]
        return [(known[c.name], c.type) for c in columns], [t for t in tested if self._is_tested(*t)]

    @abc.abstractmethod
    def _is_tested(self, column: Column, condition: Condition) -> bool:
        """Whether the server can test the condition without errors, and keeps all rows that satisfy it in
        Watersmeet.
        """

    @abc.abstractmethod
    def _described(self) -> Sequence[Column]:
        """The columns of the table or query on the server."""

    @abc.abstractmethod
    def _receive(
        self,
        columns: Sequence[tuple[Column, SqlType]],
        conditions: Sequence[tuple[Column, Condition]],
        received: io.BytesIO,
    ) -> None:
        """Writes the rows into `received` in the form that `texts_of` reads, with values in the form that `typed`
        reads.

        conditions: only those for which `_is_tested` is true.
        """

    @abc.abstractmethod
    def _shown(self, columns: Sequence[tuple[Column, SqlType]], conditions: Sequence[tuple[Column, Condition]]) -> str:
        """The text of `statement`."""

    def _no_table(self, names: Sequence[str]) -> Error:
        """The error for a missing table. names: the names of the existing tables."""
        return error(
            "UNDEFINED_OBJECT",
            f"there is no {self.options.what} in {self.options.server.shown}",
            hint=did_you_mean(self.options.table, names) or "Check the table and where it is.",
        )


def table_options(external: External, system: System) -> TableOptions:
    """The options of an external table (address, database, …) or of a dictionary's source (host, port, db, …).

    CONNECTOR_OPTION.
    """
    options = system.options.read(external.options)
    host, port = _address(options, system)
    is_secure = options.flag("secure")
    server = Server(
        host,
        port,
        options.needed("user"),
        options.text("password"),
        options.needed("database"),
        ssl_mode(options.text("ssl_mode") or ("verify-full" if is_secure else "prefer")),
    )
    found = TableOptions(
        server,
        server.database if system.schema is None else options.text("schema"),
        options.text("table") or external.name.rpartition(".")[2],
        options.text("query").strip().rstrip(";"),
        options.text("where"),
        options.text("invalidate_query"),
        options.text(system.on_conflict) if system.on_conflict else "",
    )
    if found.query and found.where:
        refuse("options query and where contradict each other", hint="Write the condition in the query.")
    return found


def _address(options: Options, system: System) -> tuple[str, int]:
    address = options.text("address")
    if address:
        host, _, port = address.rpartition(":") if ":" in address.rpartition("]")[2] else (address, "", "")
    else:
        host, port = options.text("host"), options.text("port")
    if not host:
        refuse(f'connector {system.kind} needs the option "address"', hint=f"Write address = 'host:{system.port}'.")
    if port and not port.isdecimal():
        refuse(f'the port of {system.title} can\'t be "{port}"', hint=f"It is a number, such as {system.port}.")
    return host.strip("[]"), int(port or system.port)


def texts_of(received: memoryview, count: int) -> list[pa.Array]:
    r"""The columns of CSV data in which all values are quoted except NULL, which is empty or `\N`."""
    names = [f"c{i}" for i in range(count)]
    if not len(received):
        return [pa.array([], pa.string()) for _ in names]
    read = pacsv.read_csv(
        pa.py_buffer(received),
        pacsv.ReadOptions(column_names=names, block_size=16 << 20),
        pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=["", "\\N"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [read.column(n).combine_chunks() for n in names]


def typed(texts: list[pa.Array], columns: Schema, what: str) -> pa.Table:
    """Columns from texts. Raises INVALID_VALUE for an invalid text. what: the table, for messages."""
    done = convert(texts, [c.type for c in columns])
    for text, column, found in zip(texts, columns, done, strict=True):
        if found.bad is not None and found.bad.any():
            value = text.filter(pa.array(found.bad))[0].as_py()
            raise error(
                "INVALID_VALUE",
                f"{_unfit(column.name, what, column.type)}: {value[:100]}",
                hint=f"Declare the columns, {column.name} as string.",
            )
    return pa.Table.from_arrays([d.column for d in done], schema=arrow_schema(columns, positional=False))


class Exact(NamedTuple):
    """Columns whose values are exactly those of the texts. bad: the mask of rows with a value that the column can't
    represent, which is NULL. reasons: the reasons for these rows in order.
    """

    rows: pa.Table
    bad: Mask
    reasons: list[str]


def exactly(texts: Sequence[pa.Array], columns: Schema, what: str) -> Exact:
    """Columns from texts, where no value may lose a part, such as decimals. what: the table, for reasons."""
    done = convert(texts, [c.type for c in columns])
    bad = np.zeros(len(texts[0]) if texts else 0, np.bool_)
    first = np.zeros(len(bad), np.int64)
    arrays = []
    for i, (text, column, found) in enumerate(zip(texts, columns, done, strict=True)):
        lost = _loses_decimals(text, column.type)
        if found.bad is not None:
            lost = found.bad if lost is None else lost | found.bad
        arrays.append(found.column if lost is None else pc.if_else(pa.array(lost), None, found.column))
        if lost is not None:
            first[lost & ~bad] = i
            bad |= lost
    rows = pa.Table.from_arrays(arrays, schema=arrow_schema(columns, positional=False))
    reasons = []
    for row in np.flatnonzero(bad).tolist():
        column, value = columns[first[row]], texts[first[row]][row].as_py()
        reasons.append(f"{_unfit(column.name, what, column.type)}: {value[:100]}")
    return Exact(rows, bad, reasons)


def _loses_decimals(texts: pa.Array, kind: SqlType) -> Mask | None:
    """The mask of numbers, or arrays of numbers, with more decimals than the type allows; None if all fit."""
    kind = kind.leaf
    if kind.name != "numeric":
        return None
    lost = pc.match_substring_regex(texts, rf"\.[0-9]{{{kind.decimals}}}[0-9]*[1-9]")
    found: Mask = pc.fill_null(lost, fill_value=False).to_numpy(zero_copy_only=False)
    return found if found.any() else None


def _unfit(column: str, what: str, kind: SqlType) -> str:
    return f'a value of column "{column}" of {what} is not {kind.sql}'
