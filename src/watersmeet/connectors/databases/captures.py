"""The contract of change data capture: options, requests of statements to a server, and a stream of changes.

An offset is a position in a server's log: the LSN of PostgreSQL, the set of GTIDs of MySQL. Applied to a table, changes
leave the last row of each key, with its unchanged values.
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

#: Numbers of transactions have 64 bits, and 32 in the messages of changes.
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
        """The snapshot that `pg_current_snapshot()` shows."""
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
    """Rows of a table of PostgreSQL that were read by their key.

    upto: the texts of the greatest key; empty if the chunk is the last. snapshot: the transactions that the reader saw.
    high_lsn: an offset after all their commits.
    """

    upto: tuple[str, ...]
    snapshot: Snapshot
    high_lsn: int


@dataclass(frozen=True)
class TablePosition:
    """The progress of a table.

    upto: the rows up to that key were read; empty: none yet. done: all were. rows: how many. chunks: of PostgreSQL,
    the newest of them, as far as changes may still come that they have already; the keys of those before are up to
    `settled`. stalled: why it follows no more; empty if it does.
    """

    done: bool = False
    upto: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()
    rows: int = 0
    chunks: tuple[Chunk, ...] = ()
    stalled: str = ""

    def behind(self, lsn: int) -> TablePosition:
        """The position when all changes before that offset are in the table."""
        left = tuple(c for c in self.chunks if c.high_lsn > lsn)
        if len(left) == len(self.chunks):
            return self
        settled = self.chunks[len(self.chunks) - len(left) - 1].upto
        return replace(self, chunks=left, settled=settled)

    @property
    def takes_all(self) -> bool:
        """Whether every change that comes is one of its rows, and new."""
        return self.done and not self.chunks


@dataclass(frozen=True)
class DatabasePosition:
    """How far a database is: everything that the server committed before `offset` is captured. tables: by their ids.
    history: see `Stream`. letters: the number of the newest commit that set rows aside; later dead letters are of
    commits that were not made.
    """

    offset: str
    tables: Mapping[str, TablePosition] = field(default_factory=dict)
    history: str = ""
    letters: int = 0

    def of(self, table_id: str) -> TablePosition | None:
        """The position of a table; None if it is new."""
        return self.tables.get(table_id)


Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: The action that resumes after a lost offset.
AGAIN: Final = "RESET SOURCE reads its tables anew."


class LostOffsetError(Exception):
    """The server no longer has the changes after an offset. The message has the reason and the action."""


@dataclass(frozen=True)
class DatabaseOptions:
    """What every system has. schema: of tables without one. adds_columns: columns that are added there are added
    here.
    """

    server: Server
    schema: str
    adds_columns: bool


@dataclass(frozen=True)
class TableVersion:
    """A table as changes have it. oid: see `Captured`. types: of its columns, in their order, as `TableThere` has
    them.
    """

    oid: int
    schema: str
    name: str
    types: dict[str, str]


@dataclass(frozen=True)
class TableThere:
    """A table as its server has it now. types: by column, its type in words that are equal for equal types. unwritten:
    columns, not among the others, whose changes the server does not write, and why.
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
        """For messages."""
        return f"{self.schema}.{self.name}"

    @property
    def lineage(self) -> Lineage:
        """Its number and name."""
        return Lineage(self.oid, self.schema, self.name)


class Lineage(NamedTuple):
    """A table, or a partitioned table that it is a partition of."""

    oid: int
    schema: str
    name: str

    def is_of(self, captured: Captured) -> bool:
        """Whether it has the name of a captured table, or its number."""
        return (self.schema, self.name) == (captured.schema, captured.table) or (
            captured.oid != 0 and self.oid == captured.oid
        )


class Values(NamedTuple):
    """Values of one column. kept: which of them are not sent, as a change left them as they were; NULL here."""

    texts: pa.StringArray
    kept: Mask


@dataclass(frozen=True)
class Rows:
    """Changes of one table, all by one version of it, in their order.

    offsets: of each change, its number in the batch. transactions: of its transaction in the batch. new: by column,
    for all `written`; old: for all `gone`. written, gone: which of the changes give a row, and which take one away.
    """

    table: TableVersion
    offsets: Numbers
    transactions: Numbers
    written: Mask
    gone: Mask
    new: tuple[Values, ...]
    old: tuple[Values, ...]


class Truncation(NamedTuple):
    """offset: as in `Rows`. tables: those that are emptied at it."""

    offset: int
    tables: tuple[TableVersion, ...]


class Added(NamedTuple):
    """New columns of a table. names: of all or of the new ones. offset: see `Captured.added`. begins_again: rows
    that are being read are read again, as some may lack them.
    """

    names: tuple[str, ...]
    offset: str
    begins_again: bool = False


@dataclass(frozen=True)
class Batch:
    """Whole transactions in the order of their commits.

    offset: everything before it has arrived. times_us: of the commits, UTC microseconds since 1970.
    """

    offset: str
    times_us: Numbers
    rows: tuple[Rows, ...]
    truncations: tuple[Truncation, ...]


