"""Spark's data source `watersmeet`: the content of a table or materialized view, the stream of its changes, and writes
to a table (`writing`).

`watersmeet.register(spark)` makes it known to a session, classic or Spark Connect. Tasks read the files of the database
themselves, read-only, while another process may write it; nothing passes through the driver. docs/SPARK-SOURCE.md has
the options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import datasource as spark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from watersmeet.catalog import Relation
from watersmeet.database.rowchecks import padded
from watersmeet.database.scans import share_rows, shares_of
from watersmeet.datasource.writing import BatchWriter, StreamWriter, Target, checked_options
from watersmeet.errors import error
from watersmeet.frames.shapes import spark_type
from watersmeet.kernel.arrays.columns import flat
from watersmeet.session.connections import connect
from watersmeet.session.connections.connection import Connection
from watersmeet.store.changes import quoted
from watersmeet.store.inplace import Share

NAME: Final = "watersmeet"

#: The columns that a stream of changes adds, named as those of Delta's change feed.
CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
_CHANGE_FIELDS: Final = (
    StructField(CHANGE_TYPE, StringType(), nullable=False),
    StructField(COMMIT_VERSION, LongType(), nullable=False),
    StructField(COMMIT_TIMESTAMP, TimestampType(), nullable=False),
)

#: The options, in lower case, with the meanings of their values.
OPTIONS: Final[Mapping[str, str]] = {
    "database": "the path or URL of the database",
    "path": "the name of the table or materialized view, usually the argument of load",
    "commit": "the number of the commit to read; the newest by default",
    "readchanges": "true for a stream of changes with their columns; otherwise the relation must only grow",
    "numpartitions": "the number of tasks; by default one for each 262,144 rows of the content, and one for changes",
    "startingcommit": "the commit after which a stream begins; by default with the content",
}

_EXAMPLE: Final = 'spark.read.format("watersmeet").option("database", "s3://bucket/shop").load("orders_by_day")'

_ROWS_PER_BATCH: Final = 1 << 16

#: The offset before the content.
_NOTHING: Final = -1


def register(session: SparkSession) -> None:
    """Makes `format("watersmeet")` known to a session."""
    session.dataSource.register(WatersmeetSource)


@dataclass(frozen=True)
class _Asked:
    """The checked options of a read."""

    database: str
    relation: str
    commit: int | None
    changes: bool
    start: int
    tasks: int | None

    @staticmethod
    def of(options: Mapping[str, str]) -> _Asked:
        """Raises INVALID_PARAMETER for a missing or unknown option, or a wrong value."""
        given = checked_options(options, OPTIONS, ("database", "path"), _EXAMPLE)
        return _Asked(
            given["database"],
            given["path"],
            _number(given, "commit"),
            _flag(given, "readChanges"),
            cast("int", _number(given, "startingcommit", _NOTHING)),
            _number(given, "numpartitions"),
        )

    def opened(self) -> Connection:
        """A connection that reads the database."""
        return connect(self.database, read_only=True, runtime="inprocess")

    @property
    def sql(self) -> str:
        """The relation in SQL: a name, or a schema and a name."""
        return ".".join(map(quoted, self.relation.split(".")))

    def relation_in(self, connection: Connection) -> Relation | None:
        """The relation in the catalog; None if it has another name there."""
        *schema, name = self.relation.split(".")
        return connection.opened.catalog.by_name(name, ".".join(schema) or None)


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise error("INVALID_PARAMETER", f"{name} is {text!r}", hint="It is true or false.")
    return text == "true"


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    text = given.get(name)
    if text is None:
        return default
    if not text.isdecimal() or (name == "numpartitions" and int(text) == 0):
        what = "a number of tasks" if name == "numpartitions" else "the number of a commit"
        raise error("INVALID_PARAMETER", f"{name} is {text!r}", hint=f"It is {what}.")
    return int(text)


class WatersmeetSource(spark.DataSource):  # type: ignore[misc]
    """The data source."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        asked = _Asked.of(self.options)
        with asked.opened() as connection:
            found = connection.execute(f"SELECT * FROM {asked.sql} LIMIT 0").fetch_arrow_table().schema
        fields = [StructField(field.name, spark_type(field.name, field.type)) for field in found]
        return StructType([*fields, *(_CHANGE_FIELDS if asked.changes else ())])

    def reader(self, schema: StructType) -> spark.DataSourceReader:
        asked = _Asked.of(self.options)
        if asked.changes:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "readChanges=true in spark.read",
                hint="Use spark.readStream with trigger(availableNow=True).",
            )
        return _Reader(asked, schema)

    def streamReader(self, schema: StructType) -> spark.DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _StreamReader(_Asked.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> spark.DataSourceWriter:
        return BatchWriter(Target.of(self.options), schema, overwrites=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> spark.DataSourceStreamWriter:  # noqa: N802
        return StreamWriter(Target.of(self.options), schema, overwrites=overwrite)


class _Reader(spark.DataSourceReader):  # type: ignore[misc]
    """Reads the content at one commit, with the columns of `schema`.

    It takes no filters: Spark 4.1 reads a DataFrame that was filtered once with that filter ever after.
    """

    def __init__(self, asked: _Asked, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema
        with asked.opened() as connection:
            newest = _newest(connection)["commit"]
        self._commit = newest if asked.commit is None else asked.commit

    def partitions(self) -> Sequence[spark.InputPartition]:
        return [spark.InputPartition(share) for share in _shares(self._asked, self._commit, self._schema.fieldNames())]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        names = self._schema.fieldNames()
        yield from _content(self._asked, self._commit, partition.value, names, to_arrow_schema(self._schema))


class _StreamReader(spark.DataSourceStreamReader):  # type: ignore[misc]
    """Reads the content at the first micro-batch's commit, and then the changes.

    An offset is the number of a commit and its time in microseconds since 1970.
    """

    def __init__(self, asked: _Asked, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"commit": self._asked.start, "time_us": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        with self._asked.opened() as connection:
            return _newest(connection)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[spark.InputPartition]:
        first, last, time_us = start["commit"], end["commit"], end["time_us"]
        if first == _NOTHING:
            shares = _shares(self._asked, last, self._own)
            return [spark.InputPartition((first, last, time_us, share)) for share in shares]
        bounds = np.unique(np.linspace(first, last, (self._asked.tasks or 1) + 1).astype(np.int64)).tolist()
        return [spark.InputPartition((a, b, time_us, None)) for a, b in pairwise(bounds)]

    @property
    def _own(self) -> list[str]:
        """The columns of the relation."""
        added = {f.name for f in _CHANGE_FIELDS} if self._asked.changes else set()
        return [name for name in self._schema.fieldNames() if name not in added]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        start, end, time_us, share = partition.value
        kinds = to_arrow_schema(self._schema)
        if start != _NOTHING:
            yield from self._changes(start, end, kinds)
            return
        own = self._own
        for batch in _content(self._asked, end, share, own, pa.schema([kinds.field(name) for name in own])):
            yield _with_change(batch, np.ones(batch.num_rows, np.int64), end, time_us, kinds)

    def _changes(self, start: int, end: int, kinds: pa.Schema) -> Iterator[pa.RecordBatch]:
        with (
            self._asked.opened() as connection,
            connection.subscribe(self._asked.relation, after=start, up_to=end) as updates,
        ):
            for update in updates:
                for found in update.batches:
                    if not self._asked.changes and bool((found.diffs < 0).any()):
                        raise error(
                            "FEATURE_NOT_SUPPORTED",
                            f'a row of "{self._asked.relation}" was updated or deleted in commit {update.commit}',
                            detail="Without readChanges, a stream returns the rows of a relation that only grows.",
                            hint='option("readChanges", "true") returns every change with its type.',
                        )
                    yield _with_change(found.rows, found.diffs, update.commit, update.time_us, kinds)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: the history of a database is kept by its own settings."""


def _newest(connection: Connection) -> dict[str, int]:
    """The newest commit, as an offset."""
    row = connection.execute("SHOW COMMITS LIMIT 1").fetchone()
    assert row is not None, "each database has a commit"
    return {"commit": row[0], "time_us": (row[1] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)}


def _past(asked: _Asked, commit: int, names: Sequence[str]) -> str:
    """The SELECT of columns at a commit."""
    columns = ", ".join(map(quoted, names)) or "1"
    return f"SELECT {columns} FROM {asked.sql} FOR SYSTEM_TIME AS OF COMMIT {commit}"


def _shares(asked: _Asked, commit: int, names: Sequence[str]) -> Sequence[Share | None]:
    """The parts of the content at a commit that tasks read; None is all of it, by SELECT."""
    with asked.opened() as connection:
        connection.execute(f"{_past(asked, commit, names)} LIMIT 0")  # raises its errors
        relation = asked.relation_in(connection)
        if relation is None or not relation.is_stored:
            return [None]
        return shares_of(connection.opened, relation, commit, asked.tasks) or [None]


def _content(
    asked: _Asked, commit: int, share: Share | None, names: Sequence[str], kinds: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows at a commit, or a share of them."""
    with asked.opened() as connection:
        relation = asked.relation_in(connection)
        if share is None or relation is None:
            found = connection.execute(_past(asked, commit, names))
            for batch in found.fetch_record_batch_reader(_ROWS_PER_BATCH):
                yield _of_kinds(batch.columns[: len(names)], kinds, batch.num_rows)
            return
        known = [c.name for c in relation.columns]
        places = [known.index(name) for name in names]
        columns = tuple(relation.columns[i] for i in places)
        stored = [relation.as_stored.columns[i].name for i in places or (0,)]
        with share_rows(connection.opened, relation, commit, share, stored) as rows:
            for batch in rows.batches():
                table = padded(pa.Table.from_batches([batch]).select([f"c{i}" for i in places]), columns)
                yield _of_kinds([flat(c) for c in table.columns], kinds, batch.num_rows)


def _with_change(
    batch: pa.RecordBatch, diffs: np.ndarray[Any, np.dtype[np.int64]], commit: int, time_us: int, kinds: pa.Schema
) -> pa.RecordBatch:
    """The rows as often as their diffs, with the columns of the change that `kinds` has."""
    if not bool((np.abs(diffs) == 1).all()):
        positions = np.repeat(np.arange(batch.num_rows), np.abs(diffs))
        batch, diffs = batch.take(pa.array(positions)), diffs[positions]
    made = {
        CHANGE_TYPE: lambda: pa.array(np.where(diffs > 0, "insert", "delete").tolist(), pa.string()),
        COMMIT_VERSION: lambda: pa.array(np.full(batch.num_rows, commit)),
        COMMIT_TIMESTAMP: lambda: pa.array(np.full(batch.num_rows, time_us)).cast(pa.timestamp("us", "UTC")),
    }
    present = set(batch.schema.names)
    columns = [batch.column(f.name) if f.name in present else made[f.name]() for f in kinds]
    return _of_kinds(columns, kinds, batch.num_rows)


def _of_kinds(columns: Sequence[pa.Array], kinds: pa.Schema, rows: int) -> pa.RecordBatch:
    """A batch for Spark."""
    if not kinds:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, kinds, strict=True)], schema=kinds)
