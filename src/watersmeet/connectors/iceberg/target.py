"""The target `iceberg`: a table of Apache Iceberg, in a catalog.

Each commit to the catalog has the rows and, in a property of the table, the offset of the last one and the number of
the writer. A commit adds a snapshot and requires that the writer knows the newest one. So of two writers one fails, and
reads which writer was first. Opening the target commits a snapshot without rows, which fences all earlier writers. The
library's own retries of commits are turned off: the offset may have moved.

RisingWave, "Sink data to Apache Iceberg".
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.targets import (
    Delivery,
    SinkBatch,
    SinkOffset,
    Unavailable,
    connector_for,
    newest_rows,
    reached,
    rows_that_came,
)
from watersmeet.connectors.lakes.client import (
    ICEBERG_OPTIONS,
    IcebergLocation,
    iceberg_catalog,
    iceberg_explained,
    iceberg_library,
    iceberg_location,
)
from watersmeet.connectors.lakes.targets import TARGET_OPTIONS, LakeColumns, check_form
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.valuetexts import EXACT_JSON
from watersmeet.formats.writers import json_writer, row_codes
from watersmeet.system.process import fault
from watersmeet.values.types import Schema, SqlType

#: How often a commit is tried again that somebody else came before.
_ATTEMPTS: Final = 10
_EACH_COMMIT: Final = "Accepted without effect: each batch is one commit, exactly once."
SINK_OPTIONS: Final = OptionSet(
    "iceberg of sinks",
    (
        *ICEBERG_OPTIONS,
        *TARGET_OPTIONS,
        OptionSpec("commit_checkpoint_interval", _EACH_COMMIT, is_idle=True),
        OptionSpec("commit_retry_num", _EACH_COMMIT, is_idle=True),
        OptionSpec("is_exactly_once", _EACH_COMMIT, is_idle=True),
        OptionSpec("enable_compaction", "Accepted without effect: the catalog compacts.", is_idle=True),
        OptionSpec("enable_snapshot_expiration", "Accepted without effect: the catalog expires.", is_idle=True),
    ),
)
#: Iceberg has no such types: they are written as text, or as wider numbers.
_AS_TEXT: Final = ("interval",)
_WIDER: Final = {pa.int16(): pa.int32(), pa.int8(): pa.int32()}
_PARTITION: Final = re.compile(r"\s*(?:(\w+)\s*\(\s*)?([^,()]+?)\s*\)?\s*(?:,|$)")
_TRANSFORMS: Final = ("identity", "year", "month", "day", "hour")


@dataclass(frozen=True)
class _Options:
    """partition_by: (transform, column)."""

    location: IcebergLocation
    creates: bool
    partition_by: tuple[tuple[str, str], ...]


class IcebergTarget:
    """See `base.targets.Target`."""

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        self._delivery = delivery
        self._options = _options(delivery)
        self._names = [c.name for c in delivery.columns]
        self._columns = LakeColumns(delivery.columns, _AS_TEXT, _WIDER)
        by_name = {c.name: c for c in delivery.columns}
        self._is_upsert = delivery.format.rows == "upsert"
        self._keys = json_writer(tuple(by_name[name] for name in delivery.key), EXACT_JSON)
        self._property = f"watersmeet.{database_id}-{delivery.target_id}"
        self._exceptions = iceberg_library("pyiceberg.exceptions")
        self._catalog: Any = None
        self._table: Any = None
        self._writer = 0

    def look(self) -> None:
        """Whether the table is there and takes the rows, or can be made. Unavailable, CONNECTOR_OPTION, …"""
        with self._explained():
            self._open_table()

    def open(self, generation: int) -> SinkOffset | None:
        with self._explained():
            for _ in range(_ATTEMPTS):
                self._table = self._open_table()
                found, writer = self._noted()
                if found is not None and found.generation > generation:
                    raise self._fenced(f"generation {found.generation} is delivered")
                self._writer = writer + 1
                fault("iceberg.looked")
                with contextlib.suppress(self._exceptions.CommitFailedException):
                    self._commit(found, lambda transaction: transaction.append(self._columns.schema.empty_table()))
                    fault("iceberg.fenced")
                    return found
        raise Unavailable(f"{self._what}: others write without end")

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        offset = batches[-1].offset
        with self._explained():
            if self._is_upsert:
                rows, gone = newest_rows(batches, self._names, self._keys)
                changed = self._columns.written(rows)
                came = changed.filter(pa.array(~gone))
                write = functools.partial(self._merge, changed=changed.select([*self._delivery.key]), came=came)
            else:
                added = pa.concat_tables([rows_that_came(p).select(self._names) for p in batches])
                write = functools.partial(self._append, rows=self._columns.written(added))
            for _ in range(_ATTEMPTS):
                fault("iceberg.begun")
                try:
                    self._commit(offset, write)
                except self._exceptions.CommitFailedException:
                    self._table = self._open_table()
                    noted, writer = self._noted()
                    if writer != self._writer:
                        raise self._fenced("another writer has taken over") from None
                    if noted == offset:
                        return  # it was written, and the answer got lost
                    continue
                fault("iceberg.committed")
                return
        raise Unavailable(f"{self._what}: others write without end")

    def create(self, columns: Schema) -> None:
        """Makes the table, which must not be there, with columns that may take NULL or not. DUPLICATE_OBJECT."""
        schema = pa.schema([f.with_nullable(c.nullable) for f, c in zip(self._columns.schema, columns, strict=True)])
        with self._explained():
            self._catalog = iceberg_catalog(self._options.location)
            with contextlib.suppress(self._exceptions.NamespaceAlreadyExistsError):
                self._catalog.create_namespace(self._options.location.table[0])
            try:
                with self._catalog.create_table_transaction(self._options.location.table, schema=schema):
                    pass
            except self._exceptions.TableAlreadyExistsError as cause:
                raise error("DUPLICATE_OBJECT", f"{self._what} is there already") from cause

    def append(self, rows: pa.Table) -> None:
        """Adds the rows of a statement, in one commit to the catalog."""
        with self._explained():
            try:
                self._open_table().append(self._columns.written(rows))
            except self._exceptions.CommitFailedException as cause:
                raise Unavailable(f"{self._what}: others write without end") from cause

    def rest(self) -> None:
        pass

    def close(self) -> None:
        self._table = self._catalog = None

    @property
    def _what(self) -> str:
        return self._options.location.what

    def _fenced(self, why: str) -> Error:
        return error("WRITER_FENCED", f"{self._delivery.title} was replaced: {why}")

    def _open_table(self) -> Any:
        """The newest version. UNDEFINED_OBJECT, UNDEFINED_COLUMN, DATATYPE_MISMATCH."""
        options = self._options
        if self._catalog is None:
            self._catalog = iceberg_catalog(options.location)
        try:
            table = self._catalog.load_table(options.location.table)
        except (self._exceptions.NoSuchTableError, self._exceptions.NoSuchNamespaceError) as cause:
            if not options.creates:
                raise error(
                    "UNDEFINED_OBJECT",
                    f"there is no {self._what}",
                    hint="Create it first, or add create_table_if_not_exists = 'true'.",
                ) from cause
            self._columns.check_partitions(
                self._what, [c for transform, c in options.partition_by if transform == "identity"], _is_partition_type
            )
            self._create_table()
            table = self._catalog.load_table(options.location.table)
        self._columns.check(self._what, table.schema().as_arrow())
        sources = [table.schema().find_column_name(part.source_id) for part in table.spec().fields]
        self._columns.check_partitions(self._what, sources, _is_partition_type)
        return table

    def _create_table(self) -> None:
        options, exceptions = self._options, self._exceptions
        with contextlib.suppress(exceptions.NamespaceAlreadyExistsError):
            self._catalog.create_namespace(options.location.table[0])
        with contextlib.suppress(exceptions.TableAlreadyExistsError):
            table = self._catalog.create_table_transaction(options.location.table, schema=self._columns.schema)
            with table as transaction, transaction.update_spec() as spec:
                for transform, column in options.partition_by:
                    spec.add_field(column, transform, column if transform == "identity" else f"{column}_{transform}")

    def _noted(self) -> tuple[SinkOffset | None, int]:
        """The offset that the table notes, and the number of the writer."""
        text = self._table.properties.get(self._property)
        if text is None:
            return None, 0
        noted = json.loads(text)
        offset = noted["offset"]
        return None if offset is None else SinkOffset(*offset), noted["writer"]

    def _commit(self, offset: SinkOffset | None, write: Callable[[Any], None]) -> None:
        """One commit to the catalog. CommitFailedException if the table has another snapshot than the one known."""
        # Only of the table in memory: the library must not retry a commit after those of others.
        self._table.metadata.properties["commit.retry.num-retries"] = "0"
        note = json.dumps({"writer": self._writer, "offset": offset})
        with self._table.transaction() as transaction:
            write(transaction)
            transaction.set_properties({self._property: note})

    def _append(self, transaction: Any, rows: pa.Table) -> None:
        transaction.append(rows)

    def _merge(self, transaction: Any, changed: pa.Table, came: pa.Table) -> None:
        """Rows whose keys changed go, those that came are added. Files with rows that go are written anew."""
        key = [*self._delivery.key]
        expressions = iceberg_library("pyiceberg.expressions")
        if changed.num_rows:
            # Of a key of several columns this takes more than its rows: those that are to stay are written again.
            found = functools.reduce(operator.and_, [_one_of(expressions, k, changed.column(k)) for k in key])
            there = self._table.scan(row_filter=found).to_arrow()
            if there.num_rows:
                # A join would not take NULL for equal to NULL.
                both = pa.concat_tables([changed, there.select(key).cast(changed.schema)])
                codes = row_codes(both)
                staying = there.filter(pa.array(~np.isin(codes[len(changed) :], codes[: len(changed)])))
                transaction.overwrite(_stacked([staying.select(there.column_names), came], there.schema), found)
                return
        transaction.append(came)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of the library as those of the contract."""
        kept = (Unavailable, self._exceptions.CommitFailedException)
        with iceberg_explained(self._options.location, Unavailable, *kept):
            yield


