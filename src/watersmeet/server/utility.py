"""Statements of the protocol: settings of PostgreSQL, cursors, prepared statements by SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from watersmeet.database import transactions
from watersmeet.dialects.tree.tokens import Cursor, read_options, read_value, span_of
from watersmeet.errors import error
from watersmeet.server.flowing import Flow
from watersmeet.server.messages import Column
from watersmeet.server.oids import TEXT
from watersmeet.server.portals import Portal
from watersmeet.server.settings import Settings
from watersmeet.server.steps import Outcome, Reader, Source, Step, outcome_of
from watersmeet.session.features.namedsubscriptions import read_beginning, subscription_rows
from watersmeet.values.times import length_us
from watersmeet.values.types import VARCHAR, Field


@dataclass(frozen=True)
class OwnStep:
    """A statement that is run by a function of the client's state.

    columns: of its rows, None without rows. recovers: it may run in a transaction that has failed.
    """

    action: Callable[[Any], Outcome]
    columns: tuple[Column, ...] | None = None
    recovers: bool = False

    def run(self, client: Any) -> Outcome:
        return self.action(client)

    def describe(self, client: Any) -> tuple[Column, ...] | None:
        del client
        return self.columns


def _done(tag: str) -> Outcome:
    return Outcome(tag)


def _set(source: Source, cursor: Cursor) -> Step | None:
    """SET of a setting of PostgreSQL; others are variables of the session."""
    local = not cursor.take("SESSION") and cursor.take("LOCAL")
    if cursor.take("CHARACTERISTICS", "AS", "TRANSACTION") or cursor.take("TRANSACTION"):
        return _characteristics(cursor)
    if cursor.take("AUTHORIZATION"):
        cursor.expect("DEFAULT")
        cursor.end()
        return OwnStep(lambda _: _done("SET"))
    if cursor.take("NAMES"):
        name = "client_encoding"
    elif cursor.current is not None and Settings.known(cursor.current.text) and not cursor.at("ROLE"):
        name = cursor.word().name
        if not cursor.take("TO"):
            cursor.expect("=")
    else:
        return _set_local(source, cursor) if local and cursor.current is not None and not cursor.at("ROLE") else None
    values = [read_value(cursor)]
    while cursor.take(","):
        values.append(read_value(cursor))
    cursor.end()

    def run(client: Any) -> Outcome:
        client.settings.set(name, ", ".join(values), local=local)
        return _done("SET")

    return OwnStep(run)


def _set_local(source: Source, cursor: Cursor) -> Step:
    """SET LOCAL of a variable of the session, which has its own value again when the transaction ends."""
    step = source.around("SET ", span_of(cursor.rest))
    name = cursor.rest[0].text

    def run(client: Any) -> Outcome:
        client.settings.keep(name)
        return step.run(client)

    return OwnStep(run)


def _characteristics(cursor: Cursor) -> Step:
    """SET TRANSACTION and SET SESSION CHARACTERISTICS: isolation level and access mode."""
    while not cursor.done:
        if cursor.take("ISOLATION", "LEVEL"):
            if not cursor.take("READ", "COMMITTED") and not cursor.take("READ", "UNCOMMITTED"):
                raise error(
                    "FEATURE_NOT_SUPPORTED",
                    "this isolation level is not supported",
                    sql=cursor.text,
                    hint="There is one level: READ COMMITTED.",
                )
        elif cursor.take("READ", "ONLY"):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "SET TRANSACTION READ ONLY is not supported",
                sql=cursor.text,
                hint="Write BEGIN READ ONLY, or serve with --read-only.",
            )
        elif not cursor.take("READ", "WRITE") and not cursor.take(",") and not cursor.take("NOT", "DEFERRABLE"):
            raise cursor.error()
    return OwnStep(lambda _: _done("SET"))


def _reset(source: Source, cursor: Cursor) -> Step | None:
    del source
    if cursor.take("ALL"):
        cursor.end()

        def run(client: Any) -> Outcome:
            client.reset_settings()
            return _done("RESET")

        return OwnStep(run)
    if cursor.take("SESSION", "AUTHORIZATION"):
        cursor.end()
        return OwnStep(lambda _: _done("RESET"))
    if cursor.current is None or not Settings.known(cursor.current.text) or cursor.at("ROLE"):
        return None
    name = cursor.word().name
    cursor.end()

    def reset(client: Any) -> Outcome:
        client.settings.set(name, None)
        return _done("RESET")

    return OwnStep(reset)


def _show(source: Source, cursor: Cursor) -> Step | None:
    """SHOW of one setting."""
    del source
    if cursor.at("TRANSACTION", "ISOLATION", "LEVEL"):
        name, title = "transaction_isolation", "transaction_isolation"
    elif cursor.current is not None and len(cursor.rest) == 1 and Settings.known(cursor.current.text):
        name = title = cursor.word().name
    else:
        return None
    columns = (Column(title, TEXT),)

    def run(client: Any) -> Outcome:
        table = pa.table({title: [client.settings.get(name)]})
        return Outcome("SHOW", None, columns, (Field(title, VARCHAR),), table)

    return OwnStep(run, columns)


def _discard(source: Source, cursor: Cursor) -> Step:
    del source
    what = cursor.word().name
    if what not in ("all", "plans", "sequences", "temp", "temporary"):
        cursor.index -= 1
        raise cursor.error()
    cursor.end()

    def run(client: Any) -> Outcome:
        if what == "all":
            client.discard_all()
        elif what == "plans":
            client.prepared.clear()
        return _done(f"DISCARD {what.upper()}")

    return OwnStep(run)


def _deallocate(source: Source, cursor: Cursor) -> Step:
    del source
    cursor.take("PREPARE")
    if cursor.take("ALL"):
        cursor.end()

        def clear(client: Any) -> Outcome:
            client.prepared.clear()
            return _done("DEALLOCATE ALL")

        return OwnStep(clear)
    name = cursor.name().name
    cursor.end()

    def run(client: Any) -> Outcome:
        client.prepared_named(name)
        del client.prepared[name]
        return _done("DEALLOCATE")

    return OwnStep(run)


def _declare(source: Source, cursor: Cursor) -> Step:
    """DECLARE name CURSOR FOR query: its rows are those of the moment when it is declared."""
    name = cursor.name().name
    if cursor.take("SUBSCRIPTION", "CURSOR"):
        return _declare_subscription(cursor, name)
    binary = False
    while not cursor.take("CURSOR"):
        if cursor.take("BINARY"):
            binary = True
        elif not (
            cursor.take("INSENSITIVE")
            or cursor.take("ASENSITIVE")
            or cursor.take("NO", "SCROLL")
            or cursor.take("SCROLL")
        ):
            raise cursor.error()
    held = cursor.take("WITH", "HOLD")
    if not held:
        cursor.take("WITHOUT", "HOLD")
    cursor.expect("FOR")
    if cursor.done:
        raise cursor.error()
    inner = source.within(cursor.rest[0].start, cursor.rest[-1].end + 1)

    def run(client: Any) -> Outcome:
        _check_new(client, name)
        alone = client.session.transaction is None
        outcome = inner.run(client)
        if outcome.running is None and alone and not held:
            raise error("NO_TRANSACTION", "DECLARE CURSOR can only be used in transaction blocks")
        if outcome.table is None and outcome.running is None:
            raise error("FEATURE_NOT_SUPPORTED", "a cursor of this statement is not supported")
        formats = (int(binary),) * len(outcome.columns or ())
        flow = client.flow_of(outcome)
        # A query that runs belongs to no moment: outside of a transaction its cursor stays until CLOSE.
        stays = held or (flow is not None and alone)
        client.portals[name] = Portal(inner, outcome.columns, formats, outcome, held=stays, is_cursor=True, flow=flow)
        client.check_portals()
        return replace(_done("DECLARE CURSOR"), notices=outcome.notices)

    return OwnStep(run)


def _declare_subscription(cursor: Cursor, name: str) -> Step:
    """DECLARE name SUBSCRIPTION CURSOR FOR subscription …, of RisingWave: it stays until CLOSE."""
    cursor.expect("FOR")
    subscription = cursor.relation_name()
    beginning = read_beginning(cursor)

    def run(client: Any) -> Outcome:
        _check_new(client, name)
        outcome = outcome_of(client.locked(subscription_rows, subscription, beginning, cursor.text))
        formats = (0,) * len(outcome.columns or ())
        flow = client.flow_of(outcome, waits=False)
        client.portals[name] = Portal(None, outcome.columns, formats, outcome, held=True, is_cursor=True, flow=flow)
        return replace(_done("DECLARE CURSOR"), notices=outcome.notices)

    return OwnStep(run)


def _check_new(client: Any, name: str) -> None:
    """DUPLICATE_CURSOR."""
    if name in client.portals:
        raise error("DUPLICATE_CURSOR", f'cursor "{name}" already exists')


@dataclass(frozen=True)
class FetchStep:
    """FETCH and MOVE. kind: next, absolute, relative; count: None: all. timeout_s: how long rows of a query that runs
    are waited for; None: as its cursor does.
    """

    name: str
    kind: str
    count: int | None
    moves: bool
    timeout_s: float | None = None

    def run(self, client: Any) -> Outcome:
        portal = client.portal_named(self.name)
        rows = self._taken(portal) if portal.flow is None else self._flowed(portal.flow)
        if self.moves:
            return Outcome("MOVE", rows.num_rows)
        outcome = portal.outcome
        return Outcome("FETCH", rows.num_rows, portal.columns, outcome.schema, rows)

    def describe(self, client: Any) -> tuple[Column, ...] | None:
        columns: tuple[Column, ...] = client.portal_named(self.name).columns
        return None if self.moves else columns

    def _flowed(self, flow: Flow) -> pa.Table:
        """The next rows of a query that runs."""
        if self.kind != "next" or (self.count is not None and self.count < 0):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "a cursor over a query that runs until it is stopped only goes forward",
                hint="Write FETCH n FROM cursor.",
            )
        return flow.take(self.count, self.timeout_s)

    def _taken(self, portal: Portal) -> pa.Table:
        """The rows; `position` is behind the last one that was given."""
        table, total = portal.table, portal.table.num_rows
        if self.kind == "next":
            if self.count is None or self.count >= 0:
                start = min(portal.position, total)
                found = table.slice(start, self.count)
                portal.position = start + self.count if found.num_rows == self.count else total + 1
                return found
            start = max(portal.position - 1 + self.count, 0)
            end = max(portal.position - 1, 0)
            portal.position = start + (1 if end - start == -self.count else 0)
            found = table.slice(start, min(end, total) - start)
            return found.take(pa.array(range(found.num_rows - 1, -1, -1), pa.int64()))
        assert self.count is not None
        row = portal.position + self.count if self.kind == "relative" else self.count
        if self.kind == "absolute" and row < 0:
            row = total + 1 + row
        portal.position = max(0, min(row, total + 1))
        return table.slice(row - 1, 1) if 1 <= row <= total else table.slice(0, 0)


_ONE: Final = {"NEXT": ("next", 1), "PRIOR": ("next", -1), "FIRST": ("absolute", 1), "LAST": ("absolute", -1)}


def _fetch(source: Source, cursor: Cursor, *, moves: bool = False) -> Step:
    del source
    kind, count = _direction(cursor)
    if not cursor.take("FROM"):
        cursor.take("IN")
    name = cursor.name().name
    timeout_s = _timeout(cursor) if cursor.take("WITH") else None
    cursor.end()
    return FetchStep(name, kind, count, moves, timeout_s)


def _timeout(cursor: Cursor) -> float:
    """`(timeout = '1s')`: the cursor stands behind WITH."""
    place = span_of(cursor.rest or cursor.tokens)
    options = read_options(cursor)
    length = length_us(options.get("timeout", ""))
    if options.keys() != {"timeout"} or length is None or length < 0:
        raise error(
            "INVALID_PARAMETER",
            "FETCH has the option timeout, a length of time",
            sql=cursor.text,
            span=place,
            hint="Write WITH (timeout = '1s').",
        )
    return length / 1e6


def _direction(cursor: Cursor) -> tuple[str, int | None]:
    for word, found in _ONE.items():
        if cursor.take(word):
            return found
    for word in ("ABSOLUTE", "RELATIVE"):
        if cursor.take(word):
            return word.lower(), _number(cursor)
    sign = -1 if cursor.take("BACKWARD") else 1
    if sign == 1:
        cursor.take("FORWARD")
    if cursor.take("ALL"):
        return "next", None if sign == 1 else -(1 << 62)
    count = _number(cursor) if cursor.at("-") or (cursor.current is not None and cursor.current.text.isdecimal()) else 1
    return "next", sign * count


def _number(cursor: Cursor) -> int:
    return -cursor.integer() if cursor.take("-") else cursor.integer()


def _close(source: Source, cursor: Cursor) -> Step:
    del source
    if cursor.take("ALL"):
        cursor.end()

        def clear(client: Any) -> Outcome:
            client.drop_portals(*[n for n, p in client.portals.items() if p.is_cursor])
            return _done("CLOSE CURSOR ALL")

        return OwnStep(clear)
    name = cursor.name().name
    cursor.end()

    def run(client: Any) -> Outcome:
        client.portal_named(name)
        client.drop_portals(name)
        return _done("CLOSE CURSOR")

    return OwnStep(run)


def _savepoint(source: Source, cursor: Cursor) -> Step:
    del source
    name = cursor.name().name
    cursor.end()

    def run(client: Any) -> Outcome:
        client.require_transaction("SAVEPOINT")
        client.savepoints.append((name, transactions.savepoint(client.session)))
        return _done("SAVEPOINT")

    return OwnStep(run)


def _release(source: Source, cursor: Cursor) -> Step:
    del source
    cursor.take("SAVEPOINT")
    name = cursor.name().name
    cursor.end()

    def run(client: Any) -> Outcome:
        client.require_transaction("RELEASE SAVEPOINT")
        del client.savepoints[client.savepoint_named(name) :]
        return _done("RELEASE")

    return OwnStep(run)


def _rollback(source: Source, cursor: Cursor) -> Step | None:
    """ROLLBACK TO SAVEPOINT; others are the session's."""
    del source
    if not cursor.take("TRANSACTION"):
        cursor.take("WORK")
    if not cursor.take("TO"):
        return None
    cursor.take("SAVEPOINT")
    name = cursor.name().name
    cursor.end()

    def run(client: Any) -> Outcome:
        client.require_transaction("ROLLBACK TO SAVEPOINT")
        place = client.savepoint_named(name)
        transactions.rollback_to(client.session, client.savepoints[place][1])
        del client.savepoints[place + 1 :]
        return _done("ROLLBACK")

    return OwnStep(run, recovers=True)