class Piece(NamedTuple):
    """Existing rows of a table. texts: by column. position: of the table with them. replaces: rows with
    these keys may be here.
    """

    texts: list[pa.Array]
    position: TablePosition
    replaces: bool


class Stream(abc.ABC):
    """The changes of a database from an offset on, and its tables as they are. One thread uses it.

    Errors of the library are those of the client's `failure`. reached: everything before it was read.
    history: of which history of a server its offsets are, where the same offset may be one of several; empty: of one.
    """

    reached: str
    history: str = ""

    @abc.abstractmethod
    def read(self, wait_s: float, tables: Callable[[], Collection[tuple[str, str]]]) -> Batch | None:
        """The transactions that came, at least one if any comes within that time; those may be left out that change
        none of the tables (schema, name), which are asked for once the transactions are here.
        """

    @abc.abstractmethod
    def committed(self, offset: str) -> None:
        """Everything that was read before that offset is kept elsewhere."""

    @abc.abstractmethod
    def is_far_from(self, offset: str) -> bool:
        """Whether so much of the log was read after `offset` that the new offset should be committed, although no table
        has changed.
        """

    def ask(self) -> None:  # noqa: B027
        """A caller waits until `reached` is the end of the log."""

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
        """The next rows of a table, by the columns; None if they can't be had before more was read, or waited."""

    @abc.abstractmethod
    def wanted(
        self, captured: Captured, key: Sequence[str], position: TablePosition, batch: Batch, change: Changed
    ) -> Mask:
        """The mask of row changes that apply to a table that is not complete."""

    @abc.abstractmethod
    def behind(self, position: TablePosition, offset: str) -> TablePosition:
        """The position when all changes before that offset are in the table."""

    def lineage(self, version: TableVersion) -> Sequence[Lineage]:
        """The table itself, and the partitioned tables that it is a partition of."""
        return [Lineage(version.oid, version.schema, version.name)]

    def is_of(self, captured: Captured, version: TableVersion) -> Lineage | None:
        """The table whose changes are those of a captured table: it has its name, or its number; None for others."""
        return next((t for t in self.lineage(version) if t.is_of(captured)), None)

    def is_emptied(self, captured: Captured, truncation: Truncation) -> bool:
        """Whether a truncation leaves no row of a table."""
        own = (captured.oid, captured.schema, captured.table)
        return any((t.oid, t.schema, t.name) == own for t in truncation.tables)

    def why_unpublished(self, captured: Captured) -> str:  # noqa: ARG002
        """Why the server may not have written all changes of a table until now; empty if it has."""
        return ""

    def check(self, version: TableVersion) -> None:  # noqa: B027
        """CONNECTOR_OPTION if changes of such a table can't be followed."""

    def stopped(self, captured: Captured, batch: Batch) -> str:  # noqa: ARG002
        """Why the table can't be followed after a batch; empty if it can."""
        return ""

    def may_lack(self, captured: Captured, batch: Batch, rows: Rows) -> set[str]:  # noqa: ARG002
        """Columns that rows need not have, as they are older."""
        return set()

    @abc.abstractmethod
    def added(self, captured: Captured, batch: Batch) -> Added | None:
        """New columns of the table in a batch. Some may be known."""

    @abc.abstractmethod
    def added_now(self, there: TableThere, position: TablePosition | None) -> Added | None:
        """Columns that a table has now, where they have to be added before its next rows are read."""

    @abc.abstractmethod
    def value_before(self, there: TableThere, column: str) -> str | None:
        """The text of an added column's value in rows that are older than it; None is NULL. FEATURE_NOT_SUPPORTED if
        they need not have the same.
        """

    def plain(self, captured: Captured, columns: Schema, texts: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002
        """Texts as changes and pieces have them, of these columns, as `databasetables.typed` reads them."""
        return [*texts]


class Changed(NamedTuple):
    """Changes of rows of a table: transactions in the batch, and by column of the key, their texts."""

    transactions: Numbers
    keys: list[pa.Array]


class System(abc.ABC):
    """A kind of servers whose databases are captured. title: for messages. known: all options. wider: by the
    type of a column, other types that store all its values. has_schemas: whether a database has schemas; otherwise it
    is the schema of its tables.
    """

    connector: ClassVar[str]
    title: ClassVar[str]
    wider: ClassVar[Mapping[str, Sequence[str]]]
    has_schemas: ClassVar[bool]
    known: ClassVar[OptionSet]

    @abc.abstractmethod
    def options(self, given: Mapping[str, str]) -> DatabaseOptions:
        """CONNECTOR_OPTION for missing, unknown or wrong options."""

    @abc.abstractmethod
    def defaults(self, given: Mapping[str, str]) -> dict[str, str]:
        """Options that get a value of their own at CREATE if the statement, whose options are given, has none."""

    @abc.abstractmethod
    def connected(self, options: DatabaseOptions) -> AbstractContextManager[Any]:
        """A connection for the methods below, whose errors become those of the client's `failure`."""

    @abc.abstractmethod
    def check(self, connection: Any, options: DatabaseOptions) -> None:
        """CONNECTOR_OPTION if the server does not write what is needed, or the user may not read it."""

    @abc.abstractmethod
    def table(self, connection: Any, options: DatabaseOptions, name: str) -> TableThere:
        """A table that can be captured, by its name with or without a schema. UNDEFINED_OBJECT, CONNECTOR_OPTION."""

    def can_read(self, column: TableColumn) -> bool:  # noqa: ARG002
        """Whether changes of a column can be read, if only as text."""
        return True

    @abc.abstractmethod
    def publish(self, connection: Any, options: DatabaseOptions, table: TableThere | None) -> tuple[str, ...]:
        """Makes the server log changes of a table, or of future tables: the created objects. CONNECTOR_OPTION."""

    def published(self, connection: Any, options: DatabaseOptions, table: TableThere) -> str:  # noqa: ARG002
        """See `Captured.published`, of a table for which `publish` was called."""
        return ""

    @abc.abstractmethod
    def begin(self, connection: Any, options: DatabaseOptions) -> tuple[str, tuple[str, ...]]:
        """(the offset from which the server keeps changes, the created objects). CONNECTOR_OPTION."""

    def begin_again(
        self, connection: Any, options: DatabaseOptions, made: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...]]:
        """As `begin`, where the offset may be lost. made: objects of earlier calls of `begin` and `publish`; returns
        all that exist now.
        """
        start, more = self.begin(connection, options)
        return start, tuple(dict.fromkeys((*made, *more)))

    def drop(self, options: DatabaseOptions, made: tuple[str, ...], others: Sequence[DatabaseOptions]) -> str:  # noqa: ARG002
        """Drops what `begin` and `publish` made for a database, unless others use it. A notice of what stays; may be
        empty.

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
        """Lets the server write no more changes of a dropped table. A notice if it still does; may be empty.

        made: as in `drop`. others: the options of the databases of which the table is still captured.
        """
        return ""

    @abc.abstractmethod
    def stream(self, options: DatabaseOptions, offset: str, history: str) -> Stream:
        """The changes from that offset of a history on; empty: of any. LostOffsetError; errors of the client."""

    @abc.abstractmethod
    def end(self, options: DatabaseOptions) -> str:
        """Everything that is committed now is before that offset."""

    @abc.abstractmethod
    def has(self, offset: str, other: str) -> bool:
        """Whether everything before `other` is before `offset`."""

    @abc.abstractmethod
    def lag(self, options: DatabaseOptions, offset: str) -> tuple[int | None, int | None]:
        """(bytes of the log that the server keeps for this reader, bytes after that offset); None for an unknown one.
        Errors of the client.
        """

    def is_in_use(self, problem: BaseException) -> bool:  # noqa: ARG002
        """Whether a stream could not begin because another reader, maybe a dead one, still has its offset."""
        return False


@dataclass(frozen=True)
class TableOptions:
    """See `catalog.Captured`."""

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

"""The option of the form for a single table."""


def is_of_table(option: str) -> bool:
    """Whether an option is one of a table; the form for a single table has it among those of the database."""
    return any(option == spec.name for spec in (TABLE_NAME, *TABLE_OPTIONS))


def table_options(given: Mapping[str, str], connector: str) -> TableOptions:
    """CONNECTOR_OPTION for unknown or wrong options."""
    options = OptionSet(f"{connector} of a table", TABLE_OPTIONS).read(given)
    options.check()
    return TableOptions(
        options.flag("snapshot"), options.number("snapshot.batch_size"), options.choice("on_error") == "stop"
    )


def database_specs(port: int, ssl_modes: tuple[str, ...], *others: OptionSpec) -> tuple[OptionSpec, ...]:
    """The options of a captured database, with those that only its system has."""
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
    """The server that the options of `database_specs` name. CONNECTOR_OPTION."""
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
    """Changes of one table in any order, by key.

    gone: keys of rows that go; gone_at: when. written: rows that come, all columns; written_at: when. Times are offsets
    in the order of all changes: that a change takes a row away is directly before the row that it writes. kept: by
    column, which rows have the value of the row that they replace.
    """

    key: tuple[str, ...]
    gone: pa.Table
    gone_at: Numbers
    written: pa.Table
    written_at: Numbers
    kept: Mapping[str, Mask]

    def keys(self) -> pa.Table:
        """All keys, some more than once."""
        return pa.concat_tables([self.gone, self.written.select(list(self.key))])


def last_rows(changes: KeyedChanges, there: pa.Table) -> tuple[pa.Table, dict[str, Mask]]:
    """(the rows after the changes, of the keys that were changed; by column, the written rows whose kept value is
    missing, as the row that they replace is).

    there: the rows with these keys before. A row with a missing value is not among those after the changes.
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
    """For each inserted row the row that it replaces: its number among existing and inserted rows, -1 without one."""
    previous = np.full(len(order), -1, np.int64)
    same = codes[order][1:] == codes[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    # A change that names the old row replaces that one, with any key.
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
    """(the rows that come, with the values that they keep; by column, which rows lack such a value)."""
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
    """All masks as one."""
    return np.concatenate(masks) if masks else np.zeros(0, np.bool_)
