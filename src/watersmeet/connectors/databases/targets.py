"""Tables of databases as targets, the parts that all systems share.

Each transaction writes rows, and the offset of the last row into the table `watersmeet_sinks` of the same database.

A writer that opens the target ends the connections of earlier writers, and writes its token into the row with the
offset. A transaction that does not find its own token in this row changes nothing.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import (
    Connector,
    Delivery,
    RowChange,
    SinkBatch,
    SinkOffset,
    Target,
    connector_for,
    newest_rows,
)
from watersmeet.connectors.databases.servers import Server, ssl_mode
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.writers import Writer
from watersmeet.system.process import fault
from watersmeet.values.types import Field

PROGRESS: Final = "watersmeet_sinks"
RIGHTS: Final = "SELECT, INSERT, UPDATE, DELETE"


@dataclass(frozen=True)
class TargetTable:
    """The table that a sink writes. schema: the qualifier of the table on the server. on_conflict: the clause of
    INSERT, in the server's SQL, for added rows with an existing key.
    """

    server: Server
    schema: str
    table: str
    on_conflict: str = ""

    @property
    def name(self) -> str:
        """The qualified name for messages."""
        return f"{self.schema}.{self.table}"

    @property
    def what(self) -> str:
        """The description of the table for messages."""
        return f'table "{self.name}"'


@dataclass(frozen=True)
class TargetColumn:
    """A column on the server. shown: its type for messages. takes: whether it stores all values of the sink's column
    with the same name. rounds: whether it silently stores approximate values. computes: whether the server computes its
    values. is_required: whether it rejects NULL and has no default.
    """

    shown: str
    takes: bool
    rounds: bool
    computes: bool
    is_required: bool


Rows = TypeVar("Rows")


class DatabaseTarget(Target, Generic[Rows]):
    """A target; see `base.targets.Target`. Rows: the type of a batch's rows in the form in which they are written.

    microseconds: the hint for a column whose times have no microseconds.
    """

    microseconds: ClassVar[str]

    def __init__(self, delivery: Delivery, database_id: str, table: TargetTable) -> None:
        written = tuple(c for c in delivery.columns if c.name not in delivery.message_parts)
        self._delivery = delivery = replace(delivery, columns=written)
        self._where = table
        self._name = f"{database_id}-{delivery.target_id}"
        #: The name by which connections of earlier writers are found. Systems truncate long names.
        self._application = f"watersmeet {hashlib.blake2b(self._name.encode(), digest_size=16).hexdigest()}"
        by_name = {c.name: c for c in delivery.columns}
        self._key = tuple(by_name[name] for name in delivery.key) if delivery.format.rows == "upsert" else ()
        self._connection: Any = None
        self._token = ""

    def look(self) -> None:
        """Checks that the table exists and accepts the rows. Raises Unavailable, UNDEFINED_OBJECT, CONNECTOR_OPTION."""
        with self._explained():
            self._connection = self._connect()
            self._check_table()
        self.close()

    def open(self, generation: int) -> SinkOffset | None:
        self.close()
        with self._explained():
            self._connection = self._connect()
            # An abandoned transaction holds locks until its connection ends.
            self._end_others()
            self._check_table()
            self._make_progress_table()
            fault("database.entered")
            found = self._enter(generation)
            fault("database.fenced")
            if self._is_staged:
                self._prepare()
            return found

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        rows = self._rows(batches)
        with self._explained(), self._transaction():
            fault("database.begun")
            self._progress(batches[-1].offset)
            fault("database.offset_written")
            self._write(rows)
            fault("database.written")
        fault("database.committed")

    def _newest(self, batches: Sequence[SinkBatch], keys: Writer) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """The result of `newest_rows`. Raises DELIVERY_REFUSED for a new row with NULL in its key, because no unique
        index would find it again.
        """
        rows, gone = newest_rows(batches, [c.name for c in self._delivery.columns], keys)
        null = np.zeros(len(rows), np.bool_)
        for column in self._key:
            has_null = rows.column(column.name).is_null().to_numpy()
            if (has_null & ~gone).any():
                raise self._refused(f'Its key has NULL in column "{column.name}".')
            null |= has_null
        # The table never contains a row with NULL in its key.
        return rows.filter(pa.array(~null)), gone[~null]

    def append(self, rows: pa.Table) -> None:
        """Adds the rows of a statement, with the columns of the delivery, in one transaction."""
        with self._explained():
            self._connection = self._connect()
            try:
                self._check_table()
                if self._is_staged:
                    self._prepare()
                with self._transaction():
                    self._write(self._added(rows))
            finally:
                self.close()

    def change(self, compute: Callable[[Sequence[frozenset[str]]], RowChange]) -> None:
        """Changes rows as `Connector.change` requires."""
        with self._explained():
            self._connection = self._connect()
            try:
                self._check_columns(self._columns())
                keys = [names for names, has_nulls in self._unique_keys().items() if not has_nulls]
                with self._locked():
                    self._change(compute(sorted(keys, key=sorted)))
            finally:
                self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self._errors()):
                connection.close()

    @abc.abstractmethod
    def _connect(self) -> Any:
        """A new connection, which commits each statement."""

    @abc.abstractmethod
    def _end_others(self) -> None:
        """Marks the connection as one of this target, and ends others with the same mark."""

    @abc.abstractmethod
    def _columns(self) -> Mapping[str, TargetColumn]:
        """The columns of the table; empty if it does not exist. Also stores other properties of the columns."""

    @abc.abstractmethod
    def _unique_keys(self) -> Mapping[frozenset[str], bool]:
        """The columns of each primary key and unique index, and whether they may be NULL."""

    @abc.abstractmethod
    def _locked(self) -> contextlib.AbstractContextManager[Any]:
        """A transaction like `_transaction` during which no other transaction changes the table or adds rows."""

    @abc.abstractmethod
    def _change(self, change: RowChange) -> None:
        """Changes rows inside a transaction."""

    @abc.abstractmethod
    def _make_progress_table(self) -> None:
        """Creates the table of offsets unless it exists: sink (the primary key), writer, generation, commit, rows,
        last.
        """

    @property
    def _is_staged(self) -> bool:
        """Whether rows are first written to a temporary table."""
        return bool(self._key)

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Creates the temporary table for staged rows on this connection."""

    @abc.abstractmethod
    def _added(self, rows: pa.Table) -> Rows:
        """The rows of a batch that are only added."""

    @abc.abstractmethod
    def _rows(self, batches: Sequence[SinkBatch]) -> Rows:
        """The rows to write; for an upsert sink, one row for each changed key."""

    @abc.abstractmethod
    def _write(self, rows: Rows) -> None:
        """Writes rows inside a transaction."""

    @abc.abstractmethod
    def _transaction(self) -> contextlib.AbstractContextManager[Any]:
        """A transaction, which is rolled back if an error is raised inside."""

    @abc.abstractmethod
    def _run(self, text: str, parameters: Sequence[Any] = ()) -> Any:
        """Runs a statement with %s for parameters and returns its cursor."""

    @abc.abstractmethod
    def _quoted(self, *names: str) -> str:
        """A quoted name with all its parts, for statements of `_run`."""

    @abc.abstractmethod
    def _errors(self) -> type[Exception]:
        """The class of the library's errors."""

    @abc.abstractmethod
    def _refusal(self, cause: Any) -> str | None:
        """The server's message about a row that the table never accepts; None for other errors."""

    @abc.abstractmethod
    def _failure(self, cause: Any) -> Error:
        """The error of Watersmeet for another error of the library."""

    @property
    def _table(self) -> str:
        return self._quoted(self._where.schema, self._where.table)

    @property
    def _progress_table(self) -> str:
        return self._quoted(self._where.schema, PROGRESS)

    @property
    def _names(self) -> str:
        return self._listed(self._delivery.columns)

    def _listed(self, columns: Sequence[Field]) -> str:
        return ", ".join(self._quoted(c.name) for c in columns)

    def _check_table(self) -> None:
        """Raises UNDEFINED_OBJECT, UNDEFINED_COLUMN, DATATYPE_MISMATCH, CONNECTOR_OPTION if the table is unsuitable."""
        where, found = self._where, self._columns()
        if not found:
            raise error(
                "UNDEFINED_OBJECT",
                f"there is no {where.what} in {where.server.shown}",
                hint="Create it first: its columns need the names of the sink's.",
            )
        self._check_columns(found)
        names = {c.name for c in self._delivery.columns}
        for name, there in found.items():
            if there.is_required and name not in names:
                raise error(
                    "CONNECTOR_OPTION",
                    f'column "{name}" of {where.what} must not be NULL, and the sink has no column for it',
                    hint="Give it a default there.",
                )
        merging = self._delivery.merging
        key = [c.name for c in self._key] if merging is None else merging.key
        if key and frozenset(key) not in self._unique_keys():
            listed = ", ".join(key)
            raise error(
                "CONNECTOR_OPTION",
                f"{where.what} has no primary key or unique index over ({listed}), which "
                f"{'upserts need' if merging is None else 'MERGE needs'}",
                hint=f"ALTER TABLE {where.name} ADD PRIMARY KEY ({listed})",
            )

    def _check_columns(self, found: Mapping[str, TargetColumn]) -> None:
        """Checks that the table stores the values of the delivery's columns. Raises UNDEFINED_COLUMN,
        DATATYPE_MISMATCH.
        """
        where = self._where
        for column in self._delivery.columns:
            if column.name not in found:
                raise error(
                    "UNDEFINED_COLUMN",
                    f'{where.what} has no column "{column.name}"',
                    detail=f"The sink has one of type {column.type.sql}.",
                    hint=did_you_mean(column.name, found),
                )
            there = found[column.name]
            if there.rounds and not there.computes:
                raise error(
                    "DATATYPE_MISMATCH",
                    f'column "{column.name}" of {where.what} has type {there.shown}, which rounds values of the sink',
                    detail=f"The sink has values of type {column.type.sql} for it.",
                    hint=f"Convert them in the query: CAST({column.name} AS {there.shown})."
                    if column.type.name == "numeric"
                    else f"Give the column there microseconds: {self.microseconds}.",
                )
            if there.computes or not there.takes:
                why = "computes its values itself" if there.computes else f"has type {there.shown}"
                raise error(
                    "DATATYPE_MISMATCH",
                    f'column "{column.name}" of {where.what} {why}',
                    detail=f"The sink has values of type {column.type.sql} for it.",
                )

    def _offset_columns(self) -> list[str]:
        return [self._quoted(name) for name in SinkOffset._fields]

    def _enter(self, generation: int) -> SinkOffset | None:
        """Writes the token of this writer, after which no other writer can commit. Returns the offset of the newest
        batch.
        """
        self._token = secrets.token_hex(16)
        table, columns = self._progress_table, ", ".join(self._offset_columns())
        self._add_progress_row()
        with self._transaction():
            row = self._run(f"SELECT {columns} FROM {table} WHERE sink = %s FOR UPDATE", [self._name]).fetchone()
            found = SinkOffset(row[0], row[1], row[2], bool(row[3]))
            if found.generation > generation:
                raise error(
                    "WRITER_FENCED", f"{self._delivery.title} was replaced: generation {found.generation} is delivered"
                )
            self._run(f"UPDATE {table} SET writer = %s WHERE sink = %s", [self._token, self._name])
        return found if found.generation else None

    @abc.abstractmethod
    def _add_progress_row(self) -> None:
        """Adds the row of this target with the offset (0, 0, 0, false), unless it exists."""

    def _progress(self, offset: SinkOffset) -> None:
        """Writes the offset, which also blocks all other writers until the end of the transaction."""
        changes = ", ".join(f"{name} = %s" for name in self._offset_columns())
        changed = self._run(
            f"UPDATE {self._progress_table} SET {changes} WHERE sink = %s AND writer = %s",
            [*offset, self._name, self._token],
        ).rowcount
        if changed != 1:
            raise error("WRITER_FENCED", f"another writer has taken over {self._delivery.title}")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Converts errors of the library to those of the contract."""
        try:
            yield
        except self._errors() as cause:
            refused = self._refusal(cause)
            if refused is not None:
                raise self._refused(refused) from cause
            raise _passing(self._failure(cause)) from cause
        except Error as cause:
            raise _passing(cause) from cause

    def _check_changed(self, found: int, change: RowChange) -> None:
        """Raises DELIVERY_REFUSED unless the numbers of found and of changed rows are equal."""
        if found != len(change.keys):
            raise error(
                "DELIVERY_REFUSED",
                f"{self._where.what} has {found} of {len(change.keys)} rows that change",
                detail=f"Values of ({', '.join(c.name for c in change.key)}) are not the same there as here.",
            )

    def _refused(self, text: str) -> Error:
        """The error DELIVERY_REFUSED. text: the server's message."""
        return error(
            "DELIVERY_REFUSED", f"{self._where.what} does not take a row of {self._delivery.title}", detail=text
        )


