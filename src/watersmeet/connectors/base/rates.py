"""A source that gives at most so many rows a second, or none while it is paused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from watersmeet.connectors.base.options import RATE_LIMIT, refuse
from watersmeet.connectors.base.sources import History, Notification, Poll, Source, SourceSpec
from watersmeet.values.slices import SourceSlice
from watersmeet.values.times import SECOND_US

#: No limit, in statements.
DEFAULT: Final = "default"


def rate_limit(options: Mapping[str, str], name: str = RATE_LIMIT) -> int | None:
    """The rows a second that the option `name` allows; None for any number. CONNECTOR_OPTION."""
    value = options.get(name, DEFAULT)
    if value.lower() == DEFAULT:
        return None
    if not value.isascii() or not value.isdecimal():
        refuse(
            f'option {name} can\'t be "{value}"',
            hint="It is a number of rows a second, 0 to pause, or DEFAULT for no limit.",
        )
    return int(value)


class Allowance:
    """How many rows may pass now, if it is at most so many a second on average, and those of one second at once.

    More may be taken than are allowed: then none are for so much longer.
    """

    def __init__(self, rows_per_second: int) -> None:
        """rows_per_second: above 0."""
        self._rate = rows_per_second
        self._allowed = float(rows_per_second)
        self._at_us: int | None = None

    def at(self, now_us: int) -> int:
        """How many are allowed now. Times never fall, except that such a one counts as none passed."""
        since_us = 0 if self._at_us is None else max(0, now_us - self._at_us)
        self._at_us = now_us
        self._allowed = min(self._rate, self._allowed + self._rate * since_us / SECOND_US)
        return max(0, int(self._allowed))

    def take(self, rows: int) -> None:
        """So many have passed."""
        self._allowed -= rows

    @property
    def wait_us(self) -> int:
        """How long after `at` a row is allowed; 0 if one is."""
        return 0 if self._allowed >= 1 else int((1 - self._allowed) * SECOND_US / self._rate) + 1


class LimitedSource:
    """Another source, slower. `poll` counts rows as slices estimate them; reading history does not count.

    A slice may have more rows than are allowed now: it is given, and the next poll gives nothing for so much longer.
    """

    def __init__(self, source: Source, rows_per_second: int) -> None:
        self.relation_id = source.relation_id
        self._source = source
        self._rate = rows_per_second
        self._allowance = Allowance(rows_per_second)

    def spec(self) -> SourceSpec:
        return self._source.spec()

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        if not self._rate:
            return Poll((), position)
        allowed = self._allowance.at(now_us)
        if not allowed:
            return Poll((), position, next_us=now_us + self._allowance.wait_us)
        found = self._source.poll(position, min(budget_rows, allowed), budget_bytes, now_us, fresh=fresh)
        self._allowance.take(found.rows)
        if not found.more or not self._allowance.wait_us:
            return found
        return Poll(
            found.slices,
            found.position,
            pending=found.pending,
            next_us=now_us + self._allowance.wait_us,
            finished=found.finished,
        )

    def listen(self, notification: Notification) -> None:
        self._source.listen(notification)

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        self._source.accept(slices)

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        return self._source.history(cursor, budget_rows, budget_bytes)

    def save(self, path: Path) -> None:
        self._source.save(path)

    def load(self, path: Path) -> None:
        self._source.load(path)

    def status(self) -> dict[str, Any]:
        state = {} if self._rate else {"state": "paused"}
        return {**self._source.status(), **state, RATE_LIMIT: str(self._rate)}
