"""Moments of the past that queries name: which commits they are, and that these can still be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from watersmeet.algebra.bounded import Past, PastScan
from watersmeet.catalog import Catalog, Relation
from watersmeet.database.opened import OpenDatabase
from watersmeet.errors import Error, error
from watersmeet.store.commits import Commit
from watersmeet.store.floors import floor_number
from watersmeet.store.history import check_there, commit_at, gone, hold_past, shown_time
from watersmeet.store.past import PastContent
from watersmeet.store.readers import Reader


@contextmanager
def held_past(
    database: OpenDatabase, scans: Sequence[PastScan], catalog: Catalog, text: str
) -> Iterator[list[PastContent]]:
    """What a query reads as of earlier moments. Inside the block it is kept.

    text: the statement that errors show. HISTORY_GONE; INVALID_PARAMETER for a commit that there is not yet.
    """
    found: list[PastContent] = []
    with closing(Reader(database.layout)) as hold:
        by_name = {scan.name: scan for scan in scans}
        numbers = {}
        for scan in by_name.values():
            with _placed(scan, text):
                numbers[scan.name] = _commit(database, scan.past)
        # The last is the oldest, which keeps all.
        falling = sorted(by_name.values(), key=lambda s: numbers[s.name], reverse=True)
        for scan in falling:
            relation, number = catalog.relations[scan.relation_id], numbers[scan.name]
            with _placed(scan, text):
                if scan.past.by == "own commit":
                    if not hold.hold(number):
                        raise gone(database.layout, database.log, f"commit {number}")
                    upto = number
                else:
                    upto = hold_past(database.layout, database.log, hold, number).upto(relation)
                    check_there(database.log, [relation], number)
            found.append(PastContent(scan.name, scan.relation_id, upto))
        yield found


def own_commit(database: OpenDatabase, relation: Relation, number: int, newest: Commit, floor: int) -> int:
    """The last commit that counts for what a relation itself had when a query began after commit `number`.

    What the circuit feeds counts as the epoch left it that read all that was committed before. newest: the newest
    epoch. floor: the commit up to which history may be gone; the result is less if that epoch is.
    """
    if not relation.is_fed_by_circuit or number < floor:
        return number
    began = database.log.find(number)
    transaction, found = number if began is None else began.last_transaction, 0
    epoch: Commit | None = newest
    while epoch is not None and epoch.number > floor and epoch.frontier is not None:
        if epoch.frontier.transaction < transaction or (found and found <= number):
            break
        found = epoch.number
        epoch = database.log.find(epoch.epoch_before)
    return found


@contextmanager
def _placed(scan: PastScan, text: str) -> Iterator[None]:
    """Errors of the block get the place of the scan."""
    try:
        yield
    except Error as err:
        err.sql, err.span = text or None, scan.span
        raise


def _commit(database: OpenDatabase, past: Past) -> int:
    """The commit that is meant. HISTORY_GONE for a time before the oldest that is kept."""
    wanted = f"epoch_us({past.sql})" if past.by == "time" else past.sql
    with database.content.session() as connection:
        row = connection.execute(f"SELECT {wanted}").fetchone()
    if row is None or row[0] is None:
        raise error("INVALID_PARAMETER", "a moment of the past can't be NULL")
    if past.by != "time":
        return int(row[0])
    floor, time = floor_number(database.layout), shown_time(int(row[0]))
    number = commit_at(database.log, int(row[0]), floor)
    if not number:
        raise error("HISTORY_GONE", f"the database had no commits at {time}", hint="SHOW COMMITS lists those it has.")
    if number == floor:
        raise gone(database.layout, database.log, time)
    return number
