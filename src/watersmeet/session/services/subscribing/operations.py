"""How updates become rows of a cursor over a subscription of RisingWave: an operation for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.formats.writers import json_writer
from watersmeet.session.services.subscribing.envelopes import KEY_STYLE, shown_columns
from watersmeet.session.services.subscribing.updates import Update
from watersmeet.types import BIGINT, VARCHAR, Field, Schema, arrow_schema

_OP: Final = "op"
_TIMESTAMP: Final = "rw_timestamp"
_NAMES: Final = ("Delete", "UpdateDelete", "UpdateInsert", "Insert")


@dataclass(frozen=True)
class OperationForm:
    """The columns of the relation, the operation (Insert, Delete, UpdateDelete, UpdateInsert), and when the commit was
    made, in milliseconds since 1970 (UTC), NULL for the content. Two commits never have the same time.

    Rows of one key that go and come in a commit are an update, where the relation has a primary key.
    """

    relation: Relation
    progress: bool = False

    @property
    def columns(self) -> Schema:
        """The columns of the table."""
        own = (Field(c.name, c.type) for c in shown_columns(self.relation))
        return (*own, Field(_OP, VARCHAR), Field(_TIMESTAMP, BIGINT))

    @property
    def title(self) -> tuple[Any, ...]:
        """Equal for forms of the same rows."""
        return self.relation.id, "operations"

    def rows(self, update: Update) -> pa.Table:
        """The changes of an update, each as often as it was made."""
        schema = arrow_schema(self.columns, positional=False)
        if not update.batches:
            return schema.empty_table()
        names = [c.name for c in shown_columns(self.relation)]
        rows = pa.Table.from_batches([b.rows for b in update.batches]).select(names)
        diffs = np.concatenate([b.diffs for b in update.batches])
        operations = np.where(diffs < 0, 0, 3)
        key = self.relation.primary_key
        if key and not update.is_snapshot:
            columns = tuple(c for c in self.relation.columns if c.name in key)
            codes = json_writer(columns, KEY_STYLE).write(rows).dictionary_encode().indices.to_numpy()
            both = np.bincount(codes, diffs < 0).astype(bool) & np.bincount(codes, diffs > 0).astype(bool)
            operations = np.where(both[codes], np.where(diffs < 0, 1, 2), operations)
            order = np.lexsort((operations, codes))
            rows, diffs, operations = rows.take(pa.array(order)), diffs[order], operations[order]
        places = np.repeat(np.arange(len(diffs)), np.abs(diffs))
        time_ms = None if update.is_snapshot else update.time_us // 1000
        return pa.Table.from_arrays(
            [
                *rows.take(pa.array(places)).columns,
                pa.array(_NAMES).take(pa.array(operations[places])),
                pa.repeat(pa.scalar(time_ms, pa.int64()), len(places)),
            ],
            schema=schema,
        )

    def progress_row(self, commit: int) -> pa.Table:
        """Nothing: it has no progress."""
        del commit
        return arrow_schema(self.columns, positional=False).empty_table()
