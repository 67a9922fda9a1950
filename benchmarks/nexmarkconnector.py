"""The connector nexmark: people, auctions and bids of an auction house, as the Nexmark benchmark makes them.

A connector outside of the package: importing this module registers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from benchmarks.nexmarkevents import COLUMNS, KINDS, Settings, events_of
from watersmeet.catalog import Relation
from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import DeadLetterSink, SourceConnector, SourceRows, SourceSpec
from watersmeet.connectors.datagen import PacedSource
from watersmeet.connectors.registry import register_source
from watersmeet.errors import did_you_mean
from watersmeet.values.slices import EventSlice
from watersmeet.values.types import BIGINT, Field, SqlType

DEFAULT_GAP_NS: Final = 100_000
_ROW_BYTES: Final = {"person": 200, "auction": 500, "bid": 100}


@dataclass(frozen=True)
class NexmarkSpec(SourceSpec):
    """Of Nexmark events. chosen: the kind of those that are rows; None: all, each in a column of its kind."""

    kind: ClassVar[str] = "nexmark"
    chosen: str | None
    settings: Settings


def _option(setting: str) -> str:
    return f"nexmark.{setting.replace('_', '.')}"


SOURCE_OPTIONS: Final = OptionSet(
    "nexmark",
    (
        OptionSpec("nexmark.table.type", "The kind of events that are rows; all if missing.", "choice", among=KINDS),
        OptionSpec("nexmark.event.num", "The source ends after this many events.", "integer", minimum=0, unit="events"),
        OptionSpec("nexmark.split.num", "Number of splits that generate events.", "integer", default=1, minimum=1),
        OptionSpec(
            "nexmark.min.event.gap.in.ns",
            "Time between events; 0: as fast as they are read.",
            "integer",
            default=DEFAULT_GAP_NS,
            minimum=0,
            unit="ns",
        ),
        OptionSpec("nexmark.max.chunk.size", "Accepted without effect.", "integer", minimum=1, is_idle=True),
        OptionSpec("format", "Accepted without effect.", "choice", among=("native", "plain"), is_idle=True),
        OptionSpec("encode", "Accepted without effect.", "choice", among=("native",), is_idle=True),
        *(
            OptionSpec(_option(name), "A number of the Nexmark benchmark.", "integer", default=default, minimum=least)
            for name, default, least in Settings.numbers()
        ),
    ),
)


class NexmarkSource(PacedSource):
    """Events made from their numbers; the options are RisingWave's.

    `nexmark.table.type` is Person, Auction or Bid: the rows are those events. Without it there is a row for each
    event, with `event_type` (0, 1, 2) and the three kinds as structs, of which one is not NULL. Sources of one
    database with the same options are parts of the same events. One event comes every
    `nexmark.min.event.gap.in.ns` nanoseconds (0: as fast as they are read), `nexmark.event.num` in all.
    `nexmark.max.chunk.size` is taken and means nothing: rows are made as many at a time as an epoch takes.
    """

    def __init__(self, relation: Relation) -> None:
        options = SOURCE_OPTIONS.read(relation.connector)
        options.check()
        chosen = options.choice("nexmark.table.type")
        gap_ns = options.number("nexmark.min.event.gap.in.ns")
        self._chosen = chosen or None
        self._settings = Settings(**{n: options.number(_option(n)) for n, _, _ in Settings.numbers()})
        check_columns(relation.columns, self._chosen)
        sizes = [_ROW_BYTES[chosen]] if chosen else _ROW_BYTES.values()
        super().__init__(
            relation.id,
            relation.columns,
            per_second=Fraction(10**9, gap_ns) if gap_ns else None,
            splits=options.number("nexmark.split.num"),
            limit=options.integer("nexmark.event.num"),
            row_bytes=max(sizes),
        )

    def spec(self) -> NexmarkSpec:
        return NexmarkSpec(self._chosen, self._settings)

    def _rows_of(self, begin: int, end: int) -> int:
        if self._chosen is None:
            return end - begin
        return int(self._settings.count(self._chosen, end) - self._settings.count(self._chosen, begin))

    def _events_of(self, rows: int) -> int:
        if self._chosen is None:
            return rows
        rounds = rows // max(1, self._settings.proportion(self._chosen))
        return max(rows, rounds * self._settings.round)


def check_columns(columns: Sequence[Field], chosen: str | None) -> None:
    """Refuses columns that these events do not have: CONNECTOR_OPTION."""
    known = dict(COLUMNS[chosen]) if chosen else {"event_type": BIGINT, **{k: _struct(k) for k in KINDS}}
    for column in columns:
        wanted = known.get(column.name)
        if wanted is None:
            refuse(
                f'connector nexmark has no column "{column.name}"' + (f" for {chosen} events" if chosen else ""),
                hint=did_you_mean(column.name, known) or "It has " + ", ".join(known) + ".",
            )
        if column.type != wanted:
            refuse(
                f'column "{column.name}" of connector nexmark can\'t be {column.type.sql}',
                hint=f"It must be {wanted.sql}.",
            )


def read_nexmark_slice(
    piece: EventSlice, spec: NexmarkSpec, columns: Sequence[Field], _dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice of a nexmark source."""
    settings = spec.settings
    events = np.arange(piece.begin, piece.end, dtype=np.int64)
    kinds = settings.kinds(events)
    schema = pa.schema([pa.field(c.name, c.type.arrow) for c in columns])
    if spec.chosen is not None:
        own = np.flatnonzero(kinds == KINDS.index(spec.chosen))
        made = events_of(spec.chosen, events[own], settings, [c.name for c in columns])
        arrays = [made.column(c.name).cast(c.type.arrow) for c in columns]
        return SourceRows(pa.Table.from_arrays(arrays, schema=schema), own)
    arrays = [
        pa.array(kinds)
        if c.name == "event_type"
        else _combined(KINDS.index(c.name), kinds, events, settings).cast(c.type.arrow)
        for c in columns
    ]
    return SourceRows(pa.Table.from_arrays(arrays, schema=schema), events - piece.begin)


def _combined(number: int, kinds: np.ndarray[Any, Any], events: np.ndarray[Any, Any], settings: Settings) -> pa.Array:
    """The events of one kind as structs in their places, NULL elsewhere."""
    own = kinds == number
    made = events_of(KINDS[number], events[own], settings).to_struct_array()
    made = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    places = np.where(own, np.cumsum(own) - 1, 0)
    return made.take(pa.array(places, mask=~own))


def _struct(kind: str) -> SqlType:
    return SqlType("struct", fields=COLUMNS[kind])


CONNECTOR: Final = SourceConnector(NexmarkSource, NexmarkSpec, (EventSlice,), read_nexmark_slice, SOURCE_OPTIONS)
register_source("nexmark", CONNECTOR)
