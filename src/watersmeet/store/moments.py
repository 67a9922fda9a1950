"""Moments of a database: now, those of the past that can still be read, and content as of them.

What one moment of a database is: for each relation, up to which commit its changes count.

History: which commits of the past can still be read, and what keeps them.

A relation as of a commit is what it is now without the changes since. So a commit can be read as long as all commits
behind it are there.

Content of the past: what it is now, without the changes since.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from watersmeet.catalog import Catalog, MaterializedView, Relation
from watersmeet.errors import Error, error
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Commit, RelationChange
from watersmeet.store.readers import Reader, floor_number


@dataclass(frozen=True, slots=True)
class Moment:
    """Relations that the circuit writes are read up to commit `head`, the session's tables up to `transaction`.

    transaction <= head. A later moment may have a smaller `transaction`, but then no transaction lies between.
    """

    head: int
    transaction: int

    def upto(self, relation: Relation) -> int:
        """The number of the last commit that counts for `relation`."""
        return self.head if relation.is_fed_by_circuit else self.transaction


#: The moment of a database without commits.
EMPTY: Final = Moment(0, 0)


def moment_at(log: CommitLog, catalog: Catalog, head: int | None = None, *, filling: bool = False) -> Moment:
    """The moment that commit `head` (default: the newest) shows.

    All views show the inputs up to the frontier of the newest epoch, so tables are shown at that frontier, too.
    Where no view is ready there is nothing to agree with, and tables are shown as they are.
    filling: agree with views that are not ready yet, too: what they will show must still be there then.
    """
    while True:
        at = log.head() if head is None else head
        try:
            return _moment(log, catalog, at, filling=filling)
        except Error:
            # A foreign reader was overtaken: newer epochs came, and the one at `at` was cleaned away.
            if head is not None or log.head(anew=True) == at:
                raise


def _moment(log: CommitLog, catalog: Catalog, head: int, *, filling: bool) -> Moment:
    filled = filling and any(isinstance(r, MaterializedView) for r in catalog.relations.values())
    return _reflected(log, head) if filled or catalog.follows_epochs else Moment(head, head)


def past_moment(log: CommitLog, number: int) -> Moment:
    """The moment that commit `number` showed when it was the newest. DATABASE_DAMAGED if it, or its epoch, is gone."""
    return _reflected(log, number) if log.read(number).follows else Moment(number, number)


def _reflected(log: CommitLog, head: int) -> Moment:
    epoch = log.last_epoch(head)
    if epoch is None or epoch.frontier is None:
        return Moment(head, head)
    reflected = min(epoch.frontier.transaction, head)
    # Without later transactions the tables are the same at the head, and old commits need not be kept for them.
    return Moment(head, head if log.read(head).last_transaction <= reflected else reflected)


def hold_past(layout: Layout, log: CommitLog, reader: Reader, number: int) -> Moment:
    """The moment of commit `number`. `reader` holds all commits that changed what it shows.

    INVALID_PARAMETER for a commit that there is not yet; HISTORY_GONE.
    """
    newest = log.head()
    if not 0 <= number <= newest:
        raise error("INVALID_PARAMETER", f"there is no commit {number}", hint=f"The newest commit is {newest}.")
    reader.keep(max(number - 1, 0))
    try:
        moment = past_moment(log, number) if number else EMPTY
    except Error:
        if floor_number(layout) < number:  # it is there, and can't be read
            raise
        raise gone(layout, log, f"commit {number}") from None
    if not reader.hold(moment.transaction):
        raise gone(layout, log, f"commit {number}")
    return moment


def check_there(log: CommitLog, relations: Iterable[Relation], number: int) -> None:
    """HISTORY_GONE for relations that were made, or first filled, after commit `number`."""
    version = log.read(number).catalog_version if number else 0
    for relation in relations:
        if relation.since > version:
            raise error(
                "HISTORY_GONE",
                f"{relation.title} was not there yet at commit {number}",
                detail="It was created, or complete for the first time, later than that.",
                hint="SHOW COMMITS lists commits. Of what was dropped and created again, the old history is gone.",
            )


def commit_at(log: CommitLog, time_us: int, floor: int) -> int:
    """The newest commit that was made up to that time (microseconds since 1970, UTC); `floor` if none above it was."""
    low, high = floor, log.head()
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if log.read(middle).time_us <= time_us else (low, middle - 1)
    return low


def oldest_commit(layout: Layout, log: CommitLog) -> Commit | None:
    """The oldest commit that can be read, of all relations; None in a database without commits."""
    head = log.head()
    floor = floor_number(layout)
    for number in range(floor + 1, head + 1):
        try:
            if past_moment(log, number).transaction >= floor:
                return log.read(number)
        except Error:
            continue
    return log.read(head) if head else None


def shown_time(time_us: int) -> str:
    """A time for messages."""
    return dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def gone(layout: Layout, log: CommitLog, since: str) -> Error:
    """The error for changes that are needed and were deleted. since: the moment after which they were made."""
    oldest = oldest_commit(layout, log)
    detail = f"The oldest commit there is: {oldest.number}, of {shown_time(oldest.time_us)}." if oldest else None
    return error(
        "HISTORY_GONE",
        f"the history since {since} is no longer kept",
        detail=detail,
        hint="ALTER SYSTEM SET retention = '1 day' keeps history for longer.",
    )


class PastContent(NamedTuple):
    """The content of a relation as of an earlier moment. name: of its view. upto: the last commit that counts."""

    name: str
    relation_id: str
    upto: int


class Undoing:
    """What was changed since earlier moments. Most of it is read before the content is locked."""

    def __init__(
        self,
        read: Callable[[dict[str, tuple[int, int]]], dict[str, list[RelationChange]]],
        now: Moment,
        catalog: Catalog,
        past: Sequence[PastContent],
    ) -> None:
        """read: the changes of relations by their bounds, as of `Content`. now: up to where it reads at once."""
        self._read = read
        self.past = past
        self._upto = {one.name: max(now.upto(catalog.relations[one.relation_id]), one.upto) for one in past}
        self._before = {
            one.name: read({one.relation_id: (one.upto, self._upto[one.name])}).get(one.relation_id, []) for one in past
        }

    def changes(self, one: PastContent, applied: int) -> list[RelationChange]:
        """The changes since, up to commit `applied`."""
        later = self._read({one.relation_id: (self._upto[one.name], applied)})
        return [*self._before[one.name], *later.get(one.relation_id, [])]
