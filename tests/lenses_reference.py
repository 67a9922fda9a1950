"""The joins of the Lenses dialect in plain Python, record by record, from the rules alone.

Document 004; rulings D-004-05, D-004-08 to D-004-10; notes on Kafka Streams, 2.1. What comes in one epoch comes together: in a stream-table join the
table changes first. The clock of a stream is the greatest time of its records in the epochs before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Kind = str  # inner, left, right, full


class Record(NamedTuple):
    """value None: a tombstone. time: seconds."""

    key: int
    value: tuple[Any, ...] | None
    time: int


Fits = Callable[[Record, Record], bool]
Row = tuple[Any, ...]


def pair(left: Record | None, right: Record | None, widths: tuple[int, int]) -> Row:
    """The fields of both sides."""
    return tuple(v for one, width in zip((left, right), widths, strict=True)
                 for v in (one.value if one is not None and one.value is not None else (None,) * width))


@dataclass
class Table:
    """The last record of each key; a tombstone takes it away."""

    content: dict[int, Record] = field(default_factory=dict)

    def add(self, records: Sequence[Record]) -> None:
        """Takes in records in the order in which they came."""
        for record in records:
            self.content.pop(record.key, None)
            if record.value is not None:
                self.content[record.key] = record


@dataclass
class TableTable:
    """Two tables: the result follows both."""

    kind: Kind
    fits: Fits
    widths: tuple[int, int]

    def content(self, left: Table, right: Table) -> Counter[Row]:
        """What the result's table shows."""
        found: Counter[Row] = Counter()
        for l_record in left.content.values():
            met = [r for r in right.content.values() if self.fits(l_record, r)]
            found.update(pair(l_record, r, self.widths) for r in met)
            if not met and self.kind in ("left", "full"):
                found[pair(l_record, None, self.widths)] += 1
        if self.kind in ("right", "full"):
            found.update(pair(None, r, self.widths) for r in right.content.values()
                         if not any(self.fits(x, r) for x in left.content.values()))
        return found


@dataclass
class StreamTable:
    """A stream that looks up a table; records of a non-inner join that found nothing wait for the first that fits (LS-24)."""

    kind: Kind
    fits: Fits
    widths: tuple[int, int]
    waiting: list[Record] = field(default_factory=list)
    given: Counter[Row] = field(default_factory=Counter)

    def epoch(self, stream: Sequence[Record], table: Table) -> None:
        """table: as it is at the end of the epoch."""
        waiting, self.waiting = self.waiting, []
        for number, record in enumerate([*waiting, *(r for r in stream if r.value is not None)]):
            met = [r for r in table.content.values() if self.fits(record, r)]
            self.given.update(pair(record, r, self.widths) for r in met)
            if not met and self.kind != "inner":
                self.waiting.append(record)
                if number >= len(waiting):
                    self.given[pair(record, None, self.widths)] += 1


@dataclass
class _Seen:
    record: Record
    met: bool = False
    alone: bool = False


@dataclass
class Within:
    """Two streams within a time, both ends included (LS-19).

    A record is late if it is more than the window behind its stream's clock: it meets nothing, and comes out alone at once if its side does.
    Others meet all records of the other stream in their window, but for late ones. A record that met nothing comes out alone, once, when
    both clocks have passed its time by the window (D-004-08); a record that comes after that meets it all the same.
    """

    kind: Kind
    within: int
    fits: Fits
    widths: tuple[int, int]
    sides: tuple[list[_Seen], list[_Seen]] = field(default_factory=lambda: ([], []))
    clocks: list[int | None] = field(default_factory=lambda: [None, None])
    given: Counter[Row] = field(default_factory=Counter)

    def epoch(self, left: Sequence[Record], right: Sequence[Record], moved: Sequence[int | None] = (None, None)) -> None:
        """moved: how far the clocks are moved without records."""
        came = [[r for r in side if r.value is not None] for side in (left, right)]
        fresh: list[list[_Seen]] = [[], []]
        for number, records in enumerate(came):
            clock = self.clocks[number]
            for record in records:
                if clock is not None and record.time < clock - self.within:
                    self._alone(number, record)
                else:
                    fresh[number].append(_Seen(record))
        for x in fresh[0]:
            for y in [*self.sides[1], *fresh[1]]:
                self._meet(x, y)
        for x in self.sides[0]:
            for y in fresh[1]:
                self._meet(x, y)
        for number, records in enumerate((left, right)):
            self.sides[number].extend(fresh[number])
            times = [r.time for r in records] + [t for t in (self.clocks[number], moved[number]) if t is not None]
            self.clocks[number] = max(times, default=None)
        if None in self.clocks:
            return
        passed = min(c for c in self.clocks if c is not None)
        for number, side in enumerate(self.sides):
            for seen in side:
                if not seen.met and not seen.alone and seen.record.time + self.within < passed:
                    seen.alone = True
                    self._alone(number, seen.record)

    def _meet(self, x: _Seen, y: _Seen) -> None:
        if self.fits(x.record, y.record) and abs(x.record.time - y.record.time) <= self.within:
            x.met = y.met = True
            self.given[pair(x.record, y.record, self.widths)] += 1

    def _alone(self, number: int, record: Record) -> None:
        if self.kind in (("left", "full"), ("right", "full"))[number]:
            self.given[pair(*((record, None), (None, record))[number], self.widths)] += 1
