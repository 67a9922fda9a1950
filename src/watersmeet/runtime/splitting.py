"""Decides which keys are split over all buckets: those with many rows in arrangements, or with much work.

An extra epoch records the decision (`SplitKeys`), which never changes a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from watersmeet.circuit.circuit import Circuit, Meeting, Roles, Split, arrangements_of, meetings, roles
from watersmeet.circuit.operators import Arrange, Exchange
from watersmeet.kernel.arrays.hashing import bucket_of_one
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.runs.state import StateManifest
from watersmeet.runtime.engine import Database
from watersmeet.runtime.stages import stored_state
from watersmeet.store.commits import Commit
from watersmeet.store.manifests import Metrics, OperatorCounts

#: Hot keys are searched after this much work, or after an eighth of all kept rows.
SEARCH_ROWS: Final = 1 << 15
#: A key is split if it has at least this many rows or this much work, …
LEAST_ROWS: Final = 1024
#: … and at least this part of the rows or work that a bucket has without hot keys.
PART: Final = 4
#: A split key stays split until it has less than 1/KEPT of the rows or work that are required for splitting.
KEPT: Final = 4
#: The maximum number of split keys of a meeting, where the two sides of a join meet.
MOST_KEYS: Final = 16


class Splitting:
    """The keys that are split as of the newest planned epoch, and the due change, for the coordinator."""

    def __init__(self, db: Database, split: Split) -> None:
        self._db = db
        self.split = {side: tuple(keys) for side, keys in split.items()}
        self._change: dict[str, tuple[int, ...]] | None = None
        self._loads: dict[Meeting, Load] = {}
        self._circuit = ""
        """The circuit of these loads."""
        self._work = 0
        """The work since the last search for hot keys."""
        self._enough = SEARCH_ROWS

    @property
    def is_due(self) -> bool:
        """Whether other keys should be split."""
        return self._change is not None

    def take(self) -> dict[str, tuple[int, ...]]:
        """For each spread side, the keys that are split from the next planned epoch on."""
        assert self._change is not None
        self.split, self._change = self._change, None
        return self.split

    def gather(self) -> None:
        """Ends the splitting of all keys."""
        self._change = {} if self.split else None

    def allows(self, before: Circuit, after: Circuit) -> bool:
        """Whether a circuit can replace the running one; if not, the splitting of all keys must end first.

        Split keys of exchanges that are not in the new circuit are dropped with their state.
        """
        self._change = None
        left = {side: keys for side, keys in self.split.items() if side in after.by_id}
        was, will = roles(before, self.split), roles(after, left)
        shared = (was.keys() | will.keys()) & before.by_id.keys() & after.by_id.keys()
        if any(was.get(e, Roles()) != will.get(e, Roles()) for e in shared):
            self.gather()
            return False
        self.split = left
        return True

    def observe(self, circuit: Circuit, commit: Commit) -> None:
        """Record the newest commit, and search for hot keys after enough work since the last search."""
        if commit.circuit != circuit.fingerprint or commit.progress.split != self.split or self.is_due:
            return
        if commit.circuit != self._circuit:
            self._circuit, self._loads = commit.circuit, {m: Load(m, circuit) for m in meetings(circuit)}
        now = roles(circuit, self.split)
        self._work += sum(load.add(commit.metrics, now) for load in self._loads.values())
        if self._work < self._enough:
            return
        found = kept_rows(self._db, commit, circuit, now)
        change: dict[str, tuple[int, ...]] = {}
        for load in self._loads.values():
            change |= load.hot_keys(found, self.split)
            load.fade()
        self._work = 0
        self._enough = max(SEARCH_ROWS, sum(kept.rows for kept in found.values()) // 8)
        if change != self.split:
            self._change = change


@dataclass(frozen=True)
class Kept:
    """The numbers of rows in the arrangements of an exchange: the total, and that of each hot key's hash."""

    rows: int
    keys: Mapping[int, int]


