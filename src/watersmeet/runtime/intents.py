"""Intents: what an epoch is going to do, written down before it is done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from watersmeet.errors import error
from watersmeet.sources.base import Slice
from watersmeet.store.manifests import Frontier

#: A task is not worth starting for less.
_TASK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Intent:
    """One epoch before it is run.

    circuit: fingerprint. tasks: the slices that each task of stage 0 reads; a slice has a `seq`, its place in the
    epoch's order of arrival. frontier: what the inputs will have given once it is committed.
    initial: the first epoch of new operators: constants and empty aggregates give their rows, leftover state
    of earlier attempts is dropped. active: the operators that run (None: all). scratch: those of them whose state
    is kept apart, because live views own it. fresh: those that may have no state yet.
    everywhere: every bucket runs, with or without rows.
    specs: by relation, what reading its slices needs. views_ready: relations that become readable by it.
    given: relations whose content is read in place of what the operator below their sink would give again, with the
    keys by whose hash that goes to the buckets: each the first of some columns that is not NULL.
    told: arrangements of live views that tell the new operators what they keep, in `part[1]` epochs of which this is
    number `part[0]`; the state of these arrangements stays as it is.
    event_times: by relation with WATERMARK FOR, see `eventtimes.event_times`. clocks: see `eventtimes.clocks`. idle,
    lifts: see `idleness`.
    rebuilding: the state is made anew for the content as it is: nothing is published.
    most_rows: by join, the least and the most rows that its views allow, see `limits.most_rows`.
    time_us: the time of the epoch (microseconds since 1970, UTC), never below that of the one before.
    """

    epoch: int
    circuit: str
    frontier: Frontier
    tasks: tuple[tuple[Slice, ...], ...] = ()
    initial: bool = False
    active: tuple[str, ...] | None = None
    scratch: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    everywhere: bool = False
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)
    views_ready: tuple[str, ...] = ()
    given: dict[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    part: tuple[int, int] = (0, 0)
    rebuilding: bool = False
    time_us: int = 0
    event_times: dict[str, dict[str, Any]] = field(default_factory=dict)
    clocks: dict[str, dict[str, str]] = field(default_factory=dict)
    idle: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lifts: dict[str, int] = field(default_factory=dict)
    most_rows: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """True if it reads what is new; False if it reads history, for new views or new state."""
        return self.active is None and not self.rebuilding

    @property
    def is_complete(self) -> bool:
        """True if nothing of the inputs' history is left to be read after it."""
        return self.is_live or self.frontier.backfill is None

    @property
    def has_work(self) -> bool:
        """False if only the frontier moves: then no task is run."""
        return self.everywhere or any(self.tasks)

    @property
    def slices(self) -> list[Slice]:
        """All slices, in order of arrival."""
        return sorted((s for task in self.tasks for s in task), key=lambda s: int(s["seq"]))

    @property
    def rows(self) -> int:
        """The estimated number of input rows."""
        return sum(int(s["rows"]) for task in self.tasks for s in task)

    @property
    def bytes(self) -> int:
        """The estimated number of input bytes."""
        return sum(int(s["bytes"]) for task in self.tasks for s in task)

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `from_json` makes the same intent."""
        return {
            "epoch": self.epoch,
            "circuit": self.circuit,
            "frontier": self.frontier.to_json(),
            "tasks": self.tasks,
            "initial": self.initial,
            "active": self.active,
            "scratch": self.scratch,
            "fresh": self.fresh,
            "everywhere": self.everywhere,
            "specs": self.specs,
            "views_ready": self.views_ready,
            "given": self.given,
            "told": self.told,
            "part": self.part,
            "rebuilding": self.rebuilding,
            "time_us": self.time_us,
            "event_times": self.event_times,
            "clocks": self.clocks,
            "idle": self.idle,
            "lifts": self.lifts,
            "most_rows": self.most_rows,
        }

    def to_text(self) -> str:
        """The JSON as text."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    @staticmethod
    def from_json(value: dict[str, Any]) -> Intent:
        """The inverse of `to_json`."""
        values = dict(value)
        values["frontier"] = Frontier.from_json(value["frontier"])
        values["tasks"] = tuple(tuple(task) for task in value["tasks"])
        values["active"] = None if value["active"] is None else tuple(value["active"])
        for name in ("scratch", "fresh", "views_ready", "told", "part"):
            values[name] = tuple(value[name])
        values["idle"] = {i: tuple(others) for i, others in value["idle"].items()}
        values["given"] = {i: tuple(tuple(columns) for columns in keys) for i, keys in value["given"].items()}
        values["most_rows"] = {i: (least, most) for i, (least, most) in value["most_rows"].items()}
        return Intent(**values)

    @staticmethod
    def from_text(text: str) -> Intent:
        """The inverse of `to_text`. DATABASE_DAMAGED if it is not one."""
        try:
            return Intent.from_json(json.loads(text))
        except (ValueError, KeyError, TypeError) as cause:
            raise error("DATABASE_DAMAGED", "an intent can't be read") from cause


def divide(slices: Sequence[Slice], buckets: int) -> tuple[tuple[Slice, ...], ...]:
    """The slices, numbered in order of arrival, as one task or (with several buckets) as balanced tasks.

    Never empty. At most `buckets` tasks. What one transaction did to a relation has one number.
    """
    numbered: list[Slice] = []
    for number, piece in enumerate(slices):
        follows = numbered and piece.get("first", 0) > 0
        numbered.append({**piece, "seq": numbered[-1]["seq"] if follows else number})
    total = sum(int(s["bytes"]) for s in numbered)
    count = max(1, min(buckets, len(numbered), -(-total // _TASK_BYTES)))
    if count == 1:
        return (tuple(numbered),)
    loads = [0] * count
    groups: list[list[Slice]] = [[] for _ in range(count)]
    # The largest first, each to the task with the least so far.
    for piece in sorted(numbered, key=lambda s: (-int(s["bytes"]), s["seq"])):
        least = loads.index(min(loads))
        loads[least] += int(piece["bytes"])
        groups[least].append(piece)
    return tuple(tuple(sorted(g, key=lambda s: int(s["seq"]))) for g in groups)
