"""Lake tables as targets.

Each version that a sink adds contains rows, the offset of the last one and the number of the writer. A writer can add a
version only if it knows the newest version of the sink, so one of two writers fails. Opening a target adds a version
without rows, which fences off all earlier writers. Versions of others, such as compactions, have no effect.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.connectors.base.options import OptionSpec
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset, Target, newest_rows, rows_that_came
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.formats.valuetexts import EXACT_JSON, plain_text
from watersmeet.formats.writers import evaluate_text, json_writer
from watersmeet.system.process import fault
from watersmeet.values.types import Schema, SqlType

#: The number of retries of a version after a conflict with another writer.
_ATTEMPTS: Final = 10


class LakeColumns:
    """The columns of a sink in a lake table. as_text: types that the lake lacks and that are written as text. wider:
    types that the lake lacks, with the types that replace them.
    """

    def __init__(self, columns: Schema, as_text: tuple[str, ...], wider: dict[pa.DataType, pa.DataType]) -> None:
        self._columns = columns
        self._as_text = as_text
        self.schema = pa.schema(
            [pa.field(c.name, pa.string() if c.type.name in as_text else _wider(c.type.arrow, wider)) for c in columns]
        )
        """The schema of written rows, after `check` with the NOT NULL columns of the table."""

    def check(self, what: str, there: pa.Schema) -> None:
        """Raises UNDEFINED_COLUMN, DATATYPE_MISMATCH, CONNECTOR_OPTION if a table is unsuitable. what: the table for
        messages. there: its columns.
        """
        for field in self.schema:
            if field.name not in there.names:
                raise error(
                    "UNDEFINED_COLUMN",
                    f'{what} has no column "{field.name}"',
                    detail=f"The sink has one of type {field.type}.",
                    hint=did_you_mean(field.name, there.names),
                )
            found = there.field(field.name).type
            if _plain(found) != _plain(field.type):
                raise error(
                    "DATATYPE_MISMATCH",
                    f'column "{field.name}" of {what} has type {found}',
                    detail=f"The sink has values of type {field.type} for it.",
                )
        lacking = [f.name for f in there if not f.nullable and f.name not in self.schema.names]
        if lacking:
            raise error(
                "CONNECTOR_OPTION",
                f'column "{lacking[0]}" of {what} must not be NULL, and the sink has no column for it',
            )
        self.schema = pa.schema([f.with_nullable(there.field(f.name).nullable) for f in self.schema])

    def check_partitions(self, what: str, names: Sequence[str], takes: Callable[[SqlType], bool]) -> None:
        """Raises FEATURE_NOT_SUPPORTED for a partition column in `names` with values that the library loses."""
        for column in self._columns:
            if column.name in names and not takes(column.type):
                raise error(
                    "FEATURE_NOT_SUPPORTED",
                    f'{what} can\'t be partitioned by column "{column.name}" of type {column.type.sql}',
                    hint=f"Partition by a text: CAST({column.name} AS varchar) in the query of the sink.",
                )

    def written(self, rows: pa.Table) -> pa.Table:
        """Rows of the sink in the types of the table. Raises DELIVERY_REFUSED for NULL in a NOT NULL column."""
        arrays = [
            evaluate_text([rows.column(c.name)], plain_text("t0", c.type)).cast(pa.string())
            if c.type.name in self._as_text
            else rows.column(c.name).cast(self.schema.field(c.name).type)
            for c in self._columns
        ]
        for field, array in zip(self.schema, arrays, strict=True):
            if not field.nullable and array.null_count:
                raise error("DELIVERY_REFUSED", f'a row has NULL in column "{field.name}", which takes none there')
        return pa.table(arrays, schema=self.schema)


class LakeTarget(Target):
    """A lake table as a target. what: the table for messages. conflict: the library's error if another writer has added
    the version first.
    """

    system: ClassVar[str]
    as_text: ClassVar[tuple[str, ...]]
    wider: ClassVar[dict[pa.DataType, pa.DataType]] = {}

    def __init__(self, delivery: Delivery, what: str, conflict: type[Exception]) -> None:
        self._delivery, self._what, self._conflict = delivery, what, conflict
        self._names = [c.name for c in delivery.columns]
        self._columns = LakeColumns(delivery.columns, self.as_text, self.wider)
        by_name = {c.name: c for c in delivery.columns}
        self._is_upsert = delivery.format.rows == "upsert"
        self._keys = json_writer(tuple(by_name[name] for name in delivery.key), EXACT_JSON)
        self._table: Any = None
        self._writer = 0

    @abc.abstractmethod
    def _open_table(self) -> Any:
        """Opens the newest version. Raises UNDEFINED_OBJECT, UNDEFINED_COLUMN, DATATYPE_MISMATCH."""

    @abc.abstractmethod
    def _noted(self) -> tuple[SinkOffset | None, int]:
        """The offset and the number of the writer in the table."""

    @abc.abstractmethod
    def _append(self, rows: pa.Table, offset: SinkOffset | None) -> None:
        """Adds a version with more rows."""

    @abc.abstractmethod
    def _merge(self, rows: pa.Table, gone: npt.NDArray[np.bool_], offset: SinkOffset) -> None:
        """Adds a version in which `rows` replace the rows of their keys, and those in the mask `gone` are deleted."""

    @abc.abstractmethod
    def _explained(self) -> contextlib.AbstractContextManager[None]:
        """Converts errors of the library, except for conflicts, to those of the contract."""

    def _check(self, rows: pa.Table, gone: npt.NDArray[np.bool_] | None) -> None:
        """Raises DELIVERY_REFUSED for values that the system can't store."""

    def look(self) -> None:
        """Checks that the table exists and accepts the rows, or can be created. Raises Unavailable, CONNECTOR_OPTION,
        …
        """
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
                fault(f"{self.system}.looked")
                with contextlib.suppress(self._conflict):
                    self._append(self._columns.schema.empty_table(), found)
                    fault(f"{self.system}.fenced")
                    return found
        raise self._overtaken()

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        offset, gone = batches[-1].offset, None
        with self._explained():
            if self._is_upsert:
                rows, gone = newest_rows(batches, self._names, self._keys)
            else:
                rows = pa.concat_tables([rows_that_came(p).select(self._names) for p in batches])
            rows = self._columns.written(rows)
            self._check(rows, gone)
            for _ in range(_ATTEMPTS):
                fault(f"{self.system}.begun")
                try:
                    if gone is None or not len(rows):
                        self._append(rows, offset)
                    else:
                        self._merge(rows, gone, offset)
                except self._conflict:
                    self._table = self._open_table()
                    noted, writer = self._noted()
                    if writer != self._writer:
                        raise self._fenced("another writer has taken over") from None
                    if noted == offset:
                        return  # the version was written, but the answer got lost
                    continue
                fault(f"{self.system}.committed")
                return
        raise self._overtaken()

    def close(self) -> None:
        self._table = None

    def _fenced(self, why: str) -> Error:
        return error("WRITER_FENCED", f"{self._delivery.title} was replaced: {why}")

    def _overtaken(self) -> Unavailable:
        return Unavailable(f"{self._what}: others write without end")

    def _missing(self) -> Error:
        return error(
            "UNDEFINED_OBJECT",
            f"there is no {self._what}",
            hint="Create it first, or add create_table_if_not_exists = 'true'.",
        )


def check_partition_name(name: str, names: Sequence[str]) -> None:
    """Raises CONNECTOR_OPTION for a name in `partition_by` that is not a column."""
    if name not in names:
        raise error(
            "CONNECTOR_OPTION", f'partition_by names "{name}", which is no column', hint=did_you_mean(name, names)
        )


TARGET_OPTIONS: Final = (
    OptionSpec("create_table_if_not_exists", "Whether a missing table is created.", "flag"),
    OptionSpec("partition_by", "The columns by which a new table is partitioned."),
)
"""The options of the targets of both systems."""


def _wider(kind: pa.DataType, wider: dict[pa.DataType, pa.DataType]) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_wider(kind.value_type, wider))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _wider(f.type, wider)) for f in kind])
    return wider.get(kind, kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without variants that lakes do not distinguish, such as `large_string`."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("item", _plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind])
    return kind