def _one_of(expressions: Any, name: str, values: pa.ChunkedArray) -> Any:
    """The expression that a column has one of the values, where NULL equals NULL and NaN equals NaN."""
    reference = expressions.Reference(name)
    chosen = values.unique()
    found = [expressions.IsNull(reference)] if chosen.null_count else []
    chosen = chosen.drop_null()
    if pa.types.is_floating(chosen.type):
        is_nan = pc.is_nan(chosen)
        found += [expressions.IsNaN(reference)] if pc.any(is_nan).as_py() else []
        chosen = chosen.filter(pc.invert(is_nan))
    found += [expressions.In(reference, chosen.to_pylist())] if len(chosen) else []
    return functools.reduce(operator.or_, found)


def _stacked(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Rows of several tables; NULL where a column is not there."""
    return pa.concat_tables(
        [
            pa.table(
                [
                    t.column(f.name).cast(f.type) if f.name in t.column_names else pa.nulls(t.num_rows, f.type)
                    for f in schema
                ],
                schema=schema,
            )
            for t in tables
        ]
    )


def _is_partition_type(kind: SqlType) -> bool:
    """Whether the library writes all values of the type as a partition: it fails on NaN."""
    return not kind.is_float


def _options(delivery: Delivery) -> _Options:
    """CONNECTOR_OPTION for options that are wrong, FEATURE_NOT_SUPPORTED."""
    check_form(delivery)
    given = delivery.connector
    options = SINK_OPTIONS.read(given)
    return _Options(
        iceberg_location(given),
        options.flag("create_table_if_not_exists"),
        _partition(options.text("partition_by"), [c.name for c in delivery.columns]),
    )


def _partition(text: str, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`a, month(b)` as transforms and columns."""
    found = []
    for match in _PARTITION.finditer(text) if text.strip() else ():
        transform, column = (match.group(1) or "identity").lower(), match.group(2)
        if transform not in _TRANSFORMS:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"partitions by {transform} are not supported",
                hint=f"These are: {', '.join(_TRANSFORMS)}.",
            )
        if column not in names:
            raise error(
                "CONNECTOR_OPTION",
                f'partition_by names "{column}", which is no column',
                hint=did_you_mean(column, names),
            )
        found.append((transform, column))
    return tuple(found)


_HINT: Final = "Check catalog.uri, warehouse.path and credentials."


def create_table(delivery: Delivery, columns: Schema) -> None:
    """Create the table of a delivery. DUPLICATE_OBJECT, CONNECTOR_OPTION, RUNTIME_UNAVAILABLE."""
    with reached(_HINT):
        IcebergTarget(delivery, "").create(columns)


CONNECTOR: Final = connector_for(IcebergTarget, SINK_OPTIONS, _HINT, append=IcebergTarget.append)
