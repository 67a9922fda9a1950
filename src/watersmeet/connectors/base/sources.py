"""The contract of sources: polls, slices, rows of slices, and the protocol `Source`.

The driver cuts slices (`Source.poll`), workers read them (`registry.read_slice`).

A source with a limit of rows a second, which may be paused.

The contract of readers, which fetch the content of external tables and dictionaries, and the conditions that queries
push down to them.
"""

from __future__ import annotations

import abc
import datetime as dt
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.catalog import External, MessageFormat, Relation
from watersmeet.connectors.base.options import RATE_LIMIT, OptionSet, refuse
from watersmeet.errors import error
from watersmeet.system import files
from watersmeet.system.threads import OneCall, Worker
from watersmeet.values.slices import SourceSlice
from watersmeet.values.times import SECOND_US
from watersmeet.values.types import Field, Schema


@dataclass(frozen=True)
class SourceSpec:
    """Base."""

    kind: ClassVar[str]


class Notification:
    """Set when a source has new input since the last poll. Thread-safe. woken: also set, for a thread that waits."""

    def __init__(self, woken: threading.Event) -> None:
        self._woken = woken
        self.is_set = False

    def notify(self) -> None:
        """A source has new input."""
        self.is_set = True
        self._woken.set()

    def take(self) -> None:
        """Resets it. Call it before polling, so that later input notifies again."""
        self.is_set = False


Answer = TypeVar("Answer")

#: How long a caller who needs a new answer waits for it.
_WAIT_S: Final = 10