def _passing(found: Error) -> Exception:
    if found.condition != "RUNTIME_UNAVAILABLE":
        return found
    return Unavailable(f"{found.message}{f': {found.detail}' if found.detail else ''}")


@contextlib.contextmanager
def passing() -> Iterator[None]:
    """Converts RUNTIME_UNAVAILABLE to the Unavailable of the contract."""
    try:
        yield
    except Error as cause:
        raise _passing(cause) from cause


Made = TypeVar("Made", bound=DatabaseTarget[Any])


def database_connector(make: Callable[[Delivery, str], Made], options: OptionSet) -> Connector:
    """The sink connector for tables of a system. make: returns the target of a delivery, given the id of the
    database.
    """
    return connector_for(
        make,
        options,
        "Check that it runs, and its address.",
        append=lambda target, rows: target.append(rows),
        change=lambda target, compute: target.change(compute),
    )


def table_specs(port: int, *others: OptionSpec) -> tuple[OptionSpec, ...]:
    """The options of a table of a database, with additional ones of its system."""
    return (
        OptionSpec("host", "The host of the server.", is_needed=True),
        OptionSpec("port", "The port of the server.", "integer", default=port, minimum=0),
        OptionSpec("user", "The user.", is_needed=True),
        OptionSpec("password", "The password of the user.", secret=True),
        OptionSpec("database", "The database.", is_needed=True),
        OptionSpec("schema", "The schema of the table."),
        OptionSpec("table", "The table, which must exist.", is_needed=True),
        OptionSpec("ssl_mode", "How much of TLS is required.", aliases=("ssl.mode",), default="prefer"),
        *others,
    )


def named_table(options: Options, schema: str | None, on_conflict: str) -> TargetTable:
    """The table in the options of `table_specs`. schema: the default schema; None: the database. Raises
    CONNECTOR_OPTION.

    CONNECTOR_OPTION.
    """
    server = Server(
        options.needed("host"),
        options.number("port"),
        options.needed("user"),
        options.text("password"),
        options.needed("database"),
        ssl_mode(options.text("ssl_mode")),
    )
    return TargetTable(
        server, options.text("schema") or schema or server.database, options.needed("table"), on_conflict
    )
