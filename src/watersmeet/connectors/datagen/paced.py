"""Sources that make their rows at a given pace, one event after the other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from watersmeet.connectors.base.sources import History, Notification, Poll
from watersmeet.errors import error
from watersmeet.system import files
from watersmeet.values.slices import EventSlice, Segments, SourceSlice
from watersmeet.values.types import Schema

LEAST_SPLIT_ROWS: Final = 10_000


class PacedSource:
    """Events made from their numbers; `read_slice` makes the rows of a range of events.

    The first event is made at the first poll, event n `n / per_second` seconds later (None: as fast as they are
    read). While the database is closed none is made: the next start makes the next event. The source ends after
    `limit` events. `status` and positions count events from 0.

    Subclasses say how many rows a range of events gives, and how many events give so many rows at most.
    """

    def __init__(
        self,
        relation_id: str,
        columns: Schema,
        *,
        per_second: Fraction | None,
        splits: int,
        limit: int | None,
        row_bytes: int,
    ) -> None:
        self.relation_id = relation_id
        self._columns = columns
        self._per_second, self._splits, self._limit, self._row_bytes = per_second, splits, limit, row_bytes
        self._rows = 0
        self._slices = 0
        self._started_us: int | None = None
        self._segments: Segments = ()
        self._anchor: tuple[int, int] | None = None
        """The segment that begins with this process's first poll."""

    def _rows_of(self, begin: int, end: int) -> int:
        """How many rows the events [begin, end) give."""
        return end - begin

    def _events_of(self, rows: int) -> int:
        """How many events give at most `rows` rows, wherever they begin; `rows` or more."""
        return rows

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:  # noqa: ARG002 - nothing to look at
        expected = 0 if position is None else position["rows"]
        if expected != self._rows:
            raise error(
                "DATABASE_DAMAGED",
                f"the position of source {self.relation_id} is row {expected}, its accepted slices end at {self._rows}",
            )
        if self._anchor is None:
            self._anchor = (self._rows, now_us)
        segments = self._segments
        if not segments or segments[-1] != self._anchor:
            segments = (*(s for s in segments if s[0] < self._anchor[0]), self._anchor)
        started_us = now_us if self._started_us is None else self._started_us
        most = self._rows + self._budget(budget_rows, budget_bytes)
        ends = [end for end in (self._due(now_us), self._limit) if end is not None]
        until = min([most, *ends])
        pieces = self._pieces(self._rows, until, started_us, segments, self._slices)
        finished = self._limit is not None and until >= self._limit
        where = {"rows": pieces[-1].end if pieces else self._rows}
        more = until == most if not ends else until < min(ends)
        return Poll(
            tuple(pieces), where, more=more, finished=finished, next_us=None if finished else self._made_us(until)
        )

    def listen(self, notification: Notification) -> None:
        """Clocks say nothing: they are asked."""

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        for piece in slices:
            assert isinstance(piece, EventSlice)
            if piece.ordinal < self._slices:
                continue
            if piece.ordinal > self._slices:
                raise error(
                    "DATABASE_DAMAGED",
                    f"slices {self._slices} to {piece.ordinal - 1} of source {self.relation_id} are missing",
                    detail="Rows would be generated twice or not at all.",
                )
            self._slices += 1
            self._rows = piece.end
            self._started_us = piece.started_us
            for segment in piece.segments:
                if segment not in self._segments:
                    self._segments = (*(s for s in self._segments if s[0] < segment[0]), segment)

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        begin, ordinal = cursor or (0, 0)
        until = min(self._rows, begin + self._budget(budget_rows, budget_bytes))
        pieces = self._pieces(begin, until, self._started_us or 0, self._segments, ordinal)
        return History(tuple(pieces), [until, ordinal + len(pieces)] if until < self._rows else None)

    def save(self, path: Path) -> None:
        state = {"rows": self._rows, "slices": self._slices, "started_us": self._started_us, "segments": self._segments}
        files.make_directory(path.parent)
        files.replace_file(path, json.dumps(state).encode(), durable=True)

    def load(self, path: Path) -> None:
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            self._rows, self._slices = state["rows"], state["slices"]
            self._started_us = state["started_us"]
            self._segments = tuple((first, time_us) for first, time_us in state["segments"])
        except (OSError, ValueError, KeyError) as problem:
            raise error(
                "DATABASE_DAMAGED", f"the state of a source, {path.name}, can't be read", detail=str(problem)
            ) from problem

    def status(self) -> dict[str, Any]:
        """JSON: events made so far, the limit (None: no end), problem None."""
        return {"rows_planned": self._rows, "limit_rows": self._limit, "problem": None}

    def _budget(self, rows: int, size_bytes: int) -> int:
        return max(1, self._events_of(max(1, min(rows, size_bytes // self._row_bytes))))

    def _due(self, now_us: int) -> int | None:
        """The number of events that are made by now."""
        if self._per_second is None:
            return None
        assert self._anchor is not None
        passed_us = max(0, now_us - self._anchor[1])
        return self._anchor[0] + int(passed_us * self._per_second / 1_000_000) + 1

    def _made_us(self, event: int) -> int:
        """When an event is made."""
        assert self._anchor is not None
        if self._per_second is None:
            return self._anchor[1]
        return self._anchor[1] - int(-(event - self._anchor[0]) * 1_000_000 // self._per_second)

    def _pieces(self, begin: int, end: int, started_us: int, segments: Segments, ordinal: int) -> list[EventSlice]:
        """Slices of events [begin, end), as many as there are splits if that pays."""
        rows = self._rows_of(begin, end)
        count = min(self._splits, max(1, rows // LEAST_SPLIT_ROWS)) if end > begin else 0
        bounds = [begin + (end - begin) * i // count for i in range(count + 1)] if count else []
        pieces: list[EventSlice] = []
        for low, high in itertools.pairwise(bounds):
            earlier = [s for s in segments if s[0] <= low][-1:]
            within = [s for s in segments if low < s[0] < high]
            made = self._rows_of(low, high)
            pieces.append(
                EventSlice(
                    relation=self.relation_id,
                    rows=made,
                    size_bytes=made * self._row_bytes,
                    ordinal=ordinal + len(pieces),
                    begin=low,
                    end=high,
                    started_us=started_us,
                    segments=(*earlier, *within),
                )
            )
        return pieces
