"""History: which commits of the past can still be read, and what keeps them.

A relation as of a commit is what it is now without the changes since. So a commit can be read as long as all commits
behind it are there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from watersmeet.catalog import Relation
from watersmeet.errors import Error, error
from watersmeet.store.commits import CommitLog
from watersmeet.store.floors import floor_number
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import Commit
from watersmeet.store.moments import EMPTY, Moment, past_moment
from watersmeet.store.readers import Reader


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
