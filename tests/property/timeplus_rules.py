"""Timeplus' joins in plain Python, row by row, from Timeplus' document's rules and their rulings alone: no state but
the rows themselves.

A query consists of parts, each with its present rows (a multiset): a stream from the start of the query,
its content at that moment (`table(…)`, TP-17), its newest rows (TP-16, TP-55 to TP-59), and joins. When a
row has come to a stream, every part is told; a join in both directions is its nested loops over what its sides have now
(TP-21 to TP-30), one that enriches adds what the rows that are new on its left meet at that moment (TP-36 to TP-41).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, ...]
Condition = Callable[[Row, Row], bool]


@dataclass
class Stream:
    """A stream. key: how many of the first columns are its primary key; 0: an append stream."""

    name: str
    width: int
    key: int = 0
    rows: list[Row] = field(default_factory=list)

    def write(self, row: Row, sign: int = 1) -> None:
        """A row comes; sign -1: the row of its key goes, if there is one."""
        if self.key:
            self.rows = [r for r in self.rows if r[: self.key] != row[: self.key]]
        if sign > 0:
            self.rows.append(row)


class Part:
    """What a query reads or makes. width: of its rows."""

    width: int

    def told(self, stream: Stream, row: Row, sign: int) -> None:
        """A row has come to `stream`, which has it already."""

    def rows(self) -> Counter[Row]:
        raise NotImplementedError


class Live(Part):
    """A stream from when the query started: of an append stream what comes later, of a keyed one its content and then
    the changes.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream, self.width = stream, stream.width
        self.skipped = 0 if stream.key else len(stream.rows)

    def rows(self) -> Counter[Row]:
        return Counter(self.stream.rows[self.skipped :])


class Static(Part):
    """`table(stream)`: the content when the query started."""

    def __init__(self, stream: Stream) -> None:
        self.width, self.content = stream.width, Counter(stream.rows)

    def rows(self) -> Counter[Row]:
        return self.content


class Newest(Part):
    """Of each value of `key` the `keep` rows with the greatest `value` that were written, the newest of equal ones;
    without `value` the newest ones.

    Also rows that later ones of their primary key replaced count, as in Proton. Of a keyed stream the content
    at the start was written first.
    """

    def __init__(
        self, stream: Stream, key: Callable[[Row], Any], keep: int = 1, value: Callable[[Row], Any] | None = None
    ) -> None:
        self.stream, self.width, self.key, self.keep = stream, stream.width, key, keep
        self.value = value or (lambda row: 0)
        self.came: list[Row] = list(stream.rows) if stream.key else []

    def told(self, stream: Stream, row: Row, sign: int) -> None:
        if stream is self.stream and sign > 0:
            self.came.append(row)

    def ordered(self) -> list[Row]:
        """The rows that are kept, the newest first."""
        kept: list[Row] = []
        for row in sorted(reversed(self.came), key=self.value, reverse=True):
            if sum(self.key(r) == self.key(row) for r in kept) < self.keep:
                kept.append(row)
        return kept

    def rows(self) -> Counter[Row]:
        return Counter(self.ordered())


@dataclass
class Both(Part):
    """A join in both directions: pairs of all rows that fit; left, full: and with NULLs those that fit none."""

    left: Part
    right: Part
    kind: str
    fits: Condition

    def __post_init__(self) -> None:
        self.width = self.left.width + self.right.width

    def told(self, stream: Stream, row: Row, sign: int) -> None:
        self.left.told(stream, row, sign)
        self.right.told(stream, row, sign)

    def rows(self) -> Counter[Row]:
        left, right = self.left.rows(), self.right.rows()
        made: Counter[Row] = Counter()
        for one, n in left.items():
            met = [(r, m) for r, m in right.items() if self.fits(one, r)]
            for r, m in met:
                made[one + r] += n * m
            if not met and self.kind in ("left", "full"):
                made[one + (None,) * self.right.width] += n
        if self.kind == "full":
            for r, m in right.items():
                if not any(self.fits(one, r) for one in left):
                    made[(None,) * self.left.width + r] += m
        return made


@dataclass
class Enriched(Part):
    """Each left row with what it meets on the right when it comes; what happens there later changes nothing.

    nearest: ASOF, of what fits only the best.
    """

    left: Part
    right: Part
    kind: str
    fits: Condition
    nearest: Callable[[Row], Any] | None = None

    def __post_init__(self) -> None:
        self.width = self.left.width + self.right.width
        self.seen, self.made = self.left.rows(), Counter[Row]()
        assert not self.seen, "left sides only grow, from the start on"

    def told(self, stream: Stream, row: Row, sign: int) -> None:
        self.left.told(stream, row, sign)
        self.right.told(stream, row, sign)
        now = self.left.rows()
        for one, n in (now - self.seen).items():
            for met in self._met(one) or ([(None,) * self.right.width] if self.kind == "left" else []):
                self.made[one + met] += n
        assert not self.seen - now
        self.seen = now

    def _met(self, one: Row) -> list[Row]:
        if self.nearest is None:
            return [r for r, m in self.right.rows().items() for _ in range(m) if self.fits(one, r)]
        assert isinstance(self.right, Newest)
        return sorted((r for r in self.right.ordered() if self.fits(one, r)), key=self.nearest)[
            :1
        ]  # of equal ones the newest

    def rows(self) -> Counter[Row]:
        return self.made.copy()


@dataclass
class Where(Part):
    """The rows of a part that pass."""

    part: Part
    passes: Callable[[Row], bool]

    def __post_init__(self) -> None:
        self.width = self.part.width

    def told(self, stream: Stream, row: Row, sign: int) -> None:
        self.part.told(stream, row, sign)

    def rows(self) -> Counter[Row]:
        return Counter({row: n for row, n in self.part.rows().items() if self.passes(row)})


@dataclass
class Query:
    """What a query shows: `shown` of each row that passes `where`, or of the groups of these."""

    part: Part
    shown: Callable[[Row], Row]
    where: Callable[[Row], bool] = lambda row: True
    grouped: Callable[[Row, list[Row]], Row] | None = None

    def rows(self) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for row, n in self.part.rows().items():
            if self.where(row):
                found[self.shown(row)] += n
        if self.grouped is None:
            return found
        groups: dict[Row, list[Row]] = {}
        for row, n in found.items():
            groups.setdefault(row[:1], []).extend([row] * n)
        return Counter(self.grouped(key, rows) for key, rows in groups.items())
