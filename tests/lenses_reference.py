"""The joins of the Lenses dialect in plain Python, record by record, from the rules alone.

Lenses, "Joins"; Kafka Streams. What comes in one epoch comes
together: in a stream-table join the table changes first. The clock of a stream is the greatest time of its records in
the epochs before. The time of a table's change is the greatest one of what took part in it, tombstones among them.
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


@dataclass(frozen=True)
class On:
    """ON: what it equates of each side, None for what meets nothing, and what it says of each side alone.

    by_key: it equates the keys.
    """

    equates: tuple[Callable[[Record], Any], Callable[[Record], Any]]
    allows: tuple[Callable[[Record], bool], Callable[[Record], bool]]
    by_key: bool

    def meets(self, side: int, record: Record) -> Any:
        """What a record of the side (0 left, 1 right) meets others by; None if it meets nothing."""
        return self.equates[side](record) if self.allows[side](record) else None

    def __call__(self, left: Record, right: Record) -> bool:
        met = self.meets(0, left)
        return met is not None and met == self.meets(1, right)

    @property
    def filters(self) -> bool:
        """Whether it says something of one side alone."""
        return self.allows != (always, always)

    def turned(self) -> On:
        """The same of the sides in the other order."""
        return On(self.equates[::-1], self.allows[::-1], self.by_key)


def always(record: Record) -> bool:
    """No condition."""
    return True


def pair(left: Record | None, right: Record | None, widths: tuple[int, int]) -> Row:
    """The fields of both sides."""
    return tuple(
        v
        for one, width in zip((left, right), widths, strict=True)
        for v in (one.value if one is not None and one.value is not None else (None,) * width)
    )


@dataclass
class Table:
    """The last record of each key; a tombstone takes it away."""

    content: dict[int, Record] = field(default_factory=dict)
    before: dict[int, Record] = field(default_factory=dict)
    last: dict[int, Record] = field(default_factory=dict)

    def add(self, records: Sequence[Record]) -> None:
        """Takes in the records of an epoch, in the order in which they came."""
        self.before, self.last = dict(self.content), {}
        for record in records:
            self.content.pop(record.key, None)
            self.last[record.key] = record
            if record.value is not None:
                self.content[record.key] = record

    def touched(self, reads: Callable[[Record], Any] = tuple) -> list[tuple[Record, int]]:
        """The records that came to or went from the table in the epoch, and when: what went, with what took its place.

        reads: what a query reads of them; what it does not read does not change.
        """
        seen = [{k: (reads(r), r.time) for k, r in t.items()} for t in (self.before, self.content)]
        changed = [k for k in self.last if seen[0].get(k) != seen[1].get(k)]
        return [(t[k], self.last[k].time) for k in changed for t in (self.before, self.content) if k in t]


Pair = tuple[Record | None, Record | None]


@dataclass
class TableTable:
    """Two tables: the result follows both. log: its topic, each record with its time, a tombstone without value."""

    kind: Kind
    fits: On
    widths: tuple[int, int]
    keeps: Callable[[Row], bool] = always
    log: list[tuple[Row | None, int]] = field(default_factory=list)

    def epoch(self, left: Table, right: Table) -> None:
        """Takes in what came to the tables in an epoch."""
        old, new = self._rows(left.before, right.before), self._rows(left.content, right.content)
        touched = [
            [(self.fits.meets(i, r), r.key, t) for r, t in side.touched()] for i, side in enumerate((left, right))
        ]
        came = {k: v for k, v in new.items() if old.get(k) != v}
        went = {k: v for k, v in old.items() if new.get(k) != v}
        keys = {self._key(pair) for pair in came.values()}
        self.log += [(self._row(p), self._time(p, touched, came=True)) for p in came.values()]
        gone: dict[Any, int] = {}
        for pair in went.values():
            key = self._key(pair)
            if key not in keys:
                gone[key] = max(self._time(pair, touched, came=False), gone.get(key, 0))
        self.log += [(None, time) for time in gone.values()]

    def _rows(self, left: dict[int, Record], right: dict[int, Record]) -> dict[Any, Pair]:
        """The rows by what makes them the same as before: their values, key and time."""
        pairs: list[Pair] = [(x, y) for x in left.values() for y in right.values() if self.fits(x, y)]
        if self.kind in ("left", "full"):
            pairs += [(x, None) for x in left.values() if not any(self.fits(x, y) for y in right.values())]
        if self.kind in ("right", "full"):
            pairs += [(None, y) for y in right.values() if not any(self.fits(x, y) for x in left.values())]
        return {
            (self._key(p), self._row(p), max(r.time for r in p if r is not None)): p
            for p in pairs
            if self.keeps(self._row(p))
        }

    def _row(self, both: Pair) -> Row:
        return pair(*both, self.widths)

    def _key(self, both: Pair) -> Any:
        """By keys alone the common one, else what is equated and both keys."""
        keys = tuple(None if r is None else r.key for r in both)
        if self.fits.by_key and not (self.kind == "full" and self.fits.filters):
            return next(k for k in keys if k is not None)
        return (next(e(r) for e, r in zip(self.fits.equates, both, strict=True) if r is not None), *keys)

    def _time(self, both: Pair, touched: list[list[tuple[Any, int, int]]], *, came: bool) -> int:
        """The greatest time of both sides: of a record that changed when it did, of a side that is not there when those
        changed that would meet the other one.
        """
        times = []
        for side, record in enumerate(both):
            if record is None:
                other = both[1 - side]
                assert other is not None
                met = self.fits.meets(1 - side, other)
                times += [t for e, _, t in touched[side] if met is not None and e == met]
                continue
            met = self.fits.meets(side, record)
            changed = [t for e, k, t in touched[side] if (e, k) == (met, record.key)]
            times.append(record.time if came or not changed else max(changed))
        return max(times)

    def content(self, left: Table, right: Table) -> Counter[Row]:
        """What the result's table shows."""
        found: Counter[Row] = Counter()
        for l_record in left.content.values():
            met = [r for r in right.content.values() if self.fits(l_record, r)]
            found.update(pair(l_record, r, self.widths) for r in met)
            if not met and self.kind in ("left", "full"):
                found[pair(l_record, None, self.widths)] += 1
        if self.kind in ("right", "full"):
            found.update(
                pair(None, r, self.widths)
                for r in right.content.values()
                if not any(self.fits(x, r) for x in left.content.values())
            )
        return found


