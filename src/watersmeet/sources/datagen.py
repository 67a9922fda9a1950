"""The datagen source: made-up rows at a given rate."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.errors import error
from watersmeet.sources.base import History, Poll, Slice, SourceRows
from watersmeet.sources.generators import Generator, Moment, generator, least, split_options
from watersmeet.sources.options import Options
from watersmeet.sources.saving import write_atomically
from watersmeet.types import Field

DEFAULT_RATE: Final = 10
ROW_BYTES: Final = 16
"""For the byte budget: bytes of a value."""
LEAST_SPLIT_ROWS: Final = 10_000

Segments = list[list[int]]
"""[first row, time in microseconds]: from that row on, rows are made at the source's rate from that time on."""


def generators_of(columns: Sequence[Field], given: Mapping[str, str]) -> dict[str, Generator]:
    """The generators of all columns. given: options without their `fields.`. Raises CONNECTOR_OPTION."""
    parts = split_options(given, [column.name for column in columns], "")
    return {column.name: generator(column.type, parts[column.name], column.name) for column in columns}


class DatagenSource:
    """Rows made from their numbers: the options are RisingWave's.

    The first row is made at the first poll, row n `n / rate` seconds later. While the database is closed no rows are
    made: the next start makes the next row. The source ends with its shortest sequence, or after
    `datagen.max.rows`. `status` and positions count rows from 0.
    """

    def __init__(self, relation: Relation) -> None:
        options = Options(relation.connector)
        options.text("connector")
        rate = options.integer("datagen.rows.per.second", default=DEFAULT_RATE, minimum=1)
        splits = options.integer("datagen.split.num", default=1, minimum=1)
        most = options.integer("datagen.max.rows", minimum=0)
        options.choice("format", among=("json", "native", "plain"), default="json")
        options.choice("encode", among=("json", "native"), default="json")
        self._fields = options.under("fields.")
        options.finish("datagen")
        assert rate is not None
        assert splits is not None
        self.relation_id = relation.id
        self._rate, self._splits = rate, splits
        self._columns = relation.columns
        made = generators_of(relation.columns, self._fields)
        self._limit = least([most, *(column.limit for column in made.values())])
        self._rows = 0
        self._slices = 0
        self._started_us: int | None = None
        self._segments: Segments = []
        self._anchor: list[int] | None = None
        """The segment that begins with this process's first poll."""

    def spec(self) -> dict[str, Any]:
        return {"kind": "datagen", "columns": [c.to_json() for c in self._columns], "fields": self._fields,
                "rate": self._rate}

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *,
             fresh: bool = False) -> Poll:  # noqa: ARG002 - nothing to look at
        expected = 0 if position is None else position["rows"]
        if expected != self._rows:
            raise error("DATABASE_DAMAGED", f"the position of source {self.relation_id} is row {expected}, "
                        f"its accepted slices end at {self._rows}")
        if self._anchor is None:
            self._anchor = [self._rows, now_us]
        segments = list(self._segments)
        if not segments or segments[-1] != self._anchor:
            segments = [*(s for s in segments if s[0] < self._anchor[0]), self._anchor]
        started_us = now_us if self._started_us is None else self._started_us
        due = self._anchor[0] + max(0, now_us - self._anchor[1]) * self._rate // 1_000_000 + 1
        end = due if self._limit is None else min(due, self._limit)
        budget = max(1, min(budget_rows, budget_bytes // (ROW_BYTES * max(1, len(self._columns)))))
        until = min(end, self._rows + budget)
        pieces = self._pieces(self._rows, until, started_us, segments, self._slices)
        finished = self._limit is not None and until >= self._limit
        last = pieces[-1]["to"] if pieces else self._rows
        where = {"rows": last, "slices": self._slices + len(pieces), "started_us": started_us}
        wait_us = -(-(until - self._anchor[0]) * 1_000_000 // self._rate)
        return Poll(tuple(pieces), where, more=until < end, finished=finished,
                    next_us=None if finished else self._anchor[1] + wait_us)

    def accept(self, slices: Iterable[Slice]) -> None:
        for piece in slices:
            if piece["ordinal"] < self._slices:
                continue
            if piece["ordinal"] > self._slices:
                raise error("DATABASE_DAMAGED", f"slices {self._slices} to {piece['ordinal'] - 1} of source "
                            f"{self.relation_id} are missing", detail="Rows would be made twice or never.")
            self._slices += 1
            self._rows = piece["to"]
            self._started_us = piece["started_us"]
            for segment in piece["segments"]:
                if segment not in self._segments:
                    self._segments = [*(s for s in self._segments if s[0] < segment[0]), segment]

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        begin, ordinal = cursor or (0, 0)
        budget = max(1, min(budget_rows, budget_bytes // (ROW_BYTES * max(1, len(self._columns)))))
        until = min(self._rows, begin + budget)
        pieces = self._pieces(begin, until, self._started_us or 0, self._segments, ordinal)
        return History(tuple(pieces), [until, ordinal + len(pieces)] if until < self._rows else None)

    def save(self, path: Path) -> None:
        state = {"rows": self._rows, "slices": self._slices, "started_us": self._started_us,
                 "segments": self._segments}
        write_atomically(path, json.dumps(state))

    def load(self, path: Path) -> None:
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            self._rows, self._slices = state["rows"], state["slices"]
            self._started_us, self._segments = state["started_us"], state["segments"]
        except (OSError, ValueError, KeyError) as problem:
            raise error("DATABASE_DAMAGED", f"the state of a source, {path.name}, can't be read",
                        detail=str(problem)) from problem

    def status(self) -> dict[str, Any]:
        """JSON: rows made so far, the limit (None: no end), problem None."""
        return {"rows_planned": self._rows, "limit_rows": self._limit, "problem": None}

    def _pieces(self, begin: int, end: int, started_us: int, segments: Segments, ordinal: int) -> list[Slice]:
        """Slices of rows [begin, end), as many as there are splits if that pays."""
        count = min(self._splits, max(1, (end - begin) // LEAST_SPLIT_ROWS)) if end > begin else 0
        bounds = [begin + (end - begin) * i // count for i in range(count + 1)] if count else []
        pieces: list[Slice] = []
        for low, high in itertools.pairwise(bounds):
            earlier = [s for s in segments if s[0] <= low][-1:]
            within = [s for s in segments if low < s[0] < high]
            pieces.append({"kind": "datagen", "relation": self.relation_id, "ordinal": ordinal + len(pieces),
                           "from": low, "to": high, "rows": high - low, "started_us": started_us,
                           "bytes": (high - low) * ROW_BYTES * len(self._columns), "segments": earlier + within})
        return pieces


def read_datagen_slice(piece: Slice, spec: Mapping[str, Any], columns: Sequence[Field]) -> SourceRows:
    """The rows of a slice of a datagen source."""
    fields = [Field.from_json(f) for f in spec["columns"]]
    made = generators_of(fields, spec["fields"])
    rows = np.arange(piece["from"], piece["to"], dtype=np.int64)
    starts = np.array([s[0] for s in piece["segments"]], np.int64)
    bases = np.array([s[1] for s in piece["segments"]], np.int64)
    segment = np.searchsorted(starts, rows, side="right") - 1
    since = rows - starts[segment]
    # In two parts: a product of microseconds would overflow after some years at a high rate.
    times_us = bases[segment] + since // spec["rate"] * 1_000_000 + since % spec["rate"] * 1_000_000 // spec["rate"]
    moment = Moment(rows, times_us, piece["started_us"])
    arrays = [made[column.name].make(moment) for column in columns]
    schema = pa.schema([pa.field(c.name, c.type.arrow) for c in columns])
    return SourceRows(pa.Table.from_arrays(arrays, schema=schema), rows - piece["from"])
