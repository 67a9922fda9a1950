"""The contract of change data capture: options, requests of statements to a server, and a stream of changes.

An offset is a position in a server's log: the LSN of PostgreSQL, the set of GTIDs of MySQL. Applying changes to a table
leaves the last row of each key, with its unchanged values.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import Captured
from watersmeet.connectors.base.options import Options, OptionSet, OptionSpec
from watersmeet.connectors.databases.servers import Server
from watersmeet.connectors.databases.tables import TableColumn
from watersmeet.formats.writers import row_codes
from watersmeet.values.types import Schema

#: Numbers of transactions have 64 bits, but only 32 in messages of changes.
_WRAP = 1 << 32


@dataclass(frozen=True)
class Snapshot:
    """The transactions that a reader saw: those below `xmax` that are not in `running`.

    PostgreSQL, "pg_snapshot".
    """

    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parsed(cls, text: str) -> Snapshot:
        """The snapshot in a result of `pg_current_snapshot()`."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), tuple(int(x) for x in running.split(",") if x))

    def sees(self, xids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """The mask of the transactions that the reader saw. xids: the lower 32 bits of their numbers."""
        behind = (self.xmax - xids) % _WRAP
        behind = np.where(behind > _WRAP // 2, behind - _WRAP, behind)
        running = np.isin(xids, np.array([x % _WRAP for x in self.running], np.int64))
        seen: npt.NDArray[np.bool_] = (behind > 0) & ~running
        return seen


@dataclass(frozen=True)
class Chunk:
    """A batch of existing rows of a PostgreSQL table, read in key order.

    upto: the texts of the greatest key; empty if the chunk is the last. snapshot: the transactions that the reader saw.
    high_lsn: an offset after all their commits.
    """

    upto: tuple[str, ...]
    snapshot: Snapshot
    high_lsn: int


@dataclass(frozen=True)
class TablePosition:
    """The progress of a table.

    upto: the key up to which existing rows were read; empty: none yet. done: whether all were read. rows: the number of
    read rows. chunks: for PostgreSQL, the newest chunks, for which changes may still arrive that they already contain;
    the keys of earlier chunks are up to `settled`. stalled: the reason why its replication has stopped, or empty.
    """

    done: bool = False
    upto: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()
    rows: int = 0
    chunks: tuple[Chunk, ...] = ()
    stalled: str = ""

    def behind(self, lsn: int) -> TablePosition:
        """The position once the table contains all changes before an offset."""
        left = tuple(c for c in self.chunks if c.high_lsn > lsn)
        if len(left) == len(self.chunks):
            return self
        settled = self.chunks[len(self.chunks) - len(left) - 1].upto
        return replace(self, chunks=left, settled=settled)

    @property
    def takes_all(self) -> bool:
        """Whether every arriving change is new and applies to rows that were read."""
        return self.done and not self.chunks


@dataclass(frozen=True)
class DatabasePosition:
    """The progress of a database: all transactions that the server committed before `offset` are captured. tables: the
    positions by table id. history: see `Stream`. letters: the number of the newest commit with dead letters; later dead
    letters belong to commits that were not completed.
    """

    offset: str
    tables: Mapping[str, TablePosition] = field(default_factory=dict)
    history: str = ""
    letters: int = 0

    def of(self, table_id: str) -> TablePosition | None:
        """The position of a table; None if the table is new."""
        return self.tables.get(table_id)


Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: The user's action that resumes capture after a lost offset.
AGAIN: Final = "RESET SOURCE reads its tables anew."


class LostOffsetError(Exception):
    """The server no longer has the changes after an offset. The message has the reason and the action."""


@dataclass(frozen=True)
class DatabaseOptions:
    """The options that every system has. schema: the schema of tables without one. adds_columns: whether columns that
    are added on the server are also added to the table.
    """

    server: Server
    schema: str
    adds_columns: bool


@dataclass(frozen=True)
class TableVersion:
    """The definition of a table in a message of changes. oid: see `Captured`. types: the types of its columns in order,
    in the form of `TableThere`.
    """

    oid: int
    schema: str
    name: str
    types: dict[str, str]


@dataclass(frozen=True)
class TableThere:
    """The present definition of a table on its server. types: the types by column, as texts that are equal for equal
    types. unwritten: other columns, whose changes the server does not write, with the reason.
    """

    schema: str
    name: str
    oid: int
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]
    types: dict[str, str]
    unwritten: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The name for messages."""
        return f"{self.schema}.{self.name}"

    @property
    def lineage(self) -> Lineage:
        """The number and name of the table."""
        return Lineage(self.oid, self.schema, self.name)


class Lineage(NamedTuple):
    """A table, or a partitioned table of which it is a partition."""

    oid: int
    schema: str
    name: str

    def is_of(self, captured: Captured) -> bool:
        """Whether it has the name or the number of a captured table."""
        return (self.schema, self.name) == (captured.schema, captured.table) or (
            captured.oid != 0 and self.oid == captured.oid
        )


class Values(NamedTuple):
    """The values of one column. kept: the mask of values that the server did not send because the change kept them;
    they are NULL.
    """

    texts: pa.StringArray
    kept: Mask


@dataclass(frozen=True)
class Rows:
    """The changes of one version of a table in order.

    offsets: the number of each change in the batch. transactions: the number of its transaction in the batch. written,
    gone: the masks of changes that write a row and that delete a row. new: the columns of the written rows. old: the
    columns of the deleted rows.
    """

    table: TableVersion
    offsets: Numbers
    transactions: Numbers
    written: Mask
    gone: Mask
    new: tuple[Values, ...]
    old: tuple[Values, ...]


class Truncation(NamedTuple):
    """The truncation of tables. offset: see `Rows`. tables: the emptied tables."""

    offset: int
    tables: tuple[TableVersion, ...]


class Added(NamedTuple):
    """New columns of a table. names: the names of all columns or of the new ones. offset: see `Captured.added`.
    begins_again: whether existing rows must be read again from the start, because some may lack the columns.
    """

    names: tuple[str, ...]
    offset: str
    begins_again: bool = False


@dataclass(frozen=True)
class Batch:
    """Complete transactions in the order of their commits.

    offset: all changes before it have arrived. times_us: the times of the commits, in UTC microseconds since 1970.
    """

    offset: str
    times_us: Numbers
    rows: tuple[Rows, ...]
    truncations: tuple[Truncation, ...]


class Piece(NamedTuple):
    """A piece of a table's existing rows. texts: the values by column. position: the position of the table with these
    rows. replaces: whether the table may already contain rows with these keys.
    """

    texts: list[pa.Array]
    position: TablePosition
    replaces: bool


class Stream(abc.ABC):
    """The changes of a database from an offset on, and its present tables. Only one thread may use it.

    Errors of the library become those of the client's `failure`. reached: the offset before which everything was read.
    history: the history of the server to which the offsets belong, for systems where offsets of several histories may
    be equal; else empty.
    """

    reached: str
    history: str = ""

    @abc.abstractmethod
    def read(self, wait_s: float, tables: Callable[[], Collection[tuple[str, str]]]) -> Batch | None:
        """The transactions that have arrived, at least one if one arrives within the time. Transactions that change
        none of the tables (schema, name) may be omitted; `tables` is called after they have arrived.
        """

    @abc.abstractmethod
    def committed(self, offset: str) -> None:
        """Reports that all changes before an offset are stored, so that the server may delete them."""

    @abc.abstractmethod
    def is_far_from(self, offset: str) -> bool:
        """Whether so much of the log was read after `offset` that the new offset should be committed even if no table
        has changed.
        """

    def ask(self) -> None:  # noqa: B027
        """Requests that `reached` becomes the end of the log, because a caller waits for it."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the server."""

    @abc.abstractmethod
    def table(self, schema: str, name: str) -> TableThere:
        """See `System.table`."""

    @abc.abstractmethod
    def piece(
        self, captured: Captured, there: TableThere, columns: Sequence[str], position: TablePosition | None
    ) -> Piece | None:
        """The next existing rows of a table with some columns; None if more changes must be read, or time must pass,
        first.
        """

    @abc.abstractmethod
    def wanted(
        self, captured: Captured, key: Sequence[str], position: TablePosition, batch: Batch, change: Changed
    ) -> Mask:
        """The mask of changes that apply to the rows of an incomplete table."""

    @abc.abstractmethod
    def behind(self, position: TablePosition, offset: str) -> TablePosition:
        """The position once the table contains all changes before an offset."""

    def lineage(self, version: TableVersion) -> Sequence[Lineage]:
        """The table itself, and the partitioned tables of which it is a partition."""
        return [Lineage(version.oid, version.schema, version.name)]

    def is_of(self, captured: Captured, version: TableVersion) -> Lineage | None:
        """The table in `lineage` that has the name or the number of a captured table, or None."""
        return next((t for t in self.lineage(version) if t.is_of(captured)), None)

    def is_emptied(self, captured: Captured, truncation: Truncation) -> bool:
        """Whether a truncation deletes all rows of a table."""
        own = (captured.oid, captured.schema, captured.table)
        return any((t.oid, t.schema, t.name) == own for t in truncation.tables)

    def why_unpublished(self, captured: Captured) -> str:  # noqa: ARG002
        """The reason why the server may not have written all changes of a table so far; empty if it has."""
        return ""

    def check(self, version: TableVersion) -> None:  # noqa: B027
        """Raises CONNECTOR_OPTION if changes of the table can't be captured."""

    def stopped(self, captured: Captured, batch: Batch) -> str:  # noqa: ARG002
        """The reason why the table can't be captured after a batch; empty if it can."""
        return ""

    def may_lack(self, captured: Captured, batch: Batch, rows: Rows) -> set[str]:  # noqa: ARG002
        """The columns that older rows may lack."""
        return set()

    @abc.abstractmethod
    def added(self, captured: Captured, batch: Batch) -> Added | None:
        """New columns of the table in a batch. Some may be known already."""

    @abc.abstractmethod
    def added_now(self, there: TableThere, position: TablePosition | None) -> Added | None:
        """The present columns of a table, if new ones must be added before its next rows are read."""

    @abc.abstractmethod
    def value_before(self, there: TableThere, column: str) -> str | None:
        """The text of the value that older rows have in an added column; None is NULL. Raises FEATURE_NOT_SUPPORTED if
        their values may differ.
        """

    def plain(self, captured: Captured, columns: Schema, texts: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002
        """Converts texts of columns in changes and pieces to the form that `tables.typed` reads."""
        return [*texts]


class Changed(NamedTuple):
    """The changed rows of a table: the numbers of their transactions in the batch, and the texts of the key by
    column.
    """

    transactions: Numbers
    keys: list[pa.Array]


class System(abc.ABC):
    """A kind of servers whose databases can be captured. title: the name for messages. known: all options. wider: for a
    column type, other types that store all its values. has_schemas: whether a database has schemas; otherwise the
    database is the schema of its tables.
    """

    connector: ClassVar[str]
    title: ClassVar[str]
    wider: ClassVar[Mapping[str, Sequence[str]]]
    has_schemas: ClassVar[bool]
    known: ClassVar[OptionSet]

    @abc.abstractmethod
    def options(self, given: Mapping[str, str]) -> DatabaseOptions:
        """The options of a database. Raises CONNECTOR_OPTION for missing, unknown or invalid options."""

    @abc.abstractmethod
    def defaults(self, given: Mapping[str, str]) -> dict[str, str]:
        """The options for which CREATE generates a value if the statement, with the given options, has none."""

    @abc.abstractmethod
    def connected(self, options: DatabaseOptions) -> AbstractContextManager[Any]:
        """A connection for the other methods. Its errors become those of the client's `failure`."""

    @abc.abstractmethod
    def check(self, connection: Any, options: DatabaseOptions) -> None:
        """Raises CONNECTOR_OPTION if the server does not write the required log, or the user may not read it."""

    @abc.abstractmethod
    def table(self, connection: Any, options: DatabaseOptions, name: str) -> TableThere:
        """A table that can be captured, by its name with or without schema. Raises UNDEFINED_OBJECT,
        CONNECTOR_OPTION.
        """

    def can_read(self, column: TableColumn) -> bool:  # noqa: ARG002
        """Whether changes of a column can be read, at least as text."""
        return True

    @abc.abstractmethod
    def publish(self, connection: Any, options: DatabaseOptions, table: TableThere | None) -> tuple[str, ...]:
        """Makes the server log changes of a table, or of future tables. Returns the created objects. Raises
        CONNECTOR_OPTION.
        """

    def published(self, connection: Any, options: DatabaseOptions, table: TableThere) -> str:  # noqa: ARG002
        """The value of `Captured.published` for a table for which `publish` was called."""
        return ""

    @abc.abstractmethod
    def begin(self, connection: Any, options: DatabaseOptions) -> tuple[str, tuple[str, ...]]:
        """The offset from which the server keeps changes, and the created objects. Raises CONNECTOR_OPTION."""

    def begin_again(
        self, connection: Any, options: DatabaseOptions, made: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        """Like `begin`, if the offset may be lost. made: the objects of earlier calls of `begin` and `publish`. Returns
        all objects that exist now.
        """
        start, more = self.begin(connection, options)
        return start, tuple(dict.fromkeys((*made, *more)))

    def drop(self, options: DatabaseOptions, made: tuple[str, ...], others: Sequence[DatabaseOptions]) -> str:  # noqa: ARG002
        """Drops the objects of `begin` and `publish` for a database, unless others use them. Returns a notice about
        remaining objects, or an empty text.

        others: the options of all other captured databases of this system.
        """
        return ""

    def unpublish(
        self,
        options: DatabaseOptions,  # noqa: ARG002
        made: tuple[str, ...],  # noqa: ARG002
        table: Captured,  # noqa: ARG002
        others: Sequence[DatabaseOptions],  # noqa: ARG002
    ) -> str:
        """Makes the server stop writing changes of a dropped table. Returns a notice if it continues, or an empty text.

        made: see `drop`. others: the options of the databases that still capture the table.
        """
        return ""

    @abc.abstractmethod
    def stream(self, options: DatabaseOptions, offset: str, history: str) -> Stream:
        """The changes from an offset of a history on; an empty history means any. Raises LostOffsetError and errors of
        the client.
        """

    @abc.abstractmethod
    def end(self, options: DatabaseOptions) -> str:
        """An offset after all transactions that are committed now."""

    @abc.abstractmethod
    def has(self, offset: str, other: str) -> bool:
        """Whether `offset` is not before `other`."""

    @abc.abstractmethod
    def lag(self, options: DatabaseOptions, offset: str) -> tuple[int | None, int | None]:
        """The bytes of the log that the server keeps for this reader, and the bytes after an offset; None if unknown.
        Raises errors of the client.
        """

    def is_in_use(self, problem: BaseException) -> bool:  # noqa: ARG002
        """Whether a stream could not begin because another reader, which may be dead, still uses its offset."""
        return False


@dataclass(frozen=True)
class TableOptions:
    """The options of a captured table; see `catalog.Captured`."""

    has_snapshot: bool
    batch_rows: int
    stops: bool


_ONE_READER: Final = "Accepted without effect: one reader fills a table, batch by batch."

#: The options of a table of a captured database of any system. RisingWave, "Ingest data from PostgreSQL CDC".
TABLE_OPTIONS: Final = (
    OptionSpec("snapshot", "Whether the rows that exist already are read.", "flag", default=True),
    OptionSpec(
        "snapshot.batch_size",
        "Rows that are read at a time while a table is filled.",
        "integer",
        default=100_000,
        minimum=1,
        unit="rows",
    ),
    OptionSpec(
        "on_error",
        "Whether a row that can't be read becomes a dead letter, or stops the table.",
        "choice",
        among=("skip", "stop"),
        default="skip",
    ),
    OptionSpec("snapshot.interval", _ONE_READER, "integer", minimum=0, is_idle=True),
    OptionSpec("backfill.parallelism", _ONE_READER, "integer", minimum=0, is_idle=True),
    OptionSpec("backfill.num_rows_per_split", _ONE_READER, "integer", minimum=0, is_idle=True),
    OptionSpec("backfill.as_even_splits", _ONE_READER, "flag", is_idle=True),
)

TABLE_NAME: Final = OptionSpec("table.name", "The table; only where no FROM names it.")

"""The option for the table name if the statement captures a single table."""


def is_of_table(option: str) -> bool:
    """Whether an option belongs to a table; a statement for a single table has it among the options of the database."""
    return any(option == spec.name for spec in (TABLE_NAME, *TABLE_OPTIONS))


def table_options(given: Mapping[str, str], connector: str) -> TableOptions:
    """The options of a captured table. Raises CONNECTOR_OPTION for unknown or invalid options."""
    options = OptionSet(f"{connector} of a table", TABLE_OPTIONS).read(given)
    options.check()
    return TableOptions(
        options.flag("snapshot"), options.number("snapshot.batch_size"), options.choice("on_error") == "stop"
    )


def database_specs(port: int, ssl_modes: tuple[str, ...], *others: OptionSpec) -> tuple[OptionSpec, ...]:
    """The options of a captured database, with additional ones of its system."""
    return (
        OptionSpec("hostname", "The host of the server.", is_needed=True),
        OptionSpec("port", "The port of the server.", "integer", default=port, minimum=1, maximum=65535),
        OptionSpec("username", "The user, who needs the right to replicate.", is_needed=True),
        OptionSpec("password", "The password of the user.", secret=True),
        OptionSpec("database.name", "The database.", is_needed=True),
        OptionSpec("ssl.mode", "How much of TLS is required.", "choice", among=ssl_modes, default="prefer"),
        OptionSpec("auto.schema.change", "Whether tables get the columns that are added to theirs.", "flag"),
        *others,
        OptionSpec(
            "transactional",
            "Accepted without effect: the changes of a transaction are always one commit.",
            "flag",
            is_idle=True,
        ),
        OptionSpec("debezium.", "Accepted without effect: no Debezium reads the database.", "prefix", is_idle=True),
    )


def server_of(options: Options, ssl_mode: str) -> Server:
    """The server in the options of `database_specs`. Raises CONNECTOR_OPTION."""
    return Server(
        options.needed("hostname"),
        options.number("port"),
        options.needed("username"),
        options.text("password"),
        options.needed("database.name"),
        ssl_mode,
    )


@dataclass(frozen=True)
class KeyedChanges:
    """The changes of a table by key, in any order.

    gone: the keys of deleted rows. gone_at: the times of the deletions. written: the inserted rows with all columns.
    written_at: the times of the insertions. A time is an index in the order of all changes, in which the deletion by a
    change directly precedes its insertion. kept: by column, the mask of rows that keep the value of the row that they
    replace.
    """

    key: tuple[str, ...]
    gone: pa.Table
    gone_at: Numbers
    written: pa.Table
    written_at: Numbers
    kept: Mapping[str, Mask]

    def keys(self) -> pa.Table:
        """All keys; some may occur more than once."""
        return pa.concat_tables([self.gone, self.written.select(list(self.key))])


def last_rows(changes: KeyedChanges, there: pa.Table) -> tuple[pa.Table, dict[str, Mask]]:
    """The rows of the changed keys after the changes; and, by column, the written rows whose kept value is unknown
    because the row that they replace is missing.

    there: the rows with these keys before the changes. The result omits rows with an unknown value.
    """
    key = list(changes.key)
    codes = row_codes(pa.concat_tables([there.select(key), changes.keys()]))
    before, gone, written = there.num_rows, len(changes.gone_at), len(changes.written_at)
    # Events: existing rows, deleted rows, inserted rows.
    times = np.concatenate([np.full(before, -1, np.int64), changes.gone_at, changes.written_at])
    order = np.lexsort((times, codes))
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = codes[order][1:] != codes[order][:-1]
    comes = np.arange(len(order)) >= before + gone
    last = np.sort(order[is_last & comes[order]]) - (before + gone)
    rows, missing = changes.written, dict[str, Mask]()
    if any(mask.any() for mask in changes.kept.values()):
        sources = _sources(codes, order, times, before, gone, written)
        rows, missing = _filled(changes, there, sources)
        for mask in missing.values():
            last = last[~mask[last]]
    return rows.take(pa.array(last)), missing


def _sources(codes: Numbers, order: Numbers, times: Numbers, before: int, gone: int, written: int) -> Numbers:
    """For each inserted row the number of the row that it replaces, counted over existing and inserted rows; -1 for
    none.
    """
    previous = np.full(len(order), -1, np.int64)
    same = codes[order][1:] == codes[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    # A change that contains the old row replaces this row, which may have a different key.
    goes, comes = np.arange(before, before + gone), np.arange(before + gone, before + gone + written)
    if gone:
        at = np.argsort(times[goes])
        following = np.searchsorted(times[goes][at], times[comes] - 1)
        inside = np.minimum(following, gone - 1)
        named = (following < gone) & (times[goes][at][inside] == times[comes] - 1)
        previous[comes[named]] = previous[goes[at[inside[named]]]]
    found = previous[comes]
    result = np.full(written, -1, np.int64)
    result[(found >= 0) & (found < before)] = found[(found >= 0) & (found < before)]
    result[found >= before + gone] = found[found >= before + gone] - gone
    return result


def _filled(changes: KeyedChanges, there: pa.Table, sources: Numbers) -> tuple[pa.Table, dict[str, Mask]]:
    """The inserted rows with the values that they keep; and, by column, the mask of rows whose kept value is
    unknown.
    """
    before, missing = there.num_rows, dict[str, Mask]()
    rows = changes.written
    for name, mask in changes.kept.items():
        if not mask.any():
            continue
        points = np.arange(before + rows.num_rows)
        points[before:][mask] = sources[mask]
        while True:
            further = np.where(points >= 0, points[np.maximum(points, 0)], -1)
            if np.array_equal(further, points):
                break
            points = further
        points = points[before:]
        if (points < 0).any():
            missing[name] = points < 0
        both = pa.chunked_array([*there.column(name).chunks, *rows.column(name).chunks], rows.schema.field(name).type)
        values = both.take(pa.array(np.maximum(points, 0), mask=points < 0))
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
    return rows, missing


def concatenated(masks: Sequence[Mask]) -> Mask:
    """The concatenated masks."""
    return np.concatenate(masks) if masks else np.zeros(0, np.bool_)
