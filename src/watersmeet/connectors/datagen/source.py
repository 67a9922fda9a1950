"""The datagen source: made-up rows at a given rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.connectors.base.options import OptionSet, OptionSpec
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows, SourceSpec
from watersmeet.connectors.datagen.generators import Generator, Moment, generator, least, split_options
from watersmeet.connectors.datagen.paced import PacedSource
from watersmeet.values.slices import EventSlice
from watersmeet.values.types import Field, Schema

DEFAULT_RATE: Final = 10
ROW_BYTES: Final = 16
"""For the byte budget: bytes of a value."""


@dataclass(frozen=True)
class DatagenSpec(SourceSpec):
    """Of generated rows. columns: all that were declared. options: those of the columns, without `fields.`. rate: rows
    a second.
    """

    kind: ClassVar[str] = "datagen"
    columns: Schema
    options: Mapping[str, str]
    rate: int


def generators_of(columns: Sequence[Field], given: Mapping[str, str]) -> dict[str, Generator]:
    """The generators of all columns. given: options without their `fields.`. Raises CONNECTOR_OPTION."""
    parts = split_options(given, [column.name for column in columns], "")
    return {column.name: generator(column.type, parts[column.name], column.name) for column in columns}


SOURCE_OPTIONS: Final = OptionSet(
    "datagen",
    (
        OptionSpec(
            "datagen.rows.per.second", "Rows per second.", "integer", default=DEFAULT_RATE, minimum=1, unit="rows/s"
        ),
        OptionSpec("datagen.split.num", "Number of splits that generate rows.", "integer", default=1, minimum=1),
        OptionSpec("datagen.max.rows", "The source ends after this many rows.", "integer", minimum=0, unit="rows"),
        OptionSpec("fields.", "How a column is generated, such as `fields.<column>.kind`.", "prefix"),
        OptionSpec(
            "format",
            "Accepted without effect.",
            "choice",
            among=("json", "native", "plain"),
            default="json",
            is_idle=True,
        ),
        OptionSpec(
            "encode", "Accepted without effect.", "choice", among=("json", "native"), default="json", is_idle=True
        ),
    ),
)


class DatagenSource(PacedSource):
    """Rows made from their numbers, `datagen.rows.per.second` of them: the options are RisingWave's.

    The source ends with its shortest sequence, or after `datagen.max.rows`.
    """

    def __init__(self, relation: Relation) -> None:
        options = SOURCE_OPTIONS.read(relation.connector)
        options.check()
        self._fields = options.under("fields.")
        self._rate = options.number("datagen.rows.per.second")
        made = generators_of(relation.columns, self._fields)
        super().__init__(
            relation.id,
            relation.columns,
            per_second=Fraction(self._rate),
            splits=options.number("datagen.split.num"),
            limit=least([options.integer("datagen.max.rows"), *(column.limit for column in made.values())]),
            row_bytes=ROW_BYTES * max(1, len(relation.columns)),
        )

    def spec(self) -> DatagenSpec:
        return DatagenSpec(self._columns, self._fields, self._rate)


def read_datagen_slice(piece: EventSlice, spec: DatagenSpec, columns: Sequence[Field], _: DeadLetterSink) -> SourceRows:
    """The rows of a slice of a datagen source."""
    made = generators_of(spec.columns, spec.options)
    rows = np.arange(piece.begin, piece.end, dtype=np.int64)
    starts = np.array([s[0] for s in piece.segments], np.int64)
    bases = np.array([s[1] for s in piece.segments], np.int64)
    segment = np.searchsorted(starts, rows, side="right") - 1
    since = rows - starts[segment]
    # In two parts: a product of microseconds would overflow after some years at a high rate.
    times_us = bases[segment] + since // spec.rate * 1_000_000 + since % spec.rate * 1_000_000 // spec.rate
    moment = Moment(rows, times_us, piece.started_us)
    arrays = [made[column.name].make(moment) for column in columns]
    schema = pa.schema([pa.field(c.name, c.type.arrow) for c in columns])
    return SourceRows(pa.Table.from_arrays(arrays, schema=schema), rows - piece.begin)