def kept_rows(db: Database, commit: Commit, circuit: Circuit, now: Mapping[str, Roles]) -> dict[str, Kept]:
    """For each exchange of each meeting, the rows of its arrangements after an epoch. now: the roles of the split
    keys.
    """
    found: dict[str, Kept] = {}

    states: dict[str, StateManifest] = {}

    def state(place: str) -> StateManifest:
        if place not in states:
            states[place] = stored_state(db.segments, commit.segments[place], place)
        return states[place]

    for exchange in (e for meeting in meetings(circuit) for e in meeting.exchanges):
        copied = now.get(exchange, Roles()).copied
        for arrangement in _by_its_key(exchange, circuit):
            rows, keys = 0, Counter[int]()
            for bucket in range(circuit.buckets):
                traces = state(f"{circuit.stages[arrangement.id]}/{bucket}").operators.get(arrangement.id, {})
                for ref in traces.get(ROWS, ()):
                    rows += ref.rows
                    for key in () if ref.hot is None else ref.hot.found:
                        if key.hash not in copied or bucket_of_one(key.hash, circuit.buckets) == bucket:
                            keys[key.hash] += key.rows
            if exchange not in found or rows > found[exchange].rows:
                found[exchange] = Kept(rows, keys)
    return found


class Load:
    """The work of a meeting, as numbers of arriving and output rows: the total, and that of each busy key's hash."""

    def __init__(self, meeting: Meeting, circuit: Circuit) -> None:
        self._meeting = meeting
        self._buckets = circuit.buckets
        self._arrangements = {e: a.id for e in meeting.exchanges for a in _by_its_key(e, circuit)}
        self._arrived = {e: Counter[int]() for e in self._arrangements}
        self._made = Counter[int]()
        self._total = 0

    def add(self, metrics: Metrics, now: Mapping[str, Roles]) -> int:
        """Record an epoch. Returns its total work. now: the roles of the split keys."""
        work = 0
        for exchange, arrangement in self._arrangements.items():
            work += metrics.operators.get(arrangement, OperatorCounts()).rows_in
            copied = now.get(exchange, Roles()).copied
            for key, rows in metrics.busiest.get(arrangement, ()):
                self._arrived[exchange][key] += rows // self._buckets if key in copied else rows
        for join in self._meeting.joins:
            work += metrics.operators.get(join, OperatorCounts()).made_rows
            for key, rows in metrics.busiest.get(join, ()):
                self._made[key] += rows
        self._total += work
        return work

    def fade(self) -> None:
        """Halve the past work."""
        self._total //= 2
        for counts in (self._made, *self._arrived.values()):
            for key in list(counts):
                counts[key] //= 2
            counts += Counter()  # drops zeros

    def hot_keys(self, kept: Mapping[str, Kept], now: Split) -> dict[str, tuple[int, ...]]:
        """For each spread side, the keys to split. kept: the stored rows of each exchange. now: the keys that are split
        now.
        """
        split = {key: side for side in self._meeting.spread_sides for key in now.get(side, ())}
        work = Counter(self._made)
        for counts in self._arrived.values():
            work.update(counts)
        chosen: dict[int, tuple[int, str]] = {}
        for key in work.keys() | split.keys() | {k for e in self._arrived for k in kept.get(e, _NOTHING).keys}:
            rows = {e: kept.get(e, _NOTHING).keys.get(key, 0) for e in self._meeting.spread_sides}
            part = KEPT if key in split else 1
            is_hot = work[key] * part >= self._least(self._total) or any(
                n * part >= self._least(kept.get(e, _NOTHING).rows) for e, n in rows.items()
            )
            if is_hot:
                most = max(self._meeting.spread_sides, key=lambda e: (rows[e] + self._arrived.get(e, _NONE)[key], e))
                chosen[key] = work[key] + sum(rows.values()), split.get(key, most)
        hottest = sorted(chosen, key=lambda k: (-chosen[k][0], k))[:MOST_KEYS]
        found: dict[str, list[int]] = {}
        for key in sorted(hottest):
            found.setdefault(chosen[key][1], []).append(key)
        return {side: tuple(keys) for side, keys in found.items()}

    def _least(self, total: int) -> int:
        return max(LEAST_ROWS, total // (self._buckets * PART))


_NOTHING: Final = Kept(0, {})
_NONE: Final = Counter[int]()


def _by_its_key(exchange: str, circuit: Circuit) -> list[Arrange]:
    """The arrangements of an exchange whose runs are sorted by the hash by which it distributes rows."""
    op = circuit.by_id[exchange]
    return [a for a in arrangements_of(exchange, circuit) if isinstance(op, Exchange) and a.keys == op.keys]
