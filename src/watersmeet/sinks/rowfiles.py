"""What the rows of a sink are as files: which files there are, in which directories, and what is in each.

RisingWave, "Sink to file systems": append-only. An upsert sink has two columns more: `__op`, 1 for a row that was
inserted, 2 for one that was deleted, 3 for one that replaces another, as RisingWave's changelogs have it, and
`__commit`, which rises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import did_you_mean, error
from watersmeet.formats.encoders import changed_keys
from watersmeet.formats.valuetexts import EXACT_JSON, plain_text
from watersmeet.formats.writers import evaluate_text, json_writer
from watersmeet.formats.writingfiles import FILE_FORMATS, FileFormat, FileWriter
from watersmeet.sinks.base import Delivery, Portion, rows_that_came
from watersmeet.sinks.targets import check_options
from watersmeet.types import BIGINT, SMALLINT, Field, Schema

OPTIONS: Final = ("partition_by", "path_partition_by", "max_row_count")
"""Those that say which files there are."""
_FORMAT_OPTIONS: Final = ("delimiter", "without_header", "null", "compression")
_OP: Final = Field("__op", SMALLINT)
_COMMIT: Final = Field("__commit", BIGINT)
_INSERT, _DELETE, _UPDATE = 1, 2, 3
#: What Hive, and all that read its directories, call the directory of NULL.
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class _Form:
    """How a sink writes. partition_by: columns with a directory for each value. most_rows: of a file."""

    columns: Schema
    format: FileFormat
    partition_by: tuple[Field, ...]
    most_rows: int | None

    @property
    def written(self) -> Schema:
        """The columns of the files of an upsert sink."""
        return (*self.columns, _OP, _COMMIT)


def _form(delivery: Delivery, known: tuple[str, ...]) -> _Form:
    """CONNECTOR_OPTION for options that are wrong."""
    check_options(delivery, known)
    options, message = delivery.connector, delivery.format
    if message.rows == "debezium":
        raise error("FEATURE_NOT_SUPPORTED", "FORMAT DEBEZIUM for files", hint="FORMAT PLAIN and UPSERT exist.")
    if message.encoding not in FILE_FORMATS:
        raise error(
            "FEATURE_NOT_SUPPORTED", f"ENCODE {message.encoding.upper()} for files", hint="PARQUET, JSON and CSV exist."
        )
    for name in message.options:
        if name not in _FORMAT_OPTIONS and not name.endswith(".handling.mode"):
            raise error(
                "CONNECTOR_OPTION",
                f'ENCODE {message.encoding.upper()} for files has no option "{name}"',
                hint=did_you_mean(name, _FORMAT_OPTIONS),
            )
    by_name = {c.name: c for c in delivery.columns}
    partition_by = []
    asked = options.get("partition_by") or options.get("path_partition_by") or ""
    for name in (n.strip() for n in asked.split(",") if n.strip()):
        if name not in by_name or by_name[name].type.is_nested:
            raise error(
                "CONNECTOR_OPTION",
                f'partition_by names "{name}", which is no column of plain values',
                hint=did_you_mean(name, by_name),
            )
        partition_by.append(by_name[name])
    if message.rows == "upsert":
        for added in (_OP, _COMMIT):
            if added.name in by_name:
                raise error("DUPLICATE_COLUMN", f'files of an upsert sink have a column "{added.name}" of their own')
    most = options.get("max_row_count")
    if most is not None and not (most.isdecimal() and int(most)):
        raise error("CONNECTOR_OPTION", f"max_row_count has to be a positive number, not '{most}'")
    return _Form(
        delivery.columns,
        message.encoding,
        tuple(partition_by),
        int(most) if most else None,
    )


class RowFiles:
    """The files of a delivery. known: all options of its connector. ending: of their names; None: the format.

    CONNECTOR_OPTION for options that are wrong, FEATURE_NOT_SUPPORTED for formats.
    """

    def __init__(self, delivery: Delivery, known: tuple[str, ...], ending: str | None = None) -> None:
        form = self._form = _form(delivery, known)
        is_upsert = delivery.format.rows == "upsert"
        columns = form.written if is_upsert else form.columns
        self._writer = FileWriter(columns, form.format, delivery.format.options)
        ending = self._writer.extension if ending is None else ending
        self._ending = f".{ending}" if ending else ""
        by_name = {c.name: c for c in delivery.columns}
        self._keys = json_writer(tuple(by_name[n] for n in delivery.key), EXACT_JSON) if is_upsert else None

    def rows(self, portion: Portion) -> pa.Table:
        """The rows of the files, in their order."""
        names = [c.name for c in self._form.columns]
        if self._keys is None:
            return rows_that_came(portion).select(names)
        rows = portion.rows.select(names)
        changed = changed_keys(self._keys.write(rows), portion.diff)
        is_there = changed.came >= 0
        taken = rows.take(pa.array(np.where(is_there, changed.came, changed.gone)))
        operations = np.where(is_there, np.where(changed.gone >= 0, _UPDATE, _INSERT), _DELETE).astype(np.int16)
        commits = np.full(len(operations), portion.place.commit, np.int64)
        return taken.append_column(_OP.name, pa.array(operations)).append_column(_COMMIT.name, pa.array(commits))

    def pieces(self, stem: str, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """(the name of a file, its rows) of all files for these rows. Their names begin with `stem`, behind their
        directory. The same rows are always cut in the same way.
        """
        count = 0
        for directory, part in self._partitions(rows):
            size = self._form.most_rows or max(len(part), 1)
            for begin in range(0, len(part), size):
                yield f"{directory}{stem}-{count}{self._ending}", part.slice(begin, size)
                count += 1

    def write(self, file: BinaryIO, rows: pa.Table) -> None:
        """Writes a whole file. OSError."""
        written = self._writer.begin(file)
        written.write(rows)
        written.close()

    def _partitions(self, rows: pa.Table) -> list[tuple[str, pa.Table]]:
        """By directory, in the order in which they first occur."""
        if not len(rows):
            return []
        if not self._form.partition_by:
            return [("", rows)]
        values = []
        for column in self._form.partition_by:
            texts = evaluate_text([rows.column(column.name)], plain_text("t0", column.type)).dictionary_encode()
            escaped = [quote(v.as_py(), safe=" ") for v in texts.dictionary]
            names = pa.array([f"{quote(column.name, safe=' ')}={v}/" for v in (*escaped, _NULL_PARTITION)])
            values.append(names.take(texts.indices.fill_null(len(escaped))))
        coded = pc.binary_join_element_wise(*values, "").dictionary_encode()
        codes = coded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
        return [
            (name.as_py(), rows.take(pa.array(order[bounds[i] : bounds[i + 1]])))
            for i, name in enumerate(coded.dictionary)
        ]
