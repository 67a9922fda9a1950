"""SHOW COMMITS, and the setting that keeps history: ALTER SYSTEM SET retention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from watersmeet.algebra.timewindows import timeout_us
from watersmeet.catalog import Relation
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result, typed_result
from watersmeet.dialects.statements.history import AlterSystem, ShowCommits
from watersmeet.errors import did_you_mean
from watersmeet.session.statements.clockreset import reset_clock
from watersmeet.store.manifests import Commit
from watersmeet.store.moments import oldest_commit
from watersmeet.types import BIGINT, TIMESTAMPTZ, VARCHAR, Field, Schema

_COMMITS: Final[Schema] = (
    Field("commit", BIGINT, nullable=False),
    Field("committed", TIMESTAMPTZ, nullable=False),
    Field("kind", VARCHAR, nullable=False),
    Field("relations", VARCHAR),
    Field("inserted", BIGINT, nullable=False),
    Field("deleted", BIGINT, nullable=False),
)
RETENTION: Final = "retention"
#: RisingWave's name for it, in milliseconds.
_RETENTION_MS: Final = "time_travel_retention_ms"
_CLOCK: Final = "clock"


def show_commits(session: Session, statement: ShowCommits) -> Result:
    """SHOW COMMITS: what is kept of the history, the newest first."""
    named = None if statement.relation is None else session.relation(statement.relation, statement)
    shown = {r.id: r for r in session.catalog.shown if not r.hidden} if named is None else {named.id: named}
    rows: list[tuple[Any, ...]] = []
    for commit in _newest_first(session):
        if statement.limit is not None and len(rows) >= statement.limit:
            break
        if named is None or named.id in commit.relations:
            rows.append(_row(commit, shown))
    return typed_result("SHOW", _COMMITS, rows)


def _newest_first(session: Session) -> Iterator[Commit]:
    """All commits that can be read. Another process may delete the oldest meanwhile."""
    database = session.database
    log = database.log
    oldest = oldest_commit(database.layout, log)
    for number in range(log.head(), oldest.number - 1 if oldest else 0, -1):
        commit = log.find(number)
        if commit is None:
            return
        yield commit


def _row(commit: Commit, shown: dict[str, Relation]) -> tuple[Any, ...]:
    changes = {i: c for i, c in commit.relations.items() if i in shown}
    names = ", ".join(sorted(shown[i].shown for i in changes))
    inserted, deleted = (sum(getattr(c, f"{w}_rows") for c in changes.values()) for w in ("inserted", "deleted"))
    return commit.number, commit.time_us, commit.kind, names or None, inserted, deleted


def alter_system(session: Session, statement: AlterSystem) -> Result:
    """ALTER SYSTEM SET retention: for how long history is kept. ALTER SYSTEM RESET clock: see `clockreset`.

    INVALID_PARAMETER, UNDEFINED_OBJECT.
    """
    session.require_definer("ALTER SYSTEM")
    session.require_no_transaction("ALTER SYSTEM")
    if statement.name == _CLOCK:
        return _reset_clock(session, statement)
    if statement.name not in (RETENTION, _RETENTION_MS):
        raise error_at(
            statement,
            statement.place,
            "UNDEFINED_OBJECT",
            f'there is no setting "{statement.name}" of the database',
            hint=did_you_mean(statement.name, [RETENTION, _CLOCK])
            or f"There are two: {RETENTION} and, for RESET only, {_CLOCK}.",
        )
    retention_us = None if statement.value is None else _length_us(statement, statement.value)
    database = session.database
    with database.guard:
        database.change_catalog(database.catalog.with_retention(retention_us))
    return Result("ALTER SYSTEM")


def _reset_clock(session: Session, statement: AlterSystem) -> Result:
    if statement.value is not None:
        raise error_at(
            statement,
            statement.place,
            "INVALID_PARAMETER",
            "clock can only be reset",
            hint="ALTER SYSTEM RESET clock lets the time of epochs begin again at the machine's clock.",
        )
    with located(statement, statement.place):
        reset_clock(session)
    return Result("ALTER SYSTEM")


def _length_us(statement: AlterSystem, value: str) -> int:
    if value.isascii() and value.isdecimal() and (statement.name == _RETENTION_MS or int(value) == 0):
        return int(value) * 1000
    length = timeout_us(value) if statement.name == RETENTION else None
    if length is None:
        raise error_at(
            statement,
            statement.place,
            "INVALID_PARAMETER",
            f'{statement.name} can\'t be "{value}"',
            hint="Write a length of time such as '1 day', or 0."
            if statement.name == RETENTION
            else "Write a number of milliseconds.",
        )
    return length
