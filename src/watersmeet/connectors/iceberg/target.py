"""The target `iceberg`: a table of Apache Iceberg, in a catalog.

A property of the table contains the offset of a sink and the number of its writer. A commit adds a snapshot, and fails
if the writer has not read the newest snapshot. The library's retries of commits are turned off, because another writer
may have changed the offset meanwhile.

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
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.sources import TableConnector, Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkOffset, check_form, connector_for, reached
from watersmeet.connectors.iceberg.tables import TABLE_OPTIONS, IcebergLog, IcebergReader
from watersmeet.connectors.lakes.client import (
    ICEBERG_OPTIONS,
    ICEBERG_SOURCE,
    IcebergLocation,
    iceberg_catalog,
    iceberg_explained,
    iceberg_library,
    iceberg_location,
)
from watersmeet.connectors.lakes.source import lake_connector
from watersmeet.connectors.lakes.targets import TARGET_OPTIONS, LakeTarget, check_partition_name
from watersmeet.errors import error
from watersmeet.formats.writers import row_codes
from watersmeet.values.types import Schema, SqlType

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
_PARTITION: Final = re.compile(r"\s*(?:(\w+)\s*\(\s*)?([^,()]+?)\s*\)?\s*(?:,|$)")
_TRANSFORMS: Final = ("identity", "year", "month", "day", "hour")


@dataclass(frozen=True)
class _Options:
    """The options of a table. partition_by: pairs of transform and column."""

    location: IcebergLocation
    creates: bool
    partition_by: tuple[tuple[str, str], ...]


class IcebergTarget(LakeTarget):
    """An Iceberg table as a target."""

    system = "iceberg"
    as_text = ("interval",)
    wider: ClassVar = {pa.int16(): pa.int32(), pa.int8(): pa.int32()}

    def __init__(self, delivery: Delivery, database_id: str) -> None:
        self._options = _options(delivery)
        self._exceptions = iceberg_library("pyiceberg.exceptions")
        super().__init__(delivery, self._options.location.what, self._exceptions.CommitFailedException)
        self._property = f"watersmeet.{database_id}-{delivery.target_id}"
        self._catalog: Any = None

    def create(self, columns: Schema) -> None:
        """Creates the table with nullable and non-nullable columns. Raises DUPLICATE_OBJECT if it exists."""
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
            except self._conflict as cause:
                raise self._overtaken() from cause

    def close(self) -> None:
        self._table = self._catalog = None

    def _open_table(self) -> Any:
        options = self._options
        if self._catalog is None:
            self._catalog = iceberg_catalog(options.location)
        try:
            table = self._catalog.load_table(options.location.table)
        except (self._exceptions.NoSuchTableError, self._exceptions.NoSuchNamespaceError) as cause:
            if not options.creates:
                raise self._missing() from cause
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
        text = self._table.properties.get(self._property)
        if text is None:
            return None, 0
        noted = json.loads(text)
        offset = noted["offset"]
        return None if offset is None else SinkOffset(*offset), noted["writer"]

    def _commit(self, offset: SinkOffset | None, write: Callable[[Any], None]) -> None:
        """One commit to the catalog. Raises CommitFailedException if the newest snapshot is not the known one."""
        # this only changes the table in memory: the library must not retry a commit after another writer's commit
        self._table.metadata.properties["commit.retry.num-retries"] = "0"
        note = json.dumps({"writer": self._writer, "offset": offset})
        with self._table.transaction() as transaction:
            write(transaction)
            transaction.set_properties({self._property: note})

    def _append(self, rows: pa.Table, offset: SinkOffset | None) -> None:
        self._commit(offset, lambda transaction: transaction.append(rows))

    def _merge(self, rows: pa.Table, gone: npt.NDArray[np.bool_], offset: SinkOffset) -> None:
        changed, came = rows.select([*self._delivery.key]), rows.filter(pa.array(~gone))
        self._commit(offset, lambda transaction: self._overwrite(transaction, changed, came))

    def _overwrite(self, transaction: Any, changed: pa.Table, came: pa.Table) -> None:
        """Deletes the rows of changed keys, and adds the inserted ones. It rewrites files with deleted rows."""
        key = [*self._delivery.key]
        expressions = iceberg_library("pyiceberg.expressions")
        # With a key of several columns this also matches other rows, which are written again.
        found = functools.reduce(operator.and_, [_one_of(expressions, k, changed.column(k)) for k in key])
        there = self._table.scan(row_filter=found).to_arrow()
        if not there.num_rows:
            transaction.append(came)
            return
        # A join would not match NULL with NULL.
        codes = row_codes(pa.concat_tables([changed, there.select(key).cast(changed.schema)]))
        staying = there.filter(pa.array(~np.isin(codes[len(changed) :], codes[: len(changed)])))
        transaction.overwrite(_stacked([staying.select(there.column_names), came], there.schema), found)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        with iceberg_explained(self._options.location, Unavailable, Unavailable, self._conflict):
            yield


def _one_of(expressions: Any, name: str, values: pa.ChunkedArray) -> Any:
    """The condition that a column has one of the values, where NULL equals NULL and NaN equals NaN."""
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
    """The rows of several tables, with NULL in missing columns."""
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
    """Whether the library can write all values of the type as a partition; it fails for NaN."""
    return not kind.is_float


def _options(delivery: Delivery) -> _Options:
    """The options of a delivery. Raises CONNECTOR_OPTION for invalid options, FEATURE_NOT_SUPPORTED."""
    check_form(delivery)
    given = delivery.connector
    options = SINK_OPTIONS.read(given)
    return _Options(
        iceberg_location(given),
        options.flag("create_table_if_not_exists"),
        _partition(options.text("partition_by"), [c.name for c in delivery.columns]),
    )


def _partition(text: str, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The transforms and columns in a text such as `a, month(b)`."""
    found = []
    for match in _PARTITION.finditer(text) if text.strip() else ():
        transform, column = (match.group(1) or "identity").lower(), match.group(2)
        if transform not in _TRANSFORMS:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"partitions by {transform} are not supported",
                hint=f"These are: {', '.join(_TRANSFORMS)}.",
            )
        check_partition_name(column, names)
        found.append((transform, column))
    return tuple(found)


_HINT: Final = "Check catalog.uri, warehouse.path and credentials."


def create_table(delivery: Delivery, columns: Schema) -> None:
    """Creates the table of a delivery. Raises DUPLICATE_OBJECT, CONNECTOR_OPTION, RUNTIME_UNAVAILABLE."""
    with reached(_HINT):
        IcebergTarget(delivery, "").create(columns)


#: The connectors under the names and uses of the registry.
SOURCES: Final = {"iceberg": lake_connector(IcebergLog, ICEBERG_SOURCE)}
SINKS: Final = {"iceberg": connector_for(IcebergTarget, SINK_OPTIONS, _HINT, append=IcebergTarget.append)}
TABLES: Final = {"iceberg": TableConnector(IcebergReader, TABLE_OPTIONS)}
