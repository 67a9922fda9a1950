"""The last hour of each relation, in steps of ten seconds: from the commits there are at the start, and from looks.

All of it is sums that commits carry, so that a step that nobody looked at loses nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.layout import Layout, file_numbers

STEP_S: Final = 10
STEPS: Final = 360

_STEP_US: Final = STEP_S * 1_000_000


class Sample(NamedTuple):
    """A relation at a moment. rows_in, rows_out: since it was made. epoch_s: of the database, how long its newest epoch
    took. NaN: not known.
    """

    rows_in: float = math.nan
    rows_out: float = math.nan
    rows: float = math.nan
    lag_s: float = math.nan
    size_bytes: float = math.nan
    errors: float = math.nan
    epoch_s: float = math.nan


#: What is kept of the database as a whole.
DATABASE: Final = ""
_WIDTH: Final = len(Sample._fields)
#: Of several samples in one step the greatest counts.
_PEAKS: Final = [Sample._fields.index("lag_s"), Sample._fields.index("epoch_s")]
#: So many commits are read at the start, evenly spread.
_MOST_READ: Final = 180


class History:
    """Samples of all relations. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = 0
        """The step of the newest sample: seconds since 1970 by STEP_S."""
        self._kept: dict[str, npt.NDArray[np.float64]] = {}
        self._times_us = np.full(STEPS, np.nan)
        """Of each step, when its last samples were taken."""

    def add(self, time_us: int, samples: Mapping[str, Sample]) -> None:
        """The samples of a moment. Of several in one step the last counts; of lags and durations, the greatest."""
        step = time_us // _STEP_US
        with self._lock:
            if step > self._newest:
                self._move(step - self._newest)
                self._newest = step
            place = STEPS - 1 - (self._newest - step)
            if place < 0:
                return
            self._times_us[place] = time_us
            for name, sample in samples.items():
                kept = self._kept.get(name)
                if kept is None:
                    kept = self._kept[name] = np.full((_WIDTH, STEPS), np.nan)
                before = kept[_PEAKS, place]
                kept[:, place] = sample
                kept[_PEAKS, place] = np.fmax(before, kept[_PEAKS, place])

    def forget(self, known: Iterable[str]) -> None:
        """Drops relations that are not among these."""
        with self._lock:
            kept = {DATABASE, *known}
            self._kept = {name: samples for name, samples in self._kept.items() if name in kept}

    def read(self, name: str) -> dict[str, Any]:
        """The series of a relation as JSON, oldest step first; None where nothing is known.

        end_s: when the last step begins. step_s. rows_in, rows_out: a second. The others as in `Sample`.
        """
        with self._lock:
            kept = self._kept.get(name)
            found = np.full((_WIDTH, STEPS), np.nan) if kept is None else kept.copy()
            end_s, times_us = self._newest * STEP_S, self._times_us.copy()
        series: dict[str, Any] = {"end_s": end_s, "step_s": STEP_S}
        for i, field in enumerate(Sample._fields):
            values = _rates(found[i], times_us) if field in ("rows_in", "rows_out") else found[i]
            series[field] = [None if math.isnan(v) else round(v, 3) for v in values.tolist()]
        return series

    def _move(self, steps: int) -> None:
        for kept in (*self._kept.values(), self._times_us[None, :]):
            if steps >= STEPS:
                kept[:] = np.nan
            else:
                kept[:, :-steps] = kept[:, steps:]
                kept[:, -steps:] = np.nan


def _rates(sums: npt.NDArray[np.float64], times_us: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Rises a second. Steps without a sample have the rate between those around; a fall (made anew) has none."""
    rates = np.full(STEPS, np.nan)
    there = np.flatnonzero(~np.isnan(sums))
    for before, now in zip(there[:-1].tolist(), there[1:].tolist(), strict=True):
        rise, seconds = sums[now] - sums[before], (times_us[now] - times_us[before]) / 1e6
        if rise >= 0 and seconds > 0:
            rates[before + 1 : now + 1] = rise / seconds
    return rates


def read_commits(history: History, layout: Layout, log: CommitLog, now_us: int) -> None:
    """Adds what the commits of the last hour say that are still there. They must be older than all other samples."""
    numbers = [n for n in file_numbers(layout.commits) if n <= log.head()]
    found: list[Commit] = []
    for number in numbers[:: -max(1, len(numbers) // _MOST_READ)]:
        commit = log.find(number)
        if commit is None or commit.time_us < now_us - STEPS * _STEP_US:
            break
        if commit.epoch is not None:
            found.append(commit)
    for commit in reversed(found):
        history.add(commit.time_us, samples_of(commit))


def samples_of(commit: Commit) -> dict[str, Sample]:
    """What an epoch's commit says of each relation and of the database."""
    metrics = commit.metrics
    found = {}
    for relation_id, t in metrics.totals.items():
        written = t.inserted + t.deleted
        # Of what the circuit only reads, the content is not known from here.
        rows = math.nan if t.rows and not written else t.inserted - t.deleted
        found[relation_id] = Sample(t.rows_in or t.rows, written, rows)
    rows = sum(t.rows for t in metrics.totals.values())
    return {**found, DATABASE: Sample(rows_in=rows, epoch_s=metrics.duration_us / 1e6)}
