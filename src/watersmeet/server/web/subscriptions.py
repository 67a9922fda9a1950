"""Subscriptions as server-sent events: the content of views, then what each commit changes.

`GET /subscribe?view=v&view=w`: the id of an event is the number of the commit that it completes, so that browsers go on
by themselves where they were (Last-Event-ID); others give `after`. See docs/SERVING.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from aiohttp import web

from watersmeet.database.sessions.context import Session
from watersmeet.errors import Error, did_you_mean, error
from watersmeet.server.valuebytes import texts
from watersmeet.server.web.tabs import STILL_THERE, STILL_THERE_S, event
from watersmeet.subscribing.subscriber import Subscriber, subscribe
from watersmeet.subscribing.updates import ChangeBatch, Update
from watersmeet.values.types import Schema, SqlType

#: Types whose values are numbers and truths of JSON; all others are texts, as PostgreSQL writes them.
_NATIVE: Final = ("smallint", "integer", "real", "double precision", "boolean")
#: What a request may say, and the words of truths.
_ASKED: Final = ("view", "after", "up_to", "snapshot", "progress")
_TRUTHS: Final = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
#: Digits of the number of a commit.
_MOST_DIGITS: Final = 18
#: Under this, a batch keeps its text for all who follow the view.
_TEXT: Final = "server-sent events"


def opened(session: Session, request: web.Request) -> Subscriber | None:
    """The subscriber that a request asks for; None if all that it asks for was sent before. Blocks.

    Errors as of `Connection.subscribe`.
    """
    query = request.query
    for asked in query:
        if asked not in _ASKED:
            raise error(
                "INVALID_PARAMETER",
                f'a subscription has no parameter "{asked}"',
                hint=did_you_mean(asked, _ASKED) or f"There are: {', '.join(_ASKED)}.",
            )
    names = query.getall("view", [])
    after = _number(request.headers.get("Last-Event-ID") or query.get("after"), "after")
    up_to = _number(query.get("up_to"), "up_to")
    if after is not None and up_to is not None and after >= up_to:
        return None
    return subscribe(
        session,
        names,
        after=after,
        up_to=up_to,
        snapshot=_truth(query.get("snapshot", "true"), "snapshot"),
        progress=_truth(query.get("progress", "false"), "progress"),
    )


async def stream(
    response: web.StreamResponse, subscriber: Subscriber, allowed: Callable[[], None], slow_s: float
) -> None:
    """Sends updates until the subscription ends, or the client goes. allowed: raises what ends it.

    TimeoutError if the client takes nothing for `slow_s` seconds.
    """
    first, columns = True, {f.relation.shown: f.relation.columns for f in subscriber.followed}
    try:
        while True:
            allowed()
            update = await subscriber.take_async()
            if update is not None:
                part = written(update, columns, first=first)
                first = first and not update.is_complete
            elif subscriber.ended:
                part = event("end", {"commit": subscriber.token})
            else:
                part = b"" if await _arrived(subscriber) else STILL_THERE
            async with asyncio.timeout(slow_s):
                await response.write(part)
            if update is None and subscriber.ended:
                return
    except Error as err:
        async with asyncio.timeout(slow_s):
            await response.write(event("failed", {"error": err.to_json(), "token": subscriber.token}))


def written(update: Update, columns: Mapping[str, Schema], *, first: bool) -> bytes:
    """An update as an event. columns: of each relation. first: it begins the content, so that what was known before
    counts no more.
    """
    name = "snapshot" if update.is_snapshot else "change" if update.batches else "progress"
    begins = ',"begins":true' if first and update.is_snapshot else ""
    complete = "true" if update.is_complete else "false"
    parts = ",".join(b.made(_TEXT, lambda b: _text(b, columns[b.relation])) for b in update.batches)
    number = f"id: {update.commit}\n" if update.is_complete else ""
    data = f'{{"commit":{update.commit},"time_us":{update.time_us},"complete":{complete}{begins},"changes":[{parts}]}}'
    return f"event: {name}\n{number}data: {data}\n\n".encode()


def _text(batch: ChangeBatch, columns: Schema) -> str:
    values = [_values(batch.rows.column(i), c.type) for i, c in enumerate(columns)]
    rows = list(zip(*values, strict=True))
    names = [c.name for c in columns]
    found = {"view": batch.relation, "columns": names, "rows": rows, "diffs": batch.diffs.tolist()}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _values(column: pa.Array, kind: SqlType) -> list[object]:
    """The values of a column for JSON."""
    is_native = kind.name in _NATIVE
    if is_native and pa.types.is_floating(column.type):
        is_native = pc.all(pc.is_finite(column)).as_py() is not False  # JSON has no NaN
    found: list[object] = (column if is_native else texts(column, kind)).to_pylist()
    return found


def _number(text: str | None, name: str) -> int | None:
    """A commit's number. INVALID_PARAMETER."""
    if text is None or not text:
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise error("INVALID_PARAMETER", f"{name} is the number of a commit")
    return int(text)


def _truth(text: str, name: str) -> bool:
    """INVALID_PARAMETER."""
    if text.lower() not in _TRUTHS:
        raise error("INVALID_PARAMETER", f'{name} is true or false, not "{text}"')
    return _TRUTHS[text.lower()]


async def _arrived(subscriber: Subscriber) -> bool:
    """Whether there may be an update before the client has to be told that all goes on."""
    try:
        async with asyncio.timeout(STILL_THERE_S):
            await subscriber.arrive()
    except TimeoutError:
        return False
    return True