class Inquiry(Generic[Answer]):
    """Asks an external system in a background thread, one question at a time. One thread uses it.

    name: of the thread. title: of the system. took_us: the time of the newest answer.
    """

    def __init__(self, name: str, title: str) -> None:
        self._name, self._title = name, title
        self._thread: Worker | None = None
        self._answer: Answer | None = None
        self._notification: Notification | None = None
        self.took_us = 0

    def listen(self, notification: Notification) -> None:
        """Sets the notification for each answer."""
        self._notification = notification

    @property
    def is_idle(self) -> bool:
        """Whether neither a question nor an answer is pending."""
        return self._thread is None and self._answer is None

    @property
    def is_answered(self) -> bool:
        """Whether an answer can be taken."""
        return self._answer is not None

    def begin(self, ask: Callable[[], Answer]) -> None:
        """Asks, unless a question is pending. ask: raises nothing."""
        if self._thread is None:
            self._answer = None
            self._thread = OneCall(self._name, self._title, lambda: self._run(ask))
            self._thread.start()

    def take(self) -> Answer | None:
        """The answer, once."""
        found, self._answer = self._answer, None
        return found

    def now(self, ask: Callable[[], Answer]) -> Answer | None:
        """The answer to a question that begins now; None if it takes too long."""
        self._wait()  # an earlier question may have begun too early
        self._answer = None
        self.begin(ask)
        self._wait()
        return self.take()

    def _wait(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(_WAIT_S)

    def _run(self, ask: Callable[[], Answer]) -> None:
        began = time.perf_counter_ns()
        self._answer = ask()
        self.took_us = (time.perf_counter_ns() - began) // 1000
        self._thread = None
        if self._notification is not None:
            self._notification.notify()


class Unavailable(OSError):  # noqa: N818 - a state that passes
    """An external system can't be reached for now: brokers, a schema registry. The epoch is planned again later."""


@dataclass(frozen=True, slots=True)
class Poll:
    """The input that a source has now.

    slices: in order of arrival. position: JSON; the source's position once the slices are committed.
    more: True if another poll, right after these slices are accepted, would give more (the budget was the limit).
    pending: files or lines that are not complete yet. next_us: when a pending thing becomes
    readable if nothing else happens (None: only notification can help).
    finished: the source will never give anything again.
    """

    slices: tuple[SourceSlice, ...]
    position: Any
    more: bool = False
    pending: int = 0
    next_us: int | None = None
    finished: bool = False

    @property
    def rows(self) -> int:
        """The estimated number of rows of all slices."""
        return sum(s.rows for s in self.slices)

    @property
    def size_bytes(self) -> int:
        """The estimated bytes of all slices."""
        return sum(s.size_bytes for s in self.slices)


@dataclass(frozen=True, slots=True)
class History:
    """A piece of what a source gave up to a position. cursor: where the next piece starts, None at the end. lost: what
    is no longer there, of all pieces, as a sentence of a message; told with the first one.
    """

    slices: tuple[SourceSlice, ...]
    cursor: Any
    lost: str = ""


class Source(Protocol):
    """A connector on the driver. Not thread-safe.

    Life: `load` (what was saved) and `accept` (slices of later commits), then again and again
    `poll`, commit, `accept`. `poll` changes nothing that matters: a poll whose slices were not
    accepted may be forgotten, the next one finds the same input again.
    """

    relation_id: str

    def spec(self) -> SourceSpec:
        """The description that `read_slice` needs in addition to each slice."""

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        """Slices that follow `position` (None at first; else that of the newest accepted poll).

        Never more than the budget, but at least one slice if there is input. fresh: look at the
        outside world now, whatever the cadence (FLUSH). Raises DATABASE_DAMAGED if `position` is not where
        the accepted slices end.
        """

    def listen(self, notification: Notification) -> None:
        """Sets the notification for new input, if the source learns of it without polling."""

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        """Takes note that `slices` are committed. Idempotent; raises DATABASE_DAMAGED on a gap in the ordinals."""

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        """All accepted input once more, in pieces within the budget (backfill). cursor None: from the start.

        Slices of a history have ordinals of their own and must not be given to `accept`.
        """

    def save(self, path: Path) -> None:
        """Writes what was accepted so far to `path` (a file, replaced atomically)."""

    def load(self, path: Path) -> None:
        """The inverse of `save`; later slices are then accepted again."""

    def status(self) -> dict[str, Any]:
        """Counters and problems for SHOW: JSON."""


def check_position(relation_id: str, position: int, accepted: int, unit: str = "slice") -> None:
    """DATABASE_DAMAGED unless the position of a source is where its accepted slices end."""
    if position != accepted:
        raise error(
            "DATABASE_DAMAGED",
            f"the position of source {relation_id} is {unit} {position}, its accepted slices end at {accepted}",
        )


def is_known_slice(relation_id: str, piece: SourceSlice, accepted: int, of: str) -> bool:
    """Whether a slice was accepted before. DATABASE_DAMAGED for one that is not the next one. of: its content."""
    if piece.ordinal > accepted:
        raise error(
            "DATABASE_DAMAGED",
            f"slices {accepted} to {piece.ordinal - 1} of source {relation_id} are missing",
            detail=f"{of} would be read twice or never.",
        )
    return piece.ordinal < accepted


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a source, atomically."""
    files.make_directory(path.parent)
    files.replace_file(path, json.dumps(state).encode(), durable=True)


@contextmanager
def saved_state(path: Path) -> Iterator[Any]:
    """The state that `save_state` wrote. DATABASE_DAMAGED if it, or a part that the block reads, is missing."""
    try:
        yield json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise error(
            "DATABASE_DAMAGED", f"the state of a source, {path.name}, can't be read", detail=str(problem)
        ) from problem


@dataclass(frozen=True)
class SourceRows:
    """The rows of a slice.

    table: the requested columns by name, in Arrow types of their SQL types. ordinals: int64, ascending, the
    rows' offsets in the slice (rows that were set aside leave gaps); len(ordinals) is the number of rows
    even if no column was requested. missing_columns: declared columns that the file does not have (NULL).
    diff: int64: 1 for an inserted row, -1 for a deleted one, of which only the primary key counts; None: all
    are 1. kept: for relations that have partial changes (`Relation.has_partial_changes`): for each row NULL, or, with
    diff 1, the names of the columns that keep the value which the row of its key has, and with diff -1 an empty list:
    the table is emptied (`circuit.operators.Upsert`). None: all are NULL.
    """

    table: pa.Table
    ordinals: npt.NDArray[np.int64]
    missing_columns: tuple[str, ...] = field(default=())
    diff: npt.NDArray[np.int64] | None = None
    kept: pa.ListArray | None = None


class DeadLetterSink(Protocol):
    """Where rows that can't be read go."""

    def add(self, file: str, line: int | None, reason: str, text: str = "", rows: int = 1) -> None:
        """Sets one record aside. line: 1-based line (Parquet: row) of the file, None for a whole file or slice."""

    def add_rows(self, file: str, lines: Sequence[int], reasons: Sequence[str], texts: Sequence[str]) -> None:
        """Sets several rows aside."""

    def add_messages(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        reasons: Sequence[str],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
    ) -> None:
        """Sets several messages aside."""

    def add_lost(self, topic: str, partition: int, begin: int, end: int, reason: str) -> None:
        """Counts the messages [begin, end) of a partition that are not there any more."""


@dataclass(frozen=True)
class SourceConnector:
    """A system that is read as a stream.

    open: the source of a relation. spec: the class of what its `spec` returns, which no other connector has. slices:
    the classes of its slices. read: the rows of a slice, as `registry.read_slice`. options: all that statements may
    set. begun: the options that CREATE keeps, where reading begins for instance; errors if the system can't be reached.
    columns: those that the system knows, where statements needn't declare them. expect: begins to fetch slices (with
    their spec) that are read next.
    """

    open: Callable[[Relation], Source]
    spec: type[SourceSpec]
    slices: tuple[type[SourceSlice], ...]
    read: Callable[[Any, Any, Sequence[Field], DeadLetterSink], SourceRows]
    options: OptionSet
    begun: Callable[[Relation], Mapping[str, str]] = attrgetter("connector")
    columns: Callable[[Mapping[str, str]], Schema] | None = None
    expect: Callable[[Sequence[Any], Any], None] | None = None


#: No limit, in statements.
DEFAULT: Final = "default"


def rate_limit(options: Mapping[str, str], name: str = RATE_LIMIT) -> int | None:
    """The rows a second that the option `name` allows; None for any number. CONNECTOR_OPTION."""
    value = options.get(name, DEFAULT)
    if value.lower() == DEFAULT:
        return None
    if not value.isascii() or not value.isdecimal():
        refuse(
            f'option {name} can\'t be "{value}"',
            hint="It is a number of rows a second, 0 to pause, or DEFAULT for no limit.",
        )
    return int(value)


class Allowance:
    """The number of rows that may pass now, under a limit of rows per second. A burst has at most one second's rows.

    Callers may take more rows than allowed: the excess is subtracted from later allowances.
    """

    def __init__(self, rows_per_second: int) -> None:
        """rows_per_second: above 0."""
        self._rate = rows_per_second
        self._allowed = float(rows_per_second)
        self._at_us: int | None = None

    def at(self, now_us: int) -> int:
        """How many are allowed now. Times never fall, except that such a one counts as none passed."""
        since_us = 0 if self._at_us is None else max(0, now_us - self._at_us)
        self._at_us = now_us
        self._allowed = min(self._rate, self._allowed + self._rate * since_us / SECOND_US)
        return max(0, int(self._allowed))

    def take(self, rows: int) -> None:
        """Counts rows that have passed."""
        self._allowed -= rows

    @property
    def wait_us(self) -> int:
        """The time from `at` until a row is allowed; 0 if one is allowed now."""
        return 0 if self._allowed >= 1 else int((1 - self._allowed) * SECOND_US / self._rate) + 1


class LimitedSource:
    """Another source, slower. `poll` counts rows as slices estimate them; reading history does not count.

    A slice may have more rows than are allowed now: it is given, and the next poll gives nothing for so much longer.
    """

    def __init__(self, source: Source, rows_per_second: int) -> None:
        self.relation_id = source.relation_id
        self._source = source
        self._rate = rows_per_second
        self._allowance = Allowance(rows_per_second)

    def spec(self) -> SourceSpec:
        return self._source.spec()

    def poll(self, position: Any, budget_rows: int, budget_bytes: int, now_us: int, *, fresh: bool = False) -> Poll:
        if not self._rate:
            return Poll((), position)
        allowed = self._allowance.at(now_us)
        if not allowed:
            return Poll((), position, next_us=now_us + self._allowance.wait_us)
        found = self._source.poll(position, min(budget_rows, allowed), budget_bytes, now_us, fresh=fresh)
        self._allowance.take(found.rows)
        if not found.more or not self._allowance.wait_us:
            return found
        return Poll(
            found.slices,
            found.position,
            pending=found.pending,
            next_us=now_us + self._allowance.wait_us,
            finished=found.finished,
        )

    def listen(self, notification: Notification) -> None:
        self._source.listen(notification)

    def accept(self, slices: Iterable[SourceSlice]) -> None:
        self._source.accept(slices)

    def history(self, cursor: Any, budget_rows: int, budget_bytes: int) -> History:
        return self._source.history(cursor, budget_rows, budget_bytes)

    def save(self, path: Path) -> None:
        self._source.save(path)

    def load(self, path: Path) -> None:
        self._source.load(path)

    def status(self) -> dict[str, Any]:
        state = {} if self._rate else {"state": "paused"}
        return {**self._source.status(), **state, RATE_LIMIT: str(self._rate)}


Operator = Literal["=", "<>", "<", "<=", ">", ">=", "IN", "IS NULL", "IS NOT NULL"]
Constant = int | Decimal | str | dt.date | dt.datetime


@dataclass(frozen=True)
class Condition:
    """A comparison of a column with `values`: one, any number for IN, none for IS [NOT] NULL.

    Values are of the type of the column: whole or decimal numbers, texts, dates, or times without a zone.
    """

    column: Field
    operator: Operator
    values: tuple[Constant, ...] = ()


@dataclass(frozen=True)
class Pushdown:
    """A relation outside that a query names once. columns: those that it needs, at least one. Rows that do not meet all
    `conditions` change nothing for it.
    """

    relation_id: str
    columns: Schema
    conditions: tuple[Condition, ...]


class Reader(abc.ABC):
    """The content of one external table.

    takes_pushdown: whether it spares work to read few columns, or rows under conditions.
    """

    takes_pushdown: ClassVar[bool] = False

    @abc.abstractmethod
    def columns(self) -> Schema | None:
        """Its columns; None if they have to be declared."""

    @abc.abstractmethod
    def version(self) -> Any:
        """Something that is equal as long as the content surely is the same. Cheap."""

    @abc.abstractmethod
    def read(self, columns: Schema, conditions: Sequence[Condition] = ()) -> pa.Table:
        """All rows, with `columns` by name in their Arrow types. Rows that do not meet all conditions may be left out.

        Raises an error for wrong content.
        """

    def statement(self, columns: Schema, conditions: Sequence[Condition]) -> str:
        """The statement that `read` sends to the system, for EXPLAIN. Of readers with `takes_pushdown`."""
        raise NotImplementedError

    def written(self) -> dict[str, str]:
        """The options of the connector of sinks that writes there; empty where nothing is written."""
        return {}

    def written_format(self) -> MessageFormat | None:
        """The encoding of written rows; None if the columns determine it."""
        return None


class TableConnector(NamedTuple):
    """The reader of the content of an external table or dictionary. options: those that users write, if any."""

    open: Callable[[External], Reader]
    options: OptionSet | None = None
