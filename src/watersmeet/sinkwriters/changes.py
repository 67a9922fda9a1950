"""The changes of a view, commit by commit, and the form in which a running query emits them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.binder.context.emissions import Request
from watersmeet.database.opened import OpenDatabase
from watersmeet.kernel.arrays.columns import positional
from watersmeet.kernel.runs.delta import Delta, consolidate, without_cancelling
from watersmeet.store.manifests import Commit, backfill_of
from watersmeet.store.positions import Emitted
from watersmeet.store.readers import ACTIVE, Reader

Diff = npt.NDArray[np.int64]
_VERSION: Final = "emit_version()"


@dataclass(frozen=True)
class Change:
    """The changes of one commit, by column; no row is both inserted and deleted. time_us: the time of its epoch.
    commit: its number, or the first one of several commits.
    """

    time_us: int
    rows: pa.Table
    diff: Diff
    commit: int = 0


@dataclass
class Emitter:
    """Converts changes into the rows that a running query returns.

    empty: a table of its columns without rows. started_us: the start of the query, from which periods are counted.
    rowtime: the column by which rows are ordered. emitted: the output so far; None for none.
    """

    request: Request
    empty: pa.Table
    started_us: int
    rowtime: str | None = None
    emitted: Emitted | None = None
    _waiting: list[Change] = field(default_factory=list)
    _content: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        request, emitted = self.request, self.emitted
        self._so_far = emitted or Emitted(left=request.limit, offset=request.offset)

    @property
    def so_far(self) -> Emitted:
        """The output so far."""
        return self._so_far

    @property
    def waits_from(self) -> int | None:
        """The commit of the first change that was taken but not returned yet; None if there is none."""
        return min((c.commit for c in self._waiting), default=None)

    @property
    def ended(self) -> bool:
        """True once LIMIT rows were returned."""
        return self._so_far.left == 0

    def take_back(self, changes: Iterable[Change]) -> None:
        """Restores changes that were taken before. They are returned again, except those of periods that had ended."""
        self._waiting += [c for c in changes if self._period(c) >= self._so_far.period]

    def emit(self, changes: Iterable[Change], now_us: int) -> tuple[pa.Table, Diff]:
        """The rows to return now, in the order of commits, with the number of the emission as last column, and for each
        row how often it was inserted or deleted.
        """
        given = [self._said(c) for c in self._due(changes, now_us)]
        none = self.empty.append_column(_VERSION, pa.array([], pa.int64()))
        rows = pa.concat_tables([none, *(g.rows for g in given)])
        diff = np.concatenate([np.zeros(0, np.int64), *(g.diff for g in given)])
        if self.rowtime is not None:
            order = np.argsort(rows.column(self.rowtime).cast(pa.int64()).to_numpy(), kind="stable")
            rows, diff = rows.take(pa.array(order)), diff[order]
        return self._limited(rows, diff)

    def _due(self, changes: Iterable[Change], now_us: int) -> list[Change]:
        """The changes of periods that have ended, summed up for each period; without a period, all changes."""
        emission = self.request.emission
        if not emission.length_us:
            return list(changes)
        self._waiting += changes
        periods: dict[int, list[Change]] = {}
        for change in self._waiting:
            periods.setdefault(self._period(change), []).append(change)
        present = (now_us - self.started_us) // emission.length_us
        self._waiting = [c for p, cs in periods.items() if p >= present for c in cs]
        ended = [added_up(cs) for p, cs in sorted(periods.items()) if p < present]
        if emission.repeats:
            ended = self._repeated(ended, repeats=present > self._so_far.period and present - 1 not in periods)
        self._so_far = replace(self._so_far, period=present)
        return ended

    def _repeated(self, ended: list[Change], *, repeats: bool) -> list[Change]:
        """The whole content after each change, and once more if `repeats`: the last period had no change."""
        found: list[Change] = []
        for change in ended:
            self._content = [added_up([*self._content, change])]
            found += self._content
        return [*found, *self._content] if repeats else found

    def _period(self, change: Change) -> int:
        return max(0, change.time_us - self.started_us) // self.request.emission.length_us

    def _said(self, change: Change) -> Change:
        """The change in the form that EMIT requires, with the number of the emission. Deleted rows precede those that
        replace them.
        """
        order = np.argsort(change.diff > 0, kind="stable")
        rows, diff = change.rows.take(pa.array(order)), change.diff[order]
        if self.request.emission.mode == "updates":
            came = diff > 0
            rows, diff = rows.filter(pa.array(came)), diff[came]
        if len(diff):
            self._so_far = replace(self._so_far, version=self._so_far.version + 1)
        numbers = pa.array(np.full(len(diff), self._so_far.version, np.int64))
        return Change(
            change.time_us, rows.rename_columns(self.empty.column_names).append_column(_VERSION, numbers), diff
        )

    def _limited(self, rows: pa.Table, diff: Diff) -> tuple[pa.Table, Diff]:
        """The first rows that LIMIT still allows."""
        left, offset = self._so_far.left, self._so_far.offset
        if left is None:
            return rows, diff
        total = int(np.abs(diff).sum())
        rows, diff = part(rows, diff, offset, offset + left)
        self._so_far = replace(self._so_far, offset=max(0, offset - total), left=left - int(np.abs(diff).sum()))
        return rows, diff


def part(rows: pa.Table, diff: Diff, first: int, last: int) -> tuple[pa.Table, Diff]:
    """The rows from number `first` (from 0) up to, but not including, `last`. Each row counts as often as it is
    inserted or deleted.
    """
    ends = np.cumsum(np.abs(diff))
    starts = ends - np.abs(diff)
    kept = np.clip(ends, first, last) - np.clip(starts, first, last)
    shown = np.flatnonzero(kept)
    return rows.take(pa.array(shown)), (np.sign(diff) * kept)[shown]


def added_up(changes: list[Change]) -> Change:
    """One change that is the sum of all, with the time of the last."""
    rows, diff = pa.concat_tables([c.rows for c in changes]), np.concatenate([c.diff for c in changes])
    if (diff > 0).all():
        return Change(changes[-1].time_us, rows, diff, changes[0].commit)
    whole = consolidate(Delta(positional([c.combine_chunks() for c in rows.columns]), diff))
    named = whole.columns.rename_columns(rows.column_names)
    return Change(changes[-1].time_us, named, whole.diff, changes[0].commit)


class Changes:
    """The changes of views in each commit from now on. Pins the commits until they are taken."""

    def __init__(self, database: OpenDatabase, since: int | None = None, held: str = ACTIVE) -> None:
        """since: the commit after which to begin; None for the newest one. held: the state of the lease on the commits
        (`store.readers`).
        """
        self._log, self._segments = database.log, database.segments
        self._reader = Reader(database.layout)
        self._taken = database.log.head() if since is None else since
        self._held = held
        self._reader.pin(self._taken, held)
        if held == ACTIVE:
            database.at_close(self._reader.close)

    @property
    def any(self) -> bool:
        """Whether there is a commit that was not taken yet."""
        return self._log.head() > self._taken

    @property
    def taken(self) -> int:
        """The last commit that was taken."""
        return self._taken

    def take(self, relation_id: str, upto: int | None = None) -> list[Change]:
        """The non-empty changes of a view since the last call, by commit. Never waits. upto: the last commit to read.

        History that a new view reads in several epochs is one change, after all of it was read, because the view never
        showed the steps.
        """
        head = self._log.head() if upto is None else upto
        found = []
        while (change := self._next(relation_id, head)) is not None:
            found.append(change)
        self._reader.pin(self._taken, self._held)
        return found

    def take_next(self, relation_id: str, upto: int | None = None, *, by_transaction: bool = False) -> Change | None:
        """The next change of a relation, which ends with the commit `taken`; None while it does not exist. Never waits.

        upto: the last commit to read. by_transaction: whether each transaction is a separate change, for a table that
        the circuit does not write.
        """
        head = self._log.head() if upto is None else upto
        found = self._next(relation_id, head, by_transaction=by_transaction)
        self._reader.pin(self._taken, self._held)
        return found

    def _next(self, relation_id: str, head: int, *, by_transaction: bool = False) -> Change | None:
        pieces: list[Commit] = []  # read once all exist
        before = head
        for number in range(self._taken + 1, head + 1):
            commit = self._log.read(number)
            if relation_id in commit.relations:
                before = before if pieces else number - 1
                pieces.append(commit)
            if pieces and (by_transaction or not _goes_on(commit, relation_id)):
                whole = self._whole(pieces, relation_id)
                pieces, before = [], head
                if whole is not None:
                    self._taken = number
                    return whole
        self._taken = max(self._taken, before)
        return None

    def _whole(self, pieces: list[Commit], relation_id: str) -> Change | None:
        changes = [change for commit in pieces if (change := self._of(commit, relation_id)) is not None]
        whole = added_up(changes) if len(changes) > 1 else changes[0] if changes else None
        return whole if whole is not None and len(whole.diff) else None

    def _of(self, commit: Commit, relation_id: str) -> Change | None:
        parts = [self._segments.read_change(b) for b in commit.relations[relation_id].blobs]
        diff = np.concatenate([np.zeros(0, np.int64), *(d for _, d in parts)])
        if not len(diff):
            return None
        rows = pa.concat_tables([t for t, _ in parts])
        if len(parts) > 1 and (diff < 0).any() and (diff > 0).any():  # buckets may have the same row
            net = without_cancelling(Delta(positional([c.combine_chunks() for c in rows.columns]), diff))
            rows, diff = net.columns.rename_columns(rows.column_names), net.diff
        return Change(commit.moment_us, rows, diff, commit.number)

    def back(self, commit: int) -> None:
        """Returns the changes after `commit` again from now on. It must not be before the last call."""
        self._taken = commit
        self._reader.pin(commit, self._held)

    def close(self) -> None:
        """Releases the commits. May be called again."""
        self._reader.close()


def _goes_on(commit: Commit, relation_id: str) -> bool:
    """Whether the relation still has history to read after the commit. Transactions in between don't matter."""
    backfill = None if commit.frontier is None else commit.frontier.backfill
    return commit.kind == "transaction" or backfill_of(relation_id, backfill) is not None
