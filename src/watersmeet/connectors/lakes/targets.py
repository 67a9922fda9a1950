"""Tables of lakes as targets: how their columns are compared with those of a sink, and how rows become theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from watersmeet.connectors.base.options import OptionSpec
from watersmeet.connectors.base.targets import Delivery
from watersmeet.errors import did_you_mean, error
from watersmeet.formats.valuetexts import plain_text
from watersmeet.formats.writers import evaluate_text
from watersmeet.values.types import Schema, SqlType


class LakeColumns:
    """The columns of a sink as a table of a lake has them. as_text: types that it lacks, which are written as text.
    wider: types in whose place it has others.
    """

    def __init__(self, columns: Schema, as_text: tuple[str, ...], wider: dict[pa.DataType, pa.DataType]) -> None:
        self._columns = columns
        self._as_text = as_text
        self.schema = pa.schema(
            [pa.field(c.name, pa.string() if c.type.name in as_text else _wider(c.type.arrow, wider)) for c in columns]
        )
        """Of what is written; from `check` on with columns that take no NULL, where the table has such."""

    def check(self, what: str, there: pa.Schema) -> None:
        """UNDEFINED_COLUMN, DATATYPE_MISMATCH, CONNECTOR_OPTION. what: the table, for messages. there: its columns."""
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
        """Raise FEATURE_NOT_SUPPORTED for a partition column among `names` with values that its library loses."""
        for column in self._columns:
            if column.name in names and not takes(column.type):
                raise error(
                    "FEATURE_NOT_SUPPORTED",
                    f'{what} can\'t be partitioned by column "{column.name}" of type {column.type.sql}',
                    hint=f"Partition by a text: CAST({column.name} AS varchar) in the query of the sink.",
                )

    def written(self, rows: pa.Table) -> pa.Table:
        """Rows of the sink in the types of the table. DELIVERY_REFUSED for NULL in a column that takes none."""
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


def check_form(delivery: Delivery) -> None:
    """CONNECTOR_OPTION for a FORMAT."""
    form = delivery.format
    if form.rows == "debezium" or form.encoding != "json" or form.options:
        raise error(
            "CONNECTOR_OPTION",
            f"connector {delivery.connector['connector']} writes columns, not messages",
            hint="Leave FORMAT … ENCODE … out; type = 'append-only' and 'upsert' exist.",
        )


TARGET_OPTIONS: Final = (
    OptionSpec("create_table_if_not_exists", "Whether a missing table is created.", "flag"),
    OptionSpec("partition_by", "The columns by which a new table is partitioned."),
)
"""Options of targets of both systems."""


def _wider(kind: pa.DataType, wider: dict[pa.DataType, pa.DataType]) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_wider(kind.value_type, wider))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _wider(f.type, wider)) for f in kind])
    return wider.get(kind, kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without what lakes do not tell apart."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("item", _plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind])
    return kind