@dataclass
class Followed:
    """A query over one table: rows that pass a filter, or groups of them. log: its topic, as of `TableTable`.

    shows: the row of a group, or None if it is left out. groups: None for what does not group.
    """

    shows: Callable[[list[Record]], Row | None]
    groups: Callable[[Record], Any] | None = None
    log: list[tuple[Row | None, int]] = field(default_factory=list)

    def epoch(self, table: Table) -> None:
        """Takes in what came to the table in an epoch."""
        old, new = self._rows(table.before), self._rows(table.content)
        touched: dict[Any, int] = {}
        for record, time in table.touched(tuple if self.groups is None else self.groups):
            key = self._group(record)
            touched[key] = max(time, touched.get(key, 0))
        self.log += [(row, max(time, touched[k])) for k, (row, time) in new.items() if old.get(k) != (row, time)]
        self.log += [(None, touched[k]) for k in old.keys() - new.keys()]

    def _group(self, record: Record) -> Any:
        return record.key if self.groups is None else self.groups(record)

    def _rows(self, content: dict[int, Record]) -> dict[Any, tuple[Row, int]]:
        groups: dict[Any, list[Record]] = {}
        for record in content.values():
            if (group := self._group(record)) is not None:  # a record without a grouping value is in no group
                groups.setdefault(group, []).append(record)
        shown = {k: (self.shows(group), max(r.time for r in group)) for k, group in groups.items()}
        return {k: (row, time) for k, (row, time) in shown.items() if row is not None}


@dataclass
class StreamTable:
    """A stream that looks up a table; records of a non-inner join that found nothing wait for the first that fits
    (LS-24).
    """

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

    A record is late if its stream's clock has passed its window by more than the grace period: it meets nothing, and
    comes out alone at once if its side does. Others meet all records of the other stream in their window, but for late
    ones. A record that met nothing comes out alone, once, when both clocks have passed its time by the window
    and the grace period, if it is said; a record that comes after that meets it all the same. grace: in
    seconds; None: it is not said, and is a day.
    """

    kind: Kind
    within: int
    fits: Fits
    widths: tuple[int, int]
    sides: tuple[list[_Seen], list[_Seen]] = field(default_factory=lambda: ([], []))
    clocks: list[int | None] = field(default_factory=lambda: [None, None])
    given: Counter[Row] = field(default_factory=Counter)
    grace: int | None = None

    def epoch(
        self, left: Sequence[Record], right: Sequence[Record], moved: Sequence[int | None] = (None, None)
    ) -> None:
        """moved: how far the clocks are moved without records."""
        came = [[r for r in side if r.value is not None] for side in (left, right)]
        fresh: list[list[_Seen]] = [[], []]
        for number, records in enumerate(came):
            clock = self.clocks[number]
            for record in records:
                if clock is not None and record.time < clock - self.within - (
                    86400 if self.grace is None else self.grace
                ):
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
                if not seen.met and not seen.alone and seen.record.time + self.within + (self.grace or 0) < passed:
                    seen.alone = True
                    self._alone(number, seen.record)

    def _meet(self, x: _Seen, y: _Seen) -> None:
        if self.fits(x.record, y.record) and abs(x.record.time - y.record.time) <= self.within:
            x.met = y.met = True
            self.given[pair(x.record, y.record, self.widths)] += 1

    def _alone(self, number: int, record: Record) -> None:
        if self.kind in (("left", "full"), ("right", "full"))[number]:
            self.given[pair(*((record, None), (None, record))[number], self.widths)] += 1
