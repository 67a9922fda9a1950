"""Idle inputs: whoever sends nothing for long does not hold back those that it shares a view with.

The option `watermark_idle_timeout` of CREATE. The intent of an epoch says who is idle, by the clock. How far its
watermark is raised follows from those of the others: in the same epoch in all buckets, and once more in its commit.
Watermarks never fall: rows that come after all are late if they are below theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watersmeet.catalog import Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.runtime.eventtimes import Numbers, risen
from watersmeet.slices import Slice

Idle = Mapping[str, tuple[str, ...]]
"""By idle relation, the others with an event time that are not idle and share a view with it."""


class Idleness:
    """When each input gave something last; of one that gave nothing yet, when it was looked at first."""

    def __init__(self) -> None:
        self._last_us: dict[str, int] = {}

    def note(self, slices: Iterable[Slice], now_us: int) -> None:
        """These are read at `now_us`."""
        for piece in slices:
            self._last_us[piece.relation] = now_us

    def idle(self, circuit: Circuit, known: Mapping[str, Relation], now_us: int) -> dict[str, tuple[str, ...]]:
        """Who is idle at `now_us`, and for whose sake that matters."""
        timed = {
            i: r.event_time
            for i in {s.relation_id for s in circuit.scans}
            if (r := known.get(i)) is not None and r.event_time is not None
        }
        silent = {
            i
            for i, t in timed.items()
            if t.idle_us is not None and now_us - self._last_us.setdefault(i, now_us) >= t.idle_us
        }
        found: dict[str, set[str]] = {}
        for inputs in inputs_of_views(circuit).values() if silent else ():
            for relation_id in inputs & silent:
                found.setdefault(relation_id, set()).update(inputs & timed.keys() - silent)
        return {i: tuple(sorted(others)) for i, others in sorted(found.items()) if others}


def inputs_of_views(circuit: Circuit) -> dict[str, set[str]]:
    """By view, the relations that it reads, through other views too."""
    scanned = {s.id: s.relation_id for s in circuit.scans}
    return {i: {scanned[o] for o in below if o in scanned} for i, below in circuit.below_sinks.items()}


def raised(numbers: Numbers, idle: Idle, overrides: Numbers) -> dict[str, int]:
    """The sources' watermarks where `idle` hold nobody back. overrides: what watermarks are at least."""
    found = risen(numbers, overrides)
    for relation_id, others in idle.items():
        known = [found[i] for i in others if i in found]
        if len(known) == len(others):
            found[relation_id] = max(min(known), found.get(relation_id, min(known)))
    return found
