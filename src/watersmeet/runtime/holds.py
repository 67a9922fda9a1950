"""Sources that are left alone because what they gave could not be read. The others go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from watersmeet.errors import Error

#: How long a source is left alone: twice as long each time, up to the second number.
_FIRST_US: Final = 1_000_000
_LONGEST_US: Final = 30_000_000


@dataclass(frozen=True)
class Hold:
    """cause: why, with the id of the source. pause_us: how long it is left alone. until_us: until when, None: until it
    is asked for (see `Holds.end_stops`).
    """

    cause: Error
    pause_us: int
    until_us: int | None


class Holds:
    """Not thread-safe. `hold` sets a source aside; `release` when it gave something that could be read."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}

    def hold(self, cause: Error, now_us: int) -> None:
        """The source of `cause` is not asked for a while; of SOURCE_STOPPED, until `end_stops`."""
        assert cause.source is not None
        before = self._holds.get(cause.source)
        pause_us = _FIRST_US if before is None else min(2 * before.pause_us, _LONGEST_US)
        until_us = None if cause.condition == "SOURCE_STOPPED" else now_us + pause_us
        self._holds[cause.source] = Hold(cause, pause_us, until_us)

    def causes(self) -> dict[str, Error]:
        """By source, why it could not be read when it was asked last."""
        return {relation_id: held.cause for relation_id, held in self._holds.items()}

    def is_held(self, relation_id: str, now_us: int) -> bool:
        """True if the source must not be asked now."""
        held = self._holds.get(relation_id)
        return held is not None and (held.until_us is None or held.until_us > now_us)

    def release(self, relation_ids: Iterable[str]) -> None:
        """Forgets what was wrong with these."""
        for relation_id in relation_ids:
            self._holds.pop(relation_id, None)

    def end_stops(self) -> None:
        """Sources that had stopped are asked again: what they could not read may be mended."""
        for held in [h for h in self._holds.values() if h.until_us is None]:
            self._end(held)

    def end(self) -> None:
        """All sources are asked again."""
        for held in list(self._holds.values()):
            self._end(held)

    def _end(self, held: Hold) -> None:
        assert held.cause.source is not None
        self._holds[held.cause.source] = replace(held, until_us=0)