def _truncate(source: Source, cursor: Cursor) -> Step:
    """TRUNCATE: all rows are deleted. There are no sequences that could begin anew, and no foreign keys."""
    cursor.take("TABLE")
    places = []
    while True:
        cursor.take("ONLY")
        start = cursor.index
        cursor.relation_name()
        places.append(span_of(cursor.tokens[start : cursor.index]))
        if not cursor.take(","):
            break
    if not cursor.take("RESTART", "IDENTITY"):
        cursor.take("CONTINUE", "IDENTITY")
    if not cursor.take("CASCADE"):
        cursor.take("RESTRICT")
    cursor.end()
    steps = [source.around("DELETE FROM ", place) for place in places]

    def run(client: Any) -> Outcome:
        if len(steps) > 1:
            client.require_transaction("TRUNCATE of several tables")
        for step in steps:
            step.run(client)
        return _done("TRUNCATE TABLE")

    return OwnStep(run)


def _unlisten(source: Source, cursor: Cursor) -> Step:
    """UNLISTEN: nothing is listened to."""
    del source, cursor
    return OwnStep(lambda _: _done("UNLISTEN"))


#: By first word.
READERS: Final[dict[str, Reader]] = {
    "CLOSE": _close,
    "DEALLOCATE": _deallocate,
    "DECLARE": _declare,
    "DISCARD": _discard,
    "FETCH": _fetch,
    "TRUNCATE": _truncate,
    "MOVE": lambda source, cursor: _fetch(source, cursor, moves=True),
    "RELEASE": _release,
    "RESET": _reset,
    "ROLLBACK": _rollback,
    "SAVEPOINT": _savepoint,
    "SET": _set,
    "SHOW": _show,
    "UNLISTEN": _unlisten,
}
